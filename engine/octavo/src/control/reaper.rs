//! The reaper thread moves memory to the partitions where it avoids the most misses, and gives
//! memory back to the system when the system is short of it.
//!
//! - Ten times a second it feeds the accesses that the monitors have sampled into the monitors'
//!   miniatures.
//! - Once per period (one second) it takes a snapshot of all partitions, asks `octavo_share` for
//!   the next resizes and carries them out: first those that shrink a partition, then those that
//!   grow one.
//! - Of the locks that requests take, it takes only those that a resize needs.
//! - Without traffic it only checks the system's memory: every five seconds (every second while
//!   partitions give memory back), and when the kernel or a caller reports a shortage (`alarm.rs`).
//!
//! Not here: how much a partition gains from memory (`octavo_share`), how a partition is resized
//! (`resize.rs`), how short memory is (`pressure.rs`).

use std::time::Duration;

use octavo_share::{Limits, Pace, State};

use super::buffers;
use super::core::{Core, Partition};
use super::plan::Picture;
use super::turn::{Stop, Turn};
use crate::pressure::PressureSource;
use crate::state::events::{Happened, MoveReason};
use crate::sync::{Arc, Ordering, lock};

/// Interval between two drains of the monitors while there is traffic. A monitor's ring holds some
/// thousand sampled accesses.
const TICK: Duration = Duration::from_millis(100);

/// Ticks per period.
const TICKS: u32 = 10;

/// Ticks without a sampled access after which the cache counts as idle. The reaper then wakes once
/// per [`PERIOD`] while partitions give memory back, and once per [`REST`] otherwise.
const QUIET_TICKS: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(5);

/// Continues resizes that earlier turns gave up, and then takes memory above a `max`. Returns the
/// partitions whose stores still do not answer.
pub(crate) fn continue_resizes(core: &Arc<Core>, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = core.partitions();
    held_up.retain(Partition::is_held_up);
    if !held_up.is_empty() {
        resume(core, turn);
        if !held_up.iter().all(Partition::is_held_up) {
            enforce_max(core, turn);
        }
        held_up = core.partitions();
        held_up.retain(Partition::is_held_up);
    }
    held_up
}

/// Continues resizes that earlier turns gave up.
fn resume(core: &Arc<Core>, turn: Option<Turn<'_>>) {
    for partition in core.partitions().iter().filter(|partition| partition.is_held_up()) {
        if let Err(Stop::Failed(error)) = partition.catch_up_in_turn(turn) {
            log::debug!("partition {}: not resized: {error}", partition.name());
        }
    }
}

/// Takes memory above a `max`, of a partition or of a group, and moves nothing else. The caller has
/// changed a limit or a size, and holds `planning`. Returns the partitions that still have too much
/// because their stores do not answer.
pub(crate) fn enforce_max(core: &Arc<Core>, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = Vec::new();
    // The metadata of a segment that leaves stays charged, so the first round can fall a little
    // short. The second round corrects that.
    for _ in 0..4 {
        let picture = Picture::of(core, 1.0);
        let steps = picture.state.keep_bounds();
        if steps.is_empty() {
            return Vec::new();
        }
        held_up = picture.make(steps, turn).1;
    }
    held_up
}

/// Runs one period: checks the system's memory and all partitions, and carries out the next
/// resizes. `had_news` says whether the monitors have seen accesses. Returns whether partitions
/// must give memory back to the system.
pub(crate) fn period(core: &Arc<Core>, had_news: bool) -> bool {
    let short = core.ledger.alarm.take_short();
    let shared = &core.shared;
    let reaper = &core.ledger;
    let planning = lock(&reaper.planning);
    let yields = shared.config.pressure.as_ref().is_some_and(|source| {
        let mut sample = source.sample();
        if short {
            sample = sample.stalled_now();
        }
        let (before, now, is_less) = {
            let mut total = lock(&reaper.total);
            let before = total.bytes;
            total.follow(&sample, shared.budget.used_bytes());
            (before, total.bytes, total.is_less())
        };
        if now != before {
            log::debug!("{sample:?}");
            shared.events.add(Happened::Allowed { from_bytes: before, to_bytes: now });
        }
        // Relaxed: a hint to threads that would make twins.
        shared.is_short.store(is_less, Ordering::Relaxed);
        now != before || now < shared.budget.used_bytes()
    });
    let turn = planning.turn(core.crew(), if yields { MoveReason::Pressure } else { MoveReason::Utility });
    continue_resizes(core, turn);
    core.partitions().iter().for_each(|partition| partition.inner.try_give_back_unpinned());
    shared.reserve.end_period(|| shared.buffers.fit());
    // Without new accesses the curves have not changed, and decay would only lose information.
    if !had_news && !yields {
        return false;
    }
    let pace = Pace::default();
    // Relaxed: this thread holds `planning`, and accesses counted from here on belong to the next
    // period.
    let keep = pace.keep_after(reaper.shown.load(Ordering::Relaxed));
    if keep < 1.0 {
        reaper.shown.store(0, Ordering::Relaxed);
    }
    let picture = Picture::of(core, keep).spare_held_up();
    let moved = picture.carry_out(&pace, turn);
    for partition in picture.partitions.iter().flatten() {
        partition.fit_monitor();
        // The next period tries again.
        if let Err(why) = partition.balance_nodes(turn) {
            log::debug!(
                "partition {}: cannot move pages between nodes, the next period tries again: {why:?}",
                partition.name()
            );
        }
        if let Err(error) = partition.clear_leftovers() {
            log::debug!("partition {}: cannot move mains home: {error}", partition.name());
        }
    }
    let mut counts = lock(&reaper.counts);
    counts.moved_bytes += moved;
    counts.periods += 1;
    yields
}

/// Feeds the accesses that the monitors have sampled into the monitors' miniatures. Returns the
/// number of accesses.
pub(crate) fn drain_monitors(core: &Arc<Core>) -> u64 {
    let shown = core.partitions().iter().map(|partition| partition.inner.table.drain_monitor()).sum();
    core.ledger.shown.fetch_add(shown, Ordering::Relaxed);
    shown
}

/// The reaper thread's loop, until the cache is dropped; see the module.
pub(crate) fn reaper_thread(core: &Arc<Core>) {
    let (mut quiet, mut ticks, mut had_news, mut yields) = (0, 0, false, false);
    let (shared, alarm) = (&core.shared, &core.ledger.alarm);
    let mut triggers = shared.config.pressure.as_ref().map(PressureSource::triggers).unwrap_or_default();
    loop {
        let is_resting = quiet >= QUIET_TICKS;
        let time = match (is_resting, yields) {
            (false, _) => TICK,
            (true, true) => PERIOD,
            (true, false) => REST,
        };
        alarm.sleep(&mut triggers, time);
        if alarm.is_over() {
            return;
        }
        if is_resting || ticks == 0 {
            shared.buffers.give_back_idle();
        }
        buffers::serve_wanted(core);
        let shown = drain_monitors(core);
        quiet = if shown > 0 { 0 } else { (quiet + 1).min(QUIET_TICKS) };
        had_news |= shown > 0;
        ticks += 1;
        if ticks >= TICKS || is_resting || alarm.is_short() {
            yields = period(core, std::mem::take(&mut had_news));
            ticks = 0;
        }
    }
}

/// Makes room for a partition that wants `wanted` more bytes and needs at least `least`. The other
/// partitions give in proportion to their sizes, but not below their minimums, and only until the
/// partition has its fair share by weight (or its `min`, if that is more). Returns the bytes that
/// the partition can get.
pub(crate) fn make_room(
    core: &Arc<Core>,
    turn: Option<Turn<'_>>,
    limits: &Limits,
    wanted: u64,
    least: u64,
) -> u64 {
    resume(core, turn);
    let mut room = 0;
    // If one partition cannot give memory because its store does not answer, ask again: the second
    // round takes that memory from the others.
    for _ in 0..2 {
        room = ask_for_room(core, turn, limits, wanted, least);
        if room >= wanted || !core.partitions().iter().any(Partition::is_held_up) {
            break;
        }
    }
    room
}

fn ask_for_room(core: &Arc<Core>, turn: Option<Turn<'_>>, limits: &Limits, wanted: u64, least: u64) -> u64 {
    let left = core.shared.budget.left_bytes();
    let picture = Picture::of(core, 1.0).spare_held_up();
    let State { total_bytes, nodes, .. } = &picture.state;
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
    picture.shrink_all(wanted - left, turn);
    core.shared.budget.left_bytes().min(wanted)
}
