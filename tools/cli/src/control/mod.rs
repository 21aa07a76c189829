//! The running server, seen from outside: the control protocol and its verbs, the control file
//! system, metrics and health over HTTP, recordings and the drain.
//!
//! Imports point down this list only:
//!
//! | floor | files |
//! |---|---|
//! | entry points | `server` (control socket), `mount` (FUSE), `http` with `metrics` and `health` |
//! | what they do | `verbs`, `sizes`, `recorders`, `tree` |
//! | words and figures | `protocol`, `report`, `latency`, `events`, `groups`, `keys`, `numa`, |
//! | | `host` |
//! | work on the cache | `drain`, `stop` (signals), `guarding` |
//!
//! Not here: the configuration (`config`) and the clients of the control socket (`ctl`).

pub mod drain;
pub mod events;
pub mod groups;
pub mod guarding;
pub mod health;
pub mod host;
pub mod http;
pub mod keys;
pub mod latency;
pub mod metrics;
pub mod mount;
pub mod numa;
pub mod protocol;
pub mod recorders;
pub mod report;
pub mod server;
pub mod sizes;
pub mod stop;
pub mod tree;
pub mod verbs;
