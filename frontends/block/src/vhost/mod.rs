//! The vhost-user protocol for block devices: [`serve`] runs one guest's disk, from the connection
//! of its VMM to its end.
//!
//! A VMM (QEMU, cloud-hypervisor) shares its guest's memory and hands over the rings in which the
//! guest asks. A request that hits is one copy between a page of the cache and the guest's memory.
//! The references are the vhost-user document of QEMU (docs/interop/vhost-user.rst) and VIRTIO 1.2.
//!
//! Each line imports only from the lines below it:
//!
//! | file | idea |
//! |---|---|
//! | `mod` | one connection of a VMM |
//! | `fuzzing` | devices that a fuzzer drives by hand |
//! | `device` | the VMM's messages configure rings, memory and features |
//! | `worker` | the thread of a ring |
//! | `ring` | turns requests into operations, and completions into used entries for the guest |
//! | `events` | the descriptors that wake a ring's thread |
//! | `orders` | changes that a device passes to a ring's running thread |
//! | `reads` | reads that a resident page serves at once |
//! | `unflushed` | whether the end of this process would lose completed writes |
//! | `inflight` | requests in flight, in memory that outlives this process (I1 to I4) |
//! | `disk` | the export, its settings, and the VMM that has it |
//! | `chain`, `config` | a chain of descriptors; the device's configuration space |
//! | `channel` | tells the VMM that the length has changed |
//! | `layout` | where a ring lies in the guest's memory |
//! | `memory` | the guest's memory |
//! | `fault` | survives a memory file that shrinks |
//!
//! Not here: listeners and threads of connections (`server.rs`).

mod chain;
mod channel;
mod config;
mod device;
mod disk;
mod events;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod inflight;
mod layout;
mod memory;
mod orders;
mod reads;
mod ring;
mod unflushed;
mod worker;

use crate::connection::{Connection, Hangup};
use crate::journal::Journal;
use device::Device;
use rustix::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::{BackendReqHandler, Error};

pub(crate) use disk::Disk;
pub use disk::VhostSettings;

/// Serves one VMM until the connection ends, and returns the reason.
pub(crate) fn serve(disk: &Arc<Disk>, connection: &Arc<Connection>, journal: &Journal) -> Hangup {
    let Some(_taken) = disk.take(connection) else {
        return Hangup::Vmm("another VMM has the disk".into());
    };
    let stream = match connection.socket.as_fd().try_clone_to_owned() {
        Ok(descriptor) => UnixStream::from(descriptor),
        Err(error) => return Hangup::Socket(error),
    };
    // A VMM may be silent for as long as it likes.
    if let Err(error) = stream.set_read_timeout(None) {
        return Hangup::Socket(error);
    }
    let Some(device) = Device::new(disk.clone(), connection.clone(), journal.clone()) else {
        return Hangup::Vmm("the export is being removed".into());
    };
    let device = Arc::new(Mutex::new(device));
    let mut messages = BackendReqHandler::from_stream(stream, device.clone());
    let end = loop {
        let channel = channel::peek(&connection.socket);
        device.lock().unwrap_or_else(PoisonError::into_inner).expect_channel(channel);
        match messages.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => {}
            Err(_) if connection.stopping() => break Hangup::Shutdown,
            Err(Error::Disconnected | Error::PartialMessage) => break Hangup::Client,
            Err(Error::SocketBroken(error) | Error::SocketError(error)) => break Hangup::from(error),
            Err(error) => break Hangup::Vmm(error.to_string()),
        }
    };
    // Dropping the device waits for the requests in flight and signals the guest, which may run on
    // without its VMM.
    drop((messages, device));
    connection.socket.shutdown(Shutdown::Both);
    end
}
