//! What a partition learns about its load from a sample of its pages: miniature caches, the learner
//! that runs them to choose an eviction order, and the monitor that runs them at other sizes.

pub(crate) mod learner;
pub(crate) mod miniature;
pub(crate) mod monitor;
