//! Eviction policies. Each is a small state machine that runs inside one set.
//!
//! A policy sees sixteen bits per way, sixteen bits per ghost, the set's clock (which counts the
//! pages that came into the set) and one byte for a hand. It never sees pages, bytes, other sets or
//! time. Its state is in the set's own lines; a policy that learns or balances also reads a few
//! values of its partition. The set's lock is held during `admitted` and `victim`. `touched` needs
//! no lock, and therefore uses the bits of one way only.
//!
//! To add a policy: write one file with an implementation of [`Policy`], add one variant to
//! [`PolicyKind`] and the name to `with_policy`. The table chooses the policy once per operation;
//! inside, dispatch is static.

pub(crate) mod balance;
pub(crate) mod car;
pub(crate) mod change;
pub(crate) mod clock;
pub(crate) mod kind;
pub(crate) mod lead;
pub(crate) mod lfu;
pub(crate) mod mq;
pub(crate) mod octavo;
pub(crate) mod stamp;
mod view;

pub use car::Car;
pub use clock::Clock;
pub(crate) use kind::with_policy;
pub use kind::{PolicyKind, UnknownPolicy};
pub use lfu::{Lfu, NrLfu};
pub use mq::Mq;
pub use octavo::Octavo;
pub use stamp::{Fifo, Lru};
pub(crate) use view::ways_of;
pub use view::{Policy, View};
