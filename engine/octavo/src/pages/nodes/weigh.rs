//! Mode `auto`: adds up the costs of accesses to probes under each strategy, and applies the
//! strategy in use (`state/nodes/auto.rs`).

use octavo_table::Tag;

use crate::numa::{LETTERS_MAX, NumaMode, Prices};
use crate::state::counters::Count;
use crate::state::nodes::TURNS;
use crate::state::partition::PartitionInner;
use crate::sync::Ordering;

impl PartitionInner {
    /// Returns the strategy in use: the mode's, or the one that mode `auto` has chosen.
    pub fn way(&self) -> NumaMode {
        match self.places.chooses {
            true => self.auto.way(),
            false => self.shared.numa.mode,
        }
    }

    /// Adds the costs of an access to a probe under each strategy, given where the page lies now.
    /// Remote accesses to other pages are only counted, to find out whether probes are accessed at
    /// all.
    pub fn weigh(&self, tag: Tag, (is_home_here, is_here): (bool, bool), bytes: usize, together: u64) {
        if !self.places.chooses || is_home_here && is_here {
            return;
        }
        if self.auto.is_probe(tag) {
            let cost = |is_here| self.auto.prices.access(is_here, bytes as u64, together);
            self.auto.add(cost(is_home_here), cost(is_here));
        } else {
            self.count_far();
        }
    }

    /// Weighs a write that found its page.
    pub fn weigh_write(&self, tag: Tag, bytes: usize) {
        if self.places.chooses {
            let here = self.shared.numa.here();
            self.weigh(tag, (self.table.node_of(tag) == here, self.node_of(tag) == here), bytes, 1);
        }
    }

    /// Weighs a read that made a twin.
    pub fn weigh_copy(&self, tag: Tag, bytes: usize, together: u64) {
        if self.places.chooses && self.auto.is_probe(tag) {
            let prices = &self.auto.prices;
            let cost = |is_here| prices.access(is_here, bytes as u64, together);
            self.auto.add(cost(false), cost(true) + prices.copy(self.page_bytes() as u64));
        }
    }

    /// Adds what it costs to have brought a page to other nodes: marking its twins stale at a
    /// write, or moving its main.
    pub fn weigh_bringing(&self, tag: Tag, cost: impl FnOnce(&Prices) -> f64) {
        if self.places.chooses && self.auto.is_probe(tag) {
            self.auto.brought.fetch_add(cost(&self.auto.prices) as u64, Ordering::Relaxed);
        }
    }

    /// Whether a queue sends a request, one of `batch`, to the page's node instead of serving it
    /// directly. In mode `auto`, requests for probes are never sent; instead this adds up what a
    /// message would save.
    pub fn sends(&self, tag: Tag, batch: u32, bytes: usize, write: bool) -> bool {
        if !self.places.chooses {
            return true;
        }
        let auto = &self.auto;
        let is_probe = auto.is_probe(tag);
        if !is_probe && auto.way() != NumaMode::Message {
            return false;
        }
        // The number of requests per node, if the batch's pages are spread evenly.
        let letters = (u64::from(batch) / auto.nodes).min(LETTERS_MAX as u64);
        if letters < 2 {
            return false;
        }
        let prices = &auto.prices;
        let saved = prices.access(false, bytes as u64, 1) - prices.letter(letters, bytes as u64, write);
        if is_probe {
            auto.saved.fetch_add(saved.max(0.0) as u64, Ordering::Relaxed);
            return false;
        }
        if saved > 0.0 {
            self.count_far();
        }
        saved > 0.0
    }

    /// Counts a remote access to a page that is no probe. After every `TURNS` of these, a thread
    /// checks whether probes are accessed at all.
    fn count_far(&self) {
        if self.counters.turn(Count::FarTurns).is_multiple_of(TURNS) {
            self.auto.look_for_probes();
        }
    }
}
