//! Mode `auto`: each partition chooses for itself how threads get at the pages of other nodes, by
//! what it counts.
//!
//! There are three *ways*. `partition`: they are read and written directly. `message`: requests of
//! a queue travel, where their batch is large enough that a message costs less than the page's
//! lines (`Prices::letter`). `replicate`: copies and mains come to the threads. The table is that
//! of `replicate` under all three, so a way can change at any time, between any two accesses: what
//! a way decides is only whether a copy is made, a main is brought, a request is sent.
//!
//! *How it knows.* One page in 64 is a *probe*, by its tag. To a probe happens what `replicate`
//! does, whatever the way is, and its requests do not travel. Each access to a probe by
//! another node than its home's, or that does not find it at home, adds to three sums: what it
//! would cost directly; what it would cost by message, in its batch; and what it did cost, with
//! copies, their ends and mains that come. All by fixed prices (`cost.rs`) and by no clock: the
//! same accesses make the same choices, and what a machine does besides does not confuse them.
//!
//! *A look*, each 64 such accesses, halves what the sums were before and adds them. A way is left
//! when another is a thirty-second cheaper, or when it saves next to nothing, four times in a row.
//! Whoever changes again soon has to wait twice as long the next time, so that a load between two
//! ways pays for few changes. What is left of copies when `replicate` is left, the reaper takes
//! away, and it brings mains home.
//!
//! *What it costs* is what probes cost beyond their gain, at one page in 64; and a look at a tag
//! for each access from afar. If hardly any of those are to probes, others become probes: what is
//! read may be few pages.
//!
//! What is not here: what each way does. Partitions that lie on one node have nothing to choose.
//! Batches of reads (`read_batch`) never travel: their lookups overlap, so that messages cost more
//! than they save on each of PaCaR's machines.

use octavo_table::Tag;

use crate::numa::{NumaMode, Prices};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, try_lock};

/// Of so many pages one is a probe.
const PROBE_SHARE: u64 = 64;
const PROBES: u16 = (u16::MAX as u64 / PROBE_SHARE) as u16;

/// Accesses to probes between two looks: some four thousand from afar.
const LOOK: u64 = 64;

/// Another way must be cheaper by so much; and any way than `partition` must save so much to stay.
const CHEAPER: f64 = 1.0 / 32.0;
const WORTH: f64 = 1.0 / 64.0;

/// Looks with the same outcome before a way changes, at first and at most; and looks without a
/// change until it is half of what it was.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 256;
const CALM: u32 = 64;

/// Accesses of a thread from afar after which it asks whether there are probes among the pages; a
/// fourth of those to be expected is enough.
pub(crate) const TURNS: u64 = 4096;
const PROBED_MIN: u64 = TURNS / PROBE_SHARE / 4;

/// What accesses to probes cost by each way, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Costs {
    direct: f64,
    by_message: f64,
    brought: f64,
}

impl Costs {
    fn of(&self, way: NumaMode) -> f64 {
        match way {
            NumaMode::Message => self.by_message,
            NumaMode::Replicate => self.brought,
            _ => self.direct,
        }
    }

    /// Which way these say, where one is being gone.
    fn best(&self, now: NumaMode) -> NumaMode {
        let ways = [NumaMode::Partition, NumaMode::Message, NumaMode::Replicate];
        let cheapest = ways.into_iter().min_by(|one, other| self.of(*one).total_cmp(&self.of(*other)));
        // What is hardly cheaper than nothing is nothing.
        let is_worth_it = |way: &NumaMode| self.of(*way) < self.direct * (1.0 - CHEAPER);
        match cheapest.filter(is_worth_it).unwrap_or(NumaMode::Partition) {
            way if self.of(way) < self.of(now) * (1.0 - CHEAPER) => way,
            _ if self.of(now) > self.direct * (1.0 - WORTH) => NumaMode::Partition,
            _ => now,
        }
    }
}

/// What looks have told so far.
#[derive(Debug)]
pub(crate) struct Looks {
    costs: Costs,
    verdict: NumaMode,
    /// Looks in a row that said so, and that are needed.
    times: u32,
    patience: u32,
    /// Since the last change.
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
    /// The way from now on.
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

/// A partition's choice.
pub(crate) struct Auto {
    pub prices: Prices,
    pub nodes: u64,
    /// A [`NumaMode`], by its place among all. Relaxed, all of these: hints and figures.
    way: AtomicU64,
    changes: AtomicU64,
    /// Where the samples of probes begin.
    first_probe: AtomicU64,
    /// Accesses to probes since somebody asked whether there are any.
    probed: AtomicU64,
    /// Since the last look: accesses, and their costs; a message's is what it saves.
    accesses: AtomicU64,
    direct: AtomicU64,
    pub saved: AtomicU64,
    pub brought: AtomicU64,
    pub looks: Mutex<Looks>,
    /// The way was `replicate`, and what it left is still there.
    pub has_rest: AtomicBool,
}

impl Auto {
    pub fn new(prices: Prices, nodes: u32) -> Auto {
        let zero = || AtomicU64::new(0);
        Auto {
            prices,
            nodes: u64::from(nodes),
            way: AtomicU64::new(NumaMode::Partition as u64),
            changes: zero(),
            first_probe: zero(),
            probed: zero(),
            accesses: zero(),
            direct: zero(),
            saved: zero(),
            brought: zero(),
            looks: Mutex::new(Looks::default()),
            has_rest: AtomicBool::new(false),
        }
    }

    /// The way that is gone now.
    pub fn way(&self) -> NumaMode {
        NumaMode::ALL[self.way.load(Ordering::Relaxed) as usize]
    }

    /// How often it changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether the page may have copies, and its main go.
    pub fn brings(&self, tag: Tag) -> bool {
        self.way() == NumaMode::Replicate || self.is_probe(tag)
    }

    pub fn is_probe(&self, tag: Tag) -> bool {
        tag.sample().wrapping_sub(self.first_probe.load(Ordering::Relaxed) as u16) < PROBES
    }

    /// Takes another way from now on.
    pub fn go(&self, way: NumaMode) {
        let before = self.way.swap(way as u64, Ordering::Relaxed);
        self.changes.fetch_add(u64::from(before != way as u64), Ordering::Relaxed);
        self.has_rest.fetch_or(before == NumaMode::Replicate as u64, Ordering::Relaxed);
    }

    /// An access to a probe: its cost, were it direct, and as it was.
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
        // Somebody else's look is as good.
        let Some(mut looks) = try_lock(&self.looks) else { return };
        if self.accesses.swap(0, Ordering::Relaxed) < LOOK {
            return;
        }
        let take = |sum: &AtomicU64| sum.swap(0, Ordering::Relaxed) as f64;
        let direct = take(&self.direct);
        let new = Costs { direct, by_message: direct - take(&self.saved), brought: take(&self.brought) };
        let now = self.way();
        let way = looks.look(new, now);
        if way != now {
            log::debug!("from {} to {}: {:?}", now.name(), way.name(), looks.costs);
            self.go(way);
        }
    }

    /// Makes other pages probes, if hardly any access was to those that are.
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

    /// How long a look takes until its way is gone.
    fn looks_until(looks: &mut Looks, new: Costs, now: &mut NumaMode, way: NumaMode) -> u32 {
        let mut count = 0;
        while *now != way {
            *now = looks.look(new, *now);
            count += 1;
            assert!(count < 1000, "{looks:?} never says {way:?}");
        }
        count
    }

    #[test]
    fn the_cheapest_way_is_gone_after_some_looks_and_a_little_cheaper_is_none() {
        assert_eq!(costs(100.0, 99.0, 200.0).best(NumaMode::Replicate), NumaMode::Partition);
        let (mut looks, mut now) = (Looks::default(), NumaMode::Partition);
        for _ in 0..100 {
            now = looks.look(costs(100.0, 98.0, 97.5), now);
            assert_eq!(now, NumaMode::Partition);
        }
        assert!(looks_until(&mut looks, costs(100.0, 98.0, 60.0), &mut now, NumaMode::Replicate) <= 6);
        // It saves a little, so it stays; then nothing, so it goes.
        for _ in 0..100 {
            now = looks.look(costs(100.0, 100.0, 97.5), now);
            assert_eq!(now, NumaMode::Replicate);
        }
        assert!(looks_until(&mut looks, costs(100.0, 100.0, 99.9), &mut now, NumaMode::Partition) <= 12);
        looks_until(&mut looks, costs(100.0, 70.0, 90.0), &mut now, NumaMode::Message);
        looks_until(&mut looks, costs(100.0, 70.0, 40.0), &mut now, NumaMode::Replicate);
    }

    #[test]
    fn one_look_decides_nothing_and_who_turns_to_and_fro_must_wait_longer() {
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
        // A load that rests is believed again.
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
            // Where lookups overlap anyway.
            assert!(prices.letter(LETTERS_MAX as u64, 512, false) > prices.access(false, 512, 32));
        }
    }
}
