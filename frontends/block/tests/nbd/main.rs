//! The NBD server as its clients see it.

mod carried;
mod certificates;
mod client;
mod crash;
mod exports;
mod handshake;
mod memory;
mod mutation;
mod random;
mod rig;
mod server;
mod status;
mod succession;
mod tls;
mod tools;
mod transmission;
