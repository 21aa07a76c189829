//! The miss curve of a monitor against tables of other sizes that see all accesses.

use octavo_table::{Mixer, PolicyKind, Shape, Table};

use crate::setup::{one_set, replace};
use octavo_random::Random;

/// Returns a table of `slots` slots: sets of sixteen ways, segments of 32 sets.
fn table(policy: PolicyKind, slots: u64) -> Table {
    let segments = (slots / 512).max(1) as u32;
    Table::new(Shape { segments_max: segments, sets_per_segment: 32 }, policy, segments)
}

/// Accesses a page. Returns whether it was a hit.
fn access(table: &Table, mixer: &Mixer, page: u64) -> bool {
    let tag = mixer.tag(page);
    if let Some(found) = table.find(tag) {
        table.touch(&found);
        return true;
    }
    replace(table, tag);
    false
}

const STEPS: usize = 450_000;

/// A skewed load over 64 Ki pages, with a loop over 24 Ki others.
fn load(random: &mut Random, step: usize) -> u64 {
    match step % 3 {
        0 => 1 << 20 | (step / 3 % 24_576) as u64,
        _ => {
            let span = 1 << (4 + random.below(13));
            random.below(span)
        }
    }
}

#[test]
fn a_monitor_predicts_what_tables_of_other_sizes_miss() {
    for policy in PolicyKind::ALL {
        let mixer = Mixer::new(11);
        let watched = table(policy, 16_384);
        // The miniatures of `octavo` follow the table's learner as well, so sizes far from the
        // table's may differ more.
        let sizes = [8192u64, 16_384, 32_768];
        let others = sizes.map(|slots| table(policy, slots));
        assert!(watched.watch(65_536, 1 << 20) > 0);
        let mut misses = [0u64; 3];
        let mut random = Random::new(5);
        for step in 0..STEPS {
            let page = load(&mut random, step);
            access(&watched, &mixer, page);
            let is_warm = step >= STEPS / 3;
            for (other, misses) in others.iter().zip(&mut misses) {
                *misses += u64::from(!access(other, &mixer, page) && is_warm);
            }
            if step % 1000 == 0 {
                watched.drain_monitor();
            }
            if step == STEPS / 3 {
                watched.monitor().unwrap().fade(0.0);
            }
        }
        watched.drain_monitor();
        let curve = watched.miss_curve().unwrap();
        let counted = (STEPS * 2 / 3) as f64;
        for (slots, misses) in sizes.iter().zip(misses) {
            let (_, predicted) =
                curve.points.iter().min_by_key(|(pages, _)| pages.abs_diff(*slots)).copied().unwrap();
            let error = (predicted - misses as f64) / counted;
            assert!(
                error.abs() < 0.04,
                "{} of {slots}: {predicted} of {misses} misses, {error}",
                policy.name()
            );
        }
    }
}

#[test]
fn the_monitor_sees_all_hits_of_sampled_pages_and_none_of_others() {
    let mixer = Mixer::new(3);
    let table = table(PolicyKind::Lru, 4096);
    assert!(table.watch(65_536, 1 << 20) > 0);
    let monitor = table.monitor().unwrap();
    (0..4096).for_each(|page| _ = access(&table, &mixer, page));
    table.drain_monitor();
    monitor.fade(0.0);
    // All pages fit: no page comes in, so no arrival clears a mark; the monitor sees every round
    // all the same.
    for _ in 0..10 {
        (0..2048).for_each(|page| _ = access(&table, &mixer, page));
    }
    table.drain_monitor();
    let followed = (0..2048).filter(|page| monitor.follows(mixer.tag(*page))).count() as f64;
    let curve = table.miss_curve().unwrap();
    assert!((followed - 64.0).abs() < 30.0, "{followed} of 2048 pages are followed");
    assert_eq!(curve.sampled, 10.0 * followed);
    // A much smaller cache would have missed the loop each time, one that holds the loop never.
    let (_, small) = curve.points[0];
    let (_, large) = curve.points[curve.points.len() - 1];
    assert!(small > 0.9 * curve.references, "{curve:?}");
    assert_eq!(large, 0.0);
}

#[test]
fn entries_that_are_not_drained_are_lost_and_the_rest_stands_for_them() {
    let mixer = Mixer::new(9);
    let table = table(PolicyKind::Fifo, 512);
    assert!(table.watch(16_384, 1 << 20) > 0);
    let accesses = 1_000_000u64;
    (0..accesses).for_each(|page| _ = access(&table, &mixer, page));
    table.drain_monitor();
    let curve = table.miss_curve().unwrap();
    assert!(curve.sampled < 5000.0, "{curve:?}");
    for (_, misses) in &curve.points {
        assert!((misses / accesses as f64 - 1.0).abs() < 0.05, "{misses} of {accesses}");
    }
}

#[test]
fn a_monitor_keeps_to_its_bytes_or_is_not_started() {
    for most in (9..26).map(|shift| 1u64 << shift) {
        for allowed in [0u64, 1000, 5000, 20_000, 100_000, 2_000_000] {
            let table = one_set::<16>(PolicyKind::Lru);
            let taken = table.watch(most, allowed);
            assert!(taken <= allowed, "{taken} of {allowed} for {most} pages");
            assert_eq!(taken > 0, table.monitor().is_some());
        }
    }
}
