//! The page's server against a control server of the tests, which says what each test needs.

#![forbid(unsafe_code)]

mod clients;
mod control;
mod figures;
mod guarded;
mod recorded;
mod site;
mod verbs;
