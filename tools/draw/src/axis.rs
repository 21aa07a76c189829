//! Axes: the scale from values to coordinates, and the round values that get a tick.

/// One axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The text beside the axis.
    pub title: String,
    /// Whether the axis is logarithmic. A linear vertical axis begins at 0. Default: linear.
    pub log: bool,
    /// Whether ticks are powers of two, as for bytes. Default: 1, 2 and 5 times powers of ten.
    pub binary: bool,
    /// Formats a value for a tick or for the tooltip of a point.
    pub format: fn(f64) -> String,
}

impl Axis {
    /// A linear axis with decimal ticks.
    pub fn new(title: impl Into<String>, format: fn(f64) -> String) -> Axis {
        Axis { title: title.into(), log: false, binary: false, format }
    }

    /// The same axis, logarithmic if `log`.
    pub fn log(self, log: bool) -> Axis {
        Axis { log, ..self }
    }

    /// The same axis with ticks at powers of two.
    pub fn binary(self) -> Axis {
        Axis { binary: true, ..self }
    }

    /// The scale that maps all finite `values` to coordinates from `start` to `end`.
    pub(crate) fn scale(
        &self,
        values: impl Iterator<Item = f64>,
        (start, end): (f64, f64),
        zero: bool,
    ) -> Scale {
        let usable = values.filter(|value| value.is_finite() && (!self.log || *value > 0.0));
        let limits = |(from, to): (f64, f64), value| (from.min(value), to.max(value));
        let (mut from, mut to) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), limits);
        if from > to {
            (from, to) = (1.0, 1.0);
        }
        if zero && !self.log {
            (from, to) = (from.min(0.0), to.max(0.0));
        }
        if from == to {
            let low = from.min(0.0);
            (from, to) = if self.log { (from / 2.0, to * 2.0) } else { (low, to.max(low + 1.0)) };
        }
        Scale { log: self.log, binary: self.binary, from, to, start, end }
    }
}

/// Maps values to coordinates.
pub(crate) struct Scale {
    log: bool,
    binary: bool,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// The coordinate of `value`, inside the axis.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(self.from).ln() - self.from.ln()) / (self.to.ln() - self.from.ln()),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// The coordinate where a bar begins: that of 0, or the low end of a logarithmic axis.
    pub fn base(&self) -> f64 {
        self.at(if self.log { self.from } else { 0.0 })
    }

    /// Round values inside the axis, about eight at most.
    pub fn ticks(&self) -> Vec<f64> {
        let inside = |value: &f64| (self.from * 0.999..=self.to * 1.001).contains(value);
        match (self.log, self.binary) {
            (true, true) => {
                let powers: Vec<i32> = (-20..63).filter(|power| inside(&f64::from(*power).exp2())).collect();
                let apart = powers.len().div_ceil(8).max(1) as i32;
                powers.into_iter().filter(|p| p % apart == 0).map(|p| f64::from(p).exp2()).collect()
            }
            (true, false) => {
                let powers = || (-12..16).map(|power| 10f64.powi(power));
                let all: Vec<f64> = powers().flat_map(|p| [p, 2.0 * p, 5.0 * p]).filter(inside).collect();
                let sparse: Vec<f64> = powers().filter(inside).collect();
                if all.len() <= 8 || sparse.len() < 2 { all } else { sparse }
            }
            (false, binary) => {
                let rough = (self.to - self.from) / if binary { 6.0 } else { 5.0 };
                let power = 10f64.powf(rough.log10().floor());
                let mut steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter();
                let step = match binary {
                    true => rough.log2().ceil().exp2(),
                    false => steps.find(|step| *step >= rough * 0.99).unwrap_or(rough),
                };
                let first = (self.from / step).ceil() as i64;
                (first..first + 12).map(|number| number as f64 * step).filter(inside).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_round() {
        let ticks = |log, from: f64, to: f64| {
            let axis = Axis::new("", crate::short).log(log);
            axis.scale([from, to].into_iter(), (0.0, 100.0), true).ticks()
        };
        assert_eq!(ticks(false, 3.0, 47.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(false, 0.0, 1_230_000.0), [0.0, 5e5, 1e6]);
        assert_eq!(ticks(false, 0.0, 0.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(true, 1.0, 1000.0), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(true, 3.0, 30.0), [5.0, 10.0, 20.0]);
    }

    #[test]
    fn ticks_of_bytes_are_powers_of_two_equally_far_apart() {
        let texts = |log, from: f64, to: f64| -> Vec<String> {
            let axis = Axis::new("", crate::short).log(log).binary();
            let ticks =
                axis.scale([from, to].map(|pages| pages * 4096.0).into_iter(), (0.0, 1.0), true).ticks();
            ticks.into_iter().map(|bytes| crate::bytes(bytes as u64)).collect()
        };
        assert_eq!(texts(true, 187.0, 186_880.0), ["1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB"]);
        assert_eq!(texts(true, 256.0, 4096.0), ["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"]);
        assert_eq!(texts(false, 0.0, 62.9 * 256.0), ["0 B", "16 MiB", "32 MiB", "48 MiB"]);
    }
}
