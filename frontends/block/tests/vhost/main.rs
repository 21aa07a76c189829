//! The vhost-user device as a virtual machine monitor sees it.

mod beside_qemu;
mod driver;
mod hostile;
mod inputs;
mod journal;
mod kill;
mod random;
mod requests;
mod resize;
mod resume;
mod vmm;
