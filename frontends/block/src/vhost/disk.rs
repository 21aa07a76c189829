//! [`Disk`]: an export that is attached by vhost-user, and its settings. One VMM at a time has it.

use super::channel::Channel;
use super::inflight::ENTRIES_MAX;
use crate::connection::Connection;
use crate::export::Served;
use octavo::Cache;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a VMM waits until the one before it has left.
const PATIENCE: Duration = Duration::from_secs(10);

/// How an export is attached by vhost-user.
#[derive(Clone, Debug)]
pub struct VhostSettings {
    /// The number of rings that a guest may use: 1 to 64. Default: 1.
    pub queues: u16,
    /// The most entries of a ring: a power of two from 4 to 1024. Default: 256.
    pub queue_size: u16,
    /// The serial number of the disk; a guest sees its first 20 bytes. Default: `None`, the name of
    /// the export.
    pub serial: Option<String>,
    /// How long an idle ring is polled before its thread sleeps. Default: zero.
    pub poll: Duration,
    /// Writes are acknowledged before the store has them: the export's partition is in write-back
    /// mode. Default: false.
    pub is_writeback: bool,
}

impl Default for VhostSettings {
    fn default() -> VhostSettings {
        VhostSettings { queues: 1, queue_size: 256, serial: None, poll: Duration::ZERO, is_writeback: false }
    }
}

impl VhostSettings {
    /// Checks that a device can have these settings. The error says what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.queues) {
            return Err(format!("queues is {}: it must be from 1 to 64", self.queues));
        }
        if !self.queue_size.is_power_of_two() || !(4..=ENTRIES_MAX).contains(&self.queue_size) {
            return Err(format!(
                "queue_size is {}: it must be a power of two from 4 to {ENTRIES_MAX}",
                self.queue_size
            ));
        }
        Ok(())
    }
}

/// An export that is attached by vhost-user.
pub(crate) struct Disk {
    pub cache: Cache,
    pub served: Arc<Served>,
    pub settings: VhostSettings,
    /// A VMM has the disk.
    is_taken: Mutex<bool>,
    /// The channel of that VMM.
    channel: Mutex<Option<Channel>>,
    /// Notified when it leaves.
    left: Condvar,
}

impl Disk {
    pub fn new(cache: Cache, served: Arc<Served>, settings: VhostSettings) -> Disk {
        let (is_taken, channel) = Default::default();
        Disk { cache, served, settings, is_taken, channel, left: Condvar::new() }
    }

    /// Replaces the channel of the VMM that has the disk.
    pub(super) fn set_channel(&self, channel: Option<Channel>) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    /// Tells the VMM to read the configuration space again, if it has the disk and a channel.
    pub fn tell(&self) {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = channel.as_ref().map(Channel::tell) {
            let name = &self.served.export.name;
            log::warn!("vhost-user: export {name:?}: cannot notify the VMM of the new length: {error}");
        }
    }

    /// Takes the disk for one VMM. A VMM that connects again may come before the last thread of its
    /// former connection has ended.
    pub fn take(self: &Arc<Self>, connection: &Connection) -> Option<Taken> {
        let until = Instant::now() + PATIENCE;
        let mut is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_taken {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || connection.stopping() {
                return None;
            }
            let waited = self.left.wait_timeout(is_taken, left.min(Duration::from_millis(100)));
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_taken = true;
        Some(Taken(self.clone()))
    }
}

/// A disk that a VMM has, until this is dropped.
pub(crate) struct Taken(Arc<Disk>);

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.left.notify_all();
    }
}
