//! The NBD server as its clients see it.

mod client;
mod crash;
mod exports;
mod handshake;
mod memory;
mod mutation;
mod random;
mod rig;
mod server;
mod tools;
mod transmission;
