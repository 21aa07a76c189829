//! Draws from Zipf's distribution, and scatters popular ranks over pages.

use octavo_random::Random;

/// Zipf's distribution: rank *r*, from 0, has a share proportional to 1 / (*r* + 1)^*skew*.
///
/// By rejection-inversion (Hörmann, Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", 1996): exact for any skew above 0, and a draw takes the same
/// time for any number of ranks. YCSB approximates instead (Gray et al., 1994), for skews below 1
/// only.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: f64,
    skew: f64,
    /// The area under the envelope up to rank 1.5, without the first rank's own.
    area_first: f64,
    /// The area up to half a rank beyond the last.
    area_last: f64,
    /// A rank at most this far above its draw is accepted at once.
    close: f64,
}

impl Zipf {
    /// Creates the distribution of `ranks` ranks, at least 1, with a skew above 0.
    pub fn new(ranks: u64, skew: f64) -> Zipf {
        debug_assert!(ranks > 0 && skew > 0.0);
        let mut zipf = Zipf { ranks: ranks as f64, skew, area_first: 0.0, area_last: 0.0, close: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(zipf.ranks + 0.5);
        zipf.close = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.share(2.0));
        zipf
    }

    /// Draws a rank from 0.
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area_last + random.unit() * (self.area_first - self.area_last);
            let place = self.area_inverse(area);
            let rank = (place + 0.5).floor().clamp(1.0, self.ranks);
            if rank - place <= self.close || area >= self.area(rank + 0.5) - self.share(rank) {
                return rank as u64 - 1;
            }
        }
    }

    /// Returns x^-skew: the weight of a rank, counted from 1.
    fn share(&self, rank: f64) -> f64 {
        (-self.skew * rank.ln()).exp()
    }

    /// Returns the integral of `share` from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let ln = x.ln();
        expm1_through((1.0 - self.skew) * ln) * ln
    }

    fn area_inverse(&self, area: f64) -> f64 {
        // Rounding must not make the argument of the logarithm negative.
        let through = ((1.0 - self.skew) * area).max(-1.0);
        (ln_1p_through(through) * area).exp()
    }
}

/// Returns (e^x - 1) / x.
fn expm1_through(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 * (1.0 + x / 3.0) }
}

/// Returns ln(1 + x) / x.
fn ln_1p_through(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 * (1.0 - x * 2.0 / 3.0) }
}

/// Returns YCSB's hash of a rank: FNV-1a's steps over its eight bytes, the lowest first, and the
/// absolute value of a negative result, as of YCSB's `Math.abs`.
pub fn fnv_hash(rank: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    (rank.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, step) as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The naive twin: the shares by their definition.
    fn shares(ranks: u64, skew: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=ranks).map(|rank| (rank as f64).powf(-skew)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    #[test]
    fn ranks_are_as_frequent_as_the_distribution_says() {
        const DRAWS: u64 = 400_000;
        for (ranks, skew) in [(1, 1.0), (2, 0.5), (50, 0.1), (50, 0.99), (50, 1.0), (50, 1.3), (50, 4.0)] {
            let zipf = Zipf::new(ranks, skew);
            let mut random = Random::new(11);
            let mut counts = vec![0u64; ranks as usize];
            (0..DRAWS).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
            // Pearson's chi-squared sum over ranks that are expected at least ten times.
            let terms: Vec<f64> = counts
                .iter()
                .zip(shares(ranks, skew))
                .map(|(count, share)| (*count as f64, share * DRAWS as f64))
                .filter(|(_, expected)| *expected >= 10.0)
                .map(|(count, expected)| (count - expected).powi(2) / expected)
                .collect();
            let freedom = terms.len() as f64;
            let sum: f64 = terms.iter().sum();
            assert!(sum < freedom + 5.0 * (2.0 * freedom).sqrt(), "{ranks} ranks, skew {skew}: {sum}");
        }
    }

    #[test]
    fn the_first_rank_has_the_share_that_ycsb_gives_it() {
        // YCSB's own constant for its ten thousand million ranks at 0.99: the first rank's share is
        // 1 / ZETA.
        const ZETA: f64 = 26.469_028_201_783_02;
        let zipf = Zipf::new(10_000_000_000, 0.99);
        let mut random = Random::new(12);
        let draws = 1_000_000;
        let first = (0..draws).filter(|_| zipf.draw(&mut random) == 0).count();
        let expected = f64::from(draws) / ZETA;
        assert!((first as f64 - expected).abs() < 5.0 * expected.sqrt(), "{first} of {expected}");
    }

    #[test]
    fn extreme_skews_and_counts_draw_only_existing_ranks() {
        for (ranks, skew) in [(1, 10.0), (3, 1e-6), (1 << 40, 1e-3), (1 << 40, 1.0), (1 << 40, 10.0)] {
            let zipf = Zipf::new(ranks, skew);
            let mut random = Random::new(13);
            assert!((0..10_000).all(|_| zipf.draw(&mut random) < ranks), "{ranks} {skew}");
        }
    }
}
