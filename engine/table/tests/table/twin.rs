//! A table against a naive twin, a map from pages to their state: after each of a sequence of
//! random operations both must agree.

use std::collections::HashMap;

use octavo_table::{
    Claim, Found, Mixer, Move, Mover, PolicyKind, SegmentIndex, Shape, SlotIndex, State, Table, Tag, Word,
};

use octavo_random::{Random, for_seeds};

/// The twin's record of a resident page.
#[derive(Clone, Copy, Debug)]
struct Page {
    slot: SlotIndex,
    state: State,
    /// The word that the write or store in progress has replaced.
    before: Option<Word>,
    /// The version that a write-back in flight began with.
    writeback: Option<u64>,
    pins: u64,
    bytes: u64,
}

impl Page {
    fn was_dirty(&self) -> bool {
        self.before.is_some_and(|word| word.state() == State::Dirty)
    }
}

struct Pair<const W: usize> {
    table: Table<W>,
    frames: Vec<u64>,
    pages: HashMap<Tag, Page>,
    /// Detached slots: number of pins, and bytes.
    snapshots: HashMap<SlotIndex, (u64, u64)>,
    versions: Vec<u64>,
    writes: u64,
}

struct Copier<'f>(&'f mut Vec<u64>, Vec<(SlotIndex, SlotIndex)>);

impl Mover for Copier<'_> {
    fn copy(&mut self, from: SlotIndex, to: SlotIndex) {
        self.0[to.0 as usize] = self.0[from.0 as usize];
        self.1.push((from, to));
    }

    fn wake(&mut self, _slot: SlotIndex) {
        panic!("a waiter was woken, but there is none");
    }
}

impl<const W: usize> Pair<W> {
    fn new(shape: Shape, policy: PolicyKind, segments: u32) -> Self {
        let slots = (shape.segments_max * shape.sets_per_segment) as usize * W;
        Pair {
            table: Table::new(shape, policy, segments),
            frames: vec![0; slots],
            pages: HashMap::new(),
            snapshots: HashMap::new(),
            versions: vec![0; slots],
            writes: 0,
        }
    }

    /// Finds the page in the table, and asserts that the twin agrees.
    fn find(&self, tag: Tag) -> Option<(Found<'_>, Page)> {
        let page = self.pages.get(&tag).copied();
        let found = self.table.find(tag);
        assert_eq!(found.map(|found| found.index), page.map(|page| page.slot), "{tag:x?}: {page:?}");
        if let Some(confirmed) = self.table.candidate(tag).and_then(|way| self.table.confirm(way, tag)) {
            assert!(
                found.is_some_and(|found| found.index == confirmed.index && found.word == confirmed.word)
            );
        }
        // A page is shown exactly while it may be read.
        if let Some(found) = found {
            let glance = self.table.glance(found.index, tag);
            let is_shown = glance.is_some_and(|glance| glance.is_still_shown());
            assert_eq!(is_shown, found.word.readable(), "{:?}", found.word);
        }
        let locked = self.table.lock(tag).find(tag).map(|found| found.index);
        assert_eq!(locked, page.map(|page| page.slot));
        let (found, page) = (found?, page?);
        let word = found.word;
        assert_eq!(
            (word.state(), word.pins(), word.writeback()),
            (page.state, page.pins, page.writeback.is_some())
        );
        assert!(!word.waited() && found.tag() == tag);
        assert!(page.state == State::Filling || self.frames[page.slot.0 as usize] == page.bytes);
        Some((found, page))
    }

    fn step(&mut self, tag: Tag, random: &mut Random) {
        let action = random.below(12);
        let dirty = random.below(2) == 0;
        match self.find(tag) {
            None => self.bring(tag, dirty, random.below(4) == 0),
            Some((found, page)) => {
                let next = match action {
                    0..3 => {
                        self.table.touch(&found);
                        Some(page)
                    }
                    3 => Self::pin(&found, page),
                    4 => self.unpin(&found, page),
                    5..7 => self.write(tag, page, dirty),
                    7 => self.write_back(&found, page, dirty),
                    8 => self.store(tag, page),
                    9 => self.remove(tag, page, dirty),
                    _ => self.end(tag, page, dirty),
                };
                self.keep(tag, next);
            }
        }
    }

    /// Records what became of a page: `None` if it has left.
    fn keep(&mut self, tag: Tag, page: Option<Page>) {
        match page {
            Some(page) => self.pages.insert(tag, page),
            None => self.pages.remove(&tag),
        };
    }

    fn bring(&mut self, tag: Tag, dirty: bool, later: bool) {
        let claim = self.table.lock(tag).claim(tag);
        let Claim::Claimed { slot, evicted } = claim else {
            let mask = self.table.shape().sets_per_segment as usize - 1;
            let rivals = || self.pages.iter().filter(|(other, _)| other.set(mask) == tag.set(mask));
            let stuck =
                rivals().filter(|(_, p)| p.state != State::Clean || p.pins > 0 || p.writeback.is_some());
            assert!(stuck.count() + self.snapshots.len() >= W, "a claim found no way although one was free");
            return;
        };
        if let Some(evicted) = evicted {
            let page = self.pages.remove(&evicted).expect("the evicted page was resident");
            let beside = |other: &&SlotIndex| other.0 / W as u32 == slot.0 / W as u32;
            let taken = self.pages.values().map(|page| &page.slot).chain(self.snapshots.keys());
            assert_eq!(taken.filter(beside).count(), W - 1, "a page was evicted although a way was free");
            assert!(
                page.slot == slot && page.state == State::Clean && page.pins == 0 && page.writeback.is_none()
            );
        }
        assert!(!self.pages.values().any(|page| page.slot == slot) && !self.snapshots.contains_key(&slot));
        let page = Page { slot, state: State::Filling, before: None, writeback: None, pins: 0, bytes: 0 };
        self.pages.insert(tag, page);
        if !later && let Some(page) = self.end(tag, page, dirty) {
            self.pages.insert(tag, page);
        }
    }

    fn put_bytes(&mut self, slot: SlotIndex) -> u64 {
        self.writes += 1;
        self.frames[slot.0 as usize] = self.writes;
        self.writes
    }

    fn pin(found: &Found<'_>, page: Page) -> Option<Page> {
        let readable = matches!(page.state, State::Clean | State::Dirty | State::Storing);
        assert_eq!(found.slot().pin(found.word).is_ok(), readable);
        Some(Page { pins: page.pins + u64::from(readable), ..page })
    }

    fn unpin(&self, found: &Found<'_>, page: Page) -> Option<Page> {
        if page.pins > 0 {
            assert!(!found.slot().unpin());
        }
        Some(Page { pins: page.pins.saturating_sub(1), ..page })
    }

    /// Begins a write in place, or continues in another slot if the page is pinned.
    fn write(&mut self, tag: Tag, page: Page, later: bool) -> Option<Page> {
        let quiet = matches!(page.state, State::Clean | State::Dirty);
        let slot = self.table.slot(page.slot);
        let began = slot.begin_write(slot.load());
        assert_eq!(began.is_ok(), quiet && page.pins == 0);
        if began.is_ok() {
            let page = Page { state: State::Writing, before: began.ok(), ..page };
            return if later { Some(page) } else { self.end(tag, page, true) };
        }
        if !quiet || page.writeback.is_some() {
            return Some(page);
        }
        let mut guard = self.table.lock(tag);
        let Claim::Claimed { slot: beside, evicted } = guard.claim_beside(tag) else { return Some(page) };
        let taken = slot.begin_move(slot.load()).expect("it is quiet");
        assert!(!self.table.publish(beside, true) && !guard.remove_moved(page.slot, taken));
        drop(guard);
        if let Some(evicted) = evicted {
            assert_eq!(self.pages.remove(&evicted).map(|page| page.slot), Some(beside));
        }
        self.snapshots.insert(page.slot, (page.pins, page.bytes));
        let bytes = self.put_bytes(beside);
        Some(Page { slot: beside, state: State::Dirty, pins: 0, bytes, ..page })
    }

    fn write_back(&self, found: &Found<'_>, page: Page, written: bool) -> Option<Page> {
        if let Some(version) = page.writeback {
            let ended = self.table.end_writeback(page.slot, version, written);
            let cleans = written && page.state == State::Dirty && found.word.version() == version;
            assert_eq!((ended.cleaned, ended.waited), (cleans, false));
            let state = if cleans { State::Clean } else { page.state };
            return Some(Page { state, writeback: None, ..page });
        }
        let began = found.slot().begin_writeback(found.word).is_ok();
        assert_eq!(began, page.state == State::Dirty);
        Some(Page { writeback: began.then(|| found.word.version()), ..page })
    }

    fn store(&mut self, tag: Tag, page: Page) -> Option<Page> {
        let slot = self.table.slot(page.slot);
        let before = slot.load();
        assert_eq!(slot.begin_store(before).is_ok(), page.state == State::Clean);
        if page.state != State::Clean {
            return Some(page);
        }
        let page = Page { state: State::Storing, before: Some(before), ..page };
        if page.bytes.is_multiple_of(2) { Some(page) } else { self.end(tag, page, false) }
    }

    fn remove(&mut self, tag: Tag, page: Page, even_dirty: bool) -> Option<Page> {
        let (found, _) = self.find(tag).expect("it is there");
        let removed = self.table.lock(tag).remove_quiet(&found, even_dirty).is_ok();
        let quiet = page.state == State::Clean || even_dirty && page.state == State::Dirty;
        assert_eq!(removed, quiet && page.writeback.is_none());
        if removed { self.gone(page) } else { Some(page) }
    }

    fn gone(&mut self, page: Page) -> Option<Page> {
        if page.pins > 0 {
            self.snapshots.insert(page.slot, (page.pins, page.bytes));
        }
        None
    }

    /// Ends the operation in progress on the page. `dirty` chooses the outcome, if there is a
    /// choice.
    fn end(&mut self, tag: Tag, page: Page, dirty: bool) -> Option<Page> {
        match page.state {
            State::Filling => {
                let bytes = self.put_bytes(page.slot);
                assert!(!self.table.publish(page.slot, dirty));
                Some(Page { state: if dirty { State::Dirty } else { State::Clean }, bytes, ..page })
            }
            State::Writing => self.end_write(tag, page, dirty || page.was_dirty()),
            State::Storing if self.table.slot(page.slot).store_to_write().is_some() => {
                self.end_write(tag, page, false)
            }
            State::Storing => {
                assert!(page.pins > 0 && !self.table.lock(tag).remove(page.slot));
                self.gone(page)
            }
            _ => Some(page),
        }
    }

    fn end_write(&mut self, tag: Tag, page: Page, dirty: bool) -> Option<Page> {
        let bytes = self.put_bytes(page.slot);
        let found = self.table.find(tag).expect("its slot belongs to the write");
        let before = page.before.expect("a write began");
        assert!(found.index == page.slot && !self.table.end_write(&found, before, dirty));
        Some(Page { state: if dirty { State::Dirty } else { State::Clean }, bytes, ..page })
    }

    // Resizing

    fn resize(&mut self, random: &mut Random) {
        let full: Vec<SegmentIndex> = self.table.segments().collect();
        let mut leaving = None;
        let moves = match self.table.spare_segment() {
            Some(spare) if random.below(2) == 0 => self.table.join(spare),
            _ if full.len() > 1 => {
                let segment = random.pick(&full);
                leaving = Some(segment);
                self.table.leave(segment)
            }
            _ => return,
        };
        moves.into_iter().for_each(|mv| self.advance(mv));
        let table = &self.table;
        if let Some(segment) = leaving {
            table.retire(segment).unwrap();
        }
        // Of segments out of use, exactly the snapshots are kept.
        for segment in (0..table.shape().segments_max).map(SegmentIndex).filter(|s| !table.is_live(*s)) {
            let mut held: Vec<SlotIndex> =
                self.snapshots.keys().copied().filter(|slot| table.segment_of(*slot) == segment).collect();
            held.sort_unstable();
            assert_eq!(table.snapshots_in(segment), held);
        }
        assert!(table.entries_per_segment().iter().all(|entries| *entries > 0));
    }

    fn advance(&mut self, mv: Move) {
        loop {
            let mut copier = Copier(&mut self.frames, Vec::new());
            let pass = self.table.advance(mv, &mut copier);
            let copies = copier.1;
            assert_eq!(copies.len() as u64, pass.copied);
            for (from, to) in copies {
                // The page that was in the new slot was evicted for it.
                self.pages.retain(|_, page| page.slot != to);
                let page = self.pages.values_mut().find(|page| page.slot == from).expect("a page moved");
                if page.pins > 0 {
                    self.snapshots.insert(from, (page.pins, page.bytes));
                }
                (page.slot, page.pins) = (to, 0);
            }
            let lost = self.pages.len()
                - self.pages.keys().filter(|tag| self.table.lock(**tag).find(**tag).is_some()).count();
            assert_eq!(lost as u64, pass.let_go, "only released pages are missing");
            let table = &self.table;
            let snapshots = &mut self.snapshots;
            self.pages.retain(|tag, page| {
                let kept = table.lock(*tag).find(*tag).is_some();
                assert!(kept || page.state == State::Clean && page.writeback.is_none());
                if !kept && page.pins > 0 {
                    snapshots.insert(page.slot, (page.pins, page.bytes));
                }
                kept
            });
            let Some(busy) = pass.busy else { return };
            let (tag, page) =
                self.pages.iter().find(|(_, page)| page.slot == busy).map(|(t, p)| (*t, *p)).unwrap();
            let (found, clean) = (self.table.lock(tag).find(tag).unwrap(), page.state == State::Clean);
            assert!(!clean || page.writeback.is_some(), "{page:?} is not busy");
            let next = match page.state {
                // No way was available: a clean page may be released.
                State::Dirty => self.write_back(&found, page, true),
                _ => self.end(tag, page, false),
            };
            self.keep(tag, next);
        }
    }

    // Checks

    fn unpin_a_snapshot(&mut self, random: &mut Random) {
        let mut slots: Vec<SlotIndex> = self.snapshots.keys().copied().collect();
        slots.sort_unstable();
        let Some(slot) = slots.get(random.below(slots.len() as u64) as usize).copied() else { return };
        let (pins, bytes) = self.snapshots[&slot];
        assert_eq!(self.table.slot(slot).load().state(), State::Detached);
        assert_eq!(self.frames[slot.0 as usize], bytes, "a snapshot changed");
        assert_eq!(self.table.slot(slot).unpin(), pins == 1);
        match pins {
            1 => self.snapshots.remove(&slot),
            _ => self.snapshots.insert(slot, (pins - 1, bytes)),
        };
    }

    fn check(&mut self) {
        for (slot, before) in self.versions.iter_mut().enumerate() {
            let now = self.table.slot(SlotIndex(slot as u32)).load().version();
            assert!(now >= *before, "slot {slot} went from version {before} to {now}");
            *before = now;
        }
        let mut shown = HashMap::new();
        self.table.for_each_page(|_, found| {
            assert!(shown.insert(found.tag(), found.index).is_none(), "a page is in two slots");
        });
        assert_eq!(shown, self.pages.iter().map(|(tag, page)| (*tag, page.slot)).collect());
        let dirty =
            |page: &Page| page.state == State::Dirty || page.state == State::Writing && page.was_dirty();
        let mut dirty: Vec<Tag> =
            self.pages.iter().filter(|(_, page)| dirty(page)).map(|(tag, _)| *tag).collect();
        assert_eq!(self.table.dirty_pages(), dirty.len() as u64);
        let mut shown = Vec::new();
        // A page in state Writing may have been clean before.
        let counts = |tag: &Tag| self.pages[tag].state == State::Dirty || self.pages[tag].was_dirty();
        self.table.for_each_dirty(|_, tag, _| shown.extend(Some(tag).filter(counts)));
        shown.sort();
        dirty.sort();
        assert_eq!(shown, dirty);
    }
}

const TINY: Shape = Shape { segments_max: 1, sets_per_segment: 1 };
const SMALL: Shape = Shape { segments_max: 4, sets_per_segment: 1 };
const WIDE: Shape = Shape { segments_max: 6, sets_per_segment: 4 };

/// Runs random operations on pages whose tags `tag` derives from small numbers.
fn agree<const W: usize>(shape: Shape, seed: u64, tag: impl Fn(u64) -> Tag) {
    let policy = PolicyKind::ALL[seed as usize % PolicyKind::ALL.len()];
    let mut pair = Pair::<W>::new(shape, policy, 1);
    let mut random = Random::new(seed);
    let pages = W * (shape.segments_max * shape.sets_per_segment) as usize;
    for step in 0..if cfg!(miri) { 40 } else { 12_000 } {
        pair.step(tag(random.below((pages + W) as u64)), &mut random);
        match random.below(64) {
            0 => pair.resize(&mut random),
            1..16 => pair.unpin_a_snapshot(&mut random),
            _ => {}
        }
        if step % 16 == 0 {
            pair.check();
        }
    }
    pair.check();
}

fn agree_in_every_shape(tag: impl Fn(u64, u64) -> Tag) {
    if cfg!(miri) {
        return agree::<8>(SMALL, 4, |page| tag(4, page));
    }
    for_seeds(0..PolicyKind::ALL.len() as u64, |seed| {
        agree::<8>(TINY, seed, |page| tag(seed, page));
        agree::<8>(SMALL, seed, |page| tag(seed, page));
        agree::<16>(WIDE, seed, |page| tag(seed, page));
        agree::<32>(SMALL, seed, |page| tag(seed, page));
    });
}

#[test]
fn a_table_agrees_with_its_twin() {
    agree_in_every_shape(|seed, page| Mixer::new(seed).tag(page));
}

/// One of these tags is zero.
#[test]
fn a_table_agrees_with_its_twin_if_all_pages_are_in_one_set_with_one_fingerprint() {
    agree_in_every_shape(|_, page| Tag(page << Tag::DRAW_SHIFT));
}

#[test]
fn a_table_agrees_with_its_twin_if_all_pages_are_in_one_set_with_different_fingerprints() {
    agree_in_every_shape(|_, page| Tag(page << Tag::FINGERPRINT_SHIFT));
}

#[test]
fn a_table_agrees_with_its_twin_if_pages_differ_only_in_their_directory_bits() {
    agree_in_every_shape(|_, page| Tag(page << 2));
}

#[test]
fn a_table_agrees_with_its_twin_if_pages_differ_only_in_their_place() {
    agree_in_every_shape(|_, page| Tag(page));
}

/// As `agree`, on the pages of a footprint, while the table is resized most of the time.
fn agree_while_resized(page: impl Fn(&mut Random, u64) -> u64) {
    for_seeds(0..PolicyKind::ALL.len() as u64, |seed| {
        let (mixer, mut random) = (Mixer::new(seed), Random::new(seed));
        let mut pair = Pair::<16>::new(WIDE, PolicyKind::ALL[seed as usize % PolicyKind::ALL.len()], 1);
        for step in 0..if cfg!(miri) { 40 } else { 12_000 } {
            pair.step(mixer.tag(page(&mut random, step)), &mut random);
            // A resize moves 64 entries or more, each in steps of its own.
            match random.below(32) {
                0 => pair.resize(&mut random),
                1..9 => pair.unpin_a_snapshot(&mut random),
                _ => {}
            }
            if step % 64 == 0 {
                pair.check();
            }
        }
        pair.check();
    });
}

#[test]
fn a_table_agrees_with_its_twin_while_it_is_resized_on_sequential_strided_and_random_pages() {
    agree_while_resized(|_, step| step % 500);
    agree_while_resized(|_, step| step % 300 * 512);
    agree_while_resized(|_, step| (step % 300) << 20);
    agree_while_resized(|random, _| random.below(1 << 30));
}
