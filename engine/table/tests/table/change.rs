//! Changes of the policy of a table that holds pages.

use octavo_table::{Mixer, PolicyKind, Shape, Table, Tag};

use crate::setup::{one_set, publish, replace};
use octavo_random::Random;

fn tag(page: u64) -> Tag {
    Tag(page << Tag::FINGERPRINT_SHIFT)
}

fn is_resident(table: &Table<16>, tag: Tag) -> bool {
    table.find(tag).is_some()
}

#[test]
fn a_change_of_policy_evicts_no_page_and_works_between_every_two_policies() {
    for old in PolicyKind::ALL {
        for new in PolicyKind::ALL {
            let table = Table::<16>::new(Shape { segments_max: 4, sets_per_segment: 16 }, old, 4);
            table.watch(4096, 100_000);
            let (mixer, mut random) = (Mixer::new(1), Random::new(2));
            let mut run = |steps: usize| {
                for _ in 0..steps {
                    let tag = mixer.tag(random.below(3000));
                    match table.find(tag) {
                        Some(found) => _ = table.touch(&found),
                        None => _ = replace(&table, tag),
                    }
                }
            };
            run(20_000);
            let before: Vec<u64> = (0..3000).filter(|page| is_resident(&table, mixer.tag(*page))).collect();
            assert_eq!(before.len(), 1024);
            table.set_policy(new);
            assert_eq!(table.policy(), new);
            assert!(before.iter().all(|page| is_resident(&table, mixer.tag(*page))), "{old:?} to {new:?}");
            run(20_000);
            table.drain_monitor();
            let after = (0..3000).filter(|page| is_resident(&table, mixer.tag(*page))).count();
            assert_eq!(after, 1024);
        }
    }
}

#[test]
fn the_new_policy_continues_in_the_order_of_the_old_one() {
    let used = || {
        let table = one_set::<16>(PolicyKind::Lru);
        (0..16).for_each(|page| _ = replace(&table, tag(page)));
        // The pages are used in the opposite order, one each time another page comes in.
        for page in (12..16).rev() {
            table.touch(&table.find(tag(page)).unwrap());
            replace(&table, tag(100 + page));
        }
        table
    };
    for new in [PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::NrLfu, PolicyKind::Mq] {
        let table = used();
        let mut there: Vec<Tag> = (0..200).map(tag).filter(|tag| is_resident(&table, *tag)).collect();
        assert_eq!(there.len(), 16);
        // The expected victims, from a second table with the same history that stays with `lru`.
        let twin = used();
        table.set_policy(new);
        // The first half: none of these pages was used since, so all policies that keep an order
        // keep this one.
        for page in 1000..1008 {
            let evicted = replace(&table, tag(page));
            let next = replace(&twin, tag(page));
            assert_eq!(evicted, next, "{new:?}");
            there.retain(|tag| Some(*tag) != evicted);
        }
        assert_eq!(there.len(), 8);
    }
}

#[test]
fn a_policy_that_counts_hits_begins_to_count_and_one_that_does_not_stops() {
    let table = one_set::<16>(PolicyKind::Fifo);
    (0..16).for_each(|page| _ = replace(&table, tag(page)));
    table.set_policy(PolicyKind::Lfu);
    for page in (0..16).filter(|page| *page != 9) {
        (0..5).for_each(|_| _ = table.touch(&table.find(tag(page)).unwrap()));
    }
    assert_eq!(replace(&table, tag(50)), Some(tag(9)));
    table.set_policy(PolicyKind::Fifo);
    assert!(replace(&table, tag(51)).is_some());
}

#[test]
fn pages_read_ahead_are_counted_and_leave_first_once_requested() {
    let table = one_set::<16>(PolicyKind::Lru);
    let ahead = |page: u64| publish(&table, table.lock(tag(page)).claim_ahead(tag(page)));
    let hit = |page: u64| table.touch(&table.find(tag(page)).unwrap());
    (0..14).for_each(|page| _ = replace(&table, tag(page)));
    ahead(100);
    ahead(101);
    // The first request is told that the page was read ahead; later ones are not.
    assert!(hit(100));
    assert!(!hit(100));
    // A scan replaces the pages that it has read, and no other page is evicted.
    for page in 102..150 {
        assert_eq!(ahead(page), Some(tag(page - 2)), "page {page}");
        assert!(hit(page - 1));
    }
    assert!((0..14).all(|page| is_resident(&table, tag(page))));
    let tally = table.tally();
    let count = |of: &std::sync::atomic::AtomicU64| of.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((count(&tally.ahead_used), count(&tally.ahead_wasted)), (49, 0));
    // Requested again after another page came in: the page no longer belongs to the scan.
    assert!(hit(149));
    assert_eq!(ahead(150), Some(tag(148)));
    assert!(!hit(149));
    ahead(151);
    assert!(is_resident(&table, tag(149)));
    // A page evicted before any request counts as wasted.
    let found = table.find(tag(150)).unwrap();
    table.lock(tag(150)).remove_quiet(&found, false).unwrap();
    assert_eq!(count(&tally.ahead_wasted), 1);
}

/// A loop that read-ahead brings in would otherwise look as if more memory could save its misses.
#[test]
fn only_misses_count_as_returns_of_remembered_pages() {
    let table = one_set::<16>(PolicyKind::Mq);
    let returns = || table.tally().ghost_hits.load(std::sync::atomic::Ordering::Relaxed);
    (0..20).for_each(|page| _ = replace(&table, tag(page)));
    assert_eq!(returns(), 0);
    let gone: Vec<u64> = (0..20).filter(|page| !is_resident(&table, tag(*page))).collect();
    assert_eq!(gone.len(), 4);
    replace(&table, tag(gone[0]));
    assert_eq!(returns(), 1);
    publish(&table, table.lock(tag(gone[1])).claim_ahead(tag(gone[1])));
    assert_eq!(returns(), 1);
    // Ghosts: two per way, one for the paper's lists of car, none for policies without ghosts.
    for (policy, slots) in [(PolicyKind::Mq, 32), (PolicyKind::Car, 16), (PolicyKind::Lru, 0)] {
        table.set_policy(policy);
        assert_eq!(table.remembered_slots(), slots, "{policy:?}");
    }
}
