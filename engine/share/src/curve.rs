//! A miss curve: how many misses a partition would have had at which size.

/// How a curve may be stretched: by up to a quarter, in steps of two percent, each of which must
/// explain so much of all references.
const STRETCH_STEP: f64 = 0.02;
const STRETCH_MAX: i32 = 12;
const STRETCH_COST: f64 = 0.0005;

/// What is left of a stretch in the next period, where no misses speak for it or against it.
const STRETCH_KEEP: f64 = 0.8;

/// How far the sizes of a curve may be wrong by which pages are in its sample: this many times what
/// it would be if pages were drawn one by one. Sets of a miniature fill unevenly besides, and its
/// policy learns from less.
const UNCERTAINTY: f64 = 1.8;
const UNCERTAINTY_MAX: f64 = 0.7;

/// Stretches that have together the spread of a normal distribution, in deviations, with their
/// weights.
const SPREAD: [(f64, f64); 4] = [(-1.6, 1.0 / 6.0), (-0.6, 1.0 / 3.0), (0.6, 1.0 / 3.0), (1.6, 1.0 / 6.0)];

/// What sets remember of pages that left counts as much as so many pages of the sample. The sample
/// errs by which pages are in it, the less the more there are; a larger partition would not have
/// kept all that its sets remember, and some that they do not, however large it is.
const RETURNS_WEIGHT: f64 = 16.0;

/// What a partition really saw, over the window of its curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its size.
    pub bytes: u64,
    /// What it missed.
    pub misses: f64,
    /// How many of these misses were of pages that its sets remember to have had.
    pub returns: f64,
    /// A size that would have kept what they remember; its own where the policy remembers nothing.
    pub reach_bytes: u64,
    /// Pages of the sample in a byte of a size; 0 where that is not known.
    pub sampled_per_byte: f64,
}

/// How far a curve was stretched last: what its sample errs by is the same as long as the load is.
/// Where a curve is flat, no misses tell it; a partition that shrank there forgot what it had
/// learned where it is steep, grew again, and so to and fro.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stretch(f64);

impl Stretch {
    /// A period is over: it is worth less, for it may have come of one wrong look; nothing, where
    /// the load has changed.
    pub fn fade(&mut self, has_changed: bool) {
        self.0 *= if has_changed { 0.0 } else { STRETCH_KEEP };
    }
}

/// Misses by size. More memory never misses more: what a sample says otherwise is levelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Bytes, rising.
    sizes: Vec<u64>,
    /// Misses at each size, falling.
    misses: Vec<f64>,
    /// Misses without any memory: all references.
    references: f64,
}

impl Curve {
    /// From references and (bytes, misses), sizes rising; of points at one size the first counts.
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

    /// The curve of so much of its references.
    pub fn scaled(mut self, by: f64) -> Curve {
        self.references *= by;
        self.misses.iter_mut().for_each(|misses| *misses *= by);
        self
    }

    /// References that it is about: the misses of no memory at all.
    pub fn references(&self) -> f64 {
        self.references
    }

    /// (bytes, misses), sizes rising.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.sizes.iter().copied().zip(self.misses.iter().copied())
    }

    /// The curve, corrected by what was really seen; how far it was stretched stays for the next
    /// time.
    pub fn fitted(&self, seen: &Seen, stretch: &mut Stretch) -> Curve {
        if self.references <= 0.0 {
            return self.clone();
        }
        self.stretched(seen.bytes, seen.misses, stretch).blurred(seen.sampled_per_byte).checked(seen)
    }

    /// The curve with its sizes stretched so that it tells what was really missed at a size. A
    /// sample of a loop may have a tenth too many of its pages or too few, and then has its
    /// cliff a tenth too far to one side; what the partition really misses tells to which.
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

    /// What is to be expected at each size: the mean over all stretches that the sample does not
    /// tell apart. By the curve itself a loop would get just what its sample says, which is too
    /// little every other time, and memory would move for cliffs that lie elsewhere.
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
        // Sizes lie a fifth apart, further than what a larger sample errs by.
        let sizes = self.sizes.iter().flat_map(|bytes| [0, 1, 2].map(|part| bytes + bytes / 16 * part));
        Curve::new(self.references, sizes.map(|bytes| (bytes, expected(bytes))))
    }

    /// The curve, moved towards the misses that were seen at a size, and what it says of more
    /// memory towards the pages that returned. A sample of a few pages may have none of those
    /// that matter: then it says that nothing is gained where much is, and no stretch of it says
    /// anything else.
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
                // Its form is kept, as long as there is one.
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

    /// Misses at a size: a straight line between two known sizes, and beyond the last no less than
    /// there.
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
    fn it_falls_in_straight_lines_and_never_rises() {
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

    /// A sample of eight pages had none of those that were asked for again and again: their tenant
    /// was left with nothing for good.
    #[test]
    fn pages_that_return_tell_of_what_the_sample_does_not_have() {
        let blind = Curve::new(1000.0, [(10, 990.0), (100, 985.0), (400, 500.0)]);
        let fitted = blind.fitted(&seen(100, 900.0, 600.0), &mut Stretch::default());
        assert!((fitted.misses_at(100) - 900.0).abs() < 1.0, "{fitted:?}");
        assert!((fitted.misses_at(300) - 300.0).abs() < 1.0, "{fitted:?}");
        assert!(fitted.misses_at(200) > 400.0 && fitted.misses_at(400) <= 300.0, "{fitted:?}");
        // Who has no ghosts, or a sample of many pages, goes by the sample.
        let without = Seen { reach_bytes: 100, ..seen(100, 900.0, 0.0) };
        assert!(blind.fitted(&without, &mut Stretch::default()).misses_at(300) > 500.0);
        let many = Seen { sampled_per_byte: 1e6, ..seen(100, 900.0, 600.0) };
        let (few, many) =
            (fitted.misses_at(300), blind.fitted(&many, &mut Stretch::default()).misses_at(300));
        assert!(many > few + 200.0, "{few} {many}");
        // More returns than misses, or none where the curve has many, are no nonsense afterwards.
        for returns in [0.0, 5000.0] {
            let curve = blind.fitted(&seen(100, 900.0, returns), &mut Stretch::default());
            let misses: Vec<f64> = [0, 50, 100, 200, 300, 1000].map(|bytes| curve.misses_at(bytes)).into();
            assert!(misses.is_sorted_by(|one, next| one >= next) && misses[5] >= 0.0, "{misses:?}");
        }
    }

    /// Three loops, by samples of some hundred pages each: one was given half as much again as it
    /// could use, and another lacked it.
    #[test]
    fn a_cliff_is_where_the_sample_says_but_for_what_it_may_err_by() {
        let cliff = Curve::new(1000.0, (1..=400).map(|size| (size, if size < 100 { 1000.0 } else { 0.0 })));
        let by = |pages: f64| {
            let seen =
                Seen { bytes: 400, reach_bytes: 400, sampled_per_byte: pages / 100.0, ..Seen::default() };
            cliff.fitted(&seen, &mut Stretch::default())
        };
        // Up to a third too far by a hundred pages, next to nothing by a million.
        let (few, many) = (by(100.0), by(1e6));
        let expected = [833.0, 500.0, 500.0, 167.0, 0.0];
        assert_eq!([80, 95, 105, 120, 140].map(|size| few.misses_at(size).round()), expected);
        assert_eq!([98, 101].map(|size| many.misses_at(size).round()), [1000.0, 0.0]);
        let none = by(0.0);
        assert_eq!(none, cliff);
        // However few they are, sizes are not moved by more than a factor of three.
        assert!(by(0.01).misses_at(330) < 1.0 && by(0.01).misses_at(30) > 999.0);
    }

    #[test]
    fn what_was_learned_where_a_curve_is_steep_is_known_for_a_while_where_it_is_flat() {
        let loops = Curve::new(1000.0, [(90, 1000.0), (100, 10.0), (200, 10.0)]);
        let at = |bytes, misses| Seen { reach_bytes: bytes, ..seen(bytes, misses, 0.0) };
        let mut stretch = Stretch::default();
        // It missed all at 105: the loop is larger than the sample says.
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
