//! A miss curve: the number of misses that a partition would have had at each size.

/// A curve is stretched by up to a quarter, in steps of two percent. Each step of change must bring
/// the curve closer to the real misses by more than `STRETCH_COST` of all references.
const STRETCH_STEP: f64 = 0.02;
const STRETCH_MAX: i32 = 12;
const STRETCH_COST: f64 = 0.0005;

/// Factor by which a stretch decays per period where the misses neither support nor contradict it.
const STRETCH_KEEP: f64 = 0.8;

/// Error of a curve's sizes that comes from the choice of sampled pages, as a multiple of the error
/// of independent draws. It is larger than that because the sets of a miniature fill unevenly, and
/// because its policy learns from fewer accesses.
const UNCERTAINTY: f64 = 1.8;
const UNCERTAINTY_MAX: f64 = 0.7;

/// Stretches in standard deviations, with their weights, which together approximate a normal
/// distribution.
const SPREAD: [(f64, f64); 4] = [(-1.6, 1.0 / 6.0), (-0.6, 1.0 / 3.0), (0.6, 1.0 / 3.0), (1.6, 1.0 / 6.0)];

/// Weight of the evidence from ghost hits: it counts as much as this number of sampled pages. The
/// error of a sample falls with its number of pages. The error of ghost hits does not: a larger
/// partition would not have kept all pages that have ghosts, and would have kept some that have
/// none.
const RETURNS_WEIGHT: f64 = 16.0;

/// The misses that a partition really had, over the window of its curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// The partition's size in bytes.
    pub bytes: u64,
    /// Number of misses.
    pub misses: f64,
    /// Number of these misses whose page had a ghost.
    pub returns: f64,
    /// The size in bytes that would have kept the pages with ghosts; equal to `bytes` if the policy
    /// has no ghosts.
    pub reach_bytes: u64,
    /// Number of sampled pages per byte of size; 0 if unknown.
    pub sampled_per_byte: f64,
}

/// The last stretch of a curve. The error of a sample stays the same while the load does, but where
/// the curve is flat the misses do not reveal the error. Without this memory, a partition that
/// shrank to a flat part forgot the error that the steep part had revealed, grew again, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stretch(f64);

impl Stretch {
    /// Ends a period: the stretch decays, because it may come from one wrong observation, and is
    /// dropped if the load has changed.
    pub fn fade(&mut self, has_changed: bool) {
        self.0 *= if has_changed { 0.0 } else { STRETCH_KEEP };
    }
}

/// Misses by size. Misses never rise with the size: where the points of a sample rise, the curve is
/// flat instead.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Sizes in bytes, rising.
    sizes: Vec<u64>,
    /// Misses at each size, falling.
    misses: Vec<f64>,
    /// Misses at size 0: all references.
    references: f64,
}

impl Curve {
    /// Creates a curve from the number of references and pairs of bytes and misses, sizes rising.
    /// Of several points at the same size, the first counts.
    pub fn new(references: f64, points: impl IntoIterator<Item = (u64, f64)>) -> Curve {
        let mut curve = Curve { references: references.max(0.0), ..Curve::default() };
        let mut least = curve.references;
        for (bytes, misses) in points {
            if curve.sizes.last().is_some_and(|last| *last >= bytes) {
                continue;
            }
            least = least.min(misses.max(0.0));
            curve.sizes.push(bytes);
            curve.misses.push(least);
        }
        curve
    }

    /// Returns the curve with its references and misses multiplied by `by`.
    pub fn scaled(mut self, by: f64) -> Curve {
        self.references *= by;
        self.misses.iter_mut().for_each(|misses| *misses *= by);
        self
    }

    /// Returns the number of references, which is the number of misses at size 0.
    pub fn references(&self) -> f64 {
        self.references
    }

    /// Returns pairs of bytes and misses, sizes rising.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.sizes.iter().copied().zip(self.misses.iter().copied())
    }

    /// Returns the curve corrected by the misses that the partition really had. Updates `stretch`,
    /// which the next call uses.
    pub fn fitted(&self, seen: &Seen, stretch: &mut Stretch) -> Curve {
        if self.references <= 0.0 {
            return self.clone();
        }
        self.stretched(seen.bytes, seen.misses, stretch).blurred(seen.sampled_per_byte).checked(seen)
    }

    /// Returns the curve with its sizes stretched so that, at the size `bytes`, it gives the misses
    /// that were really seen. A sample of a loop may contain a tenth too many or too few of the
    /// loop's pages. The cliff of the curve is then a tenth too far to one side, and the real
    /// misses show to which side.
    fn stretched(&self, bytes: u64, misses: f64, last: &mut Stretch) -> Curve {
        let stretched = |step: f64| (step * STRETCH_STEP).exp();
        let error = |step: f64| {
            let at = (bytes as f64 / stretched(step)) as u64;
            (self.misses_at(at) - misses).abs() / self.references + (step - last.0).abs() * STRETCH_COST
        };
        let steps = (-STRETCH_MAX..=STRETCH_MAX).map(f64::from).chain([last.0]);
        let best = steps.min_by(|one, other| error(*one).total_cmp(&error(*other)));
        *last = Stretch(best.unwrap_or(last.0));
        let factor = stretched(last.0);
        let points = self.points().map(|(bytes, misses)| ((bytes as f64 * factor) as u64, misses));
        Curve::new(self.references, points)
    }

    /// Returns the expected misses at each size: the mean over stretches that the sample cannot
    /// distinguish. By the curve itself a loop would get exactly the size that its sample says,
    /// which is too little half of the time, and memory would move for cliffs that are really
    /// elsewhere.
    fn blurred(&self, sampled_per_byte: f64) -> Curve {
        if sampled_per_byte <= 0.0 {
            return self.clone();
        }
        let expected = |bytes: u64| {
            let sampled_pages = (sampled_per_byte * bytes as f64).max(1.0);
            let deviation = (UNCERTAINTY / sampled_pages.sqrt()).min(UNCERTAINTY_MAX);
            let misses = |stretch: f64| self.misses_at((bytes as f64 * (stretch * deviation).exp()) as u64);
            SPREAD.iter().map(|(stretch, weight)| weight * misses(*stretch)).sum::<f64>()
        };
        // The sizes of a curve are a fifth apart, which is more than the error of a larger sample.
        // So points are added in between.
        let sizes = self.sizes.iter().flat_map(|bytes| [0, 1, 2].map(|part| bytes + bytes / 16 * part));
        Curve::new(self.references, sizes.map(|bytes| (bytes, expected(bytes))))
    }

    /// Returns the curve moved towards the misses seen at the current size, and its gain from more
    /// memory moved towards the pages that returned. A sample of few pages may lack the pages that
    /// matter. It then shows no gain where there is much gain, and no stretch changes that.
    fn checked(&self, seen: &Seen) -> Curve {
        let Seen { bytes: here, reach_bytes: there, misses, returns, sampled_per_byte } = *seen;
        if there <= here {
            return self.clone();
        }
        let sampled_pages = (there - here) as f64 * sampled_per_byte;
        let trust = RETURNS_WEIGHT / (RETURNS_WEIGHT + sampled_pages);
        let at = (self.misses_at(here), self.misses_at(there));
        let told = at.0 - at.1;
        let lift = trust * (misses - at.0);
        let saved = told + trust * (returns.min(misses) - told);
        let corrected = |bytes: u64| {
            let misses = self.misses_at(bytes) + lift;
            if bytes <= here {
                misses
            } else if bytes >= there {
                misses + told - saved
            } else if told * 10.0 > saved {
                // The curve's shape is kept, unless the curve is almost flat.
                at.0 + lift - saved * (at.0 + lift - misses) / told
            } else {
                at.0 + lift - saved * (bytes - here) as f64 / (there - here) as f64
            }
        };
        let mut sizes: Vec<u64> = self.sizes.iter().copied().chain([here, there]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let references = self.references + lift.max(0.0);
        Curve::new(references, sizes.into_iter().map(|bytes| (bytes, corrected(bytes))))
    }

    /// Returns the misses at a size: linear between two known sizes, and constant beyond the last.
    pub fn misses_at(&self, bytes: u64) -> f64 {
        let next = self.sizes.partition_point(|size| *size <= bytes);
        let before = match next {
            0 => (0, self.references),
            _ => (self.sizes[next - 1], self.misses[next - 1]),
        };
        let Some((size, misses)) = self.sizes.get(next).zip(self.misses.get(next)) else { return before.1 };
        let inside = (bytes - before.0) as f64 / (size - before.0) as f64;
        before.1 + (misses - before.1) * inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_falls_in_straight_lines_and_never_rises() {
        let curve = Curve::new(100.0, [(10, 80.0), (20, 90.0), (40, 20.0)]);
        let expected =
            [(0, 100.0), (5, 90.0), (10, 80.0), (15, 80.0), (20, 80.0), (30, 50.0), (40, 20.0), (1000, 20.0)];
        for (bytes, misses) in expected {
            assert_eq!(curve.misses_at(bytes), misses, "{bytes} bytes");
        }
        assert_eq!(Curve::default().misses_at(7), 0.0);
    }

    fn seen(bytes: u64, misses: f64, returns: f64) -> Seen {
        Seen { bytes, misses, returns, reach_bytes: 3 * bytes, sampled_per_byte: 0.0 }
    }

    /// A sample of eight pages contained none of the pages that were requested again and again, and
    /// their tenant never got more memory.
    #[test]
    fn pages_that_return_correct_a_sample_that_lacks_them() {
        let blind = Curve::new(1000.0, [(10, 990.0), (100, 985.0), (400, 500.0)]);
        let fitted = blind.fitted(&seen(100, 900.0, 600.0), &mut Stretch::default());
        assert!((fitted.misses_at(100) - 900.0).abs() < 1.0, "{fitted:?}");
        assert!((fitted.misses_at(300) - 300.0).abs() < 1.0, "{fitted:?}");
        assert!(fitted.misses_at(200) > 400.0 && fitted.misses_at(400) <= 300.0, "{fitted:?}");
        // Without ghosts, or with a sample of many pages, the sample decides.
        let without = Seen { reach_bytes: 100, ..seen(100, 900.0, 0.0) };
        assert!(blind.fitted(&without, &mut Stretch::default()).misses_at(300) > 500.0);
        let many = Seen { sampled_per_byte: 1e6, ..seen(100, 900.0, 600.0) };
        let (few, many) =
            (fitted.misses_at(300), blind.fitted(&many, &mut Stretch::default()).misses_at(300));
        assert!(many > few + 200.0, "{few} {many}");
        // More returns than misses, or none where the curve has many, still give a valid curve.
        for returns in [0.0, 5000.0] {
            let curve = blind.fitted(&seen(100, 900.0, returns), &mut Stretch::default());
            let misses: Vec<f64> = [0, 50, 100, 200, 300, 1000].map(|bytes| curve.misses_at(bytes)).into();
            assert!(misses.is_sorted_by(|one, next| one >= next) && misses[5] >= 0.0, "{misses:?}");
        }
    }

    /// Three loops, with samples of about a hundred pages each. One loop was given 1.5 times the
    /// memory that it could use, which another loop lacked.
    #[test]
    fn a_cliff_is_blurred_by_the_error_of_its_sample() {
        let cliff = Curve::new(1000.0, (1..=400).map(|size| (size, if size < 100 { 1000.0 } else { 0.0 })));
        let by = |pages: f64| {
            let seen =
                Seen { bytes: 400, reach_bytes: 400, sampled_per_byte: pages / 100.0, ..Seen::default() };
            cliff.fitted(&seen, &mut Stretch::default())
        };
        // With a sample of a hundred pages the cliff may be a third too far away; with a million it
        // is almost exact.
        let (few, many) = (by(100.0), by(1e6));
        let expected = [833.0, 500.0, 500.0, 167.0, 0.0];
        assert_eq!([80, 95, 105, 120, 140].map(|size| few.misses_at(size).round()), expected);
        assert_eq!([98, 101].map(|size| many.misses_at(size).round()), [1000.0, 0.0]);
        let none = by(0.0);
        assert_eq!(none, cliff);
        // Even with very few pages, sizes move by at most a factor of three.
        assert!(by(0.01).misses_at(330) < 1.0 && by(0.01).misses_at(30) > 999.0);
    }

    #[test]
    fn a_stretch_learned_on_a_steep_part_is_kept_for_a_while_on_a_flat_part() {
        let loops = Curve::new(1000.0, [(90, 1000.0), (100, 10.0), (200, 10.0)]);
        let at = |bytes, misses| Seen { reach_bytes: bytes, ..seen(bytes, misses, 0.0) };
        let mut stretch = Stretch::default();
        // The partition missed every reference at size 105: the loop is larger than the sample
        // says.
        assert!(loops.fitted(&at(105, 1000.0), &mut stretch).misses_at(108) > 300.0);
        stretch.fade(false);
        let mut forgotten = stretch;
        forgotten.fade(true);
        for (stretch, is_known) in [(&mut stretch, true), (&mut forgotten, false)] {
            let misses = loops.fitted(&at(160, 10.0), stretch).misses_at(104);
            assert_eq!(misses > 100.0, is_known, "{misses}");
        }
        for _ in 0..20 {
            stretch.fade(false);
            loops.fitted(&at(160, 10.0), &mut stretch);
        }
        assert!(loops.fitted(&at(160, 10.0), &mut stretch).misses_at(104) < 20.0, "{stretch:?}");
    }
}
