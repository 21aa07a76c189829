//! Exports that are attached by vhost-user, as their VMM sees them. The protocol has tests of its
//! own (`octavo-block`); these are about the configuration.

use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};

use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, octavo_succeeds, wait_until};

/// A VMM with one request in flight.
pub struct Vmm {
    queue: Blkioq,
    memory: MemoryRegion,
    _blkio: Blkio,
}

impl Vmm {
    pub fn connect(socket: &Path) -> Vmm {
        Vmm::connect_as(socket, false)
    }

    /// Connects to a disk that is read-only, or not.
    pub fn connect_as(socket: &Path, read_only: bool) -> Vmm {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", socket.to_str().unwrap()).unwrap();
        blkio.set_bool("read-only", read_only).unwrap();
        blkio.connect().unwrap();
        let mut started = blkio.start().unwrap();
        let memory = blkio.alloc_mem_region(1 << 20).unwrap();
        blkio.map_mem_region(&memory).unwrap();
        Vmm { queue: started.queues.remove(0), memory, _blkio: blkio }
    }

    pub fn read(&mut self, offset: u64, len: usize) {
        let to = std::ptr::without_provenance_mut(self.memory.addr);
        self.queue.read(offset, to, len, 1, ReqFlags::empty());
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; 1];
        let mut time = Duration::from_secs(20);
        assert_eq!(self.queue.do_io(&mut done, 1, Some(&mut time), None).unwrap(), 1);
    }
}

/// The section of an export `vm` that only a VMM can attach.
pub fn section(disk: &Path, socket: &Path) -> String {
    format!(
        "[[export]]\nname = \"vm\"\npath = \"{}\"\npartition = \"p\"\nattach = \"vhost-user:{}\"",
        disk.display(),
        socket.display()
    )
}

#[test]
fn an_export_that_is_only_attached_by_vhost_user_is_served_to_its_vmm_until_it_is_removed() {
    let directory = Directory::new();
    let (disk, socket) = (directory.disk("vm", 1 << 20), directory.join("run").join("vm.sock"));
    let listen = section(&disk, &socket);
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let by_nbd = std::panic::catch_unwind(|| Client::connect(&server.nbd, "vm"));
    assert!(by_nbd.is_err(), "an NBD client is not refused");

    let mut vmm = Vmm::connect(&socket);
    vmm.read(0, 8192);
    let stat = server.stat();
    let objects = stat["partitions"][0]["objects"].as_array().unwrap();
    let export = objects.iter().find(|object| object["name"] == "vm").unwrap();
    assert_eq!((&export["connections"], &export["read_bytes"]), (&1.into(), &8192.into()), "{export}");

    let said = server.ctl_fail(1, &["export", "remove", "vm"]);
    assert!(said.contains("in use by export \"vm\""), "{said}");
    drop(vmm);
    wait_until(
        || "the VMM's connection stays".into(),
        || server.ctl(&["export", "remove", "vm"]).status.success(),
    );
    assert!(!socket.exists(), "the socket of a removed export stays");
}

/// The check opened the sockets of vhost-user disks, and failed while a server had them.
#[test]
fn a_configuration_is_checked_while_a_server_serves_it() {
    let directory = Directory::new();
    let (disk, socket) = (directory.disk("vm", 1 << 20), directory.join("vm.sock"));
    let listen = section(&disk, &socket);
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let config = directory.join("octavo.toml");
    let check = || octavo_succeeds(&["serve", "--check", "--config", config.to_str().unwrap()]);
    assert!(check().ends_with(": no problems\n"));
    Vmm::connect(&socket).read(0, 4096);
    server.stop();
    check();
    assert!(!socket.exists(), "a check has made the socket");
}

/// Once, every socket had mode 0600: a VMM of another user could not open it.
#[test]
fn sockets_of_clients_have_the_configured_mode_and_the_control_socket_stays_private() {
    let directory = Directory::new();
    let (disk, socket) = (directory.disk("vm", 1 << 20), directory.join("run").join("vm.sock"));
    let group = std::fs::metadata("/proc/self").unwrap().gid();
    let listen = format!(
        "socket_mode = \"0660\"\nsocket_group = \"{group}\"\n[[export]]\nname = \"vm\"\npath = \"{}\"\n\
         partition = \"p\"\nattach = [\"nbd\", \"vhost-user:{}\"]",
        disk.display(),
        socket.display()
    );
    let server = Server::start(&directory, &Setup { listen: &listen, ..Setup::default() });
    let modes = [&server.nbd, &socket, &directory.join("run"), &server.control].map(|path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.mode() & 0o777, metadata.gid())
    });
    assert_eq!(modes, [0o660, 0o660, 0o710, 0o600].map(|mode| (mode, group)));
}
