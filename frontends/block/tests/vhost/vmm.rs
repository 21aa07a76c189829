//! A VMM and a guest whose every byte a test chooses: broken rings, lost connections, memory that
//! shrinks.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

/// The guest's memory begins at this address of the guest.
pub const BASE: u64 = 0x10_0000;
pub const MEMORY: usize = 4 << 20;
/// Entries of the ring.
pub const SIZE: u16 = 64;

/// Where the parts of the ring lie in the guest's memory.
const TABLE: usize = 0;
const AVAILABLE: usize = 0x1_0000;
const USED: usize = 0x2_0000;
/// Where tests put their bytes.
pub const FREE: usize = 0x4_0000;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// How long a test waits for an event before it fails, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A descriptor. Its address is relative to the guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub at: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.at.wrapping_add(BASE).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// The bytes of a request's header.
pub fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// What outlives a connection: the guest.
pub struct Guest {
    pub file: File,
    map: MmapRegion,
    /// Requests in flight, as the VMM keeps them.
    pub inflight: Option<(VhostUserInflight, File)>,
    kick: EventFd,
    call: EventFd,
    err: EventFd,
}

impl Guest {
    pub fn new() -> Guest {
        let memfd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(memfd);
        file.set_len(MEMORY as u64).unwrap();
        let map = MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), MEMORY).unwrap();
        let event = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
        Guest { file, map, inflight: None, kick: event(), call: event(), err: event() }
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.map.get_slice(at, bytes.len()).unwrap().copy_from(bytes);
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.get_slice(at, len).unwrap().copy_to(&mut bytes[..]);
        bytes
    }

    fn load(&self, at: usize) -> u16 {
        self.map.get_slice(at, 2).unwrap().load(0, SeqCst).unwrap()
    }

    /// Puts a descriptor into the table.
    pub fn describe(&self, number: u16, descriptor: Descriptor) {
        self.put(TABLE + 16 * usize::from(number), &descriptor.bytes());
    }

    /// Puts a request with one piece of data into descriptors `head` to `head + 2`.
    pub fn request(&self, head: u16, kind: u32, sector: u64, data: Descriptor) {
        let place = FREE + 64 * usize::from(head);
        self.put(place, &header(kind, sector));
        self.put(place + 16, &[0xEE]);
        self.describe(head, Descriptor { at: place as u64, len: 16, flags: NEXT, next: head + 1 });
        self.describe(head + 1, Descriptor { flags: data.flags | NEXT, next: head + 2, ..data });
        self.describe(head + 2, Descriptor { at: place as u64 + 16, len: 1, flags: WRITE, next: 0 });
    }

    /// The status of a request of `request`.
    pub fn status(&self, head: u16) -> u8 {
        self.get(FREE + 64 * usize::from(head) + 16, 1)[0]
    }

    /// Makes chains available.
    pub fn offer(&self, heads: &[u16]) {
        let mut index = self.load(AVAILABLE + 2);
        for head in heads {
            self.put(AVAILABLE + 4 + 2 * usize::from(index % SIZE), &head.to_le_bytes());
            index = index.wrapping_add(1);
        }
        self.set_available(index);
    }

    /// Sets the index of the available ring, right or wrong.
    pub fn set_available(&self, index: u16) {
        self.map.get_slice(AVAILABLE, 4).unwrap().store(index, 2, SeqCst).unwrap();
        self.kick.write(1).unwrap();
    }

    pub fn used(&self) -> u16 {
        self.load(USED + 2)
    }

    pub fn set_used(&self, index: u16) {
        self.map.get_slice(USED, 4).unwrap().store(index, 2, SeqCst).unwrap();
    }

    /// The head of the request that has this index in the used ring.
    pub fn used_head(&self, index: u16) -> u16 {
        self.load(USED + 4 + 8 * usize::from(index % SIZE))
    }

    /// Waits until the used ring has this index.
    pub fn wait_for(&self, used: u16) {
        let start = Instant::now();
        while self.used() != used {
            assert!(start.elapsed() < PATIENCE, "the used ring is at {}, not at {used}", self.used());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the device has signalled the guest.
    pub fn wait_for_signal(&self) {
        let start = Instant::now();
        while self.call.read().is_err() {
            assert!(start.elapsed() < PATIENCE, "the device has not signalled the guest");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the device says that it is broken.
    pub fn wait_until_broken(&self) {
        let start = Instant::now();
        while self.err.read().is_err() {
            assert!(start.elapsed() < PATIENCE, "the device does not say that it is broken");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connects to a server, and starts ring 0 from the used index, as QEMU does.
    pub fn connect(&mut self, socket: &Path) -> Vmm {
        let mut vmm = Vmm::connect(socket);
        vmm.negotiate();
        self.track(&mut vmm);
        self.start(&mut vmm);
        vmm
    }

    /// Gives the device the record of requests in flight, or asks for one.
    pub fn track(&mut self, vmm: &mut Vmm) {
        if self.inflight.is_none() {
            let asked = VhostUserInflight::new(0, 0, 1, SIZE);
            self.inflight = Some(vmm.frontend.get_inflight_fd(&asked).unwrap());
        }
        let (inflight, file) = self.inflight.as_ref().unwrap();
        vmm.frontend.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
    }

    pub fn start(&self, vmm: &mut Vmm) {
        let address = self.map.as_ptr() as u64;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY as u64,
            userspace_addr: address,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        let frontend = &mut vmm.frontend;
        frontend.set_mem_table(&[region]).unwrap();
        frontend.set_vring_num(0, SIZE).unwrap();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: address + TABLE as u64,
            used_ring_addr: address + USED as u64,
            avail_ring_addr: address + AVAILABLE as u64,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &config).unwrap();
        frontend.set_vring_base(0, self.used()).unwrap();
        frontend.set_vring_call(0, &self.call).unwrap();
        frontend.set_vring_err(0, &self.err).unwrap();
        frontend.set_vring_kick(0, &self.kick).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
    }
}

/// A connection to the server. Dropping it is what the server sees of a VMM that is killed.
pub struct Vmm {
    pub frontend: Frontend,
}

impl Vmm {
    pub fn connect(socket: &Path) -> Vmm {
        Vmm { frontend: Frontend::connect(socket, 1).unwrap() }
    }

    /// Stops the ring and leaves, so that the server takes no more requests when this returns.
    pub fn leave(self) {
        self.frontend.get_vring_base(0).unwrap();
    }

    pub fn negotiate(&mut self) {
        let frontend = &mut self.frontend;
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        // Without event indices, so that a test sees each step.
        let event_index = 1 << 29;
        let _ = frontend.get_protocol_features().unwrap();
        let protocol = VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        frontend.set_features(features & !event_index).unwrap();
    }
}
