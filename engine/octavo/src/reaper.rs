//! The reaper: moves memory between partitions by what it is worth to them, and gives it back to
//! the system when that is short of it.
//!
//! A thread of its own. Several times a second it takes what the monitors were shown through their
//! miniatures; once a period it looks at all partitions, asks `octavo_share` for the next steps,
//! and makes them: who shrinks first, then who grows. It holds no lock that serving takes but those
//! of a resize. With nothing going on it looks at the system's memory every few seconds, or when
//! the kernel or somebody else tells that memory is short (`alarm`), and does no more.
//!
//! What is not here: what is worth what (`octavo_share`), how a partition is resized (`partition`),
//! how short memory is (`pressure`).

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use octavo_share::{Curve, Leaf, Limits, Node, Pace, Resize, Seen, State, Stretch, Trend};

use crate::alarm::Alarm;
use crate::cache::{Cache, CacheInner};
use crate::partition::{Partition, Planning, Stop, Turn};
use crate::pressure::{PressureSource, Total};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// Between two looks at the monitors while there is traffic: their rings hold some thousand
/// accesses of the sample.
const TICK: Duration = Duration::from_millis(100);

/// Ticks of a period.
const TICKS: u32 = 10;

/// Ticks without news until there is no traffic, and the time between two looks then: while
/// partitions give memory back, and else.
const QUIET_TICKS: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(5);

/// From so many references of the sample on a curve is believed.
const SEEN_MIN: u64 = 64;

/// What the reaper knows between two periods.
pub(crate) struct Reaper {
    /// Groups that were given limits, by name.
    groups: Mutex<BTreeMap<String, Limits>>,
    /// How much all partitions may hold, by the system's memory.
    total: Mutex<Total>,
    pub alarm: Alarm,
    /// Held by who resizes several partitions, or makes one.
    pub planning: Mutex<Planning>,
    /// References that the monitors were shown since their counts last faded.
    shown: AtomicU64,
    moved_bytes: AtomicU64,
    periods: AtomicU64,
}

/// What the reaper did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaperStat {
    /// Times that it looked at all partitions.
    pub periods: u64,
    /// Bytes that partitions gave away.
    pub moved_bytes: u64,
    /// What all together may hold now: `memory_max`, or less while the system is short of memory.
    pub allowed_bytes: u64,
    /// Partitions whose size waits for a store that has not answered in time.
    pub held_up: u64,
}

impl Reaper {
    pub fn new(memory_max_bytes: u64) -> std::io::Result<Reaper> {
        Ok(Reaper {
            groups: Mutex::new(BTreeMap::new()),
            total: Mutex::new(Total::new(memory_max_bytes)),
            alarm: Alarm::new()?,
            planning: Mutex::new(Planning::default()),
            shown: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            periods: AtomicU64::new(0),
        })
    }

    pub fn stat(&self) -> ReaperStat {
        // Relaxed: figures.
        ReaperStat {
            periods: self.periods.load(Ordering::Relaxed),
            moved_bytes: self.moved_bytes.load(Ordering::Relaxed),
            allowed_bytes: lock(&self.total).bytes,
            held_up: 0,
        }
    }

    pub fn groups(&self) -> BTreeMap<String, Limits> {
        lock(&self.groups).clone()
    }

    pub fn set_group(&self, name: &str, limits: Limits) {
        lock(&self.groups).insert(name.into(), limits);
    }
}

/// The groups above a partition, outermost first: `host/vm1/disk0` is in `host` and in `host/vm1`.
pub(crate) fn groups_of(name: &str) -> impl Iterator<Item = &str> {
    let slashes = name.char_indices().filter(|(at, c)| *c == '/' && *at > 0);
    slashes.map(|(at, _)| &name[..at])
}

/// Whether a name has nothing between two slashes, or behind the last.
pub(crate) fn has_empty_level(name: &str) -> bool {
    name.ends_with('/') || groups_of(name).any(|group| group.ends_with('/'))
}

/// The picture of a cache that a plan is made from, and the partition of each node.
pub(crate) struct Picture {
    pub state: State,
    pub partitions: Vec<Option<Partition>>,
}

impl Picture {
    /// `keep`: what the curves' counts are worth from now on; 1 only looks.
    pub fn of(cache: &Cache, keep: f64) -> Picture {
        let (shared, partitions) = (cache.shared(), cache.partitions());
        let groups = shared.reaper.groups();
        let mut picture = Picture { state: State::default(), partitions: Vec::new() };
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut apart = shared.budget.max_bytes().saturating_sub(lock(&shared.reaper.total).bytes);
        apart += shared.reserve.max_bytes();
        for partition in &partitions {
            let mut parent = None;
            for group in groups_of(partition.name()) {
                let place = *places.entry(group.into()).or_insert_with(|| {
                    let limits = groups.get(group).copied().unwrap_or_default();
                    picture.state.nodes.push(Node { parent, limits, leaf: None });
                    picture.partitions.push(None);
                    picture.state.nodes.len() - 1
                });
                parent = Some(place);
            }
            let share = partition.share(keep);
            apart += share.fixed_bytes;
            // A group's limits, too, are of all that is charged to those in it.
            let mut above = parent;
            while let Some(place) = above {
                let group = &mut picture.state.nodes[place];
                group.limits = besides(group.limits, share.fixed_bytes);
                above = group.parent;
            }
            picture.state.granule_bytes = share.segment_bytes;
            picture.state.nodes.push(Node { parent, limits: share.limits, leaf: Some(share.leaf) });
            picture.partitions.push(Some(partition.clone()));
        }
        // However short the system is of memory: what was promised stays.
        let least = picture.state.least_bytes();
        picture.state.total_bytes = shared.budget.max_bytes().saturating_sub(apart).max(least);
        picture
    }

    /// The same, where those whose stores do not answer keep what they have: a plan shares out what
    /// can be had.
    pub fn spare_held_up(mut self) -> Picture {
        let nodes = &mut self.state.nodes;
        // Children stand behind their parents: what those below a group keep, it has room for.
        let mut kept = vec![0u64; nodes.len()];
        for (place, partition) in self.partitions.iter().enumerate().rev() {
            if partition.as_ref().is_some_and(Partition::is_held_up) {
                kept[place] = nodes[place].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes);
                nodes[place].limits.min_bytes = nodes[place].limits.min_bytes.max(kept[place]);
            }
            nodes[place].limits.max_bytes = nodes[place].limits.max_bytes.max(kept[place]);
            if let Some(parent) = nodes[place].parent {
                kept[parent] += kept[place];
            }
        }
        self.state.total_bytes = self.state.total_bytes.max(self.state.least_bytes());
        self
    }

    /// Makes the steps that a plan names. Returns how many bytes partitions gave away.
    pub fn carry_out(&self, pace: &Pace, turn: Option<Turn<'_>>) -> u64 {
        self.make(self.state.plan(pace), turn).0
    }

    /// The same, and those that were held up.
    fn make(&self, steps: Vec<Resize>, turn: Option<Turn<'_>>) -> (u64, Vec<Partition>) {
        let (mut moved, mut held_up) = (0, Vec::new());
        for resize in steps {
            let Some(partition) = &self.partitions[resize.node] else { continue };
            let before = self.state.nodes[resize.node].leaf.as_ref().map_or(0, |leaf| leaf.current_bytes);
            match partition.resize_in_turn((resize.to_bytes / self.state.granule_bytes) as u32, turn) {
                Ok(()) => {
                    partition.went(before, resize.to_bytes);
                    moved += before.saturating_sub(resize.to_bytes);
                }
                // A store that refuses keeps its dirty pages where they are, or a pin its segment: the next
                // period tries again.
                Err(Stop::Failed(error)) => {
                    log::debug!("partition {}: not resized: {error}", partition.name())
                }
                // Others need not wait for its store: the next period goes on with it.
                Err(Stop::HeldUp) => held_up.push(partition.clone()),
            }
        }
        (moved, held_up)
    }
}

/// What a partition has, was promised and could use.
pub(crate) struct Share {
    pub limits: Limits,
    pub leaf: Leaf,
    /// What is charged to it besides segments.
    pub fixed_bytes: u64,
    /// A segment with its metadata.
    pub segment_bytes: u64,
}

/// Whether a partition is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It was never asked for a page.
    Never,
    /// It was not in so many of the last periods, in which others were.
    Before(u32),
}

impl Use {
    /// Quiet periods that say nothing yet: there are loads that rest for a while.
    const QUIET: u32 = 4;

    /// How much of what was seen of it is to be expected again: half as much each period, once it
    /// has been quiet for a while.
    fn expected(self) -> f64 {
        match self {
            Use::Never => 1.0,
            Use::Before(periods) => 0.5f64.powi(periods.saturating_sub(Use::QUIET).min(30) as i32),
        }
    }
}

impl Share {
    /// From figures of a partition. Limits are of all that is charged; a plan is about segments
    /// alone.
    pub fn new(
        limits: Limits,
        (segment_bytes, fixed_bytes): (u64, u64),
        curve: Option<octavo_table::MissCurve>,
        page_bytes: u64,
        (seen, stretch): (&Seen, &mut Stretch),
        (trend, use_): (Trend, Use),
    ) -> Share {
        let limits = besides(limits, fixed_bytes);
        let current_bytes = seen.bytes;
        // A partition of which nothing is seen is left alone as far as that is possible.
        let is_new = curve.as_ref().is_none_or(|curve| curve.seen < SEEN_MIN);
        let curve = curve.unwrap_or_default();
        let points = curve.points.iter().map(|(pages, misses)| (pages * page_bytes, *misses));
        let curve = Curve::new(curve.references, points).fitted(seen, stretch).scaled(use_.expected());
        let sampled_pages = seen.sampled_per_byte * current_bytes as f64;
        let leaf = Leaf { current_bytes, curve, trend, sampled_pages, is_new, is_unused: use_ == Use::Never };
        Share { limits, leaf, fixed_bytes, segment_bytes }
    }
}

/// What limits leave for segments, where so much is charged besides.
fn besides(limits: Limits, fixed_bytes: u64) -> Limits {
    let less = |bytes: u64| if bytes == u64::MAX { bytes } else { bytes.saturating_sub(fixed_bytes) };
    Limits {
        min_bytes: less(limits.min_bytes),
        low_bytes: less(limits.low_bytes),
        high_bytes: less(limits.high_bytes),
        max_bytes: less(limits.max_bytes),
        ..limits
    }
}

/// Goes on with what earlier turns have begun and given up, and then with what lies beyond a bound.
/// Returns those whose stores still do not answer.
pub(crate) fn go_on(cache: &Cache, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = cache.partitions();
    held_up.retain(Partition::is_held_up);
    if !held_up.is_empty() {
        resume(cache, turn);
        if !held_up.iter().all(Partition::is_held_up) {
            keep_bounds(cache, turn);
        }
        held_up = cache.partitions();
        held_up.retain(Partition::is_held_up);
    }
    held_up
}

/// Goes on with what earlier turns have begun and given up.
fn resume(cache: &Cache, turn: Option<Turn<'_>>) {
    for partition in cache.partitions().iter().filter(|partition| partition.is_held_up()) {
        if let Err(Stop::Failed(error)) = partition.catch_up_in_turn(turn) {
            log::debug!("partition {}: not resized: {error}", partition.name());
        }
    }
}

/// Takes what lies beyond a group's `max` from those in it, and moves nothing else: for whoever has
/// changed a bound or a size, while he holds `planning`. Returns those whose stores hold that up.
pub(crate) fn keep_bounds(cache: &Cache, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = Vec::new();
    // A segment that goes may leave some of its metadata charged, so that the first turn is a little
    // short: the second is not.
    for _ in 0..4 {
        let picture = Picture::of(cache, 1.0);
        let steps = picture.state.keep_bounds();
        if steps.is_empty() {
            return Vec::new();
        }
        held_up = picture.make(steps, turn).1;
    }
    held_up
}

/// One period: looks at the system's memory and at all partitions, and makes the next steps. True:
/// partitions have to give memory back to the system.
pub(crate) fn period(cache: &Cache, had_news: bool) -> bool {
    let short = cache.shared().reaper.alarm.take_short();
    let shared = cache.shared();
    let reaper = &shared.reaper;
    let planning = lock(&reaper.planning);
    let yields = shared.config.pressure.as_ref().is_some_and(|source| {
        let mut sample = source.sample();
        if short {
            sample = sample.stalled_now();
        }
        let mut total = lock(&reaper.total);
        let changed = total.follow(&sample, shared.budget.used_bytes());
        if changed {
            log::debug!("{sample:?}: partitions may hold {} bytes", total.bytes);
        }
        // Relaxed: a hint to whoever would make copies.
        shared.is_short.store(total.is_less(), Ordering::Relaxed);
        changed || total.bytes < shared.budget.used_bytes()
    });
    let turn = planning.turn(shared);
    go_on(cache, turn);
    // Without any news the curves say nothing new, and fading them would only make them poorer.
    if !had_news && !yields {
        return false;
    }
    let pace = Pace::default();
    // Relaxed: `planning` is held, and who counts meanwhile counts for the next time.
    let keep = pace.keep_after(reaper.shown.load(Ordering::Relaxed));
    if keep < 1.0 {
        reaper.shown.store(0, Ordering::Relaxed);
    }
    let picture = Picture::of(cache, keep).spare_held_up();
    let moved = picture.carry_out(&pace, turn);
    for partition in picture.partitions.iter().flatten() {
        partition.fit_monitor();
        // As above: the next period goes on with it.
        if let Err(why) = partition.balance_nodes(turn) {
            log::debug!("partition {}: pages stay on their nodes: {why:?}", partition.name());
        }
        if let Err(error) = partition.clear_rest() {
            log::debug!("partition {}: pages stay where they were brought: {error}", partition.name());
        }
    }
    // Relaxed: figures.
    reaper.moved_bytes.fetch_add(moved, Ordering::Relaxed);
    reaper.periods.fetch_add(1, Ordering::Relaxed);
    yields
}

/// Takes what the monitors were shown through their miniatures; returns how much there was.
pub(crate) fn drain(cache: &Cache) -> u64 {
    let shown = cache.partitions().iter().map(|partition| partition.0.table.drain_monitor()).sum();
    cache.shared().reaper.shown.fetch_add(shown, Ordering::Relaxed);
    shown
}

/// See the module.
pub(crate) fn reaper_thread(shared: &Arc<crate::cache::Shared>, cache: &Weak<CacheInner>) {
    let (mut quiet, mut ticks, mut had_news, mut yields) = (0, 0, false, false);
    let alarm = &shared.reaper.alarm;
    let mut triggers = shared.config.pressure.as_ref().map(PressureSource::triggers).unwrap_or_default();
    loop {
        let is_resting = quiet >= QUIET_TICKS;
        let time = match (is_resting, yields) {
            (false, _) => TICK,
            (true, true) => PERIOD,
            (true, false) => REST,
        };
        alarm.sleep(&mut triggers, time);
        // The cache is held only meanwhile, so that it can go.
        let Some(cache) = Cache::upgrade(cache).filter(|_| !alarm.is_over()) else { return };
        if is_resting || ticks == 0 {
            shared.buffers.give_back_idle();
        }
        let shown = drain(&cache);
        quiet = if shown > 0 { 0 } else { (quiet + 1).min(QUIET_TICKS) };
        had_news |= shown > 0;
        ticks += 1;
        if ticks >= TICKS || is_resting || alarm.is_short() {
            yields = period(&cache, std::mem::take(&mut had_news));
            ticks = 0;
        }
    }
}

/// Makes room for a partition that is to begin with `wanted` bytes, of which it needs `least`:
/// others give in proportion to their sizes, down to what they were promised and to a fair share
/// for the newcomer. Returns what it may begin with.
pub(crate) fn make_room(
    cache: &Cache,
    turn: Option<Turn<'_>>,
    limits: &Limits,
    wanted: u64,
    least: u64,
) -> u64 {
    resume(cache, turn);
    let mut room = 0;
    // What one does not give because its store does not answer, others do.
    for _ in 0..2 {
        room = ask_for_room(cache, turn, limits, wanted, least);
        if room >= wanted || !cache.partitions().iter().any(Partition::is_held_up) {
            break;
        }
    }
    room
}

fn ask_for_room(cache: &Cache, turn: Option<Turn<'_>>, limits: &Limits, wanted: u64, least: u64) -> u64 {
    let left = cache.shared().budget.left_bytes();
    let picture = Picture::of(cache, 1.0).spare_held_up();
    let State { total_bytes, granule_bytes, nodes } = &picture.state;
    if left >= wanted || nodes.is_empty() {
        return wanted.min(left);
    }
    let weights: u64 =
        nodes.iter().filter(|node| node.leaf.is_some()).map(|node| u64::from(node.limits.weight)).sum();
    let own = u64::from(limits.weight);
    let fair = (u128::from(*total_bytes) * u128::from(own) / u128::from(own + weights)) as u64;
    let wanted = fair.max(limits.min_bytes).max(least).min(wanted);
    if left >= wanted {
        return left;
    }
    let held: u64 = nodes.iter().filter_map(|node| node.leaf.as_ref()).map(|leaf| leaf.current_bytes).sum();
    let total_bytes = held.saturating_sub((wanted - left).next_multiple_of((*granule_bytes).max(1)));
    let smaller = Picture {
        state: State { total_bytes, ..picture.state.clone() },
        partitions: picture.partitions.clone(),
    };
    smaller.carry_out(&Pace { step: 0.0, ..Pace::default() }, turn);
    cache.shared().budget.left_bytes().min(wanted)
}
