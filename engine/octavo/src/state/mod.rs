//! State: the data of a cache, its partitions and its objects.
//!
//! Not here: what happens to pages (`pages`), I/O (`flight`), threads (`control`).

pub(crate) mod ages;
pub(crate) mod bell;
pub(crate) mod costs;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod expected;
pub(crate) mod faults;
pub(crate) mod history;
pub(crate) mod latency;
pub(crate) mod monitor;
pub(crate) mod nodes;
pub(crate) mod numbers;
pub(crate) mod partition;
pub(crate) mod pinned;
pub(crate) mod shared;
pub(crate) mod sizes;
pub(crate) mod streams;
pub(crate) mod tape;
