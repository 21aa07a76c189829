//! The memory charged to a partition: segments with their metadata, the directory, and the memory
//! in which the policy and the monitor learn.
//!
//! The costs have a lock of their own, apart from the progress of a resize: a resize may wait for a
//! store, but statistics must not. Lock order: `resizing`, then the costs, under which no thread
//! waits.

use octavo_table::SegmentIndex;

use crate::error::Error;
use crate::memory::Charge;

pub(crate) struct Costs {
    charge: Charge,
    /// Bytes charged in addition to the segments.
    fixed_bytes: u64,
    /// The part of `fixed_bytes` in which the policy learns.
    learning_bytes: u64,
    /// Segments that are no longer used. The part of their memory that has not gone back to the
    /// system stays charged as a part of `fixed_bytes`.
    left_behind: Vec<LeftBehind>,
    /// Bytes of a segment's frames, and of its metadata.
    frames_bytes: u64,
    metadata_bytes: u64,
}

/// A segment that was used and no longer is. Its frames have gone back to the system, except those
/// that pins keep. Its metadata lies among that of other segments and never goes back.
#[derive(Clone, Copy)]
pub(crate) struct LeftBehind {
    pub segment: SegmentIndex,
    pub kept: Kept,
}

/// What pins keep of a segment that is not in use.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kept {
    /// Number of frames. Falls only: no page comes into the segment.
    pub frames: usize,
    /// Bytes of memory, in whole pages of the kernel.
    pub bytes: u64,
}

impl Costs {
    /// Takes over a charge that contains `fixed_bytes` in addition to the segments; of these,
    /// `learning_bytes` are for learning.
    pub fn new(charge: Charge, fixed_bytes: u64, learning_bytes: u64, segment: (u64, u64)) -> Costs {
        let (frames_bytes, metadata_bytes) = segment;
        Costs { charge, fixed_bytes, learning_bytes, left_behind: Vec::new(), frames_bytes, metadata_bytes }
    }

    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Returns the bytes charged neither for segments, nor for learning about them, nor for frames
    /// that pins keep.
    pub fn apart_bytes(&self) -> u64 {
        self.fixed_bytes - self.learning_bytes - self.kept_bytes()
    }

    pub fn fixed_bytes(&self) -> u64 {
        self.fixed_bytes
    }

    pub fn learning_bytes(&self) -> u64 {
        self.learning_bytes
    }

    /// Returns the segments that were used in the past and are not used now.
    pub fn left_behind(&self) -> &[LeftBehind] {
        &self.left_behind
    }

    /// Returns the bytes that pins keep in segments not in use.
    pub fn kept_bytes(&self) -> u64 {
        self.left_behind.iter().map(|left| left.kept.bytes).sum()
    }

    /// Charges another segment, and changes the bytes charged for learning to `learning_bytes`.
    pub fn take(&mut self, segment: SegmentIndex, learning_bytes: u64, what: &str) -> Result<(), Error> {
        match self.left_behind.iter().position(|left| left.segment == segment) {
            Some(place) => {
                let kept_bytes = self.left_behind[place].kept.bytes;
                self.learn(learning_bytes, (self.frames_bytes - kept_bytes) as i64, what)?;
                self.left_behind.swap_remove(place);
                self.fixed_bytes -= self.metadata_bytes + kept_bytes;
            }
            None => self.learn(learning_bytes, (self.frames_bytes + self.metadata_bytes) as i64, what)?,
        }
        Ok(())
    }

    /// Ends the charge for a segment's frames that have gone back to the system: all but those
    /// `kept`.
    pub fn give_back(&mut self, segment: SegmentIndex, kept: Kept, learning_bytes: u64) -> Result<(), Error> {
        self.learn(learning_bytes, -((self.frames_bytes - kept.bytes) as i64), "a smaller partition")?;
        self.fixed_bytes += self.metadata_bytes + kept.bytes;
        self.left_behind.push(LeftBehind { segment, kept });
        Ok(())
    }

    /// Ends the charge for more frames of a segment not in use: now only those `kept` are left.
    pub fn give_back_more(&mut self, segment: SegmentIndex, kept: Kept) -> Result<(), Error> {
        let Some(left) = self.left_behind.iter_mut().find(|left| left.segment == segment) else {
            return Ok(());
        };
        let more = left.kept.bytes - kept.bytes;
        left.kept = kept;
        self.charge.resize(self.charge.bytes() - more, "a smaller partition")?;
        self.fixed_bytes -= more;
        Ok(())
    }

    /// Changes the bytes charged for learning to `learning_bytes`, and those charged for segments
    /// by `more` (which may be negative).
    pub fn learn(&mut self, learning_bytes: u64, more: i64, what: &str) -> Result<(), Error> {
        let bytes = self.charge.bytes() - self.learning_bytes + learning_bytes;
        self.charge.resize(bytes.saturating_add_signed(more), what)?;
        self.fixed_bytes = self.fixed_bytes - self.learning_bytes + learning_bytes;
        self.learning_bytes = learning_bytes;
        Ok(())
    }

    /// Changes the bytes charged for a monitor from `before_bytes` to `after_bytes`.
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

    /// Regression: statistics waited for a resize, which waited for a store that hung. `stat`,
    /// metrics and the server's shutdown hung, too.
    #[test]
    fn figures_are_there_while_a_resize_waits() {
        let cache = Cache::new(CacheConfig { memory_max_bytes: 32 << 20, ..CacheConfig::default() }).unwrap();
        let partition = cache.partition(PartitionConfig::new("waits")).unwrap();
        let resizing = lock(&partition.inner.resizing);
        let (told, tells) = channel();
        std::thread::spawn({
            let (cache, partition) = (cache.clone(), partition.clone());
            move || {
                let _ = told.send((
                    partition.stat(),
                    cache.stat(),
                    partition.share(1.0, partition.inner.segment_bytes()),
                    partition.limits(),
                ));
            }
        });
        let (stat, ..) = tells.recv_timeout(Duration::from_secs(60)).expect("figures wait for nobody");
        assert!(stat.charged_bytes >= stat.max_bytes && stat.max_bytes > 0, "{stat:?}");
        drop(resizing);
    }
}
