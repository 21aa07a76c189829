//! [`Shared`]: what fetches need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::ObjectsConfig;
use crate::stat::{Counters, add};
use crate::tier::Tier;

/// What fetches need. They may outlive the [`Fetcher`](crate::Fetcher) for a moment.
pub(crate) struct Shared {
    pub config: ObjectsConfig,
    pub counters: Counters,
    pub tier: Option<Arc<Tier>>,
    /// GETs that may begin.
    pub fills: Semaphore,
    /// Blocks between the file tier and its readers.
    pub blocks: Arc<Semaphore>,
    pub seed: u64,
    /// Number of requests that have begun, which seeds their pauses.
    pub requests: AtomicU64,
    pub pins_max_bytes: u64,
    pub handle: Handle,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A number that no other request of the process has.
    pub fn next_seed(&self) -> u64 {
        // Relaxed: any unused number will do.
        self.requests.fetch_add(1, Ordering::Relaxed) ^ self.seed
    }

    /// Reserves room for a pinned page.
    pub fn reserve_pin(&self, bytes: u64) -> bool {
        let pinned = &self.counters.pinned_bytes;
        // Relaxed: a bound that nothing else depends on.
        let reserved = pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            now.checked_add(bytes).filter(|then| *then <= self.pins_max_bytes)
        });
        if reserved.is_err() {
            add(&self.counters.pins_refused, 1);
        }
        reserved.is_ok()
    }

    pub fn release_pins(&self, bytes: u64) {
        self.counters.pinned_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
