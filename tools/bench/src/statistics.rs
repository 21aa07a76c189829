//! Medians, spreads, percentiles of times, and the fit of the universal scalability law.
//!
//! What is not here: taking turns (`turns.rs`), and what a figure means.

use serde::Serialize;

/// The middle of some numbers; of an even count, the lower of the two in the middle. 0 of none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The median of the distances from the median: half of all numbers lie this close to it.
pub fn deviation(numbers: &[f64]) -> f64 {
    let middle = median(numbers);
    median(&numbers.iter().map(|number| (number - middle).abs()).collect::<Vec<_>>())
}

/// One slice through the other, round by round.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// What is said of many measured values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The one in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The median distance from the median.
    pub mad: f64,
    /// How many.
    pub n: usize,
}

impl Spread {
    /// Of some values.
    pub fn of(numbers: &[f64]) -> Spread {
        let fold = |start, least: fn(f64, f64) -> f64| numbers.iter().copied().fold(start, least);
        let (min, max) = match numbers {
            [] => (0.0, 0.0),
            _ => (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max)),
        };
        Spread { median: median(numbers), min, max, mad: deviation(numbers), n: numbers.len() }
    }
}

/// Times, counted in classes that are 1/32 wide: a percentile is right to 3 %.
#[derive(Clone, Debug)]
pub struct Histogram {
    classes: Vec<u64>,
    count: u64,
    max_ns: u64,
}

/// Classes of each doubling.
const CLASSES_SHIFT: u32 = 5;

/// Up to 2^40 ns, eighteen minutes; what takes longer is counted there.
const DOUBLINGS: usize = 40;

impl Histogram {
    /// Without times.
    pub fn new() -> Histogram {
        Histogram { classes: vec![0; DOUBLINGS << CLASSES_SHIFT], count: 0, max_ns: 0 }
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        let class = Self::class(ns).min(self.classes.len() - 1);
        self.classes[class] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts what the other counted.
    pub fn merge(&mut self, other: &Histogram) {
        self.classes.iter_mut().zip(&other.classes).for_each(|(class, more)| *class += more);
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time that a share of all does not exceed; 0 of none.
    pub fn percentile_ns(&self, share: f64) -> f64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && self.count > 0 {
                return Self::middle(class).min(self.max_ns as f64);
            }
        }
        0.0
    }

    fn class(ns: u64) -> usize {
        let per = 1 << CLASSES_SHIFT;
        if ns < per {
            return ns as usize;
        }
        let doubling = ns.ilog2() - CLASSES_SHIFT;
        ((u64::from(doubling) + 1) * per + (ns >> doubling) - per) as usize
    }

    fn middle(class: usize) -> f64 {
        let per = 1usize << CLASSES_SHIFT;
        if class < per {
            return class as f64;
        }
        let (doubling, at) = (class / per - 1, class % per + per);
        (at as f64 + 0.5) * 2f64.powi(doubling as i32) - 0.5
    }
}

/// Gunther's universal scalability law, X(n) = l n / (1 + s (n - 1) + k n (n - 1)): `l` is one
/// thread's throughput, `s` the share of the work that is serial, `k` what each pair of threads
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scalability {
    /// l.
    pub single: f64,
    /// s.
    pub serial: f64,
    /// k.
    pub crosstalk: f64,
}

impl Scalability {
    /// The law through points (threads, throughput), by least squares of n / X(n), which is linear
    /// in n - 1 and n (n - 1), each weighed by its throughput so that errors are relative. None
    /// of fewer than three different numbers of threads. Neither `s` nor `k` is let below zero.
    pub fn fit(points: &[(f64, f64)]) -> Option<Scalability> {
        let mut threads: Vec<f64> = points.iter().map(|(n, _)| *n).collect();
        threads.sort_by(f64::total_cmp);
        threads.dedup();
        if threads.len() < 3 || points.iter().any(|(_, x)| *x <= 0.0) {
            return None;
        }
        // Which of the three terms are in; those that come out negative are left out.
        let terms = [[true, true, true], [true, true, false], [true, false, true], [true, false, false]];
        let fits = terms.into_iter().filter_map(|used| Self::fit_terms(points, used));
        let best = fits.min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map(|(_, law)| law)
    }

    /// The throughput of so many threads.
    pub fn at(&self, n: f64) -> f64 {
        self.single * n / (1.0 + self.serial * (n - 1.0) + self.crosstalk * n * (n - 1.0))
    }

    fn fit_terms(points: &[(f64, f64)], used: [bool; 3]) -> Option<(f64, Scalability)> {
        // a + b (n - 1) + c n (n - 1) = n / X, each equation through its right side.
        let mut normal = [[0.0; 4]; 3];
        for (n, x) in points {
            let weight = x / n;
            let row = [weight, weight * (n - 1.0), weight * n * (n - 1.0)];
            for i in 0..3 {
                for j in 0..3 {
                    normal[i][j] += row[i] * row[j];
                }
                normal[i][3] += row[i];
            }
        }
        for i in (0..3).filter(|i| !used[*i]) {
            normal[i] = [0.0; 4];
            normal.iter_mut().for_each(|row| row[i] = 0.0);
            normal[i][i] = 1.0;
        }
        let [a, b, c] = solve(normal)?;
        if a <= 0.0 || b < 0.0 || c < 0.0 {
            return None;
        }
        let law = Scalability { single: 1.0 / a, serial: b / a, crosstalk: c / a };
        let error = points.iter().map(|(n, x)| (law.at(*n) / x - 1.0).powi(2)).sum();
        Some((error, law))
    }
}

/// Gauss's elimination, with the largest pivot.
fn solve(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for at in 0..3 {
        let pivot = (at..3).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
        rows.swap(at, pivot);
        if rows[at][at].abs() < 1e-12 {
            return None;
        }
        for other in (0..3).filter(|other| *other != at) {
            let (pivot, times) = (rows[at], rows[other][at] / rows[at][at]);
            rows[other].iter_mut().zip(pivot).for_each(|(cell, of_pivot)| *cell -= times * of_pivot);
        }
    }
    Some([0, 1, 2].map(|at| rows[at][3] / rows[at][at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_one_of_the_numbers_and_the_spread_those_worked_out_by_hand() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.0);
        let spread = Spread::of(&[1.0, 9.0, 2.0, 4.0, 3.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 9.0, mad: 1.0, n: 5 });
        assert_eq!(Spread::of(&[]), Spread { median: 0.0, min: 0.0, max: 0.0, mad: 0.0, n: 0 });
        assert_eq!(ratios(&[2.0, 9.0], &[4.0, 3.0]), [0.5, 3.0]);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times_to_three_in_a_hundred() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile_ns(0.5), 0.0);
        let times: Vec<u64> = (0..100_000u64).map(|n| n * n % 999_983 + n % 40).collect();
        let (left, right) = times.split_at(30_000);
        let mut other = Histogram::new();
        left.iter().for_each(|time| histogram.add(*time));
        right.iter().for_each(|time| other.add(*time));
        histogram.merge(&other);
        let mut sorted = times.clone();
        sorted.sort_unstable();
        for share in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = sorted[(times.len() as f64 * share) as usize - 1] as f64;
            let told = histogram.percentile_ns(share);
            assert!((told - exact).abs() <= exact * 0.032 + 1.0, "{share}: {told}, not {exact}");
        }
        assert_eq!((histogram.count(), histogram.max_ns()), (100_000, *sorted.last().unwrap()));
        histogram.add(u64::MAX);
        assert!(histogram.percentile_ns(1.0) > 1e12);
    }

    #[test]
    fn classes_follow_each_other_without_a_gap() {
        let mut last = 0;
        for ns in 0..1 << 16 {
            let class = Histogram::class(ns);
            assert!(class == last || class == last + 1, "{ns}");
            assert!((Histogram::middle(class) - ns as f64).abs() <= 1.0 + ns as f64 / 32.0, "{ns}");
            last = class;
        }
    }

    #[test]
    fn the_law_is_found_again_from_its_own_points_and_never_turns_negative() {
        let law = Scalability { single: 5e6, serial: 0.03, crosstalk: 0.002 };
        let points = [1.0, 2.0, 4.0, 8.0, 16.0].map(|n| (n, law.at(n)));
        let found = Scalability::fit(&points).unwrap();
        assert!((found.serial - 0.03).abs() < 1e-6 && (found.crosstalk - 0.002).abs() < 1e-7, "{found:?}");
        let linear = Scalability::fit(&[(1.0, 10.0), (2.0, 20.5), (4.0, 41.5)]).unwrap();
        assert!(linear.serial >= 0.0 && linear.crosstalk >= 0.0 && linear.single > 9.0, "{linear:?}");
        assert_eq!(Scalability::fit(&[(1.0, 10.0), (2.0, 20.0), (2.0, 21.0)]), None);
        assert_eq!(Scalability::fit(&[(1.0, 10.0), (2.0, 0.0), (3.0, 21.0)]), None);
    }
}
