//! Pictures as SVG that stands in a page of HTML: curves with their names at their ends, and bars
//! with their values at theirs.
//!
//! Colours are classes that the page defines (`octavo_sim::report::page`), so that a series looks
//! the same in every picture of a page, in light and in dark. What is not here: which rows make
//! which picture (`page.rs`), and scripts.

use std::fmt::Write;

use octavo_sim::report::page::escaped;

/// How an axis is divided, and what stands at it.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows.
    pub title: String,
    /// Each step is a factor.
    pub log: bool,
    /// How values read.
    pub format: fn(f64) -> String,
}

/// A value, and how far it spreads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Along.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// The least that was measured there.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What it is called, at its end.
    pub label: String,
    /// Which of the page's series it is, from 0.
    pub number: usize,
    /// By `x`.
    pub points: Vec<Point>,
    /// It was not measured.
    pub is_fit: bool,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is called.
    pub label: String,
    /// Which of the page's series it is, from 0.
    pub number: usize,
    /// Its length, and how far that spreads; `x` says nothing.
    pub value: Point,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// A letter is about so wide.
const LETTER: f64 = 6.8;

/// Names at ends of curves are at least so far apart.
const LINE: f64 = 14.0;

/// Values to places.
struct Scale {
    log: bool,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// For values that are all shown; a linear axis begins at 0.
    fn new(log: bool, values: impl Iterator<Item = f64>, (start, end): (f64, f64), from_zero: bool) -> Scale {
        let usable = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (mut from, mut to) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        if from > to {
            (from, to) = (1.0, 1.0);
        }
        if from_zero && !log {
            (from, to) = (from.min(0.0), to.max(0.0));
        }
        if from == to {
            (from, to) =
                if log { (from / 2.0, to * 2.0) } else { (from.min(0.0), to.max(from.min(0.0) + 1.0)) };
        }
        Scale { log, from, to, start, end }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(self.from).ln() - self.from.ln()) / (self.to.ln() - self.from.ln()),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Values for marks: round ones.
    fn ticks(&self) -> Vec<f64> {
        let inside = |value: &f64| (self.from * 0.999..=self.to * 1.001).contains(value);
        if self.log {
            let powers = || (-12..13).map(|power| 10f64.powi(power));
            let all: Vec<f64> =
                powers().flat_map(|power| [power, 2.0 * power, 5.0 * power]).filter(inside).collect();
            let sparse: Vec<f64> = powers().filter(inside).collect();
            return if all.len() <= 8 || sparse.len() < 2 { all } else { sparse };
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= rough * 0.99);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..first + 12).map(|number| number as f64 * step).filter(inside).collect()
    }
}

fn begin(svg: &mut String, title: &str, height: f64) {
    let _ = writeln!(
        svg,
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
}

/// Curves over an axis; `mark` is a line across.
pub fn curves(title: &str, x: &Axis, y: &Axis, mark: Option<f64>, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let longest = curves.iter().filter(|curve| !curve.is_fit).map(|curve| curve.label.chars().count()).max();
    // Room for the names at the ends.
    let end = WIDTH - (longest.unwrap_or(0) as f64 * LETTER + 20.0).clamp(60.0, 300.0);
    let across = Scale::new(x.log, points().map(|point| point.x), (LEFT, end), false);
    let values = points().flat_map(|point| [point.low, point.y, point.high]).chain(mark);
    let up = Scale::new(y.log, values, (HEIGHT - BOTTOM, TOP), true);
    let mut svg = String::new();
    begin(&mut svg, title, HEIGHT);
    for value in up.ticks() {
        let at = up.at(value);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            end,
            LEFT - 6.0,
            at + 4.0,
            escaped(&(y.format)(value))
        );
    }
    // Where few values were measured, those.
    let mut measured: Vec<f64> = points().map(|point| point.x).collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    let mut last = f64::NEG_INFINITY;
    for value in if measured.len() <= 16 { measured } else { across.ticks() } {
        let at = across.at(value);
        let _ = write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/>", HEIGHT - BOTTOM);
        if at - last > 30.0 {
            last = at;
            let text = escaped(&(x.format)(value));
            let below = HEIGHT - BOTTOM + 16.0;
            let _ = writeln!(svg, "<text class=\"middle\" x=\"{at:.1}\" y=\"{below:.1}\">{text}</text>");
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        (LEFT + end) / 2.0,
        HEIGHT - 8.0,
        escaped(&x.title)
    );
    if let Some(mark) = mark {
        let at = up.at(mark);
        let _ = writeln!(svg, "<path class=\"mark\" d=\"M{LEFT} {at:.1}H{end:.1}\"/>");
    }
    for curve in curves.iter().filter(|curve| !curve.points.is_empty()) {
        let class = if curve.is_fit { "series fit" } else { "series" };
        let label = escaped(&curve.label);
        let _ = write!(svg, "<g class=\"{class} s{}\"><title>{label}</title>", curve.number);
        let line =
            curve.points.iter().map(|point| format!("{:.1},{:.1}", across.at(point.x), up.at(point.y)));
        let _ = write!(svg, "<polyline points=\"{}\"/>", line.collect::<Vec<_>>().join(" "));
        for point in curve.points.iter().filter(|_| !curve.is_fit && curve.points.len() <= 32) {
            let (at, low, high) = (across.at(point.x), up.at(point.low), up.at(point.high));
            let _ = write!(
                svg,
                "<path class=\"spread\" d=\"M{at:.1} {low:.1}V{high:.1}\"/><circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3\"><title>{label}: {} at {}</title></circle>",
                up.at(point.y),
                escaped(&(y.format)(point.y)),
                escaped(&(x.format)(point.x))
            );
        }
        svg.push_str("</g>\n");
    }
    labels(&mut svg, &across, &up, curves);
    svg.push_str("</svg>\n");
    svg
}

/// Names at the ends of curves, moved apart where ends are close.
fn labels(svg: &mut String, across: &Scale, up: &Scale, curves: &[Curve]) {
    let named = curves.iter().filter(|curve| !curve.is_fit);
    let mut ends: Vec<(f64, f64, &Curve)> = named
        .filter_map(|curve| curve.points.last().map(|end| (up.at(end.y), across.at(end.x), curve)))
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut last = f64::NEG_INFINITY;
    for (at, ..) in &mut ends {
        *at = at.max(last + LINE);
        last = *at;
    }
    // Pushed below the picture: back up from there.
    let mut next = HEIGHT - BOTTOM + LINE;
    for (at, ..) in ends.iter_mut().rev() {
        *at = at.min(next - LINE);
        next = *at;
    }
    for (at, end, curve) in ends {
        let _ = writeln!(
            svg,
            "<g class=\"series s{}\"><text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            curve.number,
            end + 8.0,
            at + 4.0,
            escaped(&curve.label)
        );
    }
}

const BAR: f64 = 16.0;
const GAP: f64 = 12.0;
const NAMES: f64 = 190.0;

/// Bars in groups, each group under its name.
pub fn bars(title: &str, y: &Axis, mark: Option<f64>, groups: &[(String, Vec<Bar>)]) -> String {
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let values = all().flat_map(|bar| [bar.value.y, bar.value.high]).chain(mark);
    let across = Scale::new(y.log, values, (NAMES, WIDTH - 80.0), true);
    let height = groups.iter().map(|(_, bars)| bars.len() as f64 * BAR + GAP).sum::<f64>() + 40.0;
    let mut svg = String::new();
    begin(&mut svg, title, height);
    for value in across.ticks() {
        let at = across.at(value);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} 4V{:.1}\"/><text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            height - 34.0,
            height - 20.0,
            escaped(&(y.format)(value))
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        (NAMES + WIDTH - 80.0) / 2.0,
        height - 4.0,
        escaped(&y.title)
    );
    let mut at = 6.0;
    for (name, bars) in groups {
        let middle = at + bars.len() as f64 * BAR / 2.0 + 4.0;
        let right = NAMES - 8.0;
        let one = bars.len() == 1;
        // The name of a group of one stands at its bar; of more, at the left, and each bar says who it is.
        let x = if one { right } else { 0.0 };
        let class = if one { "end" } else { "group" };
        let _ =
            writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{middle:.1}\">{}</text>", escaped(name));
        for bar in bars {
            let zero = across.at(if y.log { across.from } else { 0.0 });
            let (end, high, low) =
                (across.at(bar.value.y), across.at(bar.value.high), across.at(bar.value.low));
            let center = at + BAR / 2.0;
            let value = escaped(&(y.format)(bar.value.y));
            let _ = writeln!(
                svg,
                "<g class=\"series s{}\"><title>{}: {value}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
                <path class=\"whisker\" d=\"M{low:.1} {center:.1}H{high:.1}\"/></g><text x=\"{:.1}\" y=\"{:.1}\">{value}</text>",
                bar.number,
                escaped(&bar.label),
                zero.min(end),
                at + 1.5,
                (end - zero).abs().max(1.0),
                BAR - 3.0,
                end.max(high) + 6.0,
                center + 4.0
            );
            if !one {
                let label = escaped(&bar.label);
                let _ = writeln!(
                    svg,
                    "<text class=\"end\" x=\"{right:.1}\" y=\"{:.1}\">{label}</text>",
                    center + 4.0
                );
            }
            at += BAR;
        }
        at += GAP;
    }
    if let Some(mark) = mark {
        let at = across.at(mark);
        let _ = writeln!(svg, "<path class=\"mark\" d=\"M{at:.1} 4V{:.1}\"/>", height - 34.0);
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn axis(log: bool) -> Axis {
        Axis { title: "a & b".into(), log, format: |value| format!("{value}") }
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, low: y * 0.9, high: y * 1.1 }
    }

    /// Tags open and close in order, attributes are quoted, and no number is none: what a browser
    /// needs to draw it.
    pub(crate) fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg;
        while let Some(at) = rest.find('<') {
            assert!(!rest[..at].contains('>'), "a stray > before {}", &rest[at..]);
            let end = rest[at..].find('>').expect("a tag ends") + at;
            let tag = &rest[at + 1..end];
            assert!(!tag.contains('<'), "{tag}");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "closed out of order");
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "left open: {open:?}");
        for wrong in ["NaN", "inf"] {
            assert!(!svg.contains(wrong), "{wrong} in {svg}");
        }
        let bare = svg.split('&').skip(1).find(|after| {
            !["amp;", "lt;", "gt;", "quot;", "#39;", "minus;"].iter().any(|entity| after.starts_with(entity))
        });
        assert_eq!(bare, None, "an ampersand that is no entity");
    }

    #[test]
    fn curves_are_well_formed_whatever_they_hold() {
        let curve = |points: Vec<Point>, is_fit| Curve { label: "a<b>\"".into(), number: 1, points, is_fit };
        for (x_log, y_log) in [(false, false), (true, false), (false, true), (true, true)] {
            for points in [vec![], vec![point(1.0, 5.0)], vec![point(1.0, 0.0), point(64.0, 3e9)]] {
                let svg = curves(
                    "t & u",
                    &axis(x_log),
                    &axis(y_log),
                    Some(1.0),
                    &[curve(points.clone(), false), curve(points, true)],
                );
                assert_well_formed(&svg);
                assert!(!svg.contains("a<b>"), "{svg}");
            }
        }
    }

    #[test]
    fn bars_are_well_formed_and_say_their_values() {
        let bar = |number, y| Bar { label: format!("l{number}"), number, value: point(0.0, y) };
        for log in [false, true] {
            let groups =
                [("one".to_owned(), vec![bar(0, 5.0)]), ("two".to_owned(), vec![bar(0, 0.0), bar(1, 123.0)])];
            let svg = bars("t", &axis(log), Some(1.0), &groups);
            assert_well_formed(&svg);
            assert!(svg.contains(">123<") && svg.contains(">l1<") && svg.contains(">one<"), "{svg}");
        }
        assert_well_formed(&bars("t", &axis(false), None, &[]));
    }

    #[test]
    fn names_at_ends_that_meet_are_moved_apart_and_stay_inside() {
        let all: Vec<Curve> = (0..20)
            .map(|number| Curve {
                label: format!("n{number}"),
                number,
                points: vec![point(1.0, 1.0), point(2.0, 1.0)],
                is_fit: false,
            })
            .collect();
        let svg = curves("t", &axis(false), &axis(false), None, &all);
        let mut at: Vec<f64> = svg
            .split("class=\"name\"")
            .skip(1)
            .map(|text| text.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        at.sort_by(f64::total_cmp);
        assert_eq!(at.len(), 20);
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= LINE - 0.11), "{at:?}");
        assert!(*at.last().unwrap() <= HEIGHT - BOTTOM + LINE, "{at:?}");
    }

    #[test]
    fn ticks_are_few_and_round() {
        let scale = |log, from: f64, to: f64| Scale::new(log, [from, to].into_iter(), (0.0, 100.0), true);
        assert_eq!(scale(false, 3.0, 47.0).ticks(), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(scale(true, 1.0, 1000.0).ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(scale(true, 3.0, 30.0).ticks(), [5.0, 10.0, 20.0]);
    }
}
