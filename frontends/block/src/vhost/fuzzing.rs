//! Devices without a VMM's process and without threads of their own, for the fuzzers in `fuzz/`.
//! Not a part of the crate's interface.

use super::chain::SERIAL_BYTES;
use super::disk::{Disk, VhostSettings};
use super::inflight::Inflight;
use super::layout::Layout;
use super::memory::{Memory, Place};
use super::orders::Orders;
use super::ring::Start;
use super::ring::alone::Alone;
use super::unflushed::Unflushed;
use crate::connection::Connection;
use crate::export::{Export, Exports, Served};
use crate::journal::Journal;
use crate::socket::Socket;
use octavo::disk::Store;
use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig, Queue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vm_memory::GuestAddress;

/// A disk in memory, and a cache for it.
struct Base {
    cache: Cache,
    object: Object,
    served: Arc<Served>,
}

impl Base {
    fn new(len_bytes: u64) -> Base {
        let config = CacheConfig { memory_max_bytes: 16 << 20, ..CacheConfig::default() };
        let cache = Cache::new(config).expect("the configuration is valid");
        // Most writes end in the cache, without another thread.
        let config = PartitionConfig { cache_mode: CacheMode::Writeback, ..PartitionConfig::new("fuzz") };
        let partition = cache.partition(config).expect("there is room for it");
        let object = partition.open(Store::memory("disk", len_bytes), "disk").expect("it opens");
        let exports = Exports::default();
        let (name, description) = ("disk".to_owned(), String::new());
        let export = Export { name, description, object: object.clone(), read_only: false, is_listed: true };
        exports.add(export).expect("the name is valid");
        let served = exports.all().pop().expect("there is one");
        Base { cache, object, served }
    }
}

fn connection(stream: UnixStream) -> Arc<Connection> {
    Arc::new(Connection::new(Socket::from(stream), "fuzzer".into()))
}

/// A guest with memory, whose rings are driven by hand.
pub struct Guest {
    base: Base,
    memory: Arc<Memory>,
    file: File,
    record: (Inflight, File),
    kick: File,
    connection: Arc<Connection>,
    /// Kept for the next ring.
    queue: Option<Queue>,
}

/// How a ring begins. Addresses are the guest's.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The entries of the ring.
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// The index of the first request that is taken.
    pub next: u16,
    /// Signals are asked for by index.
    pub has_event_index: bool,
    /// Writes are durable when they complete.
    pub is_durable: bool,
    /// Requests in flight are recorded, and repeated.
    pub has_record: bool,
}

impl Guest {
    /// Makes a guest with regions of memory (address and length), which lie one after the other in
    /// a file, and a disk. Rings have at most `ring_max` entries.
    ///
    /// # Panics
    /// If the regions are no memory.
    pub fn new(regions: &[(u64, u64)], disk_bytes: u64, ring_max: u16) -> Guest {
        let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("there is memory"));
        let len: u64 = regions.iter().map(|(_, len)| len).sum();
        file.set_len(len).expect("there is memory");
        let (mut memory, mut file_offset) = (Memory::default(), 0);
        for (guest_address, len_bytes) in regions.iter().copied() {
            let place = Place { guest_address, len_bytes, vmm_address: guest_address, file_offset };
            let copy = file.try_clone().expect("there are descriptors");
            memory = memory.with(place, copy).expect("the region is valid");
            file_offset += len_bytes;
        }
        let (inflight, record, _) = Inflight::create(1, ring_max).expect("there is memory");
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("there are descriptors");
        let (stream, _) = UnixStream::pair().expect("there are descriptors");
        Guest {
            base: Base::new(disk_bytes),
            memory: Arc::new(memory),
            file,
            record: (inflight, record),
            kick: File::from(kick),
            connection: connection(stream),
            queue: None,
        }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &File {
        &self.file
    }

    /// The record of requests in flight.
    pub fn record(&self) -> &File {
        &self.record.1
    }

    /// The disk.
    pub fn object(&self) -> &Object {
        &self.base.object
    }

    /// Begins a ring. `None` if the ring does not lie in the memory.
    ///
    /// # Panics
    /// If the process has no descriptors left.
    pub fn ring(&mut self, setup: &Setup) -> Option<Ring<'_>> {
        let layout = Layout {
            size: setup.size,
            descriptors: GuestAddress(setup.descriptors),
            available: GuestAddress(setup.available),
            used: GuestAddress(setup.used),
            next: setup.next,
            has_event_index: setup.has_event_index,
        };
        let queue = self.queue.take();
        let queue = queue.unwrap_or_else(|| self.base.cache.queue().expect("there is room for one"));
        let is_durable = Arc::new(AtomicBool::new(setup.is_durable));
        let orders = Orders::new(self.memory.clone(), None, is_durable).expect("there are descriptors");
        let tracker = setup.has_record.then(|| self.record.0.tracker(0, setup.size)).flatten();
        let start = Start {
            name: String::new(),
            queue,
            layout,
            kick: self.kick.try_clone().expect("there are descriptors"),
            orders: Arc::new(orders),
            tracker,
            unflushed: Arc::new(Unflushed::new(None)),
            visit: self.base.served.visit(&self.connection).expect("the export stays"),
            serial: [b's'; SERIAL_BYTES],
            poll: Duration::ZERO,
            err: None,
            journal: Journal::default(),
        };
        let (alone, resumed) = Alone::new(start).ok()?;
        Some(Ring { queue: &mut self.queue, alone: Some(alone), resumed: resumed.map_err(|why| why.0) })
    }
}

/// A ring of a [`Guest`].
pub struct Ring<'a> {
    queue: &'a mut Option<Queue>,
    alone: Option<Alone>,
    /// Whether what a record said was repeated, or why the ring is broken.
    pub resumed: Result<(), &'static str>,
}

impl Ring<'_> {
    /// Serves the available requests of the guest until all have completed.
    ///
    /// # Errors
    /// Why the ring is broken.
    ///
    /// # Panics
    /// Never: the ring is there until this is dropped.
    pub fn serve(&mut self) -> Result<(), &'static str> {
        self.alone.as_mut().expect("the ring is there").serve().map_err(|why| why.0)
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        *self.queue = self.alone.take().map(Alone::into_queue);
    }
}

/// A disk whose VMM is a socket.
pub struct Socketed {
    disk: Arc<Disk>,
}

impl Socketed {
    /// Makes a disk with two rings.
    pub fn new(disk_bytes: u64) -> Socketed {
        let Base { cache, served, .. } = Base::new(disk_bytes);
        let settings = VhostSettings { queues: 2, is_writeback: true, ..VhostSettings::default() };
        Socketed { disk: Arc::new(Disk::new(cache, served, settings)) }
    }

    /// Serves a VMM until its socket ends. Returns why the connection ended.
    pub fn serve(&self, stream: UnixStream) -> String {
        super::serve(&self.disk, &connection(stream), &Journal::default()).to_string()
    }
}
