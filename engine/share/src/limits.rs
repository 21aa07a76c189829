//! What an operator promises a partition or a group of them, in the words of Linux's cgroup v2
//! (`memory.min` and so on).

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The weight of a partition that nobody gave one.
pub const WEIGHT_DEFAULT: u32 = 100;

/// Limits of a partition or of a group. A group's bound the sum of what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Never taken, whatever happens.
    pub min_bytes: u64,
    /// Taken last, when nobody has anything above his own.
    pub low_bytes: u64,
    /// Beyond, it has only what nobody else can use, grows slowly and is taken from first.
    pub high_bytes: u64,
    /// Never exceeded.
    pub max_bytes: u64,
    /// What its misses count for against others', from 1 to 10 000.
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
    /// Whether they fit together; the error is a sentence.
    pub fn validate(&self) -> Result<(), String> {
        let more = |one: &str, bytes: u64, other: &str, than: u64| {
            Err(format!("{one} is {bytes} bytes and {other} is {than}: {one} is at most {other}"))
        };
        if self.min_bytes > self.max_bytes {
            return more("min", self.min_bytes, "max", self.max_bytes);
        }
        if self.low_bytes > self.max_bytes {
            return more("low", self.low_bytes, "max", self.max_bytes);
        }
        if self.high_bytes == 0 || self.max_bytes == 0 {
            return Err("high and max are more than nothing".into());
        }
        if !(1..=10_000).contains(&self.weight) {
            return Err(format!("weight is {}: a number from 1 to 10000 is expected", self.weight));
        }
        Ok(())
    }
}
