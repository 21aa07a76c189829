//! Workloads: the meaning of their texts, and the distribution of their accesses.

use std::collections::{HashMap, HashSet};

use octavo_sim::generate;

use crate::all;

fn draw(text: &str) -> Vec<u64> {
    all(generate::parse(text).unwrap().as_mut()).unwrap()
}

fn error(text: &str) -> String {
    generate::parse(text).err().unwrap_or_else(|| panic!("{text} is accepted")).to_string()
}

fn counts(pages: &[u64]) -> HashMap<u64, u64> {
    let mut counts = HashMap::new();
    pages.iter().for_each(|page| *counts.entry(*page).or_default() += 1);
    counts
}

/// YCSB's hash of a rank, from its definition.
fn ycsb_page(rank: u64, pages: u64) -> u64 {
    let (mut hash, mut rest) = (0xCBF2_9CE4_8422_2325u64, rank);
    for _ in 0..8 {
        hash = (hash ^ (rest & 0xff)).wrapping_mul(1_099_511_628_211);
        rest >>= 8;
    }
    (hash as i64).unsigned_abs() % pages
}

#[test]
fn a_seed_repeats_its_accesses_and_another_has_others() {
    for text in [
        "uniform:pages=1000,requests=50000",
        "zipf:pages=1000,requests=50000",
        "mix:requests=50000,1=[zipf:pages=500],1=[drift:pages=500,every=10]",
    ] {
        assert_eq!(draw(&format!("{text},seed=5")), draw(&format!("{text},seed=5")));
        assert_ne!(draw(&format!("{text},seed=5")), draw(&format!("{text},seed=6")));
        assert_eq!(draw(text), draw(&format!("{text},seed=1")));
        assert_eq!(draw(text).len(), 50_000);
    }
}

#[test]
fn uniform_is_even() {
    let counts = counts(&draw("uniform:pages=100,requests=1_000_000"));
    assert_eq!(counts.len(), 100);
    // Five standard deviations of a binomial around 10 000.
    assert!(counts.values().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
}

#[test]
fn zipf_gives_each_page_the_share_of_the_ranks_that_fall_on_it() {
    const REQUESTS: f64 = 1e6;
    let (pages, ranks, skew) = (1000, 5000, 0.99);
    let counts = counts(&draw("zipf:pages=1000,ranks=5000,skew=0.99,requests=1000000,seed=3"));
    let zeta: f64 = (1..=ranks).map(|rank| (rank as f64).powf(-skew)).sum();
    let mut expected = HashMap::new();
    for rank in 0..ranks {
        *expected.entry(ycsb_page(rank, pages)).or_insert(0.0) += ((rank + 1) as f64).powf(-skew) / zeta;
    }
    for (page, share) in &expected {
        let (count, expected) = (counts.get(page).copied().unwrap_or(0) as f64, share * REQUESTS);
        assert!((count - expected).abs() < 5.0 * expected.sqrt() + 1.0, "page {page}: {count} of {expected}");
    }
    assert!(counts.keys().all(|page| expected.contains_key(page)));
}

#[test]
fn zipf_draws_from_as_many_ranks_as_ycsb_by_default() {
    const REQUESTS: f64 = 1e6;
    let counts = counts(&draw("zipf:pages=100000,requests=1000000"));
    // YCSB's constant; the hottest page also has its part of the long tail, which lies evenly.
    let first = REQUESTS / 26.469_028_201_783_02;
    let count = counts[&ycsb_page(0, 100_000)] as f64;
    assert!((count - first).abs() < 5.0 * first.sqrt() + 40.0, "{count} of {first}");
    // With so long a tail nearly every page is touched.
    assert!(counts.len() > 95_000, "{}", counts.len());
}

#[test]
fn a_loop_goes_round() {
    assert_eq!(draw("loop:pages=3,requests=7"), [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn scans_come_at_their_interval_and_continue_where_the_last_ended() {
    let pages = draw("scans:pages=100,every=10,length=4,cold=6,requests=42");
    for (number, part) in pages.chunks(14).enumerate() {
        assert!(part[..10].iter().all(|page| *page < 100));
        let expected: Vec<u64> = (0..4).map(|at| 100 + (4 * number as u64 + at) % 6).collect();
        assert_eq!(part[10..], expected);
    }
}

#[test]
fn phases_have_other_hot_pages() {
    let pages = draw("phases:pages=10000,ranks=10000,every=50000,requests=100000");
    let hottest = |pages: &[u64]| {
        let mut counts: Vec<(u64, u64)> =
            counts(pages).into_iter().map(|(page, count)| (count, page)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts.iter().take(20).map(|(_, page)| *page).collect::<HashSet<u64>>()
    };
    let (first, second) = pages.split_at(50_000);
    assert!(hottest(first).intersection(&hottest(second)).count() < 5);
    // Within a phase the hot ones stay hot.
    let (early, late) = first.split_at(25_000);
    assert!(hottest(early).intersection(&hottest(late)).count() > 10);
}

#[test]
fn drift_makes_new_pages_the_hottest_one_by_one() {
    let pages = draw("drift:pages=1000,skew=1.2,every=1000,requests=20000");
    for (number, part) in pages.chunks(1000).enumerate() {
        let counts = counts(part);
        let hottest = *counts.iter().max_by_key(|(_, count)| **count).unwrap().0;
        assert_eq!(hottest, number as u64);
    }
}

#[test]
fn a_mix_has_its_shares_and_keeps_its_parts_apart() {
    let pages =
        draw("mix:requests=100000,seed=9,75=[loop:pages=50],25=[mix:1=[uniform:pages=10],1=[loop:pages=20]]");
    let parts =
        [0..50u64, 50..60, 60..80].map(|part| pages.iter().filter(|page| part.contains(page)).count());
    assert_eq!(parts.iter().sum::<usize>(), 100_000);
    for (part, expected) in parts.into_iter().zip([75_000, 12_500, 12_500]) {
        assert!(part.abs_diff(expected) < 700, "{parts:?}");
    }
    // Each part goes on by itself.
    let first: Vec<u64> = pages.iter().copied().filter(|page| *page < 50).take(120).collect();
    assert_eq!(first, (0..120).map(|at| at % 50).collect::<Vec<u64>>());
}

#[test]
fn progress_is_in_requests() {
    let mut source = generate::parse("loop:pages=3,requests=40000").unwrap();
    assert_eq!(source.progress(), Some(0.0));
    let mut pages = Vec::new();
    source.next(&mut pages).unwrap();
    assert_eq!(source.progress(), Some(pages.len() as f64 / 40_000.0));
    let none = generate::parse("loop:pages=3,requests=0").unwrap();
    assert_eq!(none.progress(), Some(0.0));
}

#[test]
fn the_error_for_a_malformed_text_has_the_reason() {
    let deep = "mix:1=[".repeat(5) + "loop:pages=1" + &"]".repeat(5);
    for (text, expected) in [
        ("", "\"\" is not a kind of workload; known: uniform, zipf"),
        ("zpif:pages=3", "\"zpif\" is not a kind of workload"),
        ("zipf", "zipf: pages is missing"),
        ("zipf:pages", "zipf: \"pages\" has no value"),
        ("zipf:pages=x", "zipf: pages: \"x\" is not a whole number from 1 to 1099511627776"),
        ("zipf:pages=0", "zipf: pages: \"0\" is not a whole number from 1"),
        ("zipf:pages=-1", "zipf: pages: \"-1\""),
        ("zipf:pages=99999999999999999999", "is not a whole number"),
        ("zipf:pages=3,skew=0", "skew: more than 0 and at most 10"),
        ("zipf:pages=3,skew=NaN", "skew: more than 0"),
        ("zipf:pages=3,skew=x", "skew: \"x\" is not a number"),
        ("zipf:pages=3,pages=4", "pages is given twice"),
        ("loop:pages=3,every=4", "unknown name every; known: requests, seed, pages"),
        ("scans:pages=3,every=4", "length is missing"),
        ("mix:", "the parts are missing"),
        ("mix:0=[loop:pages=1]", "mix: 0: \"0\" is not a whole number from 1"),
        ("mix:1=loop", "a workload in brackets is expected"),
        ("mix:1=[loop:pages=1,requests=5]", "loop: unknown name requests"),
        ("mix:1=[loop:pages=1", "a workload in brackets is expected"),
        (&deep, "more than 4 mixes inside each other"),
    ] {
        let said = error(text);
        assert!(said.starts_with("gen:") && said.contains(expected), "{text}: {said}");
    }
    assert!(error(&"x".repeat(100_000)).contains("more than 16384 bytes"));
}
