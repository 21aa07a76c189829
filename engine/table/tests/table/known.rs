//! Pages that come with what a policy knew of them elsewhere, as a recording's list of pages does:
//! [`octavo_table::SetGuard::policy_bits`] gives it, and [`octavo_table::SetGuard::claim_known`]
//! takes it.

use octavo_table::{Claim, PolicyKind, Shape, Table, Tag};

use octavo_random::{Random, for_seeds};

fn one_set(policy: PolicyKind) -> Table<16> {
    Table::new(Shape { segments_max: 1, sets_per_segment: 1 }, policy, 1)
}

fn tag(page: u64) -> Tag {
    Tag(page << 24)
}

/// Brings a page in; the one that left for it.
fn bring(table: &Table<16>, page: u64) -> Option<Tag> {
    let Claim::Claimed { slot, evicted } = table.lock(tag(page)).claim(tag(page)) else {
        panic!("all are clean")
    };
    assert!(!table.publish(slot, false));
    evicted
}

/// The set's pages with what is known of them, in the order of their ways.
fn known(table: &Table<16>) -> Vec<(Tag, u16)> {
    let mut known = Vec::new();
    table.for_each_page(|guard, found| known.push((found.tag(), guard.policy_bits(&found))));
    known
}

/// A set after some hundred accesses, the last of them hits that the policy has not been told of.
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
            table.touch(&table.find(tag).expect("it is there"));
        }
    }
    table
}

/// The same pages elsewhere, in a set whose clock shows something else.
fn moved(policy: PolicyKind, pages: &[(Tag, u16)], clock: usize) -> Table<16> {
    let table = one_set(policy);
    for page in 0..clock as u64 {
        bring(&table, 1000 + page);
        let found = table.find(tag(1000 + page)).expect("it was just brought");
        table.lock(tag(1000 + page)).remove_quiet(&found, false).expect("it is clean");
    }
    for (tag, bits) in pages {
        let Claim::Claimed { slot, evicted } = table.lock(*tag).claim_known(*tag, *bits) else {
            panic!("all are clean")
        };
        assert_eq!(evicted, None, "there is room");
        assert!(!table.publish(slot, false));
    }
    table
}

#[test]
fn what_is_known_of_a_page_goes_with_it_and_nobody_elses_changes() {
    for_seeds(1..6, |seed| {
        for policy in PolicyKind::ALL {
            let mut random = Random::new(seed);
            let pages = known(&used(policy, &mut random));
            assert_eq!(pages.len(), 16);
            let moved = known(&moved(policy, &pages, random.below(200) as usize));
            assert_eq!(moved, pages, "{policy:?}: a claim takes no time");
        }
    });
}

#[test]
fn pages_leave_in_the_same_order_as_where_they_came_from() {
    // Of hands, ghosts and targets nothing is known elsewhere: `clock`, `car` and `mq` go on by their
    // own.
    use PolicyKind::{Fifo, Lfu, Lru, NrLfu, Octavo};
    for_seeds(1..20, |seed| {
        for policy in [Fifo, Lru, Lfu, NrLfu, Octavo] {
            let mut random = Random::new(seed);
            let from = used(policy, &mut random);
            // Nobody asks for what is known later than this, so that hits have still to be told.
            let to = moved(policy, &known(&from), random.below(200) as usize);
            for page in 100..116 {
                assert_eq!(bring(&from, page), bring(&to, page), "{policy:?}: for page {page}");
            }
        }
    });
}
