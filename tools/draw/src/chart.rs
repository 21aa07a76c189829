//! Charts as SVG: curves with a name at the end of each, and bars with a value at the end of each.
//!
//! Colours are classes that the page defines (`page.rs`), so that a series has the same colour in
//! every chart of a page, in the light and in the dark theme.

use std::fmt::Write;

use crate::axis::{Axis, Scale};
use crate::page::escaped;

/// A value with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The horizontal value. Bars ignore it.
    pub x: f64,
    /// The vertical value.
    pub y: f64,
    /// The lowest value measured or possible at `x`.
    pub low: f64,
    /// The highest value measured or possible at `x`.
    pub high: f64,
}

impl Point {
    /// A point without a spread.
    pub fn exact(x: f64, y: f64) -> Point {
        Point { x, y, low: y, high: y }
    }
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line; with at most 32 points, a dot and a vertical spread at each.
    Measured,
    /// A line with the spread as a band; with at most 32 points, a dot at each.
    Estimated,
    /// A dotted line without a dot at each point and without a name, for a function that was fitted
    /// to another curve.
    Fitted,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name at the curve's end and in its tooltips.
    pub label: String,
    /// The number of the series on its page ([`crate::Page::series`]).
    pub number: usize,
    /// The points, in ascending order of `x`.
    pub points: Vec<Point>,
    /// How the curve is drawn.
    pub style: Style,
}

/// Curves over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What the chart shows, for readers that cannot see it.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// A horizontal line at this value: a goal, or a baseline.
    pub mark: Option<f64>,
    /// The curves.
    pub series: Vec<Series>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The bar's name.
    pub label: String,
    /// The number of its series on the page.
    pub number: usize,
    /// The length `y` and its spread.
    pub value: Point,
}

/// Horizontal bars in named groups.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What the chart shows, for readers that cannot see it.
    pub title: String,
    /// The axis of the lengths.
    pub axis: Axis,
    /// A vertical line at this value: a goal, or a baseline.
    pub mark: Option<f64>,
    /// The groups, with their names.
    pub groups: Vec<(String, Vec<Bar>)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 14.0;
/// The y coordinate of the horizontal axis.
const FLOOR: f64 = HEIGHT - 46.0;

/// The approximate width of a character of a curve's name.
const CHARACTER: f64 = 6.8;

/// The smallest distance between the names of two curves.
const LINE: f64 = 14.0;

/// Curves with more points than this have no dots.
pub const DOTS_MAX: usize = 32;

/// Charts with more different `x` values than this have ticks at round values, not at the measured
/// ones.
const MEASURED_TICKS_MAX: usize = 16;

/// In a chart with more names than this, no curve has its name at its end. The legend lists all
/// names.
const NAMES_MAX: usize = ((FLOOR - TOP) / LINE) as usize + 1;

/// An SVG file that is being written.
struct Svg(String);

impl Svg {
    fn new(title: &str, height: f64) -> Svg {
        let title = escaped(title);
        Svg(format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n"))
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.0, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }

    fn across(&mut self, class: &str, y: f64, from: f64, to: f64) {
        let _ = write!(self.0, "<path class=\"{class}\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
    }

    fn down(&mut self, class: &str, x: f64, from: f64, to: f64) {
        let _ = write!(self.0, "<path class=\"{class}\" d=\"M{x:.1} {from:.1}V{to:.1}\"/>");
    }

    fn points(&mut self, shape: &str, points: impl Iterator<Item = (f64, f64)>) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(self.0, "<{shape} points=\"{}\"/>", points.join(" "));
    }

    /// Draws `inside` in the colour of a series.
    fn series(&mut self, class: &str, number: usize, tip: &str, inside: impl FnOnce(&mut Svg)) {
        let _ = write!(self.0, "<g class=\"{class} s{number}\"><title>{}</title>", escaped(tip));
        inside(self);
        self.0.push_str("</g>\n");
    }

    fn end(self) -> String {
        self.0 + "</svg>\n"
    }
}

impl Chart {
    /// Draws the chart.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let named = || self.series.iter().filter(|series| series.style != Style::Fitted);
        let has_names = named().count() <= NAMES_MAX;
        let longest = named().map(|series| series.label.chars().count()).max().unwrap_or(0);
        let room = (longest as f64 * CHARACTER + 20.0).clamp(60.0, 300.0);
        let end = WIDTH - if has_names { room } else { 12.0 };
        let across = self.x.scale(points().map(|point| point.x), (LEFT, end), false);
        let values = points().flat_map(|point| [point.low, point.y, point.high]).chain(self.mark);
        let up = self.y.scale(values, (FLOOR, TOP), true);
        let mut svg = Svg::new(&self.title, HEIGHT);
        self.grid(&mut svg, &across, &up, end);
        if let Some(mark) = self.mark {
            svg.across("mark", up.at(mark), LEFT, end);
        }
        for series in self.series.iter().filter(|series| !series.points.is_empty()) {
            self.curve(&mut svg, &across, &up, series);
        }
        if has_names {
            names(&mut svg, &across, &up, named());
        }
        svg.end()
    }

    fn grid(&self, svg: &mut Svg, across: &Scale, up: &Scale, end: f64) {
        for value in up.ticks() {
            let at = up.at(value);
            svg.across("grid", at, LEFT, end);
            svg.text("end", LEFT - 6.0, at + 4.0, &(self.y.format)(value));
        }
        let mut measured: Vec<f64> =
            self.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
        measured.sort_by(f64::total_cmp);
        measured.dedup();
        let is_discrete = measured.len() <= MEASURED_TICKS_MAX && !self.x.binary;
        let mut last = f64::NEG_INFINITY;
        for value in if is_discrete { measured } else { across.ticks() } {
            let at = across.at(value);
            svg.down("grid", at, TOP, FLOOR);
            if at - last > 30.0 {
                last = at;
                svg.text("middle", at, FLOOR + 16.0, &(self.x.format)(value));
            }
        }
        svg.text("middle", (LEFT + end) / 2.0, HEIGHT - 8.0, &self.x.title);
    }

    fn curve(&self, svg: &mut Svg, across: &Scale, up: &Scale, series: &Series) {
        let Series { label, number, points, style } = series;
        let class = if *style == Style::Fitted { "series fit" } else { "series" };
        svg.series(class, *number, label, |svg| {
            let place = |point: &Point, y| (across.at(point.x), up.at(y));
            if *style == Style::Estimated && points.iter().any(|point| point.low < point.high) {
                let upper = points.iter().map(|point| place(point, point.high));
                let lower = points.iter().rev().map(|point| place(point, point.low));
                svg.points("polygon class=\"band\"", upper.chain(lower));
            }
            svg.points("polyline", points.iter().map(|point| place(point, point.y)));
            for point in points.iter().filter(|_| *style != Style::Fitted && points.len() <= DOTS_MAX) {
                let (x, y) = place(point, point.y);
                if *style == Style::Measured {
                    svg.down("spread", x, up.at(point.low), up.at(point.high));
                }
                let tip = format!("{label}: {} at {}", (self.y.format)(point.y), (self.x.format)(point.x));
                let tip = escaped(&tip);
                let _ = write!(
                    svg.0,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{tip}</title></circle>"
                );
            }
        });
    }
}

/// Writes the names of curves at their ends, moved apart where two ends are close.
fn names<'s>(svg: &mut Svg, across: &Scale, up: &Scale, named: impl Iterator<Item = &'s Series>) {
    let end = |series: &'s Series| series.points.last().map(|end| (up.at(end.y), across.at(end.x), series));
    let mut ends: Vec<(f64, f64, &Series)> = named.filter_map(end).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut last = f64::NEG_INFINITY;
    for (at, ..) in &mut ends {
        *at = at.max(last + LINE);
        last = *at;
    }
    // Names that were pushed below the axis move up again.
    let mut next = FLOOR + LINE;
    for (at, ..) in ends.iter_mut().rev() {
        *at = at.min(next - LINE);
        next = *at;
    }
    for (at, end, series) in ends {
        let label = &series.label;
        svg.series("series", series.number, label, |svg| svg.text("name", end + 8.0, at + 4.0, label));
    }
}

const BAR: f64 = 16.0;
const GAP: f64 = 12.0;
const NAMES: f64 = 190.0;
/// The x coordinate of the right end of the axis of bars; the bars' values need room to the right
/// of it.
const BARS_END: f64 = WIDTH - 80.0;

impl Bars {
    /// Draws the bars.
    pub fn svg(&self) -> String {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let values = bars().flat_map(|bar| [bar.value.y, bar.value.high]).chain(self.mark);
        let across = self.axis.scale(values, (NAMES, BARS_END), true);
        let groups = self.groups.iter().map(|(_, bars)| bars.len() as f64 * BAR + GAP);
        let floor = groups.sum::<f64>() + 6.0;
        let mut svg = Svg::new(&self.title, floor + 34.0);
        for value in across.ticks() {
            let at = across.at(value);
            svg.down("grid", at, 4.0, floor);
            svg.text("middle", at, floor + 14.0, &(self.axis.format)(value));
        }
        svg.text("middle", (NAMES + BARS_END) / 2.0, floor + 30.0, &self.axis.title);
        let mut at = 6.0;
        for (name, bars) in &self.groups {
            // A group of one bar has its name at the bar. A larger group has its name at the left,
            // and each of its bars a name of its own.
            let is_single = bars.len() == 1;
            let (class, x) = if is_single { ("end", NAMES - 8.0) } else { ("group", 0.0) };
            svg.text(class, x, at + bars.len() as f64 * BAR / 2.0 + 4.0, name);
            for bar in bars {
                self.bar(&mut svg, &across, at, bar);
                if !is_single {
                    svg.text("end", NAMES - 8.0, at + BAR / 2.0 + 4.0, &bar.label);
                }
                at += BAR;
            }
            at += GAP;
        }
        if let Some(mark) = self.mark {
            svg.down("mark", across.at(mark), 4.0, floor);
        }
        svg.end()
    }

    fn bar(&self, svg: &mut Svg, across: &Scale, top: f64, Bar { label, number, value }: &Bar) {
        let (base, end) = (across.base(), across.at(value.y));
        let (low, high, center) = (across.at(value.low), across.at(value.high), top + BAR / 2.0);
        let text = (self.axis.format)(value.y);
        svg.series("series", *number, &format!("{label}: {text}"), |svg| {
            let (x, y, width, height) = (base.min(end), top + 1.5, (end - base).abs().max(1.0), BAR - 3.0);
            let _ = write!(
                svg.0,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            );
            svg.across("whisker", center, low, high);
        });
        svg.text("value", end.max(high) + 6.0, center + 4.0, &text);
    }
}

/// Panics unless `svg` is what a browser can draw: tags open and close in order, attributes are
/// quoted, texts are escaped, and every number is finite. For tests.
///
/// # Panics
/// If `svg` is not well-formed.
pub fn assert_well_formed(svg: &str) {
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
            open.extend(tag.split(' ').next());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "left open: {open:?}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "a number that is not finite in {svg}");
    let is_entity =
        |after: &&str| ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|e| after.starts_with(e));
    let bare = svg.split('&').skip(1).find(|after| !is_entity(after));
    assert_eq!(bare, None, "an ampersand that is not escaped");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(log: bool) -> Axis {
        Axis::new("a & b", |value| format!("{value}")).log(log)
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, low: y * 0.9, high: y * 1.1 }
    }

    fn series(label: &str, number: usize, points: &[Point], style: Style) -> Series {
        Series { label: label.into(), number, points: points.to_vec(), style }
    }

    fn chart(x_log: bool, y_log: bool, series: Vec<Series>) -> String {
        let svg =
            Chart { title: "t & u".into(), x: axis(x_log), y: axis(y_log), mark: Some(1.0), series }.svg();
        assert_well_formed(&svg);
        svg
    }

    #[test]
    fn curves_are_well_formed_whatever_their_points() {
        for (x_log, y_log) in [(false, false), (true, false), (false, true), (true, true)] {
            for points in [&[][..], &[point(1.0, 5.0)], &[point(1.0, 0.0), point(64.0, 3e9)]] {
                let styles = [Style::Measured, Style::Estimated, Style::Fitted];
                let all = styles.map(|style| series("a<b>\"", 1, points, style)).to_vec();
                let svg = chart(x_log, y_log, all);
                assert!(!svg.contains("a<b>") && svg.contains("t &amp; u"), "{svg}");
            }
        }
    }

    #[test]
    fn curves_stay_inside_the_frame() {
        let points = [Point::exact(16.0, 1.0), Point::exact(1e6, 0.0)];
        let svg = chart(true, false, vec![series("abc", 0, &points, Style::Measured)]);
        assert!(svg.contains("points=\"64.0,14.0 700.0,314.0\""), "{svg}");
    }

    #[test]
    fn a_spread_is_a_band_or_a_line_by_style() {
        let points = [point(10.0, 0.5), point(20.0, 0.4)];
        let svg = chart(false, false, vec![series("a", 0, &points, Style::Estimated)]);
        assert!(svg.contains("class=\"band\"") && !svg.contains("class=\"spread\""), "{svg}");
        let svg = chart(false, false, vec![series("a", 0, &points, Style::Measured)]);
        assert!(svg.contains("class=\"spread\"") && !svg.contains("class=\"band\""), "{svg}");
    }

    #[test]
    fn bars_are_well_formed_and_say_their_values() {
        let bar = |number, y| Bar { label: format!("l{number}"), number, value: point(0.0, y) };
        let bars = |log, groups| {
            let svg = Bars { title: "t".into(), axis: axis(log), mark: Some(1.0), groups }.svg();
            assert_well_formed(&svg);
            svg
        };
        for log in [false, true] {
            let two = vec![bar(0, 0.0), bar(1, 123.0)];
            let svg = bars(log, vec![("one".to_owned(), vec![bar(0, 5.0)]), ("two".to_owned(), two)]);
            assert!(svg.contains(">123<") && svg.contains(">l1<") && svg.contains(">one<"), "{svg}");
        }
        bars(false, Vec::new());
    }

    #[test]
    fn names_of_curves_that_end_together_are_moved_apart_and_stay_inside() {
        let points = [point(1.0, 1.0), point(2.0, 1.0)];
        let all = (0..20).map(|number| series(&format!("n{number}"), number, &points, Style::Measured));
        let svg = chart(false, false, all.collect());
        let name = |text: &str| text.split("y=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let mut at: Vec<f64> = svg.split("class=\"name\"").skip(1).filter_map(name).collect();
        at.sort_by(f64::total_cmp);
        assert_eq!(at.len(), 20);
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= LINE - 0.11), "{at:?}");
        assert!(*at.last().unwrap() <= FLOOR + LINE, "{at:?}");
        let many = (0..30).map(|number| series("n", number, &points, Style::Measured));
        assert!(!chart(false, false, many.collect()).contains("class=\"name\""));
    }
}
