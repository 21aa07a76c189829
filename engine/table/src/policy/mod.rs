//! Eviction policies: each is a small state machine inside one set.
//!
//! A policy sees sixteen bits per way, sixteen bits per ghost, the set's clock (which counts the
//! pages that came into the set) and one byte for a hand. It never sees pages, bytes, other sets or
//! time. All of it lies in the set's own lines; the set's lock is held over `admitted` and
//! `victim`, and nothing need be held over `touched`, which therefore looks at one way only.
//!
//! The seam: a new policy is one file with one implementation of [`Policy`], one variant of
//! [`PolicyKind`] and one line in `with_policy`. The table chooses once per cache; inside, dispatch
//! is static.

mod car;
pub(crate) mod change;
mod clock;
mod fifo;
mod learner;
mod lfu;
mod lru;
mod mq;
mod octavo;

use crate::ghost::Ghosts;
use crate::sync::atomic::{AtomicU8, AtomicU16, Ordering};

pub(crate) use car::Balance;
pub use car::Car;
pub use clock::Clock;
pub use fifo::Fifo;
pub use learner::Learned;
pub(crate) use learner::Learner;
pub use lfu::{Lfu, NrLfu};
pub use lru::Lru;
pub use mq::Mq;
pub use octavo::Octavo;

/// What a policy may look at and change while the set's lock is held.
pub struct View<'s> {
    meta: &'s [AtomicU16],
    hand: &'s AtomicU8,
    /// Pages that came into this set so far, modulo 2^16: the policy's time.
    pub clock: u16,
    /// Identities and metadata of pages that left.
    pub ghosts: Ghosts<'s>,
    /// What the partition has learned, for a policy that learns.
    pub(crate) learner: Option<&'s Learner>,
    /// What the partition's sets aim at together, for a policy that balances.
    pub(crate) balance: Option<&'s Balance>,
}

impl<'s> View<'s> {
    pub(crate) fn new(
        meta: &'s [AtomicU16],
        hand: &'s AtomicU8,
        clock: u16,
        ghosts: Ghosts<'s>,
        learner: Option<&'s Learner>,
    ) -> Self {
        View { meta, hand, clock, ghosts, learner, balance: None }
    }

    pub(crate) fn with_balance(self, balance: Option<&'s Balance>) -> Self {
        View { balance, ..self }
    }

    /// Ways of the set.
    pub fn ways(&self) -> usize {
        self.meta.len()
    }

    /// The policy's bits of a way. Relaxed: hits may change them at any time, and a lost touch
    /// costs a guess, not a page.
    pub fn meta(&self, way: usize) -> u16 {
        self.meta[way].load(Ordering::Relaxed)
    }

    /// Changes the policy's bits of a way. Relaxed: as `meta`.
    pub fn set_meta(&self, way: usize, meta: u16) {
        self.meta[way].store(meta, Ordering::Relaxed);
    }

    /// Forgets the hand and the ghosts: another policy begins.
    pub(crate) fn start_over(&self) {
        self.set_hand(0);
        self.ghosts.clear();
    }

    /// The set's hand. Relaxed: only touched under the set's lock.
    pub fn hand(&self) -> usize {
        self.hand.load(Ordering::Relaxed) as usize
    }

    /// Moves the hand. Relaxed: as `hand`.
    pub fn set_hand(&self, way: usize) {
        self.hand.store(way as u8, Ordering::Relaxed);
    }
}

/// A policy: what a hit, an arrival and a departure do to the sixteen bits of a way.
pub trait Policy {
    /// Whether pages that leave are remembered as ghosts.
    const GHOSTS: bool = false;

    /// Whether `touched` is called at every hit. Else a hit only marks its page, and `touched` is
    /// called for the marked pages when the next page comes into the set: a policy whose time
    /// stands still between arrivals loses nothing by that but counts.
    const COUNTS_HITS: bool = false;

    /// Whether the partition's learner is shown misses and marks.
    const LEARNS: bool = false;

    /// Whether the partition's sets share a balance.
    const BALANCES: bool = false;

    /// How many ghosts a set of so many ways has at most.
    fn ghosts_max(ways: usize) -> usize {
        if Self::GHOSTS { crate::ghost::ghosts_of(ways) } else { 0 }
    }

    /// The bits after a hit at `clock`, in a set of `ways`. They are written only where they
    /// differ.
    fn touched(meta: u16, clock: u16, ways: usize) -> u16;

    /// The bits of a page that comes in; `ghost` holds what was remembered of it.
    fn admitted(view: &View<'_>, ghost: Option<u16>) -> u16;

    /// The bits of a page that moves from a set whose clock shows `then` to one whose clock shows
    /// `now`.
    fn rebased(meta: u16, then: u16, now: u16) -> u16;

    /// The way to give up among `candidates` (a bit per way, at least one).
    fn victim(view: &View<'_>, candidates: u32) -> usize;
}

/// The policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Least recently used, to the resolution of the set's clock.
    Lru,
    /// One bit of recency and a hand (second chance).
    Clock,
    /// Least frequently used, eight bits, halved in the whole set on overflow.
    Lfu,
    /// `Lfu` with ghosts: the frequency of a page that returns is reinstated (HotStorage '12).
    NrLfu,
    /// Two clocks and two lists of ghosts, balanced by what returns in the whole partition (FAST
    /// '04).
    Car,
    /// Eight queues by frequency, from which pages fall back with time (USENIX ATC '01).
    Mq,
    /// The load decides: a tournament of five orders on miniatures of the partition.
    #[default]
    Octavo,
}

impl PolicyKind {
    /// All of them, in the order of the documentation.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::Fifo,
        PolicyKind::Lru,
        PolicyKind::Clock,
        PolicyKind::Lfu,
        PolicyKind::NrLfu,
        PolicyKind::Car,
        PolicyKind::Mq,
        PolicyKind::Octavo,
    ];

    /// The name that configurations use.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Lru => "lru",
            PolicyKind::Clock => "clock",
            PolicyKind::Lfu => "lfu",
            PolicyKind::NrLfu => "nrlfu",
            PolicyKind::Car => "car",
            PolicyKind::Mq => "mq",
            PolicyKind::Octavo => "octavo",
        }
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl std::fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown policy {:?}, expected one of", self.0)?;
        PolicyKind::ALL.iter().try_for_each(|kind| write!(f, " {}", kind.name()))
    }
}

impl std::error::Error for UnknownPolicy {}

impl std::str::FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.into()))
    }
}

/// Runs `$body` with `$policy` naming the type behind `$kind`.
macro_rules! with_policy {
    ($kind:expr, $policy:ident => $body:expr) => {
        match $kind {
            $crate::policy::PolicyKind::Fifo => {
                type $policy = $crate::policy::Fifo;
                $body
            }
            $crate::policy::PolicyKind::Lru => {
                type $policy = $crate::policy::Lru;
                $body
            }
            $crate::policy::PolicyKind::Clock => {
                type $policy = $crate::policy::Clock;
                $body
            }
            $crate::policy::PolicyKind::Lfu => {
                type $policy = $crate::policy::Lfu;
                $body
            }
            $crate::policy::PolicyKind::NrLfu => {
                type $policy = $crate::policy::NrLfu;
                $body
            }
            $crate::policy::PolicyKind::Car => {
                type $policy = $crate::policy::Car;
                $body
            }
            $crate::policy::PolicyKind::Mq => {
                type $policy = $crate::policy::Mq;
                $body
            }
            $crate::policy::PolicyKind::Octavo => {
                type $policy = $crate::policy::Octavo;
                $body
            }
        }
    };
}
pub(crate) use with_policy;

/// The ways of a mask, lowest first.
pub(crate) fn ways_of(mask: u32) -> impl Iterator<Item = usize> {
    let without_lowest = |m: &u32| Some(m & m.wrapping_sub(1));
    std::iter::successors(Some(mask), without_lowest)
        .take_while(|m| *m != 0)
        .map(|m| m.trailing_zeros() as usize)
}

/// A stamp as old by the clock `now` as it was by the clock `then`.
fn stamp_rebased(stamp: u16, then: u16, now: u16) -> u16 {
    now.wrapping_sub(then.wrapping_sub(stamp))
}

/// The candidate whose stamp lies furthest behind the set's clock (stamps wrap; the distance does
/// not care).
fn oldest(view: &View<'_>, candidates: u32) -> usize {
    ways_of(candidates)
        .max_by_key(|way| (view.clock.wrapping_sub(view.meta(*way)), std::cmp::Reverse(*way)))
        .expect("a victim is asked for among at least one candidate")
}
