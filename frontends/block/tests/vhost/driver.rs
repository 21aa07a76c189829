//! A server with one attached export, and a driver: libblkio, which is a VMM and a guest in one.

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use octavo::{Cache, CacheConfig, CacheMode, Object, PartitionConfig, disk::Store};
use octavo_block::{Export, Limits, Server, VhostSettings};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::time::Duration;

/// How long a test waits for a request before it fails, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rig {
    pub server: Server,
    pub object: Object,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Rig {
    /// A disk of this length in memory.
    pub fn new(len_bytes: u64, settings: VhostSettings) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() }).unwrap();
        let cache_mode = if settings.is_writeback { CacheMode::Writeback } else { CacheMode::Writethrough };
        let partition =
            cache.partition(PartitionConfig { cache_mode, ..PartitionConfig::new("vm") }).unwrap();
        let object = partition.open(Store::memory("disk", len_bytes), "disk").unwrap();
        let export = Export {
            name: "disk".into(),
            description: String::new(),
            object: object.clone(),
            read_only: false,
            is_listed: true,
        };
        let server = Server::start(cache, vec![export], &[], Limits::default()).unwrap();
        let socket = directory.path().join("vm.sock");
        server.attach("disk", &socket, settings).unwrap();
        Rig { server, object, socket, _directory: directory }
    }

    pub fn driver(&self, queues: i32) -> Driver {
        Driver::connect(&self.socket, queues)
    }
}

/// A started driver with memory for requests.
pub struct Driver {
    pub queues: Vec<Blkioq>,
    memory: MemoryRegion,
    _blkio: Blkio,
}

impl Driver {
    pub fn connect(socket: &std::path::Path, queues: i32) -> Driver {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", socket.to_str().unwrap()).unwrap();
        blkio.connect().unwrap();
        blkio.set_i32("num-queues", queues).unwrap();
        let started = blkio.start().unwrap();
        let memory = blkio.alloc_mem_region(8 << 20).unwrap();
        blkio.map_mem_region(&memory).unwrap();
        Driver { queues: started.queues, memory, _blkio: blkio }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.memory.len);
        std::ptr::without_provenance_mut::<u8>(self.memory.addr).wrapping_add(offset)
    }

    /// Waits for one completion, and returns its number and result.
    pub fn wait(&mut self, queue: usize) -> (usize, i32) {
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; 1];
        let mut time = PATIENCE;
        let count = self.queues[queue].do_io(&mut done, 1, Some(&mut time), None).unwrap();
        assert_eq!(count, 1, "no request has ended");
        // SAFETY: `do_io` has written it.
        let done = unsafe { done[0].assume_init_ref() };
        (done.user_data, done.ret)
    }

    /// Sends the requests that wait in a queue.
    pub fn send(&mut self, queue: usize) {
        self.queues[queue].do_io(&mut [], 0, None, None).unwrap();
    }

    /// Copies bytes out of the memory. No request may be using them.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        // SAFETY: the caller's promise, and the memory is mapped.
        unsafe { std::slice::from_raw_parts(self.at(offset), len) }.to_vec()
    }

    /// Copies bytes into the memory. No request may be using it.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller's promise, and the memory is mapped.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let to = self.at(0);
        self.queues[0].read(offset, to, len, 1, ReqFlags::empty());
        assert_eq!(self.wait(0), (1, 0));
        // SAFETY: the request has ended, so the device does not use the memory.
        unsafe { std::slice::from_raw_parts(to, len) }.to_vec()
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let from = self.at(0);
        // SAFETY: no request is in flight, so the device does not use the memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), from, bytes.len()) };
        self.queues[0].write(offset, from, bytes.len(), 2, ReqFlags::empty());
        assert_eq!(self.wait(0), (2, 0));
    }
}
