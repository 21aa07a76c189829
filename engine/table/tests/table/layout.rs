//! The memory of a table: what it costs, how evenly entries are spread, and that it may lie at any
//! address.

use std::ptr::NonNull;

use octavo_table::{
    Claim, METADATA_BYTES_PER_PAGE_MAX, Mixer, Move, Mover, NodeId, PINS_MAX, PolicyKind, SEGMENTS_MAX,
    SegmentIndex, Shape, SlotIndex, State, Table, Tag, entries_per_segment,
};

use crate::setup::{bring, one_set};
use octavo_random::Random;

/// A mover for tables that hold no bytes.
struct Nothing;

impl Mover for Nothing {
    fn copy(&mut self, _from: SlotIndex, _to: SlotIndex) {}

    fn wake(&mut self, slot: SlotIndex) {
        panic!("a waiter of {slot:?} was woken, but there is none");
    }
}

fn finish<const W: usize>(table: &Table<W>, moves: Vec<Move>) {
    for mv in moves {
        assert_eq!(table.advance(mv, &mut Nothing).busy, None);
    }
}

fn costs_at_most_the_budget<const W: usize>() {
    // 1 GiB of pages of 4 KiB, and a table far from full size.
    for (segments_max, live) in [(512, 512), (64, 64), (1, 1), (512, 300)] {
        let shape = Shape { segments_max, sets_per_segment: 512 / W as u32 };
        let bytes = Table::<W>::fixed_bytes(shape) + live * Table::<W>::segment_metadata_bytes(shape);
        let pages = live * 512;
        assert!(
            bytes <= pages * METADATA_BYTES_PER_PAGE_MAX,
            "{W} ways, {live} segments: {bytes} of {pages} pages"
        );
    }
}

#[test]
fn metadata_with_ghosts_and_directory_is_at_most_32_bytes_a_page() {
    assert_eq!(METADATA_BYTES_PER_PAGE_MAX, 32);
    costs_at_most_the_budget::<8>();
    costs_at_most_the_budget::<16>();
    costs_at_most_the_budget::<32>();
}

/// Returns the fewest and the most entries of a segment. `live` segments are in use.
fn fewest_and_most_entries(table: &Table<8>, live: u32) -> (usize, usize) {
    let entries = table.entries_per_segment();
    assert_eq!(entries.len(), live as usize);
    (*entries.iter().min().unwrap(), *entries.iter().max().unwrap())
}

#[test]
fn entries_are_spread_evenly_over_every_number_of_segments_while_growing_and_shrinking() {
    let shape = Shape { segments_max: if cfg!(miri) { 4 } else { 64 }, sets_per_segment: 1 };
    let table = Table::<8>::new(shape, PolicyKind::Fifo, 1);
    let segments = if cfg!(miri) { 3 } else { 64 };
    let check = |live: u32| {
        let (least, most) = fewest_and_most_entries(&table, live);
        assert!(most - least <= 1 && least >= entries_per_segment(8) as usize, "{live}: {least} to {most}");
    };
    check(1);
    for live in 2..=segments {
        finish(&table, table.join(table.spare_segment().unwrap()));
        check(live);
    }
    let mut random = Random::new(1);
    for live in (1..segments).rev() {
        let segments: Vec<_> = table.segments().collect();
        let leaving = random.pick(&segments);
        finish(&table, table.leave(leaving));
        table.retire(leaving).unwrap();
        check(live);
    }
}

/// Regression: each segment of a shrinking table left by itself, so an entry moved once for each
/// time that its number of segments fell by half or so, and a removal of 8 GiB took 24 seconds.
#[test]
fn segments_that_leave_together_move_each_entry_once_and_spread_the_entries_evenly() {
    let segments_max = if cfg!(miri) { 4 } else { 64 };
    for (seed, nodes) in (0..if cfg!(miri) { 2 } else { 40 }).map(|seed| (seed, seed as u32 % 2 + 1)) {
        let mut random = Random::new(seed);
        let shape = Shape { segments_max, sets_per_segment: 1 };
        let table = Table::<8>::spread(shape, nodes, PolicyKind::Lru, segments_max);
        while table.live_segments() > 1 {
            let count = 1 + random.below(u64::from(table.live_segments()) - 1) as usize;
            let leaving = table.segments_to_leave(count, &[], None);
            let counts = table.entries_per_segment();
            let live: Vec<_> = table.segments().collect();
            let of_leaving = live.iter().zip(counts).filter(|(segment, _)| leaving.contains(segment));
            let moves = table.leave_all(&leaving);
            assert_eq!(moves.len(), of_leaving.map(|(_, count)| count).sum::<usize>(), "seed {seed}");
            // The moves of a segment follow one another, in the order of `leaving`.
            let mut from: Vec<_> = moves.iter().map(|mv| mv.from()).collect();
            from.dedup();
            assert_eq!(from, leaving, "seed {seed}");
            finish(&table, moves);
            leaving.iter().for_each(|segment| table.retire(*segment).unwrap());
            table.end_resizes();
            let live = table.live_segments();
            if nodes == 1 || live == 1 {
                let (least, most) = fewest_and_most_entries(&table, live);
                assert!(most - least <= 1, "seed {seed}: {live}: {least} to {most}");
            }
        }
    }
}

/// One segment that leaves makes the moves that it always made: recordings contain only their
/// number.
#[test]
fn a_segment_that_leaves_alone_moves_as_before() {
    let make = || Table::<8>::new(Shape { segments_max: 8, sets_per_segment: 1 }, PolicyKind::Lru, 8);
    assert_eq!(make().leave_all(&[SegmentIndex(5)]), make().leave(SegmentIndex(5)));
}

#[test]
fn a_segment_gives_its_entries_away_at_once_if_it_has_no_page_r6() {
    let shape = Shape { segments_max: 4, sets_per_segment: 1 };
    let table = Table::<8>::new(shape, PolicyKind::Lru, 4);
    let index = bring(&table, Tag(0), false).unwrap();
    let slot = table.slot(index);
    slot.pin(slot.load()).unwrap();
    let full = table.segment_of(index);
    let moves = table.leave_all(&[full]);
    assert!(!table.give_entries(&moves), "the segment has a page");
    finish(&table, moves);
    table.retire(full).unwrap();
    let place = table.segment_of(table.find(Tag(0)).unwrap().index);
    let empty: Vec<_> = table.segments().filter(|segment| *segment != place).collect();
    let moves = table.leave_all(&empty);
    let (first, second) = moves.split_at(moves.iter().position(|mv| mv.from() == empty[1]).unwrap());
    assert!(table.give_entries(second) && table.give_entries(first) && table.give_entries(&[]));
    empty.iter().for_each(|segment| table.retire(*segment).unwrap());
    assert_eq!(table.segments().collect::<Vec<_>>(), [place]);
    // All pages are found there.
    assert!(table.find(Tag(0)).is_some());
    (1..8).for_each(|page| assert!(bring(&table, Tag(page), false).is_some()));
    assert_eq!(table.pages_in_segment(place), 8);
    assert!(slot.unpin());
}

#[test]
fn a_segment_with_only_a_pinned_snapshot_gives_its_entries_away_r5_r6() {
    let table = Table::<8>::new(Shape { segments_max: 2, sets_per_segment: 1 }, PolicyKind::Lru, 2);
    let index = bring(&table, Tag(0), false).unwrap();
    let slot = table.slot(index);
    slot.pin(slot.load()).unwrap();
    let mut guard = table.lock(Tag(0));
    let found = guard.find(Tag(0)).unwrap();
    guard.remove_quiet(&found, false).unwrap();
    drop(guard);
    let segment = table.segment_of(index);
    assert!(table.give_entries(&table.leave(segment)));
    table.retire(segment).unwrap();
    assert_eq!((slot.load().state(), table.snapshots_in(segment)), (State::Detached, vec![index]));
    assert!(slot.unpin());
}

/// With one segment after the other this took hours.
#[test]
#[cfg_attr(miri, ignore = "a directory of a million entries")]
fn a_table_with_the_maximum_number_of_segments_shrinks_to_one_at_once() {
    let shape = Shape { segments_max: SEGMENTS_MAX, sets_per_segment: 1 };
    let table = Table::<8>::new(shape, PolicyKind::Fifo, SEGMENTS_MAX);
    let leaving = table.segments_to_leave(SEGMENTS_MAX as usize, &[], None);
    assert_eq!(leaving.len(), SEGMENTS_MAX as usize - 1);
    let moves = table.leave_all(&leaving);
    for (of_segment, segment) in moves.chunk_by(|one, next| one.from() == next.from()).zip(&leaving) {
        assert!(of_segment[0].from() == *segment && table.give_entries(of_segment));
        table.retire(*segment).unwrap();
    }
    assert_eq!(table.segments().collect::<Vec<_>>(), [SegmentIndex(0)]);
}

#[test]
fn a_table_that_starts_with_any_number_of_segments_spreads_its_entries_evenly() {
    for live in 1..=if cfg!(miri) { 5 } else { 64 } {
        let table = Table::<8>::new(Shape { segments_max: 64, sets_per_segment: 1 }, PolicyKind::Fifo, live);
        let (least, most) = fewest_and_most_entries(&table, live);
        assert!(most - least <= 1, "{live} segments: {least} to {most}");
    }
}

/// Filling the directory once looked at all segments for each entry: a server with 60 GiB started
/// after 40 seconds, one with all segments after minutes.
#[test]
#[cfg_attr(miri, ignore = "a directory of a million entries")]
fn a_table_with_the_maximum_number_of_segments_starts_at_once() {
    let shape = Shape { segments_max: SEGMENTS_MAX, sets_per_segment: 1 };
    for nodes in [1, 2] {
        let table = Table::<8>::spread(shape, nodes, PolicyKind::Fifo, SEGMENTS_MAX);
        let (least, most) = fewest_and_most_entries(&table, SEGMENTS_MAX);
        assert!(
            least >= entries_per_segment(8) as usize && most - least <= 1,
            "{nodes} nodes: {least} to {most}"
        );
    }
}

/// Asserts that each node's segments share its entries evenly, and that no entry names a segment of
/// another node while its own has segments.
fn entries_are_with_their_nodes(table: &Table<8>, nodes: u32) {
    let mut segments_of = vec![Vec::new(); nodes as usize];
    for (segment, entries) in table.segments().zip(table.entries_per_segment()) {
        segments_of[table.node_of_segment(segment).0 as usize].push(entries);
    }
    let live = segments_of.iter().map(Vec::len).sum::<usize>();
    for entries in &segments_of {
        assert!(entries.len().abs_diff(live / nodes as usize) <= 1, "{segments_of:?}");
        if live >= nodes as usize {
            let most_less_least = entries.iter().max().unwrap() - entries.iter().min().unwrap();
            // If the directory has doubled between two joins, a difference of one has become two.
            assert!(most_less_least <= 2, "{segments_of:?}");
        }
    }
    // 64 groups of three nodes: 22, 21 and 21.
    let shares: Vec<usize> = segments_of.iter().map(|entries| entries.iter().sum()).collect();
    let all: usize = shares.iter().sum();
    if live >= nodes as usize {
        let fair = all / nodes as usize;
        assert!(shares.iter().all(|share| share.abs_diff(fair) <= fair / 20 + 1), "{shares:?}");
    }
}

#[test]
fn nodes_have_even_shares_of_segments_and_entries_while_growing_and_shrinking() {
    let segments_max = if cfg!(miri) { 6 } else { 48 };
    for nodes in [1, 2, 3, 4] {
        let shape = Shape { segments_max, sets_per_segment: 1 };
        for live in [1, 2, 5] {
            entries_are_with_their_nodes(&Table::spread(shape, nodes, PolicyKind::Fifo, live), nodes);
        }
        let table = Table::<8>::spread(shape, nodes, PolicyKind::Fifo, 1);
        while let Some(segment) = table.spare_segment() {
            finish(&table, table.join(segment));
            entries_are_with_their_nodes(&table, nodes);
        }
        assert_eq!(table.live_segments(), segments_max);
        while table.live_segments() > 1 {
            let segment = table.segment_to_leave(&[]).unwrap();
            finish(&table, table.leave(segment));
            table.retire(segment).unwrap();
            entries_are_with_their_nodes(&table, nodes);
        }
    }
}

#[test]
fn a_page_stays_on_its_node_while_segments_join() {
    let shape = Shape { segments_max: 12, sets_per_segment: 1 };
    let table = Table::<8>::spread(shape, 3, PolicyKind::Fifo, 3);
    let tags: Vec<Tag> = (0..500).map(|page| Mixer::new(7).tag(page)).collect();
    let nodes: Vec<_> = tags.iter().map(|tag| table.node_of(*tag)).collect();
    assert!((0..3).all(|node| nodes.iter().filter(|n| n.0 == node).count() > 130), "{nodes:?}");
    while let Some(segment) = table.spare_segment() {
        finish(&table, table.join(segment));
        assert!(tags.iter().zip(&nodes).all(|(tag, node)| table.node_of(*tag) == *node));
    }
}

#[test]
fn entries_shift_between_nodes_and_every_segment_keeps_some_while_segments_join_and_leave() {
    let shape = Shape { segments_max: 12, sets_per_segment: 1 };
    let table = Table::<8>::spread(shape, 3, PolicyKind::Fifo, 6);
    let mut random = Random::new(3);
    let level_entries = |table: &Table<8>| table.entries_per_segment().iter().sum::<usize>();
    for step in 0..if cfg!(miri) { 20 } else { 600 } {
        let [from, to] = [0, 1].map(|_| NodeId(random.below(3) as u32));
        let before = [from, to].map(|node| table.entries_of_node(node));
        match random.below(4) {
            0 if from != to => {
                let count = 1 + random.below(40) as usize;
                let moves = table.shift(from, to, count);
                let moved = moves.len();
                assert!(moved <= count);
                finish(&table, moves);
                let after = [from, to].map(|node| table.entries_of_node(node));
                assert_eq!([before[0] - moved, before[1] + moved], after, "step {step}");
            }
            1 => {
                if let Some(segment) = table.spare_segment_of(from).or_else(|| table.spare_segment()) {
                    finish(&table, table.join(segment));
                }
            }
            2 if table.live_segments() > 1 => {
                let leaving = table.segment_to_leave_of(from, &[]).or_else(|| table.segment_to_leave(&[]));
                let leaving = leaving.unwrap();
                finish(&table, table.leave(leaving));
                table.retire(leaving).unwrap();
            }
            _ => {}
        }
        let all = level_entries(&table);
        assert!(all.is_power_of_two() && table.entries_per_segment().iter().all(|n| *n > 0), "step {step}");
        assert_eq!((0..3).map(|node| table.entries_of_node(NodeId(node))).sum::<usize>(), all);
    }
}

#[test]
fn a_resize_deals_as_if_it_knew_nothing_of_the_last_one_even_after_one_that_was_given_up() {
    for nodes in [1, 3] {
        let shape = Shape { segments_max: 12, sets_per_segment: 1 };
        let tables = [(); 2].map(|()| Table::<8>::spread(shape, nodes, PolicyKind::Fifo, 6));
        let mut random = Random::new(u64::from(nodes));
        for step in 0..if cfg!(miri) { 10 } else { 300 } {
            let (kind, node) = (random.below(3), NodeId(random.below(u64::from(nodes)) as u32));
            let given_up = if random.below(4) == 0 { random.below(20) as usize } else { 0 };
            let [moves, expected] = [(&tables[0], false), (&tables[1], true)].map(|(table, forgets)| {
                if forgets {
                    table.end_resizes();
                }
                let leaving = table.segment_to_leave(&[]).filter(|_| table.live_segments() > 4);
                let moves = match (kind, table.spare_segment(), leaving) {
                    (0, Some(spare), _) => table.join(spare),
                    (1, _, Some(leaving)) => table.leave(leaving),
                    _ if nodes > 1 => table.shift(node, NodeId((node.0 + 1) % nodes), 10),
                    _ => Vec::new(),
                };
                let done = moves.len().saturating_sub(given_up);
                finish(table, moves[..done].to_vec());
                let is_emptied = kind == 1 && given_up == 0;
                leaving.filter(|_| is_emptied).inspect(|segment| table.retire(*segment).unwrap());
                moves
            });
            assert_eq!(moves, expected, "{nodes} nodes, step {step}");
        }
    }
}

#[derive(Clone)]
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Memory for a table, `skew_bytes` into the allocation.
struct Place {
    memory: Vec<Aligned>,
    skew_bytes: usize,
    bytes: usize,
}

impl Place {
    fn new(bytes: usize, skew_lines: usize) -> Place {
        let skew_bytes = skew_lines * 64;
        let memory = vec![Aligned([0; 4096]); (skew_bytes + bytes).div_ceil(4096)];
        Place { memory, skew_bytes, bytes }
    }

    fn memory(&mut self) -> NonNull<u8> {
        // Inside the allocation, which is this much larger.
        NonNull::new(self.memory.as_mut_ptr().cast::<u8>().wrapping_add(self.skew_bytes)).unwrap()
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.memory.iter().flat_map(|part| part.0).skip(self.skew_bytes).take(self.bytes)
    }
}

/// Runs some of every operation that leaves a trace in memory.
fn run_operations(table: &Table<16>) {
    let mixer = Mixer::new(5);
    for round in 0..if cfg!(miri) { 1 } else { 20 } {
        for key in 0..if cfg!(miri) { 20 } else { 60 } {
            let tag = mixer.tag(key * 3 + round);
            match table.find(tag) {
                Some(found) => _ = table.touch(&found),
                None => drop(bring(table, tag, key % 7 == 0)),
            }
        }
        if let Some(spare) = table.spare_segment() {
            finish(table, table.join(spare));
        }
    }
}

#[test]
fn tables_at_different_addresses_hold_the_same_bytes_and_none_is_an_address() {
    let shape = Shape { segments_max: 3, sets_per_segment: 2 };
    let bytes = Table::<16>::memory_bytes(shape);
    let places = [0, 7].map(|skew| {
        let mut place = Place::new(bytes, skew);
        // SAFETY: zeroed, aligned to 64, this long, and used by nothing else while the table lives.
        let table = unsafe { Table::<16>::in_memory(place.memory(), shape, 1, PolicyKind::NrLfu, 1) };
        run_operations(&table);
        drop(table);
        place
    });
    for place in &places {
        assert!(
            place.bytes().eq(places[0].bytes()),
            "the same operations leave the same bytes at any address"
        );
        let own = place.memory.as_ptr_range();
        for word in place.bytes().collect::<Vec<_>>().windows(8) {
            let word = usize::from_ne_bytes(word.try_into().unwrap());
            assert!(
                !(own.start as usize..own.end as usize).contains(&word),
                "an address in a table: {word:#x}"
            );
        }
    }
}

#[test]
fn one_pin_too_many_is_refused_and_changes_no_other_field_p4_p5() {
    let table = one_set::<8>(PolicyKind::Lru);
    let slot = table.slot(bring(&table, Tag(0), true).unwrap());
    let before = slot.load();
    (0..PINS_MAX).for_each(|_| slot.pin(before).unwrap());
    let full = slot.load();
    assert_eq!(slot.pin(before), Err(full));
    assert_eq!((full.pins(), full.state(), full.version()), (PINS_MAX, State::Dirty, before.version()));
    assert!(!full.waited() && !full.writeback());
    slot.begin_writeback(full).unwrap();
    assert!(table.end_writeback(SlotIndex(0), full.version(), true).cleaned);
    assert_eq!(slot.load().pins(), PINS_MAX);
    (0..PINS_MAX).for_each(|_| assert!(!slot.unpin()));
    assert_eq!((slot.load().pins(), slot.load().version()), (0, before.version()));
}

#[test]
fn a_set_whose_ways_are_all_pinned_is_full_and_one_unpin_makes_room() {
    let table = one_set::<8>(PolicyKind::Clock);
    let slots: Vec<_> = (0..8).map(|page| table.slot(bring(&table, Tag(page), false).unwrap())).collect();
    slots.iter().for_each(|slot| slot.pin(slot.load()).unwrap());
    assert_eq!(table.lock(Tag(8)).claim(Tag(8)), Claim::Full);
    slots[3].unpin();
    let expected = Claim::Claimed { slot: SlotIndex(3), evicted: Some(Tag(3)) };
    assert_eq!(table.lock(Tag(8)).claim(Tag(8)), expected);
}

#[test]
fn a_way_whose_snapshot_is_pinned_is_not_claimed_and_not_lost_p5_p9() {
    let table = one_set::<8>(PolicyKind::Lru);
    let slot = table.slot(bring(&table, Tag(0), false).unwrap());
    slot.pin(slot.load()).unwrap();
    let mut guard = table.lock(Tag(0));
    let found = guard.find(Tag(0)).unwrap();
    guard.remove_quiet(&found, false).unwrap();
    assert!(guard.find(Tag(0)).is_none() && table.find(Tag(0)).is_none());
    drop(guard);
    // All other ways fill up with dirty pages. Then no way is available: that of the snapshot is
    // not one.
    (1..8).for_each(|page| assert!(bring(&table, Tag(page), true).is_some()));
    assert_eq!(bring(&table, Tag(8), false), None);
    assert!(slot.unpin());
    assert_eq!(bring(&table, Tag(8), false), Some(SlotIndex(0)));
}

#[test]
fn a_segment_with_a_pinned_snapshot_retires_and_gets_no_page_until_it_joins_again() {
    let table = Table::<8>::new(Shape { segments_max: 3, sets_per_segment: 1 }, PolicyKind::Lru, 3);
    let index = bring(&table, Tag(0), true).unwrap();
    let slot = table.slot(index);
    slot.pin(slot.load()).unwrap();
    let (segment, version) = (table.segment_of(index), slot.load().version());
    finish(&table, table.leave(segment));
    table.retire(segment).unwrap();
    assert_eq!((table.live_segments(), table.snapshots_in(segment)), (2, vec![index]));
    assert_eq!((slot.load().state(), table.dirty_pages()), (State::Detached, 1));
    let moved = table.find(Tag(0)).unwrap();
    assert!(table.segment_of(moved.index) != segment && moved.word.state() == State::Dirty);
    // Another segment leaves: its entries go to the third.
    let other = table.segment_of(moved.index);
    finish(&table, table.leave(other));
    table.retire(other).unwrap();
    let third = (0..3).map(SegmentIndex).find(|s| ![segment, other].contains(s)).unwrap();
    assert_eq!(table.find(Tag(0)).map(|found| table.segment_of(found.index)), Some(third));
    assert_eq!(table.segments().collect::<Vec<_>>(), [third]);
    // It joins with its snapshot, whose way is missing until the last unpin.
    finish(&table, table.join(segment));
    let pages = |table: &Table<8>| table.pages_in_segment(segment);
    for page in 0..64_u64 {
        bring(&table, Tag(page | 1 << 52), false);
    }
    assert_eq!((slot.load().state(), pages(&table)), (State::Detached, 7));
    assert!(slot.unpin());
    for page in 64..128_u64 {
        bring(&table, Tag(page | 1 << 52), false);
    }
    assert_eq!(pages(&table), 8);
    finish(&table, table.leave(segment));
    table.retire(segment).unwrap();
    assert!(table.snapshots_in(segment).is_empty());
    assert!(slot.load().version() > version, "a slot keeps its version while its segment is out of use");
}

#[test]
#[should_panic(expected = "a move is in progress")]
fn a_segment_cannot_join_while_an_entry_moves() {
    let table = Table::<8>::new(Shape { segments_max: 3, sets_per_segment: 1 }, PolicyKind::Lru, 1);
    // The pages are being filled: the move of any entry cannot end.
    for entry in 0..8 {
        let Claim::Claimed { .. } = table.lock(Tag(entry)).claim(Tag(entry)) else { panic!("a way is free") };
    }
    let moves = table.join(SegmentIndex(1));
    let busy = moves.into_iter().any(|mv| table.advance(mv, &mut Nothing).busy.is_some());
    assert!(busy);
    table.join(SegmentIndex(2));
}

#[test]
#[should_panic(expected = "was made before another resize")]
fn a_move_that_was_made_before_another_resize_is_refused() {
    let table = Table::<8>::new(Shape { segments_max: 4, sets_per_segment: 1 }, PolicyKind::Lru, 1);
    let stale = table.join(SegmentIndex(1));
    finish(&table, table.join(SegmentIndex(2)));
    finish(&table, stale);
}

/// A repeated pass once evicted, each time, a page of the new set for each page that could not
/// move.
#[test]
fn a_page_that_cannot_move_yet_evicts_no_other_page_r2() {
    let table = Table::<8>::new(Shape { segments_max: 2, sets_per_segment: 1 }, PolicyKind::Lru, 2);
    // Entries alternate between the segments: entry 0 belongs to the first, entry 1 to the second.
    let second = |page: u64| Tag(page << 32 | 1);
    (0..8).for_each(|page| assert!(bring(&table, second(page), false).is_some()));
    let Claim::Claimed { slot, .. } = table.lock(Tag(0)).claim(Tag(0)) else { panic!("a way is free") };
    let mv = table.leave(SegmentIndex(0))[0];
    for _ in 0..3 {
        let pass = table.advance(mv, &mut Nothing);
        assert_eq!((pass.busy, pass.evicted, pass.copied), (Some(slot), 0, 0));
    }
    assert!((0..8).all(|page| table.find(second(page)).is_some()));
    assert!(!table.publish(slot, false));
    let pass = table.advance(mv, &mut Nothing);
    assert_eq!((pass.busy, pass.evicted, pass.copied), (None, 1, 1));
}

#[test]
fn a_page_that_moves_keeps_its_history_r2() {
    for policy in [PolicyKind::Lru, PolicyKind::Clock, PolicyKind::Lfu, PolicyKind::NrLfu] {
        let table = Table::<8>::new(Shape { segments_max: 2, sets_per_segment: 1 }, policy, 2);
        // Entries alternate between the segments: 0 and 2 belong to the first, 1 to the second.
        let page = |entry: u64, number: u64| Tag(number << 48 | entry);
        let hit = |tag: Tag| _ = table.touch(&table.find(tag).unwrap());
        let (used, unused) = (page(0, 0), page(0, 1));
        for tag in [used, unused].into_iter().chain((2..8).map(|number| page(2, number))) {
            assert!(bring(&table, tag, false).is_some());
        }
        hit(used);
        (0..6).for_each(|number| assert!(bring(&table, page(1, number), false).is_some()));
        finish(&table, table.leave(SegmentIndex(0))[..1].to_vec());
        (0..6).for_each(|number| hit(page(1, number)));
        // The page that was hit moved first: without its history it would be the victim.
        assert!(bring(&table, page(1, 6), false).is_some());
        assert!(table.find(used).is_some() && table.find(unused).is_none(), "{policy:?}");
    }
}
