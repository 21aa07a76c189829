//! What a partition pays for: its segments with their metadata, the directory, what is learned.
//!
//! It is kept apart from what a resize is doing, for whoever resizes may wait for a store, and
//! figures are asked for at any time. Lock order: `resizing`, then this one, which nobody holds
//! while he waits.

use octavo_table::SegmentIndex;

use crate::error::Error;
use crate::memory::Charge;

pub(crate) struct Costs {
    charge: Charge,
    /// What is charged besides the segments.
    fixed_bytes: u64,
    /// How much of that is for what the policy learns.
    learning_bytes: u64,
    /// Segments that are out of use. Their frames went back to the system; their metadata, which
    /// lies among that of others, has not, and is charged still, as a part of what is fixed.
    left_behind: Vec<SegmentIndex>,
    /// Bytes of a segment's frames, and of its metadata.
    frames_bytes: u64,
    metadata_bytes: u64,
}

impl Costs {
    /// Of a charge that has `fixed_bytes` besides the segments, `learning_bytes` of them for what
    /// is learned.
    pub fn new(charge: Charge, fixed_bytes: u64, learning_bytes: u64, segment: (u64, u64)) -> Costs {
        let (frames_bytes, metadata_bytes) = segment;
        Costs { charge, fixed_bytes, learning_bytes, left_behind: Vec::new(), frames_bytes, metadata_bytes }
    }

    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// What is charged besides the segments and what is learned about them.
    pub fn apart_bytes(&self) -> u64 {
        self.fixed_bytes - self.learning_bytes
    }

    pub fn fixed_bytes(&self) -> u64 {
        self.fixed_bytes
    }

    pub fn learning_bytes(&self) -> u64 {
        self.learning_bytes
    }

    /// How many segments were used once, and are not now.
    pub fn left_behind(&self) -> u64 {
        self.left_behind.len() as u64
    }

    /// Pays for another segment, and so much for what is learned from now on.
    pub fn take(&mut self, segment: SegmentIndex, learning_bytes: u64, what: &str) -> Result<(), Error> {
        match self.left_behind.iter().position(|behind| *behind == segment) {
            Some(place) => {
                self.learn(learning_bytes, self.frames_bytes as i64, what)?;
                self.left_behind.swap_remove(place);
                self.fixed_bytes -= self.metadata_bytes;
            }
            None => self.learn(learning_bytes, (self.frames_bytes + self.metadata_bytes) as i64, what)?,
        }
        Ok(())
    }

    /// A segment's frames have gone back to the system.
    pub fn give_back(&mut self, segment: SegmentIndex, learning_bytes: u64) -> Result<(), Error> {
        self.learn(learning_bytes, -(self.frames_bytes as i64), "less")?;
        self.fixed_bytes += self.metadata_bytes;
        self.left_behind.push(segment);
        Ok(())
    }

    /// Charges so much more (or less) for segments, and what learning takes from now on instead of
    /// what it took.
    pub fn learn(&mut self, learning_bytes: u64, more: i64, what: &str) -> Result<(), Error> {
        let bytes = self.charge.bytes() - self.learning_bytes + learning_bytes;
        self.charge.resize(bytes.saturating_add_signed(more), what)?;
        self.fixed_bytes = self.apart_bytes() + learning_bytes;
        self.learning_bytes = learning_bytes;
        Ok(())
    }

    /// Charges what a monitor takes from now on instead of what it took.
    pub fn watch(&mut self, before_bytes: u64, after_bytes: u64) -> Result<(), Error> {
        self.charge.resize(self.charge.bytes() - before_bytes + after_bytes, "a monitor")?;
        self.fixed_bytes = self.fixed_bytes - before_bytes + after_bytes;
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::sync::lock;
    use crate::{Cache, CacheConfig, PartitionConfig};

    /// A resize waited for a store that hung, and figures for the resize: `stat`, metrics and the
    /// end of the server hung with them.
    #[test]
    fn figures_are_there_while_a_resize_waits() {
        let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() }).unwrap();
        let partition = cache.partition(PartitionConfig::new("waits")).unwrap();
        let resizing = lock(&partition.inner.resizing);
        let (told, tells) = channel();
        std::thread::spawn({
            let (cache, partition) = (cache.clone(), partition.clone());
            move || {
                let _ = told.send((partition.stat(), cache.stat(), partition.share(1.0), partition.limits()));
            }
        });
        let (stat, ..) = tells.recv_timeout(Duration::from_secs(60)).expect("figures wait for nobody");
        assert!(stat.charged_bytes >= stat.max_bytes && stat.max_bytes > 0, "{stat:?}");
        drop(resizing);
    }
}
