//! Replays a recording: takes a table like the recorded partition's through the same steps.
//!
//! From a whole recording, the replay takes only which pages were accessed, and when fills arrived,
//! writes ended and pages were written back. The table decides anew whether a page is resident, and
//! which page is evicted for it. The result of each access is compared with the recorded one, and
//! the way of each claim with the recorded way. The replay reports the first difference and where
//! it occurred. If the recording began later than the partition, or steps are missing, the replay
//! may differ from the cache. It then brings in a page that was resident in the cache, so that one
//! difference does not cause others. Such a recording lists at its beginning the pages that were
//! resident, with the policy's bits, and what the policy had learned. So does every part after the
//! first, in case the parts before it are missing. Ghosts are not listed.
//!
//! For a sample, a table smaller by the sample's rate sees only the accesses (Waldspurger et al.,
//! "Cache Modeling and Optimization using Miniature Simulations", ATC '17), and each miss stands
//! for 1 / rate misses.
//!
//! | file | holds |
//! |---|---|
//! | `steps.rs` | the steps of a whole recording |
//! | `resizes.rs` | segments that join and leave in a whole recording |
//! | `sampled.rs` | the events of a sample |

mod resizes;
mod sampled;
mod steps;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use octavo_recording::{Event, Header, PAGE_BITS, Secret, Step, Totals, WHOLE};
use octavo_table::{Claim, Found, Mixer, Move, PolicyKind, SegmentIndex, SetGuard, SlotIndex, Table, Tag};

use super::block::Ending;
use super::reader::Reader;
use crate::source::{Sample, SourceError};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Accesses that were replayed.
    pub accesses: u64,
    /// Accesses whose page was resident in the replay.
    pub hits: u64,
    /// Accesses whose page was resident in the cache.
    pub hits_recorded: u64,
    /// The cache's own counts at the end of the parts that were read, for all accesses, including
    /// those that a sample leaves out.
    pub counted: Totals,
    /// The first difference between the cache and the replay.
    pub difference: Option<Difference>,
    /// Accesses that hit in one of the two and missed in the other.
    pub differences: u64,
    /// Steps that the replay could not make, because the page was in another state.
    pub misfits: u64,
    /// How the recording ends. None: the replay was interrupted.
    pub ending: Option<Ending>,
    /// Whether nothing is missing. Then, if one thread used the partition, every access must have
    /// the same result.
    pub is_exact: bool,
    /// Why the replay is not exact.
    pub inexact_because: Option<String>,
    /// The share of the pages that was recorded.
    pub sample: f64,
}

/// The first difference between a cache and its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the access that differs, or of the last access before the difference; the
    /// first is 1.
    pub access: u64,
    /// The name of the object.
    pub object: String,
    /// The index of the page in the object.
    pub page: u64,
    /// The difference, as a sentence.
    pub what: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { access, object, page, what } = self;
        write!(f, "access {access}, \"{object}\" page {page}: {what}")
    }
}

impl Replayed {
    /// Returns the accesses whose page was not resident in the replay.
    pub fn misses(&self) -> u64 {
        self.accesses - self.hits
    }

    /// Returns the estimated miss ratio of all accesses. The recording of a sample has the cache's
    /// misses both for the sample and for all pages. The replay's misses of the sample are scaled
    /// by the ratio of these two, which corrects for the luck of the draw.
    pub fn miss_ratio(&self) -> f64 {
        let misses_recorded = self.accesses - self.hits_recorded;
        if self.sample == 1.0 || misses_recorded == 0 {
            return self.miss_ratio_by_size();
        }
        (self.miss_ratio_counted() * self.misses() as f64 / misses_recorded as f64).min(1.0)
    }

    /// Returns the miss ratio estimated from the sample's rate alone, as for another policy than
    /// the recorded one.
    pub fn miss_ratio_by_size(&self) -> f64 {
        let accesses = match self.sample {
            1.0 => self.accesses,
            _ => self.counted.hits.saturating_add(self.counted.misses),
        };
        Sample { rate: self.sample, accesses }.miss_ratio(self.misses())
    }

    /// Returns the miss ratio that the cache counted.
    pub fn miss_ratio_counted(&self) -> f64 {
        let Totals { hits, misses } = self.counted;
        misses as f64 / (hits.saturating_add(misses) as f64).max(1.0)
    }

    /// Returns whether every access had its recorded result, and the counts equal the cache's.
    pub fn agrees(&self) -> bool {
        let counted = Totals { hits: self.hits, misses: self.misses() };
        self.difference.is_none() && self.misfits == 0 && counted == self.counted
    }
}

/// Replays a reader's events, until their end or until `stop` is set. Calls `progress` every 65,536
/// accesses with the accesses so far and the share that was read.
///
/// # Errors
/// The reader's own error.
pub fn replay(
    reader: &mut Reader,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Replayed, SourceError> {
    match reader.about().header.ways {
        8 => run::<8>(reader, stop, progress),
        32 => run::<32>(reader, stop, progress),
        // The reader refuses a header with another number.
        _ => run::<16>(reader, stop, progress),
    }
}

/// Accesses between two checks of `stop`.
const NEWS_PERIOD: u64 = 1 << 16;

fn run<const W: usize>(
    reader: &mut Reader,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, Option<f64>),
) -> Result<Replayed, SourceError> {
    let header = reader.about().header.clone();
    let is_whole = header.sample_below == WHOLE;
    let mut twin = if is_whole { Twin::<W>::whole(&header) } else { Twin::<W>::scaled(&header) };
    let (mut interrupted, mut next_news) = (false, NEWS_PERIOD);
    while let Some(event) = reader.event()? {
        // A later part lists the state at its beginning, which the replay of the part before it
        // has.
        let lists_state = matches!(
            event,
            Event::Live { .. }
                | Event::Learned(_)
                | Event::Resident { .. }
                | Event::Step { step: Step::Held { .. }, .. }
        );
        if lists_state && reader.goes_on() {
            continue;
        }
        if is_whole {
            twin.whole_event(&event);
        } else {
            twin.sampled_event(&reader.in_its_life(event));
        }
        if twin.found.accesses >= next_news {
            next_news = twin.found.accesses + NEWS_PERIOD;
            progress(twin.found.accesses, reader.progress());
            // Relaxed: the flag orders nothing else.
            if stop.load(Ordering::Relaxed) {
                interrupted = true;
                break;
            }
        }
    }
    let inexact_because = inexact_because(&header, reader);
    Ok(Replayed {
        counted: reader.counted(),
        ending: if interrupted { None } else { reader.ending() },
        is_exact: inexact_because.is_none(),
        inexact_because,
        sample: header.sample(),
        ..twin.found
    })
}

/// Returns why accesses may differ even if one thread used the partition.
fn inexact_because(header: &Header, reader: &Reader) -> Option<String> {
    let (part, skipped) = (reader.first_part(), reader.skipped());
    let is_whole = header.sample_below == WHOLE;
    match () {
        () if part > 1 => Some(format!("the first part is missing; the recording begins with part {part}")),
        () if !is_whole => Some("a sample does not have the steps of the table".into()),
        () if !header.from_the_first => Some("it does not begin with the partition's first access".into()),
        () if skipped > 0 => Some(format!("{skipped} damaged blocks were skipped")),
        () => None,
    }
}

/// The table of a recorded partition, taken through the recorded events.
struct Twin<const W: usize> {
    table: Table<W>,
    mixer: Mixer,
    /// The names of objects, by number.
    names: HashMap<u64, String>,
    /// The versions of pages whose write-back is in flight, by key.
    writebacks: HashMap<u64, u64>,
    /// Pinned slots, by their numbers in the recording.
    pins: HashMap<u32, Vec<SlotIndex>>,
    /// The moves of a resize that are pending, the next one last.
    pending: Vec<Move>,
    /// Whether the next move has begun; the recording tells which of its sets have moved.
    has_begun: bool,
    /// The segments that the pending moves empty, the next one last.
    leaving: Vec<SegmentIndex>,
    /// Whether the pending moves empty segments, and none of them has begun.
    may_leave_too: bool,
    /// Empty segments that wait to be retired.
    emptied: Vec<SegmentIndex>,
    /// The numbers of the partition's segments; the table's may have other numbers.
    segments: HashSet<u32>,
    segments_max: u32,
    /// Whether the recording has not named the segments yet, so that their numbers are guessed.
    is_unnamed: bool,
    is_from_the_first: bool,
    /// For a sample: the number of the partition's segments that one segment of the table
    /// represents.
    segments_in_one: f64,
    /// The results so far.
    found: Replayed,
}

/// Places the pages of a sample; any seed will do.
const SAMPLE_SEED: u64 = 1;

impl<const W: usize> Twin<W> {
    /// Makes the table of a whole recording.
    fn whole(header: &Header) -> Self {
        let mixer = match header.secret {
            Secret::Seed(seed) => Mixer::new(seed),
            Secret::Weak => Mixer::weak(),
            Secret::Untold => Mixer::new(SAMPLE_SEED),
        };
        let table = Table::spread(header.shape, header.nodes, header.policy, header.segments);
        Self::new(table, mixer, header, 1.0)
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
            leaving: Vec::new(),
            may_leave_too: false,
            emptied: Vec::new(),
            segments: (0..header.segments).collect(),
            segments_max: header.shape.segments_max,
            is_unnamed: true,
            is_from_the_first: header.from_the_first,
            segments_in_one,
            found: Replayed::default(),
        }
    }

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
                None => self.found.misfits += 1,
            },
            // The reader adds up the totals.
            Event::Totals(_) => {}
            Event::Policy { policy } => self.set_policy(*policy),
            Event::Opened { object, name } => drop(self.names.insert(*object, name.clone())),
            Event::Closed { object } => drop(self.names.remove(object)),
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
            // The page was resident in the cache, so no fill of it was recorded.
            None if hit => self.bring(tag, false, |guard| guard.claim(tag)),
            None => {}
        }
        self.count(hit, is_there);
        if is_there != hit {
            let words = |hit| if hit { "a hit" } else { "a miss" };
            self.differ(key, || format!("{} in the cache, {} in the replay", words(hit), words(is_there)));
        }
    }

    fn count(&mut self, hit: bool, is_there: bool) {
        self.found.accesses += 1;
        self.found.hits += u64::from(is_there);
        self.found.hits_recorded += u64::from(hit);
        self.found.differences += u64::from(hit != is_there);
    }

    fn differ(&mut self, key: u64, what: impl FnOnce() -> String) {
        if self.found.difference.is_none() {
            let (object, page) = (key >> PAGE_BITS, key & ((1 << PAGE_BITS) - 1));
            let object = self.names.get(&object).cloned().unwrap_or_else(|| format!("object {object}"));
            let access = self.found.accesses;
            self.found.difference = Some(Difference { access, object, page, what: what() });
        }
    }

    fn misfit(&mut self, key: u64, step: Step) {
        self.found.misfits += 1;
        let tag = self.mixer.tag(key);
        let there = self.table.lock(tag).find(tag).map(|found| found.word);
        self.differ(key, || {
            let there = there.map(|word| format!("{:?}", word.state()).to_lowercase());
            let there = there.unwrap_or_else(|| "not in the cache".into());
            format!("{} was recorded, but in the replay the page is {there}", words::in_words(step))
        });
    }

    fn touch(&self, found: &Found<'_>) {
        // Only the engine needs to know whether the page was read ahead.
        let _ahead = self.table.touch(found);
    }

    /// Brings in a page for which the recording has no step, if the page is not resident and its
    /// set has a slot for it. While sets move, only the lock of the page's set tells whether it is
    /// resident.
    fn bring(&mut self, tag: Tag, dirty: bool, claim: impl FnOnce(&mut SetGuard<'_, W>) -> Claim) {
        let mut guard = self.table.lock(tag);
        if guard.find(tag).is_none()
            && let Claim::Claimed { slot, .. } = claim(&mut guard)
        {
            let waited = self.table.publish(slot, dirty);
            debug_assert!(!waited, "no other thread waits");
        }
    }

    /// Changes the policy. The table allows that only while no moves are pending.
    fn set_policy(&mut self, policy: PolicyKind) {
        match self.pending.is_empty() {
            true => self.table.set_policy(policy),
            false => self.found.misfits += 1,
        }
    }
}
