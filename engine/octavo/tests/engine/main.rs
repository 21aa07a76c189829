//! The engine as its users see it.

mod basics;
mod random;
mod regressions;
mod twin;
mod watchdog;
