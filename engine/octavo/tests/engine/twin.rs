//! Random operations on a cache over a simulated disk must agree with the naive twin of `model.rs`.
//!
//! One seed decides everything: the disk, the shape of the cache, the operations, which requests
//! fail and when the power fails. A failing seed is printed. `OCTAVO_TWIN_SEED` repeats one seed,
//! with `OCTAVO_TWIN_TRACE` printing each step; `OCTAVO_TWIN_STEPS` sets the number of steps per
//! test. One test runs over the back end of `disk.rs`, whose threads make each run different.

mod disk;
mod model;
mod world;

use crate::watchdog::Watchdog;
use octavo::numa::{NumaMode, TopologySource};
use octavo_random::Random;
use std::time::Duration;
use world::World;

/// Steps of one seed.
const STEPS: u64 = 3000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Names the seed when its run panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing seed: OCTAVO_TWIN_SEED={}", self.0);
        }
    }
}

/// The NUMA mode of the cache, and its emulated nodes.
type Nodes = (NumaMode, TopologySource);

fn nodes(mode: NumaMode, nodes: u32, cores: u32) -> Nodes {
    (mode, TopologySource::Emulated { nodes, cores })
}

fn run(seed: u64, nodes: Nodes, is_threaded: bool) -> u64 {
    let _named = Seed(seed);
    let mut world = World::new(Random::new(seed), nodes, is_threaded);
    world.traced = std::env::var_os("OCTAVO_TWIN_TRACE").is_some();
    world.run(STEPS);
    world.end()
}

/// Runs as many seeds as make up `steps` steps, on two threads; the environment may ask for another
/// number of steps, or for one seed.
fn agrees(steps: u64, nodes: Nodes) {
    agrees_over(steps, nodes, false);
}

fn agrees_over(steps: u64, nodes: Nodes, is_threaded: bool) {
    if let Some(seed) = number("OCTAVO_TWIN_SEED") {
        run(seed, nodes, is_threaded);
        return;
    }
    let steps = number("OCTAVO_TWIN_STEPS").unwrap_or(steps);
    let begin = |half: u64| {
        let watchdog = Watchdog::new(Duration::from_secs(60), "the naive twin");
        for seed in (half..steps.div_ceil(STEPS)).step_by(2) {
            watchdog.feed(format!("OCTAVO_TWIN_SEED={seed}"));
            run(seed, nodes, is_threaded);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| begin(0));
        begin(1);
    });
}

#[test]
fn a_cache_agrees_with_its_naive_twin() {
    agrees(2_000_000, nodes(NumaMode::Off, 1, 1));
}

#[test]
fn a_cache_over_a_back_end_with_threads_agrees_with_its_naive_twin() {
    agrees_over(90_000, nodes(NumaMode::Off, 1, 1), true);
    agrees_over(24_000, nodes(NumaMode::Message, 2, 2), true);
}

#[test]
fn a_cache_whose_pages_are_divided_among_nodes_agrees_with_its_naive_twin() {
    agrees(200_000, nodes(NumaMode::Partition, 2, 2));
    agrees(200_000, nodes(NumaMode::Partition, 4, 1));
}

#[test]
fn a_cache_that_sends_batches_between_nodes_agrees_with_its_naive_twin() {
    agrees(120_000, nodes(NumaMode::Message, 2, 2));
    agrees(120_000, nodes(NumaMode::Message, 4, 1));
}

#[test]
fn a_cache_whose_pages_have_copies_on_other_nodes_agrees_with_its_naive_twin() {
    agrees(120_000, nodes(NumaMode::Replicate, 2, 2));
    agrees(120_000, nodes(NumaMode::Replicate, 3, 1));
    agrees(80_000, nodes(NumaMode::Replicate, 6, 1));
}

#[test]
fn a_cache_that_keeps_choosing_its_numa_strategy_agrees_with_its_naive_twin() {
    agrees(120_000, nodes(NumaMode::Auto, 2, 2));
    agrees(120_000, nodes(NumaMode::Auto, 3, 1));
}

#[test]
fn a_seed_repeats_every_event_of_the_simulated_disk() {
    for seed in 1_000_000..1_000_004 {
        let kinds = [NumaMode::Off, NumaMode::Partition, NumaMode::Replicate];
        for nodes in kinds.map(|mode| nodes(mode, 3, 1)) {
            assert_eq!(run(seed, nodes, false), run(seed, nodes, false), "seed {seed}");
        }
    }
}
