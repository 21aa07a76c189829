//! Real mounts: a directory behind the kernel's FUSE, used by ordinary calls.

mod attributes;
mod below;
mod calls;
mod contents;
mod crowded;
mod full;
mod hung;
mod killed;
mod leases;
mod mapping;
mod names;
mod programs;
mod rig;
mod server;
mod twin;
mod writers;
