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
    Arc::new(Connection::new(Socket::from(stream), "fuzzer".into(), false))
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
        let (inflight, record, _) = Inflight::create(1, ring_max, ring_max).expect("there is memory");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Enough for a batch of three descriptors each.
    const SIZE: u16 = 256;
    const BATCH: u16 = 60;
    const AVAILABLE: u64 = 0x4000;
    const USED: u64 = 0x5000;
    const HEADERS: u64 = 0x1_0000;
    const OLD: u64 = 1 << 20;
    /// Where the new memory lies: for the guest, and in the file.
    const NEW: (u64, u64) = (4 << 20, OLD);
    const PAGE: u64 = 4096;

    struct Driver {
        file: File,
        available: u16,
    }

    impl Driver {
        fn put(&self, at: u64, bytes: &[u8]) {
            self.file.write_all_at(bytes, at).unwrap();
        }

        fn used(&self) -> u16 {
            let mut bytes = [0; 2];
            self.file.read_exact_at(&mut bytes, USED + 2).unwrap();
            u16::from_le_bytes(bytes)
        }

        /// Describes a read of the first page to this address.
        fn describe(&self, request: u16, to: u64) {
            let (head, header) = (3 * request, HEADERS + 64 * u64::from(request));
            // The type and the sector are 0.
            self.put(header, &[0; 16]);
            let pieces = [(header, 16, 1), (to, PAGE as u32, 1 | 2), (header + 16, 1, 2)];
            for (number, (at, len, flags)) in (head..).zip(pieces) {
                let descriptor = u128::from(at)
                    | u128::from(len) << 64
                    | u128::from(flags as u16) << 96
                    | u128::from(number + 1) << 112;
                self.put(16 * u64::from(number), &descriptor.to_le_bytes());
            }
        }

        fn offer(&mut self, requests: std::ops::Range<u16>) {
            for request in requests {
                let place = AVAILABLE + 4 + 2 * u64::from(self.available % SIZE);
                self.put(place, &(3 * request).to_le_bytes());
                self.available = self.available.wrapping_add(1);
            }
            self.put(AVAILABLE + 2, &self.available.to_le_bytes());
        }
    }

    /// A disk once broke because its ring looked for new memory only before it looked for requests:
    /// a VMM added memory in between, and the guest used it.
    #[test]
    fn memory_may_be_added_and_used_while_a_ring_takes_requests() {
        let mut guest = Guest::new(&[(0, OLD)], 1 << 20, SIZE);
        guest.object().read_at(0, &mut [0; PAGE as usize]).unwrap();
        guest.file.set_len(OLD + PAGE).unwrap();
        let place = Place { guest_address: NEW.0, len_bytes: PAGE, vmm_address: NEW.0, file_offset: NEW.1 };
        let old = guest.memory.clone();
        let both = Arc::new(old.with(place, guest.file.try_clone().unwrap()).unwrap());
        let mut driver = Driver { file: guest.file.try_clone().unwrap(), available: 0 };
        (0..BATCH).for_each(|request| driver.describe(request, 0x8_0000));
        driver.describe(BATCH, NEW.0);
        let setup = Setup {
            size: SIZE,
            descriptors: 0,
            available: AVAILABLE,
            used: USED,
            next: 0,
            has_event_index: false,
            is_durable: true,
            has_record: false,
        };
        let mut ring = guest.ring(&setup).unwrap();
        let orders = ring.alone.as_ref().unwrap().orders();
        for round in 0..300 {
            orders.set_memory(old.clone());
            let before = driver.used();
            driver.offer(0..BATCH);
            std::thread::scope(|scope| {
                let meanwhile = scope.spawn(|| {
                    while driver.used() == before {
                        std::hint::spin_loop();
                    }
                    orders.set_memory(both.clone());
                    driver.offer(BATCH..BATCH + 1);
                });
                assert_eq!(ring.serve(), Ok(()), "round {round}");
                meanwhile.join().unwrap();
            });
            assert_eq!(ring.serve(), Ok(()), "round {round}");
            assert_eq!(driver.used(), driver.available, "round {round}");
        }
    }
}
