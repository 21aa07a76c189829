//! Learning about a partition's load from a sample of its pages: miniature caches, the learner,
//! which runs them to choose an eviction order, and the monitor, which runs them at other sizes.

pub(crate) mod learner;
pub(crate) mod miniature;
pub(crate) mod monitor;
