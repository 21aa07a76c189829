//! Summarises each policy over many traces and capacities, as the S3-FIFO paper does (Yang et al.,
//! "FIFO queues are all you need for cache eviction", SOSP '23, section 5.1).
//!
//! A *point* is a trace at a capacity. The *cut* of a policy P at a point is the share of global
//! LRU's misses that P avoids, (LRU - P) / LRU. If P has more misses than LRU, the cut is -(P -
//! LRU) / P, so a policy with twice the misses loses as much as one with half the misses gains.
//! Points of fewer than [`PAGES_MIN`] pages say little about real caches: no figure counts them,
//! and the report lists them.
//!
//! Cut, worst cut, rank and gap weigh all points equally. Interrupted runs are not counted.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::Policy;
use crate::simulate::{Row, ratio};

/// The policy that cuts are relative to: global LRU.
pub const BASE: &str = "global-lru";
/// The policy that gaps are measured from: Belady's OPT.
pub const LIMIT: &str = "global-opt";
/// Points with fewer pages than this do not count.
pub const PAGES_MIN: u64 = 64;

/// A policy, and the pages of its sets. `None` for a policy without sets.
pub type Contestant = (&'static str, Option<u32>);

/// The summary of one policy over all points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Always `summary`: the kind of JSON object.
    pub kind: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// Pages of a set. `None` for a policy without sets.
    pub ways: Option<u32>,
    /// Points counted.
    pub points: u64,
    /// Mean cut of misses from global LRU.
    pub cut: f64,
    /// The lowest cut of a point.
    pub cut_worst: f64,
    /// The trace of that point.
    pub cut_worst_trace: String,
    /// The capacity of that point.
    pub cut_worst_capacity: String,
    /// Mean rank by misses among the policies that do not know the future. 1 is the best; policies
    /// with equal misses share the mean of their ranks.
    pub rank: Option<f64>,
    /// Mean difference of the miss ratio from Belady's OPT.
    pub gap: Option<f64>,
}

/// A point that does not count because it has fewer than [`PAGES_MIN`] pages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// Always `left_out`: the kind of JSON object.
    pub kind: &'static str,
    /// The trace.
    pub trace: String,
    /// The capacity as it was requested.
    pub capacity: String,
    /// The same capacity in pages.
    pub asked_pages: u64,
}

/// The summaries of all policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Summaries in descending order of their cuts.
    pub summaries: Vec<Summary>,
    /// Points left out, in the order of traces and capacities.
    pub left_out: Vec<LeftOut>,
}

/// Returns the cut of `misses` from `base`: positive if `misses` is lower than `base`, negative if
/// it is higher.
pub fn cut(base: u64, misses: u64) -> f64 {
    if misses <= base { ratio(base - misses, base) } else { -ratio(misses - base, misses) }
}

/// Compares the policies of complete rows. A point without [`BASE`] has no baseline and does not
/// count.
pub fn compare(rows: &[Row]) -> Comparison {
    let mut points: BTreeMap<(&str, u64, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.complete) {
        points.entry((&row.trace, row.asked_pages, &row.capacity)).or_default().push(row);
    }
    let mut left_out = Vec::new();
    let mut tallies: BTreeMap<Contestant, Tally> = BTreeMap::new();
    for ((trace, asked_pages, capacity), rows) in points {
        if asked_pages < PAGES_MIN {
            let (trace, capacity) = (trace.to_owned(), capacity.to_owned());
            left_out.push(LeftOut { kind: "left_out", trace, capacity, asked_pages });
            continue;
        }
        let misses_of = |name| rows.iter().find(|row| row.policy == name).map(|row| row.misses);
        let Some(base) = misses_of(BASE) else { continue };
        let limit = misses_of(LIMIT);
        for row in &rows {
            let tally = tallies.entry((row.policy, row.ways)).or_default();
            tally.cut(cut(base, row.misses), row);
            tally.gap += limit
                .map_or(f64::NAN, |limit| (row.misses as f64 - limit as f64) / row.requests.max(1) as f64);
            tally.rank += rank(row, &rows).unwrap_or(f64::NAN);
        }
    }
    let mut summaries: Vec<Summary> =
        tallies.into_iter().map(|(contestant, tally)| tally.summary(contestant)).collect();
    summaries.sort_by(|a, b| b.cut.total_cmp(&a.cut).then(a.policy.cmp(b.policy)).then(a.ways.cmp(&b.ways)));
    Comparison { summaries, left_out }
}

/// Returns whether a policy knows the future. Such a policy has a cut and a gap, but no rank.
fn is_prophet(policy: &str) -> bool {
    Policy::named(policy).is_ok_and(|found| found[0].needs_future())
}

fn rank(row: &Row, all: &[&Row]) -> Option<f64> {
    if is_prophet(row.policy) {
        return None;
    }
    let others = || all.iter().filter(|other| !is_prophet(other.policy));
    let better = others().filter(|other| other.misses < row.misses).count();
    // `row` counts itself as equal.
    let equal = others().filter(|other| other.misses == row.misses).count();
    Some(better as f64 + (equal as f64 + 1.0) / 2.0)
}

/// Sums over points. A sum is NaN if the figure of one point is unknown.
#[derive(Default)]
struct Tally {
    points: u64,
    cut: f64,
    rank: f64,
    gap: f64,
    worst: Option<(f64, String, String)>,
}

impl Tally {
    fn cut(&mut self, cut: f64, row: &Row) {
        self.points += 1;
        self.cut += cut;
        if self.worst.as_ref().is_none_or(|(worst, ..)| cut < *worst) {
            self.worst = Some((cut, row.trace.clone(), row.capacity.clone()));
        }
    }

    fn summary(self, (policy, ways): Contestant) -> Summary {
        let mean = |sum: f64| sum / self.points as f64;
        let known = |sum: f64| Some(mean(sum)).filter(|mean| mean.is_finite());
        let (cut_worst, cut_worst_trace, cut_worst_capacity) = self.worst.unwrap_or_default();
        Summary {
            kind: "summary",
            policy,
            ways,
            points: self.points,
            cut: mean(self.cut),
            cut_worst,
            cut_worst_trace,
            cut_worst_capacity,
            rank: known(self.rank),
            gap: known(self.gap),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(trace: &str, policy: &'static str, ways: Option<u32>, pages: u64, misses: u64) -> Row {
        Row {
            kind: "result",
            trace: trace.into(),
            policy,
            ways,
            capacity: format!("{pages}p"),
            asked_pages: pages,
            capacity_pages: pages,
            seed: 1,
            requests: 1000,
            misses,
            miss_ratio: misses as f64 / 1000.0,
            sample: 1.0,
            complete: true,
            ..Row::default()
        }
    }

    /// Two traces with one capacity each that counts, and one capacity that does not.
    pub(crate) fn rows() -> Vec<Row> {
        vec![
            row("a", "global-lru", None, 100, 400),
            row("a", "global-opt", None, 100, 200),
            row("a", "fifo", Some(16), 100, 500),
            row("a", "lru", Some(16), 100, 300),
            row("b", "global-lru", None, 64, 600),
            row("b", "global-opt", None, 64, 600),
            row("b", "fifo", Some(16), 64, 600),
            row("b", "lru", Some(16), 64, 800),
            row("b", "global-lru", None, 63, 900),
            row("b", "fifo", Some(16), 63, 1),
            row("b", "lru", Some(16), 63, 1000),
        ]
    }

    #[test]
    fn a_cut_is_relative_to_the_larger_of_the_two() {
        assert_eq!(cut(400, 300), 0.25);
        assert_eq!(cut(300, 400), -0.25);
        assert_eq!(cut(400, 400), 0.0);
        assert_eq!((cut(5, 0), cut(0, 5), cut(0, 0)), (1.0, -1.0, 0.0));
    }

    #[test]
    fn means_worst_cuts_ranks_and_gaps_match_a_calculation_by_hand() {
        let compared = compare(&rows());
        let of = |policy| compared.summaries.iter().find(|summary| summary.policy == policy).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        // opt: a (400 - 200) / 400 = 0.5, b 0.
        close(of("global-opt").cut, 0.25);
        assert_eq!((of("global-opt").rank, of("global-opt").gap), (None, Some(0.0)));
        // lru: a 0.25, b -(800 - 600) / 800 = -0.25. Gaps 0.1 and 0.2. Ranks 1 and 3.
        close(of("lru").cut, 0.0);
        close(of("lru").gap.unwrap(), 0.15);
        close(of("lru").rank.unwrap(), 2.0);
        let worst = (of("lru").cut_worst, &*of("lru").cut_worst_trace, &*of("lru").cut_worst_capacity);
        assert_eq!(worst, (-0.25, "b", "64p"));
        // fifo: a -(500 - 400) / 500 = -0.2, b 0. Gaps 0.3 and 0. Ranks 3 and, equal with
        // global-lru, 1.5.
        close(of("fifo").cut, -0.1);
        close(of("fifo").gap.unwrap(), 0.15);
        close(of("fifo").rank.unwrap(), 2.25);
        // global-lru: gaps 0.2 and 0, ranks 2 and 1.5.
        assert_eq!((of("global-lru").cut, of("global-lru").points), (0.0, 2));
        close(of("global-lru").rank.unwrap(), 1.75);
        let order: Vec<&str> = compared.summaries.iter().map(|summary| summary.policy).collect();
        assert_eq!(order, ["global-opt", "global-lru", "lru", "fifo"]);
    }

    #[test]
    fn points_below_64_pages_do_not_count_and_are_listed() {
        let left_out = compare(&rows()).left_out;
        assert_eq!(left_out.len(), 1);
        assert_eq!((&*left_out[0].trace, left_out[0].asked_pages), ("b", 63));
    }

    #[test]
    fn without_opt_there_is_no_gap_and_interrupted_rows_do_not_count() {
        let mut rows = rows();
        rows.retain(|row| row.policy != "global-opt");
        rows.push(Row { complete: false, ..row("c", "global-lru", None, 100, 1) });
        let compared = compare(&rows);
        assert!(compared.summaries.iter().all(|summary| summary.gap.is_none() && summary.points == 2));
        assert_eq!(compare(&[]), Comparison::default());
    }

    #[test]
    fn a_policy_with_other_ways_is_another_contestant() {
        let mut rows = rows();
        rows.push(row("a", "lru", Some(8), 100, 350));
        let compared = compare(&rows);
        let eight = compared.summaries.iter().find(|summary| summary.ways == Some(8)).unwrap();
        assert_eq!((eight.points, eight.cut, eight.rank), (1, 0.125, Some(2.0)));
    }
}
