//! The repeatable figures of the experiments, on stores in memory: hit ratios, periods, and the
//! memory that moves.

use octavo::PolicyName;

use super::house::{Plan, Sharing};
use super::pair::{Outcome, settle_and_count};
use super::sizes::{FOLLOWED_WITHIN, MOVED_MAX, moved, periods_until_at_rest, two_phases};
use super::work;
use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::drivers::hits::filled_store;
use crate::suite::Suite;

const MEMORY: u64 = 32 << 20;

fn case(name: &str) -> Case {
    Suite::quick_case("partitions", name).with_memory_bytes(MEMORY)
}

fn pair(sharing: Sharing, memory_bytes: u64, policy: PolicyName, seed: u64, builds: bool) -> Outcome {
    let pages = 2 * MEMORY / PAGE_BYTES as u64;
    let stores = [filled_store(pages).unwrap(), filled_store(pages).unwrap()];
    let first = match builds {
        true => work::build(pages, seed),
        false => work::pattern(&case("pair_lru").workload, pages, seed).unwrap(),
    };
    let plan = Plan { sharing, memory_bytes, policy, ahead_bytes: 0, seed };
    let tenants = vec![(&stores[0], first), (&stores[1], work::sequential(pages))];
    settle_and_count(&plan, tenants, &mut |_| Ok(())).unwrap()
}

#[test]
fn partitions_beat_one_cache_for_a_random_and_a_sequential_reader() {
    for policy in [PolicyName::Lru, PolicyName::Fifo] {
        let seed = 7;
        let (unified, utility) = (
            pair(Sharing::Unified, MEMORY, policy, seed, false),
            pair(Sharing::Utility, MEMORY, policy, seed, false),
        );
        let ratios = (unified.done.hit_ratio(), utility.done.hit_ratio());
        println!(
            "{policy:?}, seed {seed}: {ratios:?}, {} and {} bytes",
            unified.second_bytes, utility.second_bytes
        );
        assert!(ratios.1 >= ratios.0 + 0.09, "{policy:?}, seed {seed}: {ratios:?}");
        assert!(utility.second_bytes * 8 <= unified.second_bytes, "{policy:?}, seed {seed}");
    }
}

#[test]
fn a_build_in_a_partition_loses_no_hits_with_a_fifth_less_memory() {
    let (seed, policy) = (3, PolicyName::Lru);
    let unified = pair(Sharing::Unified, MEMORY, policy, seed, true);
    let utility = pair(Sharing::Utility, MEMORY / 5 * 4, policy, seed, true);
    let of = |outcome: &Outcome| (outcome.done.hit_ratio_of(0), outcome.done.hit_ratio());
    println!("seed {seed}: {:?} unified, {:?} in partitions", of(&unified), of(&utility));
    assert!(of(&utility).0 >= of(&unified).0 && of(&utility).1 >= of(&unified).1, "seed {seed}");
}

#[test]
fn sizes_follow_a_change_of_phase_and_rest_without_one() {
    let case = case("phases");
    let pages = 3 * MEMORY / PAGE_BYTES as u64;
    let stores = [filled_store(pages).unwrap(), filled_store(pages).unwrap()];
    // With seed 7 sizes once oscillated: a thirtieth of the memory moved in each period.
    for seed in [1, 2, 7] {
        let [before, after] = two_phases(&case, [&stores[0], &stores[1]], seed, &mut |_| Ok(())).unwrap();
        let periods = periods_until_at_rest(&after, MEMORY);
        let moved = [&before, &after].map(|done| moved(done, MEMORY).0);
        println!("seed {seed}: followed after {periods} periods; {moved:?} of the memory moved in a period");
        assert!((1..=FOLLOWED_WITHIN).contains(&periods), "seed {seed}: {periods} periods");
        assert!(moved.iter().all(|moved| *moved < MOVED_MAX), "seed {seed}: {moved:?}");
        let (small, large) = (before.sizes.last().unwrap()[0], after.sizes.last().unwrap()[0]);
        assert!(large > 2 * small, "seed {seed}: {small} and {large} bytes");
    }
}
