//! Mains that switch to the node that writes them, and copies of them, together with all other
//! operations on a table: no write is lost, and each page is in one slot.

use std::cell::Cell;
use std::collections::HashMap;

use octavo_table::{
    Claim, Found, Mixer, Move, Mover, NodeId, PolicyKind, SegmentIndex, Shape, SlotIndex, State, Table, Tag,
};

use octavo_random::{Random, for_seeds};

const NODES: u32 = 3;
const PAGES: usize = 120;

struct Scene {
    table: Table<8>,
    frames: Vec<Cell<u64>>,
    mixer: Mixer,
    /// The last written value of each page; 0: never written.
    values: HashMap<Tag, u64>,
    /// Pages that were written and not cleaned since.
    dirty: HashMap<Tag, u64>,
    pending: Vec<Move>,
    leaving: Option<SegmentIndex>,
    switches: usize,
}

struct Bytes<'s>(&'s [Cell<u64>]);

impl Mover for Bytes<'_> {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        self.0[to.0 as usize].set(self.0[from.0 as usize].get());
    }

    fn wake(&mut self, _: SlotIndex) {}
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let shape = Shape { segments_max: 9, sets_per_segment: 2 };
        let table = Table::spread(shape, NODES, PolicyKind::Fifo, 6);
        let frames = (0..9 * 16).map(|_| Cell::new(0)).collect();
        let (values, dirty) = (HashMap::new(), HashMap::new());
        let mixer = Mixer::new(seed);
        Scene { table, frames, mixer, values, dirty, pending: Vec::new(), leaving: None, switches: 0 }
    }

    fn frame(&self, slot: SlotIndex) -> &Cell<u64> {
        &self.frames[slot.0 as usize]
    }

    /// Finds the page under its lock, or brings it in. Returns `None` if dirty pages leave no way
    /// for it.
    fn get(&self, tag: Tag) -> Option<Found<'_>> {
        let mut guard = self.table.lock(tag);
        if let Some(found) = guard.find(tag) {
            assert_eq!(self.frame(found.index).get(), self.values.get(&tag).copied().unwrap_or(0));
            return Some(found);
        }
        assert!(!self.dirty.contains_key(&tag), "a dirty page is lost");
        let Claim::Claimed { slot, .. } = guard.claim(tag) else { return None };
        drop(guard);
        // Filled from the store, or from a copy (T7).
        let twins = (0..NODES).filter_map(|node| self.table.find_twin(tag, NodeId(node)));
        for twin in twins.filter(|twin| twin.word.state() == State::Twin) {
            assert_eq!(
                self.frame(twin.index).get(),
                self.values.get(&tag).copied().unwrap_or(0),
                "an orphan"
            );
        }
        self.frame(slot).set(self.values.get(&tag).copied().unwrap_or(0));
        assert!(!self.table.publish(slot, false));
        self.table.lock(tag).find(tag)
    }

    fn write(&mut self, tag: Tag, value: u64) {
        let Some(found) = self.get(tag) else { return };
        let (slot, word) = (found.index, found.slot().load());
        let taken = found.slot().begin_write(word).expect("no other thread uses the table");
        self.table.overtake(tag, taken.twins());
        self.frame(slot).set(value);
        assert!(!self.table.end_write(&found, taken, true));
        self.values.insert(tag, value);
        self.dirty.insert(tag, value);
    }

    fn clean(&mut self, tag: Tag) {
        let Some(found) = self.table.find(tag).filter(|found| found.word.state() == State::Dirty) else {
            return;
        };
        found.slot().begin_writeback(found.word).unwrap();
        assert!(self.table.end_writeback(found.index, found.word.version(), true).cleaned);
        self.dirty.remove(&tag);
    }

    fn copy(&mut self, tag: Tag, node: NodeId) {
        let Some(main) = self.table.find(tag) else { return };
        let stale = self.table.find_at(tag, node).filter(|found| found.word.state() == State::Stale);
        let copying = match &stale {
            Some(found) => self.table.begin_refresh(found, node),
            None => self.table.begin_copy(tag, node, false),
        };
        let Some(copying) = copying else { return };
        let Some(word) = copying.link(&main) else { return };
        self.frame(copying.index).set(self.frame(main.index).get());
        assert!(main.slot().unchanged(word) && copying.publish());
    }

    fn resize(&mut self, random: &mut Random) {
        match self.pending.pop() {
            Some(mv) => {
                if self.table.advance(mv, &mut Bytes(&self.frames)).busy.is_some() {
                    self.pending.push(mv);
                }
            }
            None => {
                if let Some(segment) = self.leaving.take() {
                    self.table.retire(segment).expect("no slot is pinned, and all pages have moved");
                }
                match random.below(3) {
                    0 => {
                        if let Some(segment) = self.table.spare_segment() {
                            self.pending = self.table.join(segment);
                        }
                    }
                    1 if self.table.live_segments() > NODES => {
                        let segment = self.table.segment_to_leave(&[]).unwrap();
                        self.pending = self.table.leave(segment);
                        self.leaving = Some(segment);
                    }
                    _ => {
                        let (from, to) = (random.below(3) as u32, random.below(2) as u32);
                        let to = (from + 1 + to) % NODES;
                        self.pending = self.table.shift(NodeId(from), NodeId(to), 4);
                    }
                }
            }
        }
    }

    /// Asserts that every page is in at most one slot, that every dirty page is in one, and that
    /// readable bytes are the last written.
    fn check(&self) {
        let mut seen = HashMap::new();
        self.table.for_each_page(|_, found| {
            let before = seen.insert(found.tag(), found.index);
            assert!(before.is_none_or(|before| before == found.index), "a page in two slots");
        });
        for (tag, value) in &self.values {
            let found = self.table.lock(*tag).find(*tag).map(|found| found.index);
            assert_eq!(found, seen.get(tag).copied());
            assert!(found.is_some() || !self.dirty.contains_key(tag), "a dirty page is lost");
            for node in 0..NODES {
                let at = self.table.find_at(*tag, NodeId(node));
                let may_be_read =
                    |found: &Found<'_>| found.word.readable() || found.word.state() == State::Twin;
                if let Some(found) = at.filter(may_be_read) {
                    assert_eq!(self.frame(found.index).get(), *value, "node {node}: {:?}", found.word);
                }
            }
        }
        let mut dirty = 0;
        self.table.for_each_dirty(|_, tag, _| dirty += usize::from(self.dirty.contains_key(&tag)));
        assert_eq!((dirty, self.table.dirty_pages() as usize), (self.dirty.len(), self.dirty.len()));
    }
}

fn run(seed: u64, steps: usize, resizes: bool) -> usize {
    let (mut scene, mut random) = (Scene::new(seed), Random::new(seed));
    for step in 0..steps {
        let tag = scene.mixer.tag(random.below(PAGES as u64));
        let node = NodeId(random.below(NODES as u64) as u32);
        match random.below(16) {
            0..4 => _ = scene.get(tag),
            4..7 => scene.write(tag, step as u64 + 1),
            7..10 => scene.clean(tag),
            10..12 => scene.copy(tag, node),
            12..14 => {
                let may_displace = random.below(2) == 0;
                let was_there = scene.table.find(tag).is_some();
                let switch = scene.table.bring_main(tag, node, may_displace, &mut Bytes(&scene.frames));
                if let Some(to) = switch.to {
                    assert!(was_there);
                    assert_eq!(scene.table.node_of_segment(scene.table.segment_of(to)), node);
                    assert_eq!(scene.table.find_from(tag, node).map(|found| found.index), Some(to));
                    scene.switches += 1;
                }
            }
            14 if resizes => scene.resize(&mut random),
            15 if random.below(16) == 0 => {
                let pass = scene.table.bring_home(&mut Bytes(&scene.frames));
                if pass.busy.is_none() && scene.pending.is_empty() {
                    scene.table.for_each_page(|_, found| {
                        let at = scene.table.node_of_segment(scene.table.segment_of(found.index));
                        assert_eq!(at, scene.table.node_of(found.tag()), "a page is away");
                    });
                }
            }
            _ => {}
        }
        if step.is_multiple_of(16) {
            scene.check();
        }
    }
    scene.check();
    scene.switches
}

#[test]
fn mains_that_switch_to_their_writers_node_are_in_one_slot_and_keep_their_bytes_t9_t10_t11() {
    for_seeds(0..if cfg!(miri) { 1 } else { 30 }, |seed| {
        let switches = run(seed, if cfg!(miri) { 300 } else { 4000 }, seed % 3 != 0);
        assert!(cfg!(miri) || switches > 20, "{switches} switches");
    });
}
