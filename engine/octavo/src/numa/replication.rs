//! Settings of mode `replicate`. Not here: making copies (`pages/nodes/replicate.rs`).

/// Longest run of writes that [`Replication::switch_writes`] can ask for.
pub(crate) const SWITCH_WRITES_MAX: u32 = u8::MAX as u32;

/// Settings of mode `replicate`. Each part can be switched off, so that its worth can be
/// measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    /// One in this many remote reads makes a copy. 1, the default: each one, as PaCaR does.
    pub threshold: u32,
    /// Whether an overtaken copy is refreshed. Else it stays unusable until it leaves. Default:
    /// true.
    pub refresh: bool,
    /// Whether a page that has left is restored from its copy. Else the store is read. Default:
    /// true.
    pub elect: bool,
    /// Whether copies take no page's place and are evicted first. Else the policy treats them as
    /// pages. Default: true.
    pub yields: bool,
    /// Writes in a row by one node, without another node's write in between, that move a page's
    /// main to that node. 0: mains stay at home. Default: 16; at most 255.
    pub switch_writes: u32,
    /// Whether a partition in which writes overtake copies before they have paid stops making
    /// copies, until that changes. Default: true.
    pub weighs: bool,
}

impl Default for Replication {
    fn default() -> Self {
        Replication {
            threshold: 1,
            refresh: true,
            elect: true,
            yields: true,
            switch_writes: 16,
            weighs: true,
        }
    }
}

impl Replication {
    /// Checks the values; the error is a sentence.
    pub fn check(&self) -> Result<(), String> {
        match self.threshold {
            0 => Err("the twin threshold is 0: at least 1 is needed".into()),
            _ if self.switch_writes > SWITCH_WRITES_MAX => Err(format!(
                "switch_writes is {}: at most {SWITCH_WRITES_MAX} is possible",
                self.switch_writes
            )),
            _ => Ok(()),
        }
    }
}
