//! Which entries each segment has, and which it gives to another or takes from it.
//!
//! *Crowded* is counted on four scales: in ranges around the entry in which a segment has, on
//! average, 1, 4, 16 and 64 entries. Their numbers are added, each divided by the deviation that
//! chance would give it. Other rules were tried on models of tables that grow fourfold, shrink to a
//! quarter, or change at random: the distance of the nearest entry leaves 0.97 of a file in its
//! frames, the count on one scale 0.92, several scales 0.985.
//!
//! The entries of all segments are read from the directory once and kept for the next resize: to
//! read four million entries takes longer than to move the pages of a segment.
//!
//! Not here: which segments give and take (`deal`), and moving the pages of an entry
//! (`moves::resize`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of entries among which a joining segment chooses the next one, and of segments among
/// which a leaving segment chooses the taker of an entry.
const CHOICES: usize = 8;
const TAKERS: usize = 64;

/// The weights of the scales of crowding, in eighths: the scale on which a segment has 4^k entries
/// counts by 2^-k.
const WEIGHTS: [u64; 4] = [8, 4, 2, 1];

/// The most entries of a segment that are searched from where evenly dealt ones would be.
const SCANNED_MAX: usize = 512;

/// What a resize knows of the directory, for the next one.
#[derive(Default)]
pub(crate) struct Dealer {
    hands: Mutex<Option<Hands>>,
    /// Number of entries that have moved (R4). Relaxed: only one thread resizes at a time.
    moved: AtomicU64,
}

impl Dealer {
    /// Counts an entry that has moved.
    pub fn note_moved(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many entries have moved.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Takes what the last resize has left. It is of use if no entry has moved but by that resize.
    pub fn take(&self) -> Option<Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Leaves `hands` to the next resize.
    pub fn keep(&self, hands: Option<Hands>) {
        *self.hands.lock().unwrap_or_else(PoisonError::into_inner) = hands;
    }
}

/// The entries of all segments, in ascending order, and the owner of each.
pub(crate) struct Hands {
    pub entries: Vec<Vec<u32>>,
    pub owners: Vec<u32>,
    /// The dealer's count of moves once these are the owners.
    pub moved: u64,
}

impl Hands {
    /// Divides a directory by its entries' owners. `counts` has each segment's number of entries,
    /// and `moved` is the dealer's.
    pub fn of(owners: Vec<u32>, counts: Vec<usize>, moved: u64) -> Hands {
        // A segment that gets an entry needs no other memory.
        let mut entries: Vec<Vec<u32>> =
            counts.into_iter().map(|count| Vec::with_capacity(count + 1)).collect();
        owners.iter().zip(0..).for_each(|(owner, entry)| entries[*owner as usize].push(entry));
        Hands { entries, owners, moved }
    }

    /// Returns the number of a segment's entries.
    pub fn len(&self, segment: usize) -> usize {
        self.entries[segment].len()
    }

    fn move_entry(&mut self, entry: u32, to: usize) {
        let from = std::mem::replace(&mut self.owners[entry as usize], to as u32) as usize;
        if let Ok(at) = self.entries[from].binary_search(&entry) {
            self.entries[from].remove(at);
        }
        let at = self.entries[to].partition_point(|other| *other < entry);
        self.entries[to].insert(at, entry);
        self.moved += 1;
    }

    /// Returns how crowded a segment's entries are around `entry`. The directory is a ring: its two
    /// ends are neighbours.
    fn crowding(&self, segment: usize, entry: u32) -> u64 {
        let (entries, count) = (&self.entries[segment], self.owners.len() as u64);
        let (len, level) = (entries.len() as u64, count.trailing_zeros());
        // Counts entries on the ring rolled out, from entry 0. Negative numbers wrap.
        let below = |bound: u64| {
            let round = (bound as i64 >> level) as u64;
            round.wrapping_mul(len).wrapping_add(count_below(entries, bound & (count - 1), level) as u64)
        };
        let within = |width: u64| {
            let from = u64::from(entry).wrapping_sub(width / 2);
            below(from.wrapping_add(width)).wrapping_sub(below(from))
        };
        let (mut crowding, mut width) = (0, count / len.max(1));
        for weight in WEIGHTS {
            crowding += weight * if width < count { within(width) } else { len };
            width *= 4;
        }
        crowding
    }

    /// Returns the middle of the widest gap between a segment's entries, of several the first.
    fn widest_gap(&self, segment: usize) -> u32 {
        let (entries, mask) = (&self.entries[segment], self.owners.len() as u32 - 1);
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return 0 };
        let width = |from: u32, to: u32| to.wrapping_sub(from).wrapping_sub(1) & mask;
        let (mut widest, mut begin) = (width(*last, *first), *last);
        for pair in entries.windows(2).rev() {
            let width = width(pair[0], pair[1]);
            if width >= widest {
                (widest, begin) = (width, pair[0]);
            }
        }
        begin.wrapping_add(widest / 2 + 1) & mask
    }

    /// Moves an entry from a giver with most entries to `to`. Returns the giver and the entry, or
    /// `None` if no giver has any.
    pub fn draw(&mut self, givers: &mut Givers, to: usize) -> Option<(usize, u32)> {
        let most = givers.most(self).filter(|most| *most > 0)?;
        let (middle, count) = (self.widest_gap(to), self.owners.len() as u32);
        let (mut choices, mut crowded) = (0, None);
        // From the middle outwards: 0, 1, -1, 2, -2, ...
        for step in 0..count {
            let away = step.div_ceil(2);
            let away = if step % 2 == 0 { away.wrapping_neg() } else { away };
            let entry = middle.wrapping_add(away) & (count - 1);
            let owner = self.owners[entry as usize] as usize;
            if givers.is_one[owner] && self.len(owner) == most {
                crowded = crowded.max(Some((self.crowding(owner, entry), choices, entry)));
                choices += 1;
                if choices == CHOICES {
                    break;
                }
            }
        }
        let (_, _, entry) = crowded?;
        let giver = self.owners[entry as usize] as usize;
        self.move_entry(entry, to);
        givers.left -= 1;
        Some((giver, entry))
    }

    /// Moves an entry to a taker with fewest entries, and returns the taker.
    pub fn place(&mut self, takers: &mut Takers, entry: u32) -> Option<usize> {
        let fewest = takers.fewest(self);
        // Of many segments, only some are looked at, others for each entry.
        let step = fewest.len().div_ceil(TAKERS).max(1);
        let some = (entry as usize % step..fewest.len()).step_by(step);
        let at = some.min_by_key(|at| self.crowding(fewest[*at], entry))?;
        let taker = fewest.remove(at)?;
        self.move_entry(entry, taker);
        Some(taker)
    }
}

/// Returns how many of a segment's entries lie below `bound`, in a directory of `level`.
fn count_below(entries: &[u32], bound: u64, level: u32) -> usize {
    let is_below = |entry: u32| u64::from(entry) < bound;
    if entries.len() > SCANNED_MAX {
        return entries.partition_point(|entry| is_below(*entry));
    }
    // Entries lie almost evenly, so the number is near that of even ones.
    let mut found = ((bound * entries.len() as u64) >> level) as usize;
    while found < entries.len() && is_below(entries[found]) {
        found += 1;
    }
    while found > 0 && !is_below(entries[found - 1]) {
        found -= 1;
    }
    found
}

/// The segments that may give entries.
pub(crate) struct Givers {
    is_one: Vec<bool>,
    /// The most entries of a giver, and the number of givers that have as many.
    most: usize,
    left: usize,
}

impl Givers {
    /// `segments` may give, in a table of up to `segments_max`.
    pub fn new(segments: &[usize], segments_max: usize) -> Givers {
        let mut is_one = vec![false; segments_max];
        segments.iter().for_each(|segment| is_one[*segment] = true);
        Givers { is_one, most: 0, left: 0 }
    }

    /// Returns the most entries of a giver.
    pub fn most(&mut self, hands: &Hands) -> Option<usize> {
        if self.left == 0 {
            let givers = (0..).zip(&self.is_one).filter(|(_, is_one)| **is_one);
            let lens = || givers.clone().map(|(giver, _)| hands.len(giver));
            self.most = lens().max()?;
            self.left = lens().filter(|len| *len == self.most).count();
        }
        Some(self.most)
    }
}

/// The segments that may take entries, and those among them that have fewest, in ascending order.
pub(crate) struct Takers {
    segments: Vec<usize>,
    fewest: VecDeque<usize>,
}

impl Takers {
    /// `segments` may take.
    pub fn new(segments: Vec<usize>) -> Takers {
        Takers { segments, fewest: VecDeque::new() }
    }

    /// Returns the takers that have fewest entries. A taker that gets one must be removed.
    pub fn fewest(&mut self, hands: &Hands) -> &mut VecDeque<usize> {
        if self.fewest.is_empty() {
            let least = self.segments.iter().map(|taker| hands.len(*taker)).min();
            let has_least = |taker: &usize| Some(hands.len(*taker)) == least;
            self.fewest = self.segments.iter().copied().filter(has_least).collect();
        }
        &mut self.fewest
    }
}
