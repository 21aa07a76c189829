//! Settings of mode `replicate`.

/// Longest run of writes that [`Replication::switch_writes`] can ask for.
pub(crate) const SWITCH_WRITES_MAX: u32 = u8::MAX as u32;

/// What mode `replicate` does, each part of it to be left out so that its worth can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    /// One read from afar in so many makes a copy. 1: each, as PaCaR does.
    pub threshold: u32,
    /// A copy that was overtaken is made anew. Else it is of no use until it leaves.
    pub refresh: bool,
    /// A page that has left comes back from its copy. Else the store is asked.
    pub elect: bool,
    /// Copies take no page's place, and are the first to leave. Else the policy treats them as
    /// pages.
    pub yields: bool,
    /// So many writes of one node in a row, and nobody else's in between, bring a page's main
    /// there. 0: mains stay at home.
    pub switch_writes: u32,
    /// A partition where writes overtake copies before they have paid gets no more of them, until
    /// that changes.
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
    /// The error is a sentence.
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
