//! [`Device`]: one guest's disk, as the messages of its VMM configure it.
//!
//! A ring runs while it has its kick and is enabled; then it has a worker (`worker.rs`). Messages
//! that change a running ring stop its worker first, which ends what is in flight. Two do not: the
//! descriptor that signals the guest, and the guest's memory, are replaced while workers run.

use super::chain::SERIAL_BYTES;
use super::channel::Channel;
use super::config::{CONFIG_BYTES, Config, WRITEBACK_AT};
use super::disk::Disk;
use super::inflight::Inflight;
use super::layout::Layout;
use super::memory::{Memory, Place, REGIONS_MAX};
use super::orders::Orders;
use super::ring::Start;
use super::unflushed::Unflushed;
use super::worker::Worker;
use crate::connection::Connection;
use crate::export::Visit;
use crate::journal::Journal;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// One guest's disk.
pub(super) struct Device {
    disk: Arc<Disk>,
    connection: Arc<Connection>,
    /// Held as long as the VMM has the disk, even if no ring runs.
    _visit: Visit,
    journal: Journal,
    features: u64,
    memory: Arc<Memory>,
    rings: Vec<Ring>,
    inflight: Option<Inflight>,
    unflushed: Arc<Unflushed>,
    /// Each write is durable before it ends.
    is_durable: Arc<AtomicBool>,
    /// The guest has switched the cache off.
    is_writethrough: bool,
    /// The channel as the crate has it. A VMM takes the end of its channel for a failure.
    channel: Option<Backend>,
    /// The socket of the channel that the next message hands over.
    expected_channel: Option<OwnedFd>,
    /// The VMM has read the configuration space since it connected. A VMM that reconnects without
    /// reading it may still have the length that an earlier server reported.
    knows_config: bool,
}

#[derive(Default)]
struct Ring {
    size: u16,
    /// Addresses of the VMM.
    descriptors: u64,
    available: u64,
    used: u64,
    next: u16,
    is_enabled: bool,
    kick: Option<File>,
    call: Option<File>,
    err: Option<File>,
    worker: Option<Worker>,
}

impl Device {
    /// Returns `None` if the export is being removed.
    pub fn new(disk: Arc<Disk>, connection: Arc<Connection>, journal: Journal) -> Option<Device> {
        let visit = disk.served.visit(&connection)?;
        let rings = (0..disk.settings.queues).map(|_| Ring::default()).collect();
        Some(Device {
            disk,
            connection,
            _visit: visit,
            journal,
            features: 0,
            memory: Arc::default(),
            rings,
            inflight: None,
            unflushed: Arc::new(Unflushed::new(None)),
            is_durable: Arc::new(AtomicBool::new(true)),
            is_writethrough: false,
            channel: None,
            expected_channel: None,
            knows_config: false,
        })
    }

    /// Stops all rings, when what is in flight has ended. Makes writes durable that are only in the
    /// cache, so that the next server does not take them for lost.
    pub fn stop(&mut self) {
        (0..self.rings.len()).for_each(|index| self.stop_ring(index));
        self.unflushed.settle(|| match self.disk.served.export.object.sync() {
            Ok(()) => true,
            Err(error) => {
                self.journal.warn(format_args!("the next server will take writes for lost: {error}"));
                false
            }
        });
    }

    /// Keeps the socket of a channel until the message has been checked that hands it over.
    pub fn expect_channel(&mut self, socket: Option<OwnedFd>) {
        self.expected_channel = socket;
    }

    fn config(&self) -> Config {
        let (served, settings) = (&self.disk.served, &self.disk.settings);
        Config {
            len_bytes: served.export.object.len_bytes(),
            page_bytes: served.export.object.page_bytes(),
            queues: settings.queues,
            queue_size: settings.queue_size,
            read_only: served.read_only(),
            writeback: !self.is_writethrough,
        }
    }

    fn has(&self, bit: u32) -> bool {
        self.features & 1 << bit != 0
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// A guest that never flushes, or that has switched the cache off, counts on each write.
    fn update_durability(&self) {
        let can_flush = self.has(VIRTIO_BLK_F_FLUSH);
        let is_off = self.has(VIRTIO_BLK_F_CONFIG_WCE) && self.is_writethrough;
        self.is_durable.store(!can_flush || is_off, SeqCst);
    }

    fn stop_ring(&mut self, index: usize) {
        let ring = &mut self.rings[index];
        if let Some(worker) = ring.worker.take() {
            match worker.stop() {
                Some(next) => ring.next = next,
                None => self.journal.warn(format_args!("queue {index}: its thread panicked")),
            }
        }
    }

    /// Starts the worker of a ring that has all that it needs.
    fn start_ring(&mut self, index: usize) -> Result<()> {
        let ring = &self.rings[index];
        let always_enabled = self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        if ring.worker.is_some() || ring.kick.is_none() || !(ring.is_enabled || always_enabled) {
            return Ok(());
        }
        self.try_start(index).map_err(|error| {
            self.journal.warn(format_args!("queue {index} cannot start: {error}"));
            Error::ReqHandlerError(error)
        })?;
        if !self.knows_config {
            self.knows_config = true;
            self.disk.tell();
        }
        Ok(())
    }

    fn try_start(&mut self, index: usize) -> io::Result<()> {
        let other = |what: &str| io::Error::other(what.to_owned());
        let Device { disk, memory, inflight, .. } = &*self;
        let ring = &self.rings[index];
        let place =
            |address| memory.guest_address(address).ok_or_else(|| other("an address is not the guest's"));
        let layout = Layout {
            size: ring.size,
            descriptors: place(ring.descriptors)?,
            available: place(ring.available)?,
            used: place(ring.used)?,
            next: ring.next,
            has_event_index: self.has(VIRTIO_RING_F_EVENT_IDX),
        };
        let tracker = match inflight {
            Some(inflight) => {
                let tracker = inflight.tracker(index, ring.size);
                Some(tracker.ok_or_else(|| other("the record of requests in flight has no room for it"))?)
            }
            None => None,
        };
        let (Some(kick), visit) = (&ring.kick, disk.served.visit(&self.connection)) else {
            return Err(other("there is no kick"));
        };
        let clone = |file: &Option<File>| file.as_ref().map(File::try_clone).transpose();
        let orders = Orders::new(memory.clone(), clone(&ring.call)?, self.is_durable.clone())?;
        let name = &disk.served.export.name;
        let start = Start {
            name: format!("vhost-{index}"),
            queue: disk.cache.queue().map_err(io::Error::other)?,
            layout,
            kick: kick.try_clone()?,
            orders: Arc::new(orders),
            tracker,
            unflushed: self.unflushed.clone(),
            visit: visit.ok_or_else(|| other("the export is being removed"))?,
            serial: serial(disk.settings.serial.as_deref().unwrap_or(name)),
            poll: disk.settings.poll,
            err: clone(&ring.err)?,
            journal: self.journal.of_queue(index),
        };
        self.rings[index].worker = Some(Worker::start(start)?);
        Ok(())
    }

    fn set_memory(&mut self, memory: Memory) {
        self.memory = Arc::new(memory);
        for worker in self.rings.iter().filter_map(|ring| ring.worker.as_ref()) {
            worker.orders().set_memory(self.memory.clone());
        }
    }

    fn invalid(&self, what: fmt::Arguments<'_>) -> Error {
        self.journal.warn(what);
        Error::InvalidParam
    }

    fn refuse<E: fmt::Display>(&self, what: &str) -> impl Fn(E) -> Error {
        let (journal, what) = (self.journal.clone(), what.to_owned());
        move |error| {
            journal.warn(format_args!("{what}: {error}"));
            Error::ReqHandlerError(io::Error::other(error.to_string()))
        }
    }
}

/// Returns the serial number as the guest reads it: cut, or padded with zeros.
fn serial(name: &str) -> [u8; SERIAL_BYTES] {
    let mut serial = [0; SERIAL_BYTES];
    let len = name.len().min(SERIAL_BYTES);
    serial[..len].copy_from_slice(&name.as_bytes()[..len]);
    serial
}

fn place_of(region: &VhostUserMemoryRegion) -> Place {
    Place {
        guest_address: region.guest_phys_addr,
        len_bytes: region.memory_size,
        vmm_address: region.user_addr,
        file_offset: region.mmap_offset,
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.config().features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.update_durability();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(place_of(region), file).map_err(self.refuse("the guest's memory"))?;
        }
        self.set_memory(memory);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let max = self.disk.settings.queue_size;
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= max);
        self.stop_ring_at(index)?;
        self.ring(index)?.size = size.ok_or_else(|| {
            self.invalid(format_args!(
                "a queue of {num} entries: it must be a power of two up to queue_size = {max}"
            ))
        })?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.stop_ring_at(index)?;
        let ring = self.ring(index)?;
        (ring.descriptors, ring.used, ring.available) = (descriptor, used, available);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.stop_ring_at(index)?;
        self.ring(index)?.next = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop_ring_at(index)?;
        let ring = self.ring(index)?;
        // The ring is stopped until it gets another kick.
        (ring.kick, ring.call) = (None, None);
        Ok(VhostUserVringState::new(index, u32::from(ring.next)))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        self.stop_ring_at(u32::from(index))?;
        let Some(kick) = kick else {
            return Err(Error::InvalidOperation("this device does not poll for requests: it needs a kick"));
        };
        self.ring(u32::from(index))?.kick = Some(kick);
        self.start_ring(usize::from(index))
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let ring = self.ring(u32::from(index))?;
        if let Some(call) = &call {
            // The VMM could make a blocking write wait for ever.
            rustix::io::ioctl_fionbio(call, true).map_err(|error| Error::ReqHandlerError(error.into()))?;
        }
        let copy = call.as_ref().map(File::try_clone).transpose().map_err(Error::ReqHandlerError)?;
        ring.call = call;
        if let Some(worker) = &ring.worker {
            worker.orders().set_call(copy);
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, err: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?.err = err;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as Feature;
        Ok(Feature::MQ
            | Feature::CONFIG
            | Feature::REPLY_ACK
            | Feature::CONFIGURE_MEM_SLOTS
            | Feature::INFLIGHT_SHMFD
            | Feature::BACKEND_REQ
            | Feature::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.is_enabled = enable;
        match enable {
            true => self.start_ring(index as usize),
            false => self.stop_ring_at(index),
        }
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.knows_config = true;
        // A VMM may ask for more than this device has; the rest is zeros.
        let mut bytes = self.config().bytes().to_vec();
        let end = (offset as usize).checked_add(size as usize).filter(|end| *end <= 4 * CONFIG_BYTES);
        bytes.resize(CONFIG_BYTES.max(end.ok_or(Error::InvalidParam)?), 0);
        Ok(bytes[offset as usize..][..size as usize].to_vec())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        match (offset as usize, bytes) {
            (WRITEBACK_AT, [writeback @ (0 | 1)]) => {
                self.is_writethrough = *writeback == 0;
                self.update_durability();
                Ok(())
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn set_backend_req_fd(&mut self, channel: Backend) {
        self.disk.set_channel(self.expected_channel.take().map(Channel::new));
        self.channel = Some(channel);
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *asked;
        if usize::from(num_queues) > self.rings.len() || queue_size > self.disk.settings.queue_size {
            return Err(Error::InvalidParam);
        }
        let made = Inflight::create(num_queues, queue_size, self.disk.settings.queue_size);
        let (_, file, len) = made.map_err(self.refuse("the record of requests in flight"))?;
        Ok((VhostUserInflight::new(len, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *region;
        let inflight = Inflight::map(file, mmap_offset, mmap_size, num_queues, queue_size)
            .map_err(self.refuse("the record of requests in flight"))?;
        let is_cached = self.disk.settings.is_writeback;
        let record = is_cached.then(|| inflight.tracker(0, queue_size)).flatten();
        self.unflushed = Arc::new(Unflushed::new(record));
        self.inflight = Some(inflight);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        let memory = self.memory.with(place_of(region), file);
        self.set_memory(memory.map_err(self.refuse("the guest's memory"))?);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(place_of(region));
        self.set_memory(memory.map_err(self.refuse("the guest's memory"))?);
        Ok(())
    }

    // Not negotiated: no VMM asks for these.

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is not a GPU"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("there are no shared objects"))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("there is no device state"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("there is no device state"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("there is no shared memory"))
    }

    fn set_log_base(&mut self, _: &vhost::vhost_user::message::VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("there is no log of dirty pages"))
    }
}

impl Device {
    fn stop_ring_at(&mut self, index: u32) -> Result<()> {
        self.ring(index)?;
        self.stop_ring(index as usize);
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.disk.set_channel(None);
        self.stop();
    }
}
