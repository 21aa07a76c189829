//! A recorded partition once more: a table like its own, taken through the same steps.
//!
//! Of a whole recording nothing is believed but what was asked and when fills came, writes ended
//! and pages were written back: whether a page is there, and which one leaves for it, the table
//! decides again. Each access is compared with what the cache counted, and each claim by
//! the way that was taken, so that the first difference has a name. Where the recording began later
//! than the partition, or steps are missing, the two may differ; then a page that was there is
//! brought in, so that one difference does not breed others. Such a recording, and a part whose
//! first parts are gone, lists the pages that were there with what the policy knew of them, and
//! what it had learned; ghosts are missing.
//!
//! Of a sample, a table as much smaller as the sample is sees the accesses alone (Waldspurger et
//! al., "Cache Modeling and Optimization using Miniature Simulations", ATC '17), and each miss
//! stands for as many as the sample leaves out.

mod resizes;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use octavo_recording::{Event, Header, PAGE_BITS, Place, Secret, Step, Totals};
use octavo_table::{
    Claim, Found, Mixer, Move, NoBytes, PolicyKind, SegmentIndex, SetGuard, Shape, SlotIndex, State, Table,
    Tag,
};

use super::block::Ending;
use super::reader::Reader;
use crate::source::{Sample, SourceError};

/// What a replay found.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// Accesses that were replayed.
    pub accesses: u64,
    /// Of them, those that found their page.
    pub hits: u64,
    /// The same as they were recorded.
    pub hits_recorded: u64,
    /// What the cache had counted by the end of what was read: all accesses, also those that a
    /// sample leaves out.
    pub counted: Totals,
    /// Where the replay first went another way.
    pub difference: Option<Difference>,
    /// Accesses that went another way.
    pub differences: u64,
    /// Steps that could not be made, since the page was not what it had been.
    pub misfits: u64,
    /// How what was read ends. None: it was interrupted.
    pub ending: Option<Ending>,
    /// Nothing is missing: every access must find what it found, if one thread was at work.
    pub is_exact: bool,
    /// Where that is not so, why.
    pub inexact_because: Option<String>,
    /// The part of the pages that was recorded.
    pub sample: f64,
}

/// Where a replay first went another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which access it is, or comes behind; the first is 1.
    pub access: u64,
    /// The object's name.
    pub object: String,
    /// The page of the object.
    pub page: u64,
    /// What was recorded, and what came.
    pub what: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { access, object, page, what } = self;
        write!(f, "access {access}, \"{object}\" page {page}: {what}")
    }
}

impl Replayed {
    /// Accesses that did not find their page.
    pub fn misses(&self) -> u64 {
        self.accesses - self.hits
    }

    /// What the simulation says of all accesses. Of a sample, how lucky its draw was is known: the
    /// cache's own misses of these pages, and of all, are in the recording. So what the
    /// simulation misses of the sample is taken in the proportion in which the cache did.
    pub fn miss_ratio(&self) -> f64 {
        let misses_recorded = self.accesses - self.hits_recorded;
        if self.sample == 1.0 || misses_recorded == 0 {
            return self.miss_ratio_by_size();
        }
        (self.miss_ratio_counted() * self.misses() as f64 / misses_recorded as f64).min(1.0)
    }

    /// The same where only the sample's size is believed, as for a policy that was not there.
    pub fn miss_ratio_by_size(&self) -> f64 {
        let accesses = match self.sample {
            1.0 => self.accesses,
            _ => self.counted.hits.saturating_add(self.counted.misses),
        };
        Sample { rate: self.sample, accesses }.miss_ratio(self.misses())
    }

    /// What the cache counted.
    pub fn miss_ratio_counted(&self) -> f64 {
        let Totals { hits, misses } = self.counted;
        misses as f64 / (hits.saturating_add(misses) as f64).max(1.0)
    }

    /// Whether every access found what it had found, and the counts are the cache's.
    pub fn agrees(&self) -> bool {
        let counted = Totals { hits: self.hits, misses: self.misses() };
        self.difference.is_none() && self.misfits == 0 && counted == self.counted
    }
}

/// Replays what a reader gives, until its end or `stop`. `progress` hears of accesses now and then.
pub fn replay(
    reader: &mut Reader,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Replayed, SourceError> {
    match reader.about().header.ways {
        8 => run::<8>(reader, stop, progress),
        32 => run::<32>(reader, stop, progress),
        // A header with another number is refused when it is read.
        _ => run::<16>(reader, stop, progress),
    }
}

/// Accesses between two looks at `stop`.
const NEWS_PERIOD: u64 = 1 << 16;

fn run<const W: usize>(
    reader: &mut Reader,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Replayed, SourceError> {
    let header = reader.about().header.clone();
    let is_whole = header.sample_below == octavo_recording::WHOLE;
    let mut twin = if is_whole { Twin::<W>::whole(&header) } else { Twin::<W>::scaled(&header) };
    let (mut interrupted, mut next_news) = (false, NEWS_PERIOD);
    while let Some(event) = reader.event()? {
        let is_known = matches!(
            event,
            Event::Live { .. }
                | Event::Learned(_)
                | Event::Resident { .. }
                | Event::Step { step: Step::Held { .. }, .. }
        );
        if is_known && reader.goes_on() {
            continue;
        }
        match is_whole {
            true => twin.whole_event(&event),
            false => twin.sampled_event(&event),
        }
        if twin.accesses >= next_news {
            next_news = twin.accesses + NEWS_PERIOD;
            progress(twin.accesses, reader.progress());
            // Relaxed: a flag with nothing behind it.
            if stop.load(Ordering::Relaxed) {
                interrupted = true;
                break;
            }
        }
    }
    let inexact_because = inexact_because(&header, reader);
    Ok(Replayed {
        accesses: twin.accesses,
        hits: twin.hits,
        hits_recorded: twin.hits_recorded,
        counted: reader.counted(),
        difference: twin.difference,
        differences: twin.differences,
        misfits: twin.misfits,
        ending: if interrupted { None } else { reader.ending() },
        is_exact: inexact_because.is_none(),
        inexact_because,
        sample: header.sample(),
    })
}

/// Why not every access need find what it found, also where one thread was at work.
fn inexact_because(header: &Header, reader: &Reader) -> Option<String> {
    let (part, skipped) = (reader.first_part(), reader.skipped());
    let is_whole = header.sample_below == octavo_recording::WHOLE;
    match () {
        () if part > 1 => Some(format!("the first part is missing, it begins with part {part}")),
        () if !is_whole => Some("a sample does not have the steps of the table".into()),
        () if !header.from_the_first => Some("it does not begin with the partition's first access".into()),
        () if skipped > 0 => Some(format!("{skipped} damaged blocks were passed over")),
        () => None,
    }
}

fn place_in_words(place: Place) -> String {
    match place {
        Place::Full => "no place, for its set was full of busy pages".into(),
        Place::Way { way, evicted: true } => format!("way {way} of its set, in place of another page"),
        Place::Way { way, evicted: false } => format!("way {way} of its set, which was free"),
    }
}

fn in_words(step: Step) -> &'static str {
    match step {
        Step::Claim(_) | Step::ClaimAhead(_) | Step::ClaimOnce(_) => "the beginning of its fill",
        Step::Publish { .. } => "the end of its fill",
        Step::Release => "the end of its stay",
        Step::Touch => "a hit",
        Step::Overwrite => "a write into it",
        Step::BeginStore => "the beginning of a write through it",
        Step::EndStore => "the end of a write through it",
        Step::BeginWriteback => "the beginning of its write-back",
        Step::EndWriteback { .. } => "the end of its write-back",
        Step::Drop { .. } => "its drop",
        Step::Supersede(_) | Step::SupersedeRefused(_) => "a write beside its pinned bytes",
        Step::Pin { .. } | Step::Held { .. } => "a pin",
    }
}

/// The partition's table once more.
struct Twin<const W: usize> {
    table: Table<W>,
    mixer: Mixer,
    names: HashMap<u64, String>,
    /// Versions that travel to the store.
    writebacks: HashMap<u64, u64>,
    /// Pinned slots, by the number that they have in the recording.
    pins: HashMap<u32, Vec<SlotIndex>>,
    /// Moves to be made, and the segment that they empty.
    pending: Vec<Move>,
    /// The last of them has begun; the recording tells which sets it has passed.
    has_begun: bool,
    leaving: Option<SegmentIndex>,
    emptied: Vec<SegmentIndex>,
    /// The partition's segments; the table's may have other numbers.
    segments: HashSet<u32>,
    segments_max: u32,
    /// Their numbers are guessed.
    is_unnamed: bool,
    is_from_the_first: bool,
    /// For a sample: segments of which the table has one.
    segments_in_one: f64,
    accesses: u64,
    hits: u64,
    hits_recorded: u64,
    difference: Option<Difference>,
    differences: u64,
    misfits: u64,
}

/// Places the pages of a sample: any seed will do.
const SAMPLE_SEED: u64 = 1;

impl<const W: usize> Twin<W> {
    fn whole(header: &Header) -> Self {
        let mixer = match header.secret {
            Secret::Seed(seed) => Mixer::new(seed),
            Secret::Weak => Mixer::weak(),
            Secret::Untold => Mixer::new(SAMPLE_SEED),
        };
        let table = Table::spread(header.shape, header.nodes, header.policy, header.segments);
        Self::new(table, mixer, header, 1.0)
    }

    /// Segments of fewer sets, and if that is not little enough, fewer segments.
    fn scaled(header: &Header) -> Self {
        let sets = f64::from(header.shape.sets_per_segment) * header.sample();
        let sets_per_segment = if sets >= 1.0 { 1 << sets.log2() as u32 } else { 1 };
        let segments_in_one = f64::from(sets_per_segment) / sets;
        let scaled = |segments: u32| ((f64::from(segments) / segments_in_one).round() as u32).max(1);
        let segments_max = scaled(header.shape.segments_max).min(octavo_table::SEGMENTS_MAX);
        let shape = Shape { segments_max, sets_per_segment };
        let table = Table::new(shape, header.policy, scaled(header.segments).min(segments_max));
        Self::new(table, Mixer::new(SAMPLE_SEED), header, segments_in_one)
    }

    fn new(table: Table<W>, mixer: Mixer, header: &Header, segments_in_one: f64) -> Self {
        Twin {
            table,
            mixer,
            names: HashMap::new(),
            writebacks: HashMap::new(),
            pins: HashMap::new(),
            pending: Vec::new(),
            has_begun: false,
            leaving: None,
            emptied: Vec::new(),
            segments: (0..header.segments).collect(),
            segments_max: header.shape.segments_max,
            is_unnamed: true,
            is_from_the_first: header.from_the_first,
            segments_in_one,
            accesses: 0,
            hits: 0,
            hits_recorded: 0,
            difference: None,
            differences: 0,
            misfits: 0,
        }
    }

    // ---- A sample
    // -----------------------------------------------------------------------------------------------

    fn sampled_event(&mut self, event: &Event) {
        match event {
            Event::Access { key, hit, .. } => {
                let tag = self.mixer.tag(*key);
                let found = self.table.find(tag);
                let is_there = found.is_some();
                match found {
                    Some(found) => self.touch(&found),
                    None => self.bring(tag, false, |guard| guard.claim(tag)),
                }
                self.count(*hit, is_there);
            }
            Event::Step { key, step: Step::ClaimAhead(_) } => {
                let tag = self.mixer.tag(*key);
                self.bring(tag, false, |guard| guard.claim_ahead(tag));
            }
            Event::Resident { key, bits, .. } => {
                let tag = self.mixer.tag(*key);
                self.bring(tag, false, |guard| guard.claim_known(tag, *bits));
            }
            Event::Policy { policy } => self.set_policy(*policy),
            Event::Live { first, count } => self.name_segments(*first, *count),
            Event::Learned(learned) => self.table.adopt_learned(learned),
            Event::Join { segment } if *segment < self.segments_max => {
                self.segments.insert(*segment);
                self.scale();
            }
            Event::Leave { segment } => {
                self.segments.remove(segment);
                self.scale();
            }
            _ => {}
        }
    }

    /// Grows or shrinks the table as the partition did.
    fn scale(&mut self) {
        let wanted = (self.segments.len() as f64 / self.segments_in_one).round() as u32;
        let wanted = wanted.clamp(1, self.table.shape().segments_max);
        while self.table.live_segments() < wanted
            && let Some(segment) = self.table.spare_segment()
        {
            self.pending = self.table.join(segment);
            self.advance_all();
        }
        while self.table.live_segments() > wanted {
            let segment = self.table.segments().last().expect("one is live at least");
            self.pending = self.table.leave(segment);
            self.advance_all();
            let retired = self.table.retire(segment);
            debug_assert!(retired.is_ok(), "every page is clean and unpinned");
            if retired.is_err() {
                return;
            }
        }
    }

    fn advance_all(&mut self) {
        for mv in std::mem::take(&mut self.pending) {
            let pass = self.table.advance(mv, &mut NoBytes);
            debug_assert!(pass.busy.is_none(), "every page is clean and unpinned");
        }
    }

    // ---- All of it
    // ----------------------------------------------------------------------------------------------

    fn whole_event(&mut self, event: &Event) {
        match event {
            Event::Access { key, write, hit } => self.access(*key, *write, *hit),
            Event::Step { key, step } => {
                if self.step(*key, *step).is_none() {
                    self.misfit(*key, *step);
                }
            }
            Event::Unpin { slot } => match self.pins.get_mut(slot).and_then(Vec::pop) {
                Some(slot) => drop(self.table.slot(slot).unpin()),
                None => self.misfits += 1,
            },
            // The reader adds them up.
            Event::Totals(_) => {}
            Event::Policy { policy } => self.set_policy(*policy),
            Event::Opened { object, name } => drop(self.names.insert(*object, name.clone())),
            Event::Live { first, count } => self.name_segments(*first, *count),
            Event::Learned(learned) => self.table.adopt_learned(learned),
            Event::Resident { key, dirty, bits } => {
                let tag = self.mixer.tag(*key);
                self.bring(tag, *dirty, |guard| guard.claim_known(tag, *bits));
            }
            Event::Join { .. }
            | Event::Leave { .. }
            | Event::Settled
            | Event::MoveBegun
            | Event::SetMoved { .. }
            | Event::Advance { .. }
            | Event::Retire { .. } => self.resize(event),
        }
    }

    fn access(&mut self, key: u64, write: bool, hit: bool) {
        let tag = self.mixer.tag(key);
        let found = self.table.find(tag).filter(|found| write || found.word.readable());
        let is_there = found.is_some();
        match found {
            Some(found) if !write => self.touch(&found),
            Some(_) => {}
            // It was there, so that nobody brought it in.
            None if hit => self.bring(tag, false, |guard| guard.claim(tag)),
            None => {}
        }
        self.count(hit, is_there);
        if is_there != hit {
            let words = |hit| if hit { "a hit" } else { "a miss" };
            self.differ(key, || {
                format!("{} in the cache, and {} in the replay", words(hit), words(is_there))
            });
        }
    }

    fn count(&mut self, hit: bool, is_there: bool) {
        self.accesses += 1;
        self.hits += u64::from(is_there);
        self.hits_recorded += u64::from(hit);
        self.differences += u64::from(hit != is_there);
    }

    fn differ(&mut self, key: u64, what: impl FnOnce() -> String) {
        if self.difference.is_none() {
            let (object, page) = (key >> PAGE_BITS, key & ((1 << PAGE_BITS) - 1));
            let object = self.names.get(&object).cloned().unwrap_or_else(|| format!("object {object}"));
            self.difference = Some(Difference { access: self.accesses, object, page, what: what() });
        }
    }

    fn misfit(&mut self, key: u64, step: Step) {
        self.misfits += 1;
        let there = self.table.lock(self.mixer.tag(key)).find(self.mixer.tag(key)).map(|found| found.word);
        self.differ(key, || {
            let there = there.map(|word| format!("{:?}", word.state()).to_lowercase());
            let there = there.unwrap_or_else(|| "not in the cache".into());
            format!("{} was recorded, but in the replay the page is {there}", in_words(step))
        });
    }

    fn touch(&self, found: &Found<'_>) {
        // Whether it was read ahead is the engine's to know.
        let _ahead = self.table.touch(found);
    }

    /// A page that nobody has brought in, if it finds a place. While pages move, only its set's
    /// lock tells whether it is there.
    fn bring(&mut self, tag: Tag, dirty: bool, claim: impl FnOnce(&mut SetGuard<'_, W>) -> Claim) {
        let mut guard = self.table.lock(tag);
        if guard.find(tag).is_none()
            && let Claim::Claimed { slot, .. } = claim(&mut guard)
        {
            let waited = self.table.publish(slot, dirty);
            debug_assert!(!waited, "nobody else is there to wait");
        }
    }

    /// Ends what had begun before a recording that began later, and was no page that could be
    /// listed, or a dirty one on its way to the store: without that it would never leave. True:
    /// that was all.
    fn end_from_before(&mut self, tag: Tag, step: Step) -> bool {
        let found = self.table.lock(tag).find(tag);
        match (step, found) {
            (Step::Publish { dirty }, None) => self.bring(tag, dirty, |guard| guard.claim(tag)),
            (Step::EndStore, None) => self.bring(tag, false, |guard| guard.claim(tag)),
            (Step::Release, None) => {}
            (Step::EndWriteback { written: true }, Some(found))
                if found.word.state() == State::Dirty && !found.word.writeback() =>
            {
                let begun = found.slot().begin_writeback(found.word).is_ok();
                if begun {
                    let _nobody = self.table.end_writeback(found.index, found.word.version(), true);
                }
            }
            _ => return false,
        }
        true
    }

    /// Makes a step. None: the page is not what it was when the step was recorded.
    fn step(&mut self, key: u64, step: Step) -> Option<()> {
        let tag = self.mixer.tag(key);
        if !self.is_from_the_first {
            if self.end_from_before(tag, step) {
                return Some(());
            }
            if !self.pending.is_empty() {
                self.follow();
            }
        }
        let mut guard = self.table.lock(tag);
        let found = guard.find(tag);
        let in_state = |states: &[State]| found.filter(|found| states.contains(&found.word.state()));
        let at_rest = [State::Clean, State::Dirty];
        match step {
            Step::Claim(place) | Step::ClaimAhead(place) | Step::ClaimOnce(place) => {
                if found.is_some() {
                    return None;
                }
                let claim = match step {
                    Step::ClaimAhead(_) => guard.claim_ahead(tag),
                    Step::ClaimOnce(_) => guard.claim_once(tag),
                    _ => guard.claim(tag),
                };
                // Nobody will fill it.
                if let (Place::Full, Claim::Claimed { slot, .. }) = (place, claim) {
                    let _nobody = guard.remove(slot);
                }
                drop(guard);
                self.compare(key, place, &claim);
            }
            Step::Publish { dirty } => {
                let found = in_state(&[State::Filling])?;
                let _nobody = self.table.publish(found.index, dirty);
            }
            Step::Release => {
                let owned = in_state(&[State::Filling, State::Storing, State::Writing])?;
                let _nobody = guard.remove(owned.index);
            }
            Step::Touch => self.touch(&found.filter(|found| found.word.readable())?),
            Step::Overwrite => {
                let found = in_state(&at_rest)?;
                let before = found.slot().begin_write(found.word).ok()?;
                self.touch(&found);
                let _nobody = self.table.end_write(found.index, before, true);
            }
            Step::BeginStore => {
                let found = in_state(&[State::Clean])?;
                found.slot().begin_store(found.word).ok()?;
                self.touch(&found);
            }
            Step::EndStore => {
                let found = in_state(&[State::Storing])?;
                found.slot().store_to_write()?;
                let _nobody = found.slot().end_write(false);
            }
            Step::BeginWriteback => {
                let found = in_state(&[State::Dirty])?;
                found.slot().begin_writeback(found.word).ok()?;
                self.writebacks.insert(key, found.word.version());
            }
            Step::EndWriteback { written } => {
                let found = found.filter(|found| found.word.writeback())?;
                let version = self.writebacks.remove(&key)?;
                let _nobody = self.table.end_writeback(found.index, version, written);
            }
            Step::Drop { even_dirty } => drop(guard.remove_quiet(&found?, even_dirty).ok()?),
            Step::Supersede(place) => {
                let found = in_state(&at_rest).filter(|found| !found.word.writeback())?;
                let claim = guard.claim_beside(tag);
                if let Claim::Claimed { slot, .. } = claim {
                    // A page that is not pinned here, as it was, may be the one that left for itself.
                    let Ok(taken) = found.slot().begin_move(found.word) else {
                        let _nobody = guard.remove(slot);
                        return None;
                    };
                    let _nobody = self.table.publish(slot, true);
                    let _nobody = guard.remove_moved(found.index, taken);
                }
                drop(guard);
                self.compare(key, place, &claim);
            }
            Step::SupersedeRefused(place) => {
                found?;
                let claim = guard.claim_beside(tag);
                if let Claim::Claimed { slot, .. } = claim {
                    let _nobody = guard.remove(slot);
                }
                drop(guard);
                self.compare(key, place, &claim);
            }
            Step::Pin { slot } => {
                let found = found.filter(|found| found.word.readable())?;
                found.slot().pin(found.word).ok()?;
                self.pins.entry(slot).or_default().push(found.index);
            }
            Step::Held { slot, pins } => {
                let found = found.filter(|found| found.word.readable())?;
                let held = self.pins.entry(slot).or_default();
                while held.len() < pins as usize {
                    found.slot().pin(found.word).ok()?;
                    held.push(found.index);
                }
            }
        }
        Some(())
    }

    fn compare(&mut self, key: u64, recorded: Place, claim: &Claim) {
        let came = match claim {
            Claim::Full => Place::Full,
            Claim::Claimed { slot, evicted } => {
                Place::Way { way: (slot.0 as usize % W) as u8, evicted: evicted.is_some() }
            }
        };
        if came != recorded {
            let (recorded, came) = (place_in_words(recorded), place_in_words(came));
            self.differ(key, || {
                format!("the cache put the page into {recorded}, and the replay into {came}")
            });
        }
    }

    /// Not while pages move: the table wants that.
    fn set_policy(&mut self, policy: PolicyKind) {
        match self.pending.is_empty() {
            true => self.table.set_policy(policy),
            false => self.misfits += 1,
        }
    }
}
