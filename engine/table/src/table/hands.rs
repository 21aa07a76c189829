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
//! If several segments leave together, each of their entries moves once, to a segment that stays.
//! [`Shares`] deals them in the order of the ring: each to the segment that is furthest behind its
//! share of the part of the ring dealt so far. That keeps the entries of each segment apart at
//! every scale, and takes a time proportional to the number of entries.
//!
//! Not here: which segments give and take (`deal`), and moving the pages of an entry
//! (`moves::resize`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::index::SegmentIndex;

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
    /// Number of entries of each segment. `None` until it is asked for.
    counts: Mutex<Option<Vec<usize>>>,
    /// Number of entries that have moved (R4). Relaxed: only one thread resizes at a time.
    moved: AtomicU64,
}

impl Dealer {
    /// Counts an entry that has moved from one segment to another.
    pub fn note_moved(&self, from: SegmentIndex, to: SegmentIndex) {
        self.moved.fetch_add(1, Ordering::Relaxed);
        if let Some(counts) = &mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner) {
            counts[from.0 as usize] -= 1;
            counts[to.0 as usize] += 1;
        }
    }

    /// Returns a segment's number of entries. `count_all` counts those of every segment.
    pub fn count_of(&self, segment: SegmentIndex, count_all: impl FnOnce() -> Vec<usize>) -> usize {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get_or_insert_with(count_all)[segment.0 as usize]
    }

    /// Frees the numbers of entries: the last resize has ended, or the directory has doubled.
    pub fn forget_counts(&self) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = None;
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

/// The segments among which the entries of leaving ones are dealt, in one pass over the ring.
///
/// A segment with `share` entries at the end is *due* for its next one, number n (from 0), at
/// `(n + 1/2) / share` of the ring. Entries that it has already count when the pass meets them, and
/// make the next one due later.
pub(crate) struct Shares {
    /// Each segment's entries so far, and its entries at the end.
    met: Vec<u64>,
    share: Vec<u64>,
    /// Segments by the point of the ring at which they are due. An item whose number of entries is
    /// no longer the segment's is out of date.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
}

impl Shares {
    /// `takers` are the segments that stay. They share `dealt` entries so that no two numbers of
    /// entries differ by more than one, if those in `counts` permit it.
    pub fn new(takers: &[usize], counts: &[usize], dealt: usize) -> Shares {
        let mut shares = Shares {
            met: vec![0; counts.len()],
            share: counts.iter().map(|count| *count as u64).collect(),
            due: BinaryHeap::with_capacity(takers.len()),
        };
        // Those with fewest entries rise first, together, as far as the dealt entries go.
        let mut rising = takers.to_vec();
        rising.sort_by_key(|taker| (counts[*taker], *taker));
        let mut left = dealt as u64;
        let mut risen = 0;
        let mut level = 0;
        while risen < rising.len() {
            let next = counts[rising[risen]] as u64;
            let cost = (next - level) * risen as u64;
            if cost > left {
                break;
            }
            left -= cost;
            level = next;
            risen += 1;
        }
        let each = left / risen.max(1) as u64;
        let more = left % risen.max(1) as u64;
        for (taker, place) in rising[..risen].iter().zip(0..) {
            shares.share[*taker] = level + each + u64::from(place < more);
        }
        takers.iter().for_each(|taker| shares.wait(*taker));
        shares
    }

    /// Notes that a segment that stays has the entry which the pass has reached.
    pub fn meet(&mut self, taker: usize) {
        self.met[taker] += 1;
        self.wait(taker);
    }

    /// Gives the entry that the pass has reached, and returns the taker.
    pub fn take(&mut self, counts: &mut [usize]) -> Option<usize> {
        while let Some(Reverse((_, met, taker))) = self.due.pop() {
            let is_full = counts[taker] as u64 >= self.share[taker];
            if met == self.met[taker] && !is_full {
                counts[taker] += 1;
                self.meet(taker);
                return Some(taker);
            }
        }
        None
    }

    fn wait(&mut self, taker: usize) {
        let met = self.met[taker];
        // In units of 2^-32 of the ring. Both numbers are below 2^25.
        let due = ((2 * met + 1) << 31) / self.share[taker].max(1);
        self.due.push(Reverse((due, met, taker)));
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::Shares;

    /// Segments that stay keep their entries apart: the widest gap between two of them is at most
    /// three times the average one.
    #[test]
    fn dealt_entries_lie_apart() {
        const SEGMENTS: usize = if cfg!(miri) { 8 } else { 64 };
        let count = SEGMENTS * 64;
        for stay in 1..SEGMENTS {
            let mut counts = vec![count / SEGMENTS; SEGMENTS];
            let takers: Vec<usize> = (0..stay).collect();
            let mut shares = Shares::new(&takers, &counts, count - stay * counts[0]);
            let mut gaps = vec![(0, 0); stay];
            for entry in 0..count {
                let owner = entry % SEGMENTS;
                let owner = if owner < stay {
                    shares.meet(owner);
                    owner
                } else {
                    shares.take(&mut counts).expect("the shares are those of all entries")
                };
                let (last, widest) = gaps[owner];
                gaps[owner] = (entry, widest.max(entry - last));
            }
            let widest = gaps.iter().map(|(last, widest)| *widest.max(&(count - last))).max();
            assert!(widest <= Some(3 * stay.max(2)), "{stay} segments: {widest:?}");
            assert!(counts[..stay].iter().all(|own| own.abs_diff(count / stay) <= 1), "{counts:?}");
        }
    }
}
