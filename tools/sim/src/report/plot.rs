//! Curves over capacity, as SVG that stands in a page of HTML.
//!
//! Colours and line styles are classes that the page defines, so that a series looks the same in
//! every plot of a page and both in light and in dark. What is not here: scripts.

use std::fmt::Write;

use super::page::escaped;
use super::units::human_bytes;

/// One curve.
pub struct Series {
    /// What it is called.
    pub label: String,
    /// Which of the page's series it is, from 0.
    pub number: usize,
    /// Pages, and the miss ratio there; by pages.
    pub points: Vec<Point>,
}

/// One point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The capacity.
    pub pages: f64,
    /// What it misses of all accesses.
    pub miss_ratio: f64,
    /// By how much that may be wrong, either way; 0 where it is exact.
    pub error: f64,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// The curves over a logarithmic axis of bytes, or of pages where it is not known how long those
/// are; the other axis begins at 0.
pub fn svg(title: &str, series: &[Series], page_bytes: Option<u64>) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let (mut from, mut to) = points().fold((f64::INFINITY, 0.0f64), |(from, to), point| {
        (from.min(point.pages.max(1.0)), to.max(point.pages.max(1.0)))
    });
    if from >= to {
        // One size alone, or none: something to see around it.
        (from, to) = if from.is_finite() { (from / 2.0, from * 2.0) } else { (1.0, 10.0) };
    }
    let top = points().map(|point| (point.miss_ratio + point.error).min(1.0)).fold(0.0, f64::max);
    let step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1]
        .into_iter()
        .find(|step| top <= 8.0 * step)
        .unwrap_or(0.2);
    let steps = (top / step).ceil().max(1.0);
    let x = |pages: f64| {
        LEFT + (pages.max(1.0).ln() - from.ln()) / (to.ln() - from.ln()) * (WIDTH - LEFT - RIGHT)
    };
    let y = |miss_ratio: f64| HEIGHT - BOTTOM - miss_ratio / (step * steps) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Miss ratio by capacity: {0}\">\n",
        escaped(title)
    );
    for number in 0..=steps as u32 {
        let value = f64::from(number) * step;
        let at = y(value);
        let digits = if step < 0.01 { 3 } else { 2 };
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{value:.digits$}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let ticks = match page_bytes {
        None => ticks(from, to).into_iter().map(|pages| (pages, short(pages))).collect(),
        Some(bytes) => ticks_of_bytes(from, to, bytes as f64),
    };
    for (pages, text) in ticks {
        let at = x(pages);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/><text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            text
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">capacity, {}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        page_bytes.map_or("pages".into(), |bytes| format!("in pages of {}", human_bytes(bytes)))
    );
    for series in series.iter().filter(|series| !series.points.is_empty()) {
        let _ =
            write!(svg, "<g class=\"series s{}\"><title>{}</title>", series.number, escaped(&series.label));
        if series.points.iter().any(|point| point.error > 0.0) {
            let upper =
                series.points.iter().map(|point| (point.pages, (point.miss_ratio + point.error).min(1.0)));
            let lower = series
                .points
                .iter()
                .rev()
                .map(|point| (point.pages, (point.miss_ratio - point.error).max(0.0)));
            let band: Vec<String> =
                upper.chain(lower).map(|(pages, value)| format!("{:.1},{:.1}", x(pages), y(value))).collect();
            let _ = write!(svg, "<polygon class=\"band\" points=\"{}\"/>", band.join(" "));
        }
        let line: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.pages), y(point.miss_ratio)))
            .collect();
        let _ = write!(svg, "<polyline points=\"{}\"/>", line.join(" "));
        // Many points make a line of their own.
        for point in series.points.iter().filter(|_| series.points.len() <= 24) {
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"><title>{}: {:.4} at {} pages</title></circle>",
                x(point.pages),
                y(point.miss_ratio),
                escaped(&series.label),
                point.miss_ratio,
                point.pages
            );
        }
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Places for marks on a logarithmic axis: powers of ten; with few of them, also their doubles and
/// fives.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let powers = || (0..16).map(|power| 10f64.powi(power));
    let inside = |value: &f64| (from..=to).contains(value);
    let sparse: Vec<f64> = powers().filter(inside).collect();
    if sparse.len() >= 4 {
        return sparse;
    }
    powers().flat_map(|power| [power, 2.0 * power, 5.0 * power]).filter(inside).collect()
}

/// The same on an axis of bytes: powers of two that are alike apart, at most eight of them.
fn ticks_of_bytes(from: f64, to: f64, page_bytes: f64) -> Vec<(f64, String)> {
    let inside = |power: &i32| (from..=to).contains(&(f64::from(*power).exp2() / page_bytes));
    let powers: Vec<i32> = (0..64).filter(inside).collect();
    let apart = powers.len().div_ceil(8).max(1) as i32;
    let tick = |power: i32| (f64::from(power).exp2() / page_bytes, human_bytes(1 << power));
    powers.into_iter().filter(|power| power % apart == 0).map(tick).collect()
}

/// Marks of a linear axis from 0: at steps of 1, 2 or 5 times a power of ten, at most `most` of
/// them above 0.
pub fn even_ticks(to: f64, most: u32) -> Vec<f64> {
    let steps = (0..18).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    marks(to, most, steps)
}

/// The same at steps of a power of two, for bytes.
pub fn even_ticks_of_bytes(to: f64, most: u32) -> Vec<f64> {
    marks(to, most, (0..63).map(|power| f64::from(power).exp2()))
}

fn marks(to: f64, most: u32, mut steps: impl Iterator<Item = f64>) -> Vec<f64> {
    let step = steps.find(|step| to / step <= f64::from(most)).unwrap_or(to.max(1.0));
    (0..=(to / step) as u32).map(|number| f64::from(number) * step).collect()
}

/// A count in few letters: `2M`.
pub fn short(pages: f64) -> String {
    match pages {
        p if p >= 1e9 => format!("{}G", p / 1e9),
        p if p >= 1e6 => format!("{}M", p / 1e6),
        p if p >= 1e3 => format!("{}k", p / 1e3),
        p => format!("{p}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: &[(f64, f64)], error: f64) -> Series {
        let points =
            points.iter().map(|(pages, miss_ratio)| Point { pages: *pages, miss_ratio: *miss_ratio, error });
        Series { label: "a<b".into(), number: 3, points: points.collect() }
    }

    #[test]
    fn curves_stay_inside_the_frame_and_names_are_escaped() {
        let plot = svg("x & y", &[series(&[(16.0, 1.0), (1e6, 0.0)], 0.0)], None);
        assert!(plot.contains("a&lt;b") && plot.contains("x &amp; y") && !plot.contains("a<b"), "{plot}");
        assert!(plot.contains("points=\"52.0,12.0 708.0,336.0\""), "{plot}");
        assert!(plot.contains(">100<") && plot.contains(">1M<"), "{plot}");
    }

    #[test]
    fn axes_have_a_few_round_marks() {
        let texts = |from, to| -> Vec<String> {
            ticks_of_bytes(from, to, 4096.0).into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(texts(187.0, 186_880.0), ["1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB"]);
        assert_eq!(texts(256.0, 4096.0), ["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"]);
        assert_eq!(even_ticks(1_230_000.0, 6), [0.0, 5e5, 1e6]);
        assert_eq!(even_ticks(6_000_000.0, 6), (0..=6).map(|n| f64::from(n) * 1e6).collect::<Vec<_>>());
        let mib = f64::from(1 << 20);
        assert_eq!(even_ticks_of_bytes(62.9 * mib, 5), [0.0, 16.0 * mib, 32.0 * mib, 48.0 * mib]);
        assert_eq!((even_ticks(0.0, 5), even_ticks_of_bytes(0.0, 5)), (vec![0.0], vec![0.0]));
    }

    #[test]
    fn one_point_no_point_and_errors_make_a_plot_as_well() {
        for series in [series(&[(100.0, 0.5)], 0.0), series(&[], 0.0), series(&[(100.0, 0.0)], 0.0)] {
            let plot = svg("t", &[series], Some(4096));
            assert!(plot.ends_with("</svg>\n") && !plot.contains("NaN") && !plot.contains("inf"), "{plot}");
        }
        assert!(svg("t", &[series(&[(10.0, 0.5), (20.0, 0.4)], 0.1)], None).contains("class=\"band\""));
    }
}
