//! The limits of a partition or of a group of partitions. Their names and meanings are those of
//! Linux's cgroup v2 (`memory.min` and so on).

use crate::bytes::Bytes;

/// The value of a limit that is not set.
pub const UNLIMITED: u64 = u64::MAX;

/// The weight of a partition or group for which none is configured.
pub const WEIGHT_DEFAULT: u32 = 100;

/// Limits of a partition or of a group, in bytes. The limits of a group apply to the sum of its
/// members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Guaranteed size: memory below it is never taken away. Default: 0.
    pub min_bytes: u64,
    /// Protected size: memory below it is taken away only when every partition is already at or
    /// below its own `low`. Default: 0.
    pub low_bytes: u64,
    /// Soft maximum size. Above it the partition gets only memory that no other partition can use,
    /// grows slowly, and gives memory back first. Default: no limit.
    pub high_bytes: u64,
    /// Maximum size. Default: no limit.
    pub max_bytes: u64,
    /// Weight of the partition's misses relative to those of others, from 1 to 10 000. Default:
    /// 100.
    pub weight: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            min_bytes: 0,
            low_bytes: 0,
            high_bytes: UNLIMITED,
            max_bytes: UNLIMITED,
            weight: WEIGHT_DEFAULT,
        }
    }
}

impl Limits {
    /// Checks that the limits are consistent.
    ///
    /// # Errors
    /// A sentence that names the limit that is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let max_bytes = self.max_bytes;
        for (limit, bytes) in [("min", self.min_bytes), ("low", self.low_bytes)] {
            if bytes > max_bytes {
                return Err(format!(
                    "{limit} is {} and max is {}: {limit} must not exceed max",
                    Bytes(bytes),
                    Bytes(max_bytes)
                ));
            }
        }
        if self.high_bytes == 0 || self.max_bytes == 0 {
            return Err("high and max must be at least 1 byte".into());
        }
        if !(1..=10_000).contains(&self.weight) {
            return Err(format!("weight is {}: it must be a number from 1 to 10000", self.weight));
        }
        Ok(())
    }
}
