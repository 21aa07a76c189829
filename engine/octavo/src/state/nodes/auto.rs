//! Mode `auto`: each partition chooses, from its own counts, the strategy by which threads access
//! pages of other nodes.
//!
//! There are three *strategies*:
//!
//! - `partition`: pages are read and written directly.
//! - `message`: requests of a queue are sent to their page's node, if their batch is large enough
//!   that a message costs less than direct access to the page's lines (`Prices::letter`).
//! - `replicate`: twins are made on the nodes that read a page, and mains move to the nodes that
//!   write them.
//!
//! Under all three strategies the table works as for `replicate`, so the strategy can change
//! between any two accesses. It only decides whether a twin is made, a main is moved or a request
//! is sent.
//!
//! *How a partition measures.* One page in 64 is a *probe*, chosen by its tag. Whatever the
//! strategy in use, probes are treated as under `replicate`, and requests for them are not sent to
//! other nodes. The partition keeps three sums. An access to a probe adds to them unless the
//! accessing node is the page's home and finds the page there:
//!
//! - what the access would cost directly;
//! - what it would cost by message, given the size of its batch;
//! - what it did cost, including making twins, marking them stale and moving mains.
//!
//! All costs are fixed prices (`numa/cost.rs`), not clock readings: the same accesses make the
//! same choices, and other load on the machine does not disturb them.
//!
//! An *evaluation* (`look`) takes place every 64 such accesses: it halves the old sums and adds the
//! new ones. The strategy changes if four evaluations in a row find another one more than a 32nd
//! cheaper. It changes to `partition` if four evaluations in a row find that the strategy in use
//! saves less than a 64th of the direct cost. After a change within 64 evaluations of the last one,
//! twice as many must agree before the next change, so that a load between two strategies pays for
//! few changes. When a partition leaves `replicate`, the reaper drops the remaining twins and moves
//! mains home.
//!
//! *What `auto` costs*: on one page in 64, what probes cost more than they gain; and for each
//! remote access, a check of the tag. A load may access only a few pages, so if hardly any remote
//! accesses are to probes, other pages become probes.
//!
//! Not here: what each strategy does. Partitions on one node have nothing to choose. In mode
//! `auto`, batches of reads (`read_batch`) are never sent: their lookups overlap, so messages would
//! cost more than they save on each of PaCaR's machines.

use octavo_table::Tag;

use crate::numa::{NumaMode, Prices};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, try_lock};

/// One page in this many is a probe.
const PROBE_SHARE: u64 = 64;
const PROBES: u16 = (u16::MAX as u64 / PROBE_SHARE) as u16;

/// Accesses to probes between two evaluations, which correspond to some four thousand remote
/// accesses in total.
const LOOK: u64 = 64;

/// To be chosen, a strategy must cost less than the one in use, and less than direct access, by
/// more than this fraction.
const CHEAPER: f64 = 1.0 / 32.0;

/// To stay in use, a strategy other than `partition` must save at least this fraction of the direct
/// cost.
const WORTH: f64 = 1.0 / 64.0;

/// Evaluations in a row that must agree before the strategy changes: initially, and at most.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 256;

/// Evaluations without a change after which that number is halved.
const CALM: u32 = 64;

/// After this many remote accesses, a thread checks whether probes were accessed often enough: a
/// quarter of the expected accesses is enough.
pub(crate) const TURNS: u64 = 4096;
const PROBED_MIN: u64 = TURNS / PROBE_SHARE / 4;

/// What the accesses to probes cost under each strategy, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Costs {
    direct: f64,
    by_message: f64,
    brought: f64,
}

impl Costs {
    fn of(&self, strategy: NumaMode) -> f64 {
        match strategy {
            NumaMode::Message => self.by_message,
            NumaMode::Replicate => self.brought,
            _ => self.direct,
        }
    }

    /// Returns the strategy that these costs recommend while `now` is in use.
    fn best(&self, now: NumaMode) -> NumaMode {
        let strategies = [NumaMode::Partition, NumaMode::Message, NumaMode::Replicate];
        let cheapest = strategies.into_iter().min_by(|one, other| self.of(*one).total_cmp(&self.of(*other)));
        // To be worth choosing, a strategy must save `CHEAPER` of the cost of direct access.
        let is_worth_it = |strategy: &NumaMode| self.of(*strategy) < self.direct * (1.0 - CHEAPER);
        match cheapest.filter(is_worth_it).unwrap_or(NumaMode::Partition) {
            best if self.of(best) < self.of(now) * (1.0 - CHEAPER) => best,
            _ if self.of(now) > self.direct * (1.0 - WORTH) => NumaMode::Partition,
            _ => now,
        }
    }
}

/// The outcome of the evaluations so far.
#[derive(Debug)]
pub(crate) struct Looks {
    costs: Costs,
    verdict: NumaMode,
    /// Evaluations in a row with this verdict, and how many are needed for a change.
    times: u32,
    patience: u32,
    /// Evaluations since the last change.
    calm: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Looks {
            costs: Costs::default(),
            verdict: NumaMode::Partition,
            times: 0,
            patience: PATIENCE,
            calm: CALM,
        }
    }
}

impl Looks {
    /// Evaluates: adds the new costs, and returns the strategy to use from now on.
    fn look(&mut self, new: Costs, now: NumaMode) -> NumaMode {
        let old = self.costs;
        self.costs = Costs {
            direct: old.direct / 2.0 + new.direct,
            by_message: old.by_message / 2.0 + new.by_message,
            brought: old.brought / 2.0 + new.brought,
        };
        let verdict = self.costs.best(now);
        self.times = if verdict == self.verdict { self.times + 1 } else { 1 };
        self.verdict = verdict;
        self.calm += 1;
        if self.calm.is_multiple_of(CALM) {
            self.patience = (self.patience / 2).max(PATIENCE);
        }
        if verdict == now || self.times < self.patience {
            return now;
        }
        if self.calm < CALM {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
        self.calm = 0;
        verdict
    }
}

/// The strategy of one partition, and the sums by which it is chosen.
pub(crate) struct Auto {
    pub prices: Prices,
    pub nodes: u64,
    /// The strategy in use, as an index into [`NumaMode::ALL`]. All of these atomics are Relaxed:
    /// they are hints and statistics.
    strategy: AtomicU64,
    changes: AtomicU64,
    /// The first sample number of the probes.
    first_probe: AtomicU64,
    /// Accesses to probes since `look_for_probes` was last called.
    probed: AtomicU64,
    /// Accesses to probes since the last evaluation, and their costs in nanoseconds. `saved` is
    /// what messages would save against `direct`.
    accesses: AtomicU64,
    direct: AtomicU64,
    pub saved: AtomicU64,
    pub brought: AtomicU64,
    pub looks: Mutex<Looks>,
    /// The strategy was `replicate` before, and its twins and the mains away from home have not
    /// been cleared yet.
    pub has_leftovers: AtomicBool,
}

impl Auto {
    pub fn new(prices: Prices, nodes: u32) -> Auto {
        let zero = || AtomicU64::new(0);
        Auto {
            prices,
            nodes: u64::from(nodes),
            strategy: AtomicU64::new(NumaMode::Partition as u64),
            changes: zero(),
            first_probe: zero(),
            probed: zero(),
            accesses: zero(),
            direct: zero(),
            saved: zero(),
            brought: zero(),
            looks: Mutex::new(Looks::default()),
            has_leftovers: AtomicBool::new(false),
        }
    }

    /// Returns the strategy in use.
    pub fn way(&self) -> NumaMode {
        NumaMode::ALL[self.strategy.load(Ordering::Relaxed) as usize]
    }

    /// Returns how often the strategy has changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether the page may have twins, and its main may leave home.
    pub fn brings(&self, tag: Tag) -> bool {
        self.way() == NumaMode::Replicate || self.is_probe(tag)
    }

    pub fn is_probe(&self, tag: Tag) -> bool {
        tag.draw().wrapping_sub(self.first_probe.load(Ordering::Relaxed) as u16) < PROBES
    }

    /// Switches to another strategy.
    pub fn go(&self, strategy: NumaMode) {
        let before = self.strategy.swap(strategy as u64, Ordering::Relaxed);
        self.changes.fetch_add(u64::from(before != strategy as u64), Ordering::Relaxed);
        self.has_leftovers.fetch_or(before == NumaMode::Replicate as u64, Ordering::Relaxed);
    }

    /// Adds an access to a probe: what it would cost directly, and what it did cost.
    pub fn add(&self, direct: f64, brought: f64) {
        self.direct.fetch_add(direct as u64, Ordering::Relaxed);
        self.brought.fetch_add(brought as u64, Ordering::Relaxed);
        self.probed.fetch_add(1, Ordering::Relaxed);
        if self.accesses.fetch_add(1, Ordering::Relaxed) + 1 >= LOOK {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        // If another thread is evaluating, this one need not.
        let Some(mut looks) = try_lock(&self.looks) else { return };
        if self.accesses.swap(0, Ordering::Relaxed) < LOOK {
            return;
        }
        let take = |sum: &AtomicU64| sum.swap(0, Ordering::Relaxed) as f64;
        let direct = take(&self.direct);
        let new = Costs { direct, by_message: direct - take(&self.saved), brought: take(&self.brought) };
        let now = self.way();
        let next = looks.look(new, now);
        if next != now {
            log::debug!(
                "numa: strategy changed from {} to {}: {:?}, in virtual ns",
                now.name(),
                next.name(),
                looks.costs
            );
            self.go(next);
        }
    }

    /// Makes other pages probes if hardly any accesses were to the current ones.
    #[cold]
    pub fn look_for_probes(&self) {
        if self.probed.swap(0, Ordering::Relaxed) < PROBED_MIN {
            self.first_probe.fetch_add(u64::from(PROBES), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::numa::{LETTERS_MAX, MACHINES, Machine};

    const fn costs(direct: f64, by_message: f64, brought: f64) -> Costs {
        Costs { direct, by_message, brought }
    }

    /// Returns the number of evaluations until `wanted` is in use.
    fn looks_until(looks: &mut Looks, new: Costs, now: &mut NumaMode, wanted: NumaMode) -> u32 {
        let mut count = 0;
        while *now != wanted {
            *now = looks.look(new, *now);
            count += 1;
            assert!(count < 1000, "{looks:?} never chooses {wanted:?}");
        }
        count
    }

    #[test]
    fn the_cheapest_strategy_is_chosen_after_some_looks_unless_it_saves_too_little() {
        assert_eq!(costs(100.0, 99.0, 200.0).best(NumaMode::Replicate), NumaMode::Partition);
        let (mut looks, mut now) = (Looks::default(), NumaMode::Partition);
        for _ in 0..100 {
            now = looks.look(costs(100.0, 98.0, 97.5), now);
            assert_eq!(now, NumaMode::Partition);
        }
        assert!(looks_until(&mut looks, costs(100.0, 98.0, 60.0), &mut now, NumaMode::Replicate) <= 6);
        // A small saving keeps the strategy in use; no saving ends it.
        for _ in 0..100 {
            now = looks.look(costs(100.0, 100.0, 97.5), now);
            assert_eq!(now, NumaMode::Replicate);
        }
        assert!(looks_until(&mut looks, costs(100.0, 100.0, 99.9), &mut now, NumaMode::Partition) <= 12);
        looks_until(&mut looks, costs(100.0, 70.0, 90.0), &mut now, NumaMode::Message);
        looks_until(&mut looks, costs(100.0, 70.0, 40.0), &mut now, NumaMode::Replicate);
    }

    #[test]
    fn one_look_changes_nothing_and_a_load_that_alternates_must_wait_longer() {
        let (mut looks, mut now) = (Looks::default(), NumaMode::Partition);
        let (dear, cheap) = (costs(100.0, 100.0, 300.0), costs(100.0, 100.0, 20.0));
        for number in 0..200 {
            now = looks.look(if number % 8 == 0 { cheap } else { dear }, now);
            assert_eq!(now, NumaMode::Partition);
        }
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(looks_until(&mut looks, cheap, &mut now, NumaMode::Replicate));
            waits.push(looks_until(&mut looks, dear, &mut now, NumaMode::Partition));
        }
        assert!(waits[11] > waits[0] * 8 && waits[11] <= PATIENCE_MAX + 8, "{waits:?}");
        // A load that has been steady for a while is trusted again.
        (0..CALM * 10).for_each(|_| now = looks.look(dear, now));
        assert!(looks_until(&mut looks, cheap, &mut now, NumaMode::Replicate) <= PATIENCE + 2);
    }

    #[test]
    fn messages_pay_in_large_batches_of_small_requests_and_sooner_where_lines_are_far() {
        let least = |name: &str, bytes: u64| {
            let prices = Prices(Machine::named(name).unwrap());
            (2..=LETTERS_MAX as u64)
                .find(|letters| prices.letter(*letters, bytes, false) < prices.access(false, bytes, 1))
        };
        let [near, far] = ["2x-xeon-4410y", "2x-epyc-7301"].map(|name| least(name, 512).unwrap());
        assert!(far < near && near < LETTERS_MAX as u64, "{far} {near}");
        assert_eq!(least("2x-xeon-4410y", 1 << 20), None);
        for machine in MACHINES {
            let prices = Prices(machine);
            assert!(prices.access(false, 512, 1) > prices.access(true, 512, 1));
            // Lookups of a batch overlap, so that messages do not pay.
            assert!(prices.letter(LETTERS_MAX as u64, 512, false) > prices.access(false, 512, 32));
        }
    }
}
