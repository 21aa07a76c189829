//! The engine as its users see it.

mod basics;
mod random;
mod regressions;
mod threads;
mod twin;
mod watchdog;
