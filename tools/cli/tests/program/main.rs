//! The program as its users see it: started as a process, asked over its sockets, ended by signals.
//!
//! Everything lives in a directory of its own under the build directory. Tests that need programs
//! of other people (qemu-img, fio, ..) say `SKIP` and why where they are missing; with
//! `OCTAVO_REQUIRE_CLIENTS=1`, as `make test` sets it, they fail instead.

#![forbid(unsafe_code)]

mod bench;
mod changed;
mod check;
mod clients;
mod config_errors;
mod control;
mod control_fs;
mod default_server;
mod hanging;
mod idle;
mod kill;
mod logging;
mod metrics;
mod nbd_client;
mod nodes;
mod plan;
mod pressure;
mod random;
mod real_clients;
mod recording;
mod replayed;
mod resident;
mod server;
mod signals;
mod simulate;
mod system_calls;
mod trace;
