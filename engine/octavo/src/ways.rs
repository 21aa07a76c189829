//! The number of ways of a set. 16, unless a build for tests chooses 8 or 32.

/// Pages per set.
pub const WAYS: usize = if cfg!(octavo_ways = "8") {
    8
} else if cfg!(octavo_ways = "32") {
    32
} else {
    16
};
