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

use std::time::Duration;

use octavo_share::{Limits, Pace, State};

use super::core::{Core, Partition};
use super::plan::Picture;
use super::turn::{Stop, Turn};
use crate::pressure::PressureSource;
use crate::sync::{Arc, Ordering, lock};

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

/// Goes on with what earlier turns have begun and given up, and then with what lies beyond a bound.
/// Returns those whose stores still do not answer.
pub(crate) fn go_on(core: &Arc<Core>, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = core.partitions();
    held_up.retain(Partition::is_held_up);
    if !held_up.is_empty() {
        resume(core, turn);
        if !held_up.iter().all(Partition::is_held_up) {
            keep_bounds(core, turn);
        }
        held_up = core.partitions();
        held_up.retain(Partition::is_held_up);
    }
    held_up
}

/// Goes on with what earlier turns have begun and given up.
fn resume(core: &Arc<Core>, turn: Option<Turn<'_>>) {
    for partition in core.partitions().iter().filter(|partition| partition.is_held_up()) {
        if let Err(Stop::Failed(error)) = partition.catch_up_in_turn(turn) {
            log::debug!("partition {}: not resized: {error}", partition.name());
        }
    }
}

/// Takes what lies beyond a group's `max` from those in it, and moves nothing else: for whoever has
/// changed a bound or a size, while he holds `planning`. Returns those whose stores hold that up.
pub(crate) fn keep_bounds(core: &Arc<Core>, turn: Option<Turn<'_>>) -> Vec<Partition> {
    let mut held_up = Vec::new();
    // A segment that goes may leave some of its metadata charged, so that the first turn is a little
    // short: the second is not.
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

/// One period: looks at the system's memory and at all partitions, and makes the next steps. True:
/// partitions have to give memory back to the system.
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
        let mut total = lock(&reaper.total);
        let changed = total.follow(&sample, shared.budget.used_bytes());
        if changed {
            log::debug!("{sample:?}: partitions may hold {} bytes", total.bytes);
        }
        // Relaxed: a hint to whoever would make copies.
        shared.is_short.store(total.is_less(), Ordering::Relaxed);
        changed || total.bytes < shared.budget.used_bytes()
    });
    let turn = planning.turn(core.crew());
    go_on(core, turn);
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
    let picture = Picture::of(core, keep).spare_held_up();
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
pub(crate) fn drain(core: &Arc<Core>) -> u64 {
    let shown = core.partitions().iter().map(|partition| partition.inner.table.drain_monitor()).sum();
    core.ledger.shown.fetch_add(shown, Ordering::Relaxed);
    shown
}

/// See the module.
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
        let shown = drain(core);
        quiet = if shown > 0 { 0 } else { (quiet + 1).min(QUIET_TICKS) };
        had_news |= shown > 0;
        ticks += 1;
        if ticks >= TICKS || is_resting || alarm.is_short() {
            yields = period(core, std::mem::take(&mut had_news));
            ticks = 0;
        }
    }
}

/// Makes room for a partition that is to begin with `wanted` bytes, of which it needs `least`:
/// others give in proportion to their sizes, down to what they were promised and to a fair share
/// for the newcomer. Returns what it may begin with.
pub(crate) fn make_room(
    core: &Arc<Core>,
    turn: Option<Turn<'_>>,
    limits: &Limits,
    wanted: u64,
    least: u64,
) -> u64 {
    resume(core, turn);
    let mut room = 0;
    // What one does not give because its store does not answer, others do.
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
    core.shared.budget.left_bytes().min(wanted)
}
