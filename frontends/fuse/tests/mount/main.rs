//! Real mounts: a directory behind the kernel's FUSE, used by ordinary calls.

mod calls;
mod contents;
mod names;
mod programs;
mod rig;
