//! [`Config`]: the configuration space of a virtio block device, as a guest reads it, and the
//! features that it offers (VIRTIO 1.2, 5.2).

use super::chain::{CHAIN_MAX, RANGES_MAX, SECTOR_BYTES};
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::{virtio_config, virtio_ring};

/// The bytes of the configuration space.
pub(super) const CONFIG_BYTES: usize = 60;
/// Where the configuration space says whether the cache writes back: the only byte that a guest may
/// change.
pub(super) const WRITEBACK_AT: usize = 32;

/// The most sectors of a discard or zeroing: 1 GiB.
const CLEAR_SECTORS: u32 = 1 << 21;

/// What a device is to its guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub len_bytes: u64,
    pub page_bytes: u64,
    pub queues: u16,
    pub queue_size: u16,
    pub read_only: bool,
    pub writeback: bool,
}

impl Config {
    /// Returns the features of the device, without those of vhost-user.
    pub fn features(&self) -> u64 {
        let mut bits = vec![
            virtio_config::VIRTIO_F_VERSION_1,
            virtio_ring::VIRTIO_RING_F_INDIRECT_DESC,
            virtio_ring::VIRTIO_RING_F_EVENT_IDX,
            blk::VIRTIO_BLK_F_SEG_MAX,
            blk::VIRTIO_BLK_F_BLK_SIZE,
            blk::VIRTIO_BLK_F_FLUSH,
            blk::VIRTIO_BLK_F_TOPOLOGY,
            blk::VIRTIO_BLK_F_CONFIG_WCE,
        ];
        match self.read_only {
            true => bits.push(blk::VIRTIO_BLK_F_RO),
            false => bits.extend([blk::VIRTIO_BLK_F_DISCARD, blk::VIRTIO_BLK_F_WRITE_ZEROES]),
        }
        if self.queues > 1 {
            bits.push(blk::VIRTIO_BLK_F_MQ);
        }
        bits.into_iter().fold(0, |features, bit| features | 1 << bit)
    }

    /// Returns the configuration space.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES] {
        let sector = SECTOR_BYTES as u32;
        let page_sectors = (self.page_bytes / SECTOR_BYTES).max(1) as u32;
        // Two descriptors are for header and status.
        let segments = u32::from(self.queue_size).saturating_sub(2).clamp(1, CHAIN_MAX as u32 - 2);
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(self.len_bytes / SECTOR_BYTES).to_le_bytes());
        put(12, &segments.to_le_bytes());
        put(20, &sector.to_le_bytes());
        // The topology: a page is the smallest range that is read or written at once.
        put(24, &[page_sectors.ilog2() as u8, 0]);
        put(26, &(page_sectors.min(u32::from(u16::MAX)) as u16).to_le_bytes());
        put(28, &page_sectors.to_le_bytes());
        put(WRITEBACK_AT, &[u8::from(self.writeback)]);
        put(34, &self.queues.to_le_bytes());
        put(36, &CLEAR_SECTORS.to_le_bytes());
        put(40, &(RANGES_MAX as u32).to_le_bytes());
        put(44, &page_sectors.to_le_bytes());
        put(48, &CLEAR_SECTORS.to_le_bytes());
        put(52, &(RANGES_MAX as u32).to_le_bytes());
        put(56, &[1]);
        bytes
    }
}
