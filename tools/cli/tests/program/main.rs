//! The program as its users see it: a process with sockets and signals.
//!
//! Each test has a directory of its own under the build directory. Tests that need other programs
//! (qemu-img, fio, ..) print `SKIP` and the reason if one is missing; with
//! `OCTAVO_REQUIRE_CLIENTS=1`, which `make test` sets, they fail instead.

#![forbid(unsafe_code)]

mod bench;
mod changed;
mod check;
mod clients;
mod completions;
mod config_errors;
mod control;
mod control_client;
mod control_fs;
mod day;
mod default_server;
mod events;
mod exports;
mod figures;
mod hanging;
mod idle;
mod kill;
mod logging;
mod metrics;
mod mount;
mod mount_page;
mod mount_sections;
mod nbd_client;
mod nodes;
mod observed;
mod packaging;
mod plan;
mod pressure;
mod random;
mod real_clients;
mod recording;
mod reload;
mod replayed;
mod resident;
mod resize;
mod s3;
mod server;
mod share;
mod signals;
mod simulate;
mod standard_output;
mod supervised;
mod system_calls;
mod tls;
mod trace;
mod upgrade;
mod vhost;
mod vm_page;
mod web;
