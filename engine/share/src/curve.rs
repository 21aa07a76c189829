//! A miss curve: how many misses a partition would have had at which size.

/// How a curve may be stretched: by up to a quarter, in steps of two percent, each of which must explain so much of all references.
const STRETCH_STEP: f64 = 0.02;
const STRETCH_MAX: i32 = 12;
const STRETCH_COST: f64 = 0.0005;

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

    /// References that it is about: the misses of no memory at all.
    pub fn references(&self) -> f64 {
        self.references
    }

    /// (bytes, misses), sizes rising.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.sizes.iter().copied().zip(self.misses.iter().copied())
    }

    /// The curve with its sizes stretched so that it tells what was really missed at a size. A sample of a loop may have a tenth too many of its
    /// pages or too few, and then has its cliff a tenth too far to one side; what the partition really misses tells to which.
    pub fn fitted(&self, bytes: u64, misses: f64) -> Curve {
        if self.references <= 0.0 {
            return self.clone();
        }
        let stretched = |step: i32| (f64::from(step) * STRETCH_STEP).exp();
        let error = |step: i32| {
            let at = (bytes as f64 / stretched(step)) as u64;
            (self.misses_at(at) - misses).abs() / self.references + f64::from(step.abs()) * STRETCH_COST
        };
        let best = (-STRETCH_MAX..=STRETCH_MAX).min_by(|one, other| error(*one).total_cmp(&error(*other)));
        let factor = stretched(best.unwrap_or(0));
        let points = self.points().map(|(bytes, misses)| ((bytes as f64 * factor) as u64, misses));
        Curve::new(self.references, points)
    }

    /// Misses at a size: a straight line between two known sizes, and beyond the last no less than there.
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
}
