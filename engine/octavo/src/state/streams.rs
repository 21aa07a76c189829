//! Read-ahead: detects streams of reads, and determines the pages to bring in together with a read
//! that missed, or while a stream reads what was read ahead.
//!
//! A *stream* is a sequence of misses whose positions are adjacent or equally far apart. An object
//! follows up to 8 streams, so it can tell concurrent readers apart. The last pages that a stream
//! read ahead determine where its next miss is expected. A miss there confirms the stream. Its
//! *window*, the number of pages to read ahead, then doubles, up to the partition's limit. The
//! pages after the miss are claimed as *ahead* (see the table's `claim_ahead`) and read in the same
//! I/O if they are adjacent.
//!
//! The first page of a sequential stream's window is its *marker*. When a request to a queue reads
//! it, the next window is claimed, so the store works while the stream reads the present one.
//! Blocking reads that hit are not examined, so they pay nothing; their streams wait for the store
//! once per window.
//!
//! *Success and waste.* The table counts the pages that were read ahead and then requested (used),
//! and those that were evicted before any request (wasted). If more than a quarter of a partition's
//! recent pages were wasted, its windows halve. If the wasted pages were less than a 32nd of the
//! used ones, its windows double again.
//!
//! Not here: waiting. Only a task that requests a page waits for it, even if the page is read
//! ahead.

use std::ops::Range;
// Markers are hints that nothing depends on: no model needs to consider their interleavings.
use std::sync::atomic::AtomicU64;

use crate::position::PageIndex;
use crate::request::Advice;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Streams that an object follows.
const STREAMS: usize = 8;

/// Pages in a stream's first window.
const WINDOW_MIN: u32 = 4;

/// The largest stride, in pages, that makes a stream.
const STRIDE_MAX: u64 = 1024;

/// The window of a strided stream is limited to the partition's limit divided by this number,
/// because each of its pages is an I/O of its own.
const STRIDED_SHARE: u32 = 8;

/// Most pages that a sequential stream may skip, because they were resident or are not requested.
const GAP_MAX: u64 = 8;

/// No page has this number.
const NO_PAGE: u64 = u64::MAX;

/// Number of pages used or wasted after which the windows may grow or shrink.
const JUDGED_PAGES: u64 = 256;

/// The streams of an object's reads.
pub(crate) struct Streams {
    /// The number of the `Advice` in force, which is about all later reads.
    mode: AtomicU32,
    /// The markers of the streams, `NO_PAGE` if there is none. Changed under the lock.
    markers: [AtomicU64; STREAMS],
    /// `None` until the first miss that may have a successor: small files have none.
    known: Mutex<Option<Box<Known>>>,
}

#[derive(Default)]
struct Known {
    streams: [Stream; STREAMS],
    clock: u64,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    /// The pages of the last miss: `first..end`.
    first: PageIndex,
    end: PageIndex,
    /// Pages from one miss to the next; 1 for a sequential stream, 0 until known.
    stride: i64,
    /// Number of misses that came where they were expected.
    confirmed: u32,
    /// The next miss of a sequential stream lies in `from..next + GAP_MAX`, of a strided one at
    /// `next`.
    from: PageIndex,
    next: PageIndex,
    /// The first page of the last window of a sequential stream.
    marker: PageIndex,
    window: u32,
    used: u64,
}

/// Pages to read ahead: `count` of them, beginning with `first`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub first: PageIndex,
    pub stride: i64,
    pub count: u32,
}

impl Streams {
    pub fn new() -> Streams {
        Streams {
            mode: AtomicU32::new(Advice::Normal as u32),
            markers: [const { AtomicU64::new(NO_PAGE) }; STREAMS],
            known: Mutex::new(None),
        }
    }

    /// Applies advice to all later reads.
    pub fn advise(&self, advice: Advice) {
        if !matches!(advice, Advice::WillNeed | Advice::DontNeed) {
            // Relaxed: a hint.
            self.mode.store(advice as u32, Ordering::Relaxed);
        }
    }

    fn is_advised(&self, advice: Advice) -> bool {
        self.mode.load(Ordering::Relaxed) == advice as u32
    }

    /// Whether reads are advised to be random.
    pub fn is_random(&self) -> bool {
        self.is_advised(Advice::Random)
    }

    /// Whether each page is expected to be read once.
    pub fn is_once(&self) -> bool {
        self.is_advised(Advice::NoReuse)
    }

    /// Notes that a read of `pages` missed. Returns the pages to read ahead, at most `most()`,
    /// which is called only if there is a stream.
    pub fn missed(&self, pages: Range<PageIndex>, most: impl FnOnce() -> u32) -> Option<Ahead> {
        let Range { start: first, end } = pages;
        if self.is_advised(Advice::Random) {
            return None;
        }
        let mut known = lock(&self.known);
        let known = known.get_or_insert_default();
        known.clock += 1;
        let clock = known.clock;
        // 1. Find the stream that expects this miss, or else a single miss that this one may
        //    follow.
        let at = known.streams.iter().position(|stream| stream.expects(first));
        let at = at.or_else(|| {
            let near =
                |stream: &Stream| stream.used > 0 && stream.confirmed == 0 && stream.follows(first).is_some();
            let nearest = |at: &usize| first.0.abs_diff(known.streams[*at].end.0);
            (0..STREAMS).filter(|at| near(&known.streams[*at])).min_by_key(nearest)
        });
        let Some(at) = at else {
            // 2. There is none: a new stream replaces the one whose last miss is the oldest.
            let oldest = (0..STREAMS).min_by_key(|at| known.streams[*at].used).expect("there are some");
            known.streams[oldest] = Stream { first, end, used: clock, ..Stream::default() };
            let stream = &mut known.streams[oldest];
            let ahead = self.is_advised(Advice::Sequential).then(|| stream.go_on(1, end, most())).flatten();
            self.mark(oldest, stream);
            return ahead;
        };
        let stream = &mut known.streams[at];
        let stride = if stream.confirmed > 0 { stream.stride } else { stream.follows(first).unwrap_or(0) };
        let is_known = stride == 1 || stride == stream.stride;
        let window = if stream.confirmed > 0 { stream.window } else { 0 };
        *stream = Stream { first, end, stride, window, confirmed: stream.confirmed, used: clock, ..*stream };
        // Two misses make a sequential stream, three a strided one.
        let from = if stride == 1 { end } else { first };
        let ahead = is_known.then(|| stream.go_on(stride, from, most())).flatten();
        self.mark(at, stream);
        ahead
    }

    /// Whether a range contains the marker of a stream. A hint.
    #[inline(always)]
    pub fn has_marker(&self, pages: &Range<PageIndex>) -> bool {
        self.marked(pages).is_some()
    }

    /// The number of a stream whose marker a range contains.
    #[inline(always)]
    fn marked(&self, pages: &Range<PageIndex>) -> Option<usize> {
        // Relaxed: without the lock, a hint.
        let has = |marker: &AtomicU64| pages.contains(&PageIndex(marker.load(Ordering::Relaxed)));
        self.markers.iter().position(has)
    }

    /// Notes that a read of `pages` hit. If the range contains a stream's marker, returns the pages
    /// of its next window, at most `most()`.
    pub fn passed(&self, pages: &Range<PageIndex>, most: impl FnOnce() -> u32) -> Option<Ahead> {
        if self.is_advised(Advice::Random) {
            return None;
        }
        let mut known = lock(&self.known);
        let known = known.as_mut()?;
        let at = self.marked(pages)?;
        known.clock += 1;
        let stream = &mut known.streams[at];
        stream.used = known.clock;
        // The window that is read now may still miss.
        let (present, next) = (stream.marker, stream.next);
        let ahead = stream.go_on(1, next, most());
        stream.from = present;
        self.mark(at, stream);
        ahead.filter(|ahead| ahead.count > 0)
    }

    /// Publishes the marker of a stream.
    fn mark(&self, at: usize, stream: &Stream) {
        let is_marked = stream.confirmed > 0 && stream.stride == 1 && stream.window > 0;
        let marker = if is_marked { stream.marker.0 } else { NO_PAGE };
        self.markers[at].store(marker, Ordering::Relaxed);
    }
}

impl Stream {
    fn expects(&self, first: PageIndex) -> bool {
        self.confirmed > 0
            && match self.stride {
                1 => (self.from..self.next + GAP_MAX).contains(&first),
                _ => first == self.next,
            }
    }

    /// Returns the stride, if the miss at `first` may follow this stream's last miss.
    fn follows(&self, first: PageIndex) -> Option<i64> {
        if (self.end..=self.end + 1).contains(&first) {
            return Some(1);
        }
        let stride = first.0.wrapping_sub(self.first.0) as i64;
        (stride != 0 && stride.unsigned_abs() <= STRIDE_MAX).then_some(stride)
    }

    /// Confirms the stream. Returns the pages of its next window, which is twice as large as the
    /// last.
    fn go_on(&mut self, stride: i64, from: PageIndex, most: u32) -> Option<Ahead> {
        let most = if stride == 1 { most } else { (most / STRIDED_SHARE).max(1) };
        self.window = (self.window * 2).clamp(WINDOW_MIN, most.max(WINDOW_MIN)).min(most);
        (self.stride, self.confirmed) = (stride, self.confirmed.saturating_add(1));
        let ahead = match stride {
            1 => Ahead { first: from, stride, count: self.window },
            _ => Ahead { first: from.checked_add_signed(stride)?, stride, count: self.window },
        };
        (self.from, self.marker) = (from, from);
        self.next = match stride {
            1 => from + u64::from(self.window),
            _ => ahead.first.checked_add_signed(stride.checked_mul(i64::from(self.window))?)?,
        };
        Some(ahead)
    }
}

/// The limit of the windows of a partition's streams.
pub(crate) struct Windows {
    /// Most pages of a window, as configured. 0 turns read-ahead off.
    pub max_pages: u32,
    /// Most pages of a window now, given the recent success.
    pages: AtomicU32,
    judged: Mutex<(u64, u64)>,
}

impl Windows {
    pub fn new(max_pages: u32) -> Windows {
        Windows { max_pages, pages: AtomicU32::new(max_pages), judged: Mutex::new((0, 0)) }
    }

    /// Returns the most pages of a window now, given the total counts of `used` and `wasted` pages.
    pub fn pages(&self, used: u64, wasted: u64) -> u32 {
        // Relaxed: a hint.
        let pages = self.pages.load(Ordering::Relaxed);
        let mut judged = lock(&self.judged);
        let (recently_used, recently_wasted) = (used.wrapping_sub(judged.0), wasted.wrapping_sub(judged.1));
        if recently_used + recently_wasted < JUDGED_PAGES {
            return pages;
        }
        *judged = (used, wasted);
        let pages = match recently_wasted {
            wasted if wasted * 4 > recently_used + wasted => (pages / 2).max(WINDOW_MIN.min(self.max_pages)),
            wasted if wasted * 32 < recently_used => (pages * 2).min(self.max_pages),
            _ => pages,
        };
        self.pages.store(pages, Ordering::Relaxed);
        pages
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn pages(ahead: Option<Ahead>) -> Vec<u64> {
        let ahead = ahead.unwrap_or(Ahead { first: PageIndex(0), stride: 1, count: 0 });
        (0..ahead.count)
            .map(|number| ahead.first.0.wrapping_add_signed(ahead.stride * i64::from(number)))
            .collect()
    }

    fn missed(streams: &Streams, pages: Range<u64>, most: u32) -> Option<Ahead> {
        streams.missed(PageIndex(pages.start)..PageIndex(pages.end), || most)
    }

    #[test]
    fn a_sequential_stream_is_known_at_its_second_miss_and_its_window_doubles() {
        let streams = Streams::new();
        assert_eq!(missed(&streams, 10..11, 32), None);
        assert_eq!(pages(missed(&streams, 11..12, 32)), [12, 13, 14, 15]);
        assert_eq!(pages(missed(&streams, 16..17, 32)), (17..25).collect::<Vec<_>>());
        assert_eq!(pages(missed(&streams, 25..26, 32)).len(), 16);
        // A page or two were resident.
        assert_eq!(pages(missed(&streams, 44..45, 32)), (45..77).collect::<Vec<_>>());
        assert_eq!(pages(missed(&streams, 77..78, 32)).len(), 32);
        // A miss elsewhere reads nothing ahead.
        assert_eq!(missed(&streams, 5000..5001, 32), None);
    }

    #[test]
    fn the_next_window_begins_when_the_present_one_is_entered() {
        let streams = Streams::new();
        let passed = |pages: Range<u64>| {
            let pages = PageIndex(pages.start)..PageIndex(pages.end);
            streams.passed(&pages, || 32)
        };
        missed(&streams, 10..11, 32);
        assert_eq!(pages(missed(&streams, 11..12, 32)), [12, 13, 14, 15]);
        assert_eq!(pages(passed(12..13)), (16..24).collect::<Vec<_>>());
        // Once for each window.
        assert_eq!(passed(12..16), None);
        assert_eq!(pages(passed(15..17)), (24..40).collect::<Vec<_>>());
        assert_eq!(pages(passed(20..30)), (40..72).collect::<Vec<_>>());
        // A miss in a window that was not there in time belongs to the stream.
        assert_eq!(pages(missed(&streams, 30..31, 32)), (31..63).collect::<Vec<_>>());
        assert_eq!(pages(passed(31..32)), (63..95).collect::<Vec<_>>());
        assert_eq!(passed(200..210), None);
        streams.advise(Advice::Random);
        assert_eq!(passed(63..64), None);
    }

    #[test]
    fn streams_that_take_turns_are_told_apart() {
        let streams = Streams::new();
        let starts: Vec<u64> = (0..6).map(|stream| stream * 100_000).collect();
        let mut next = starts.clone();
        for turn in 0..5 {
            for at in &mut next {
                let ahead = pages(missed(&streams, *at..*at + 1, 16));
                assert_eq!(ahead.is_empty(), turn == 0, "turn {turn}");
                assert!(ahead.first().is_none_or(|first| *first == *at + 1));
                *at = ahead.last().map_or(*at + 1, |last| last + 1);
            }
        }
        assert!(next.iter().zip(&starts).all(|(next, start)| next - start > 40));
    }

    #[test]
    fn a_stride_is_known_at_its_third_miss_forwards_and_backwards() {
        for stride in [7i64, -13, 512] {
            let streams = Streams::new();
            let at = |number: i64| 100_000u64.wrapping_add_signed(stride * number);
            let missed = |number: i64| missed(&streams, at(number)..at(number) + 1, 64);
            assert_eq!((missed(0), missed(1)), (None, None), "{stride}");
            assert_eq!(pages(missed(2)), (3..7).map(at).collect::<Vec<_>>(), "{stride}");
            assert_eq!(pages(missed(7)), (8..16).map(at).collect::<Vec<_>>(), "{stride}");
        }
    }

    #[test]
    fn random_reads_and_advice_against_it_read_nothing_ahead() {
        let streams = Streams::new();
        let mut random = 5u64;
        let ahead = (0..1000).filter(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (random >> 33) % 1_000_000;
            missed(&streams, page..page + 1, 64).is_some()
        });
        assert!(ahead.count() < 10);
        streams.advise(Advice::Random);
        assert!((0..10).all(|page| missed(&streams, page..page + 1, 64).is_none()));
        streams.advise(Advice::Sequential);
        assert!(missed(&streams, 500..501, 64).is_some());
    }

    #[test]
    fn windows_follow_success() {
        let windows = Windows::new(64);
        assert_eq!(windows.pages(100, 0), 64);
        assert_eq!(windows.pages(200, 200), 32);
        assert_eq!(windows.pages(200, 600), 16);
        assert_eq!(windows.pages(900, 600), 32);
        assert_eq!(windows.pages(1300, 650), 32);
        assert_eq!(windows.pages(2300, 651), 64);
    }
}
