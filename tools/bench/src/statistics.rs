//! Medians, spreads, percentiles of times, and the fit of the universal scalability law.

use serde::Serialize;

/// Returns the median; of an even count, the lower of the two middle numbers. 0 if there are none.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Returns the median distance from the median: half of all numbers are at most this far from it.
pub fn deviation(numbers: &[f64]) -> f64 {
    let middle = median(numbers);
    median(&numbers.iter().map(|number| (number - middle).abs()).collect::<Vec<_>>())
}

/// Divides slices round by round: `of` / `to`.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// The summary of many measured values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// The median distance from the median.
    pub mad: f64,
    /// The number of values.
    pub n: usize,
}

impl Spread {
    /// Summarises `numbers`. All zeros if there are none.
    pub fn of(numbers: &[f64]) -> Spread {
        let best = |of: fn(f64, f64) -> f64| numbers.iter().copied().reduce(of).unwrap_or(0.0);
        let (min, max) = (best(f64::min), best(f64::max));
        Spread { median: median(numbers), min, max, mad: deviation(numbers), n: numbers.len() }
    }
}

/// A histogram of times in nanoseconds, accurate to 1 %.
#[derive(Clone, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// Times above 2^40 ns (18 minutes) count as 2^40 ns.
const NS_MAX: u64 = 1 << 40;

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Histogram {
        Histogram(hdrhistogram::Histogram::new_with_max(NS_MAX, 2).expect("the bounds are valid"))
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("both histograms have the same bounds");
    }

    /// Returns the number of times counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time that `share` of all times do not exceed. 0 if no time was counted.
    pub fn percentile_ns(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64
    }
}

/// Gunther's universal scalability law, X(n) = l n / (1 + s (n - 1) + k n (n - 1)): `l` is the
/// throughput of one thread, `s` the serial share of the work, `k` the cost of each pair of
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scalability {
    /// l, in operations per second.
    pub single: f64,
    /// s, from 0.
    pub serial: f64,
    /// k, from 0.
    pub crosstalk: f64,
}

impl Scalability {
    /// Fits the law to points (threads, throughput): least squares of n / X(n), which is linear in
    /// n - 1 and n (n - 1). Each equation is weighted by its throughput, so that errors are
    /// relative. `s` and `k` are never negative. Returns `None` for fewer than three different
    /// numbers of threads, and if a throughput is not positive.
    pub fn fit(points: &[(f64, f64)]) -> Option<Scalability> {
        let mut threads: Vec<f64> = points.iter().map(|(n, _)| *n).collect();
        threads.sort_by(f64::total_cmp);
        threads.dedup();
        if threads.len() < 3 || points.iter().any(|(_, x)| *x <= 0.0) {
            return None;
        }
        // Each entry says which of the three terms a fit uses. A fit with a negative term is
        // rejected.
        let terms = [[true, true, true], [true, true, false], [true, false, true], [true, false, false]];
        let fits = terms.into_iter().filter_map(|used| Self::fit_terms(points, used));
        let best = fits.min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map(|(_, law)| law)
    }

    /// Returns the throughput of `n` threads.
    pub fn at(&self, n: f64) -> f64 {
        self.single * n / (1.0 + self.serial * (n - 1.0) + self.crosstalk * n * (n - 1.0))
    }

    fn fit_terms(points: &[(f64, f64)], used: [bool; 3]) -> Option<(f64, Scalability)> {
        // a + b (n - 1) + c n (n - 1) = n / X, each equation divided by its right side.
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

/// Solves three linear equations by Gaussian elimination with partial pivoting.
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
    fn medians_and_spreads_match_a_calculation_by_hand() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.0);
        let spread = Spread::of(&[1.0, 9.0, 2.0, 4.0, 3.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 9.0, mad: 1.0, n: 5 });
        assert_eq!(Spread::of(&[]), Spread { median: 0.0, min: 0.0, max: 0.0, mad: 0.0, n: 0 });
        assert_eq!(ratios(&[2.0, 9.0], &[4.0, 3.0]), [0.5, 3.0]);
    }

    #[test]
    fn percentiles_are_right_to_one_percent() {
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
            let found = histogram.percentile_ns(share);
            assert!((found - exact).abs() <= exact * 0.01 + 1.0, "{share}: {found}, not {exact}");
        }
        assert_eq!(histogram.count(), 100_000);
        histogram.add(u64::MAX);
        assert!(histogram.percentile_ns(1.0) > 1e12);
    }

    #[test]
    fn a_fit_finds_the_law_of_its_own_points_and_is_never_negative() {
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
