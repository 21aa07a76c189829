//! A file that fits in the frames fits in the sets, in a table of any history.

use octavo_random::Random;
use octavo_table::{Mixer, Move, NoBytes, PolicyKind, Shape, Table};

use crate::setup::bring;

const SETS: u32 = 32;
const SHAPE: Shape = Shape { segments_max: 128, sets_per_segment: SETS };
const PAGES_PER_SEGMENT: u64 = 16 * SETS as u64;

fn finish(table: &Table<16>, moves: Vec<Move>) {
    moves.into_iter().for_each(|mv| assert_eq!(table.advance(mv, &mut NoBytes).busy, None));
}

fn resize(table: &Table<16>, segments: u32) {
    while table.live_segments() < segments {
        finish(table, table.join(table.spare_segment().unwrap()));
    }
    while table.live_segments() > segments {
        let segment = table.segment_to_leave(&[]).unwrap();
        finish(table, table.leave(segment));
        table.retire(segment).unwrap();
    }
}

/// Shrinks as the engine does: the segments leave together.
fn shrink_at_once(table: &Table<16>, segments: u32) {
    let count = (table.live_segments() - segments) as usize;
    let leaving = table.segments_to_leave(count, &[], None);
    finish(table, table.leave_all(&leaving));
    leaving.iter().for_each(|segment| table.retire(*segment).unwrap());
    assert_eq!(table.live_segments(), segments);
}

/// Reads a file once that has frames for a hundredth more, and returns how much of it is resident.
/// First for a file that begins at page 0, then the worst of two that begin anywhere: they consist
/// of two or more blocks, each of which is even up to one group of pages a segment.
fn resident(table: &Table<16>, seed: u64) -> (f64, f64) {
    let (mixer, mut random) = (Mixer::new(seed), Random::new(seed));
    let pages = (table.slots_count() as f64 / 1.01) as u64;
    let firsts = [0, random.below(1 << 30), random.below(1 << 20)];
    let [first, second, third] = std::array::from_fn(|file| {
        let tag = |page| mixer.tag((file as u64 + 1) << 40 | (firsts[file] + page));
        (0..pages).for_each(|page| _ = bring(table, tag(page), false).unwrap());
        (0..pages).filter(|page| table.find(tag(*page)).is_some()).count() as f64 / pages as f64
    });
    (first, f64::min(second, third))
}

fn assert_stays(table: &Table<16>, seed: u64, least: (f64, f64)) {
    let (first, others) = resident(table, seed);
    let what = format!("{} segments of {} nodes, seed {seed}", table.live_segments(), table.nodes());
    assert!(first >= least.0 && others >= least.1, "{first} and {others} stay in {what}");
}

/// With entries dealt at a power-of-two stride, less than 0.9 of a file stays.
#[test]
fn a_file_stays_in_frames_for_a_hundredth_more() {
    for seed in [1, 3] {
        for (nodes, segments) in [(1, 1), (1, 5), (1, 97), (1, 128), (2, 96), (3, 100)] {
            let table = Table::<16>::spread(SHAPE, nodes, PolicyKind::Lru, segments);
            // In few segments of a number that is no power of two, one group of pages is much.
            let least = match (segments, nodes) {
                (0..10, _) => (0.95, 0.95),
                (_, 1) => (0.99, 0.95),
                _ => (0.98, 0.95),
            };
            assert_stays(&table, seed, least);
        }
    }
}

#[test]
fn a_file_stays_in_a_table_that_has_grown_and_shrunk() {
    for nodes in [1, 2, 3] {
        let table = Table::<16>::spread(SHAPE, nodes, PolicyKind::Lru, 128);
        for segments in [32, 33, 128] {
            resize(&table, segments);
            assert_stays(&table, 1, if nodes == 1 { (0.97, 0.94) } else { (0.95, 0.94) });
        }
        for segments in [97, 33] {
            shrink_at_once(&table, segments);
            assert_stays(&table, 1, if nodes == 1 { (0.97, 0.94) } else { (0.95, 0.94) });
        }
    }
}

#[test]
fn entries_stay_evenly_dealt_through_a_thousand_resizes() {
    for nodes in [1, 2, 3] {
        let table = Table::<16>::spread(SHAPE, nodes, PolicyKind::Lru, 64);
        let mut random = Random::new(u64::from(nodes));
        for _ in 0..1000 {
            let change = random.below(9) as i64 - 4;
            resize(&table, (i64::from(table.live_segments()) + change).clamp(4, 128) as u32);
        }
        resize(&table, 96);
        let entries = table.entries_per_segment();
        let (least, most) = (*entries.iter().min().unwrap(), *entries.iter().max().unwrap());
        assert!(most - least <= 2 || nodes > 1, "{least} to {most}");
        assert_stays(&table, 1, (0.95, 0.93));
    }
}

#[test]
fn neighbouring_pages_lie_in_few_segments_and_in_different_sets() {
    let table = Table::<16>::new(SHAPE, PolicyKind::Lru, 128);
    let mixer = Mixer::new(1);
    for first in (0..100 * PAGES_PER_SEGMENT).step_by(SETS as usize) {
        let group = first..first + u64::from(SETS);
        let slots: Vec<_> = group.map(|page| bring(&table, mixer.tag(page), false).unwrap()).collect();
        let mut sets: Vec<u32> = slots.iter().map(|slot| slot.0 / 16 % SETS).collect();
        let mut segments: Vec<_> = slots.iter().map(|slot| table.segment_of(*slot)).collect();
        sets.sort_unstable();
        sets.dedup();
        segments.sort_unstable();
        segments.dedup();
        assert!(sets.len() == SETS as usize && segments.len() <= 2, "{sets:?} {segments:?}");
    }
}
