//! Compares every policy with its naive twin, and checks facts that hold for all policies.

use octavo_random::Random;

use super::{Reference, opt};
use crate::source::Pages;

mod twins;

const SEED: u64 = 77;

/// Draws popular and rare pages, with scans and loops between them.
fn accesses(random: &mut Random, capacity: u64, count: usize) -> Vec<u64> {
    let mut pages = Vec::new();
    while pages.len() < count {
        let run = 1 + random.below(4 * capacity);
        let base = random.below(3 * capacity);
        match random.below(6) {
            0 => pages.extend(base..base + run),
            1 => pages.extend((0..run).map(|n| base + n % (capacity + 1))),
            _ => pages.extend((0..run).map(|_| random.clone().below(1 + random.below(3 * capacity)))),
        }
    }
    pages
}

#[test]
fn every_policy_agrees_with_its_naive_twin_and_keeps_its_capacity() {
    let mut random = Random::new(SEED);
    for (capacity, count) in
        [(1, 2000), (2, 4000), (3, 4000), (5, 4000), (12, 6000), (40, 8000), (230, 12_000)]
    {
        for reference in Reference::ALL.into_iter().filter(|reference| !reference.needs_future()) {
            let pages = accesses(&mut random, capacity, count);
            let mut policy = reference.cache(capacity, SEED).unwrap();
            let mut twin = twins::twin(reference, capacity as usize);
            for (number, page) in pages.iter().enumerate() {
                assert_eq!(
                    policy.access(*page),
                    twin(*page),
                    "{reference:?} of {capacity}, access {number}, seed {SEED}"
                );
                assert!(policy.resident_pages() <= capacity, "{reference:?} of {capacity}, access {number}");
            }
            assert!(policy.access(pages[pages.len() - 1]), "{reference:?} of {capacity} has its newest page");
        }
    }
}

#[test]
fn no_policy_misses_less_than_the_optimum() {
    let mut random = Random::new(SEED + 1);
    for round in 0..20 {
        let capacity = 1 + random.below(60);
        let pages = accesses(&mut random, capacity, 5000);
        let mut source = Pages::new(pages.clone());
        let mut future = opt::Future::read(&mut source, &std::env::temp_dir(), u64::MAX).unwrap();
        let optimum = opt::misses(&mut future, &[capacity], None, 0).unwrap()[0];
        for reference in Reference::ALL {
            let misses = match reference.cache(capacity, SEED) {
                Some(mut cache) => cache.run(&pages),
                // All sets together have no more pages than the whole cache.
                None => opt::misses(&mut future, &[capacity], Some(4.min(capacity as u32)), 3).unwrap()[0],
            };
            assert!(misses >= optimum, "{reference:?} of {capacity}, round {round}: {misses} for {optimum}");
        }
    }
}

#[test]
fn a_larger_lru_has_every_page_of_a_smaller_one() {
    let mut random = Random::new(SEED + 2);
    let mut sizes = [1, 2, 5, 17, 60].map(|size| Reference::Lru.cache(size, 0).unwrap());
    for page in accesses(&mut random, 30, 20_000) {
        let hits = sizes.each_mut().map(|lru| lru.access(page));
        assert!(hits.is_sorted(), "{hits:?}");
    }
}

#[test]
fn fifo_shows_beladys_anomaly_and_lru_does_not() {
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    let misses = |reference: Reference, capacity| reference.cache(capacity, 0).unwrap().run(&pages);
    assert_eq!((misses(Reference::Fifo, 3), misses(Reference::Fifo, 4)), (9, 10));
    assert_eq!((misses(Reference::Lru, 3), misses(Reference::Lru, 4)), (10, 8));
}
