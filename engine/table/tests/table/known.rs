//! Pages that come in with a history, as in a recording's list of resident pages:
//! [`octavo_table::SetGuard::policy_bits`] returns the history and
//! [`octavo_table::SetGuard::claim_known`] takes it.

use octavo_table::{PolicyKind, Table, Tag};

use crate::setup::{one_set, publish, replace};
use octavo_random::{Random, for_seeds};

fn tag(page: u64) -> Tag {
    Tag(page << Tag::FINGERPRINT_SHIFT)
}

/// Brings a page in, and returns the page that was evicted for it.
fn bring(table: &Table<16>, page: u64) -> Option<Tag> {
    replace(table, tag(page))
}

/// Returns the set's pages with their histories, in the order of their ways.
fn known(table: &Table<16>) -> Vec<(Tag, u16)> {
    let mut known = Vec::new();
    table.for_each_page(|guard, found| known.push((found.tag(), guard.policy_bits(&found))));
    known
}

/// Returns a set after some hundred accesses; the last of them are hits that the policy has not
/// seen yet.
fn used(policy: PolicyKind, random: &mut Random) -> Table<16> {
    let table = one_set(policy);
    for _ in 0..100 + random.below(300) {
        let page = random.below(24);
        match table.find(tag(page)) {
            Some(found) => _ = table.touch(&found),
            None => _ = bring(&table, page),
        }
    }
    for (tag, _) in known(&table) {
        if random.below(2) == 0 {
            table.touch(&table.find(tag).expect("the page is resident"));
        }
    }
    table
}

/// Returns the same pages in another set, whose clock shows `clock`.
fn moved(policy: PolicyKind, pages: &[(Tag, u16)], clock: usize) -> Table<16> {
    let table = one_set(policy);
    for page in 0..clock as u64 {
        bring(&table, 1000 + page);
        let found = table.find(tag(1000 + page)).expect("it was just brought");
        table.lock(tag(1000 + page)).remove_quiet(&found, false).expect("it is clean");
    }
    for (tag, bits) in pages {
        let evicted = publish(&table, table.lock(*tag).claim_known(*tag, *bits));
        assert_eq!(evicted, None, "a way is free");
    }
    table
}

#[test]
fn the_history_of_a_page_moves_with_it_and_changes_no_other() {
    for_seeds(1..6, |seed| {
        for policy in PolicyKind::ALL {
            let mut random = Random::new(seed);
            let pages = known(&used(policy, &mut random));
            assert_eq!(pages.len(), 16);
            let moved = known(&moved(policy, &pages, random.below(200) as usize));
            assert_eq!(moved, pages, "{policy:?}: a claim does not move the clock");
        }
    });
}

#[test]
fn moved_pages_are_evicted_in_the_order_of_their_old_set() {
    // Hands, ghosts and targets do not move: `clock`, `car` and `mq` continue with their own.
    use PolicyKind::{Fifo, Lfu, Lru, NrLfu, Octavo};
    for_seeds(1..20, |seed| {
        for policy in [Fifo, Lru, Lfu, NrLfu, Octavo] {
            let mut random = Random::new(seed);
            let from = used(policy, &mut random);
            // The histories are read only here, so that some hits have not reached the policy.
            let to = moved(policy, &known(&from), random.below(200) as usize);
            for page in 100..116 {
                assert_eq!(bring(&from, page), bring(&to, page), "{policy:?}: for page {page}");
            }
        }
    });
}
