//! What a partition learns about its load from a sample of its pages: miniature caches, and the two
//! that run them.

pub(crate) mod learner;
pub(crate) mod miniature;
pub(crate) mod monitor;
