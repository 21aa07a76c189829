//! A run as one page of HTML that needs nothing else: pictures first, tables below them. Light or
//! dark as the reader's system is.

use std::fmt::Write;

use octavo_sim::report::page::{escaped, page, table};

use crate::chart::{self, Axis, Bar, Curve, Point};
use crate::report::{self, Row};
use crate::statistics::Scalability;
use crate::suite::{Figure, Suite, matches};

/// What pictures need beside the style that all pages share.
const STYLE: &str = "<style>
.series rect, .series text { stroke: none; } svg .series text.name, svg text.group { font-weight: 600; }
svg .series text.name { fill: hsl(var(--hue) 70% var(--light)); }
.mark { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; } .spread { stroke-width: 1; opacity: .6; } .whisker { stroke: var(--ink); opacity: .5; }
.fit polyline { stroke-dasharray: 2 4; opacity: .7; }
</style>
";

/// The page of a suite's rows.
pub fn html(suite: &Suite, rows: &[Row], warnings: &[String]) -> String {
    let mut series = Series::default();
    let mut body = String::new();
    for figure in &suite.figures {
        let picture = draw(figure, rows, &mut series);
        let Some((svg, note)) = picture else { continue };
        let about = escaped(figure.about.trim());
        let _ = writeln!(
            body,
            "<h2>{}</h2>\n<figure>\n{svg}<figcaption>{about} {note}</figcaption>\n</figure>",
            escaped(&figure.title)
        );
    }
    let _ = writeln!(body, "<h2>All figures</h2>\n{}", table(&report::lines(rows), 2));
    let _ = writeln!(body, "<p class=\"faint\">{}</p>", escaped(report::LEGEND));
    let facts = report::facts(rows);
    if !facts.is_empty() {
        let items: String = facts.iter().map(|fact| format!("<li>{}</li>\n", escaped(fact))).collect();
        let _ = writeln!(
            body,
            "<details open><summary>What else was found</summary>\n<ul>\n{items}</ul></details>"
        );
    }
    let mut intro = format!("{STYLE}<p>{}</p>\n", escaped(suite.about.trim()));
    if let Some(row) = rows.first() {
        let _ = writeln!(intro, "<p class=\"faint\">{}</p>", escaped(&row.machine.line()));
    }
    for warning in warnings {
        let _ = writeln!(intro, "<p><strong>{}</strong></p>", escaped(warning));
    }
    page(&suite.title, &intro, &series.0, &body)
}

/// The names of a page's series, in order of their first use.
#[derive(Default)]
struct Series(Vec<String>);

impl Series {
    fn number(&mut self, label: &str) -> usize {
        let known = self.0.iter().position(|known| known == label);
        known.unwrap_or_else(|| {
            self.0.push(label.to_owned());
            self.0.len() - 1
        })
    }
}

/// A value of a row for a figure: a contestant's name, and the value.
fn values(figure: &Figure, row: &Row) -> Vec<(String, Point)> {
    let wanted =
        |name: &str| figure.contestants.as_ref().is_none_or(|names| names.iter().any(|known| known == name));
    let point = |(y, low, high)| Point { x: 0.0, y, low, high };
    // A ratio belongs to the case: the first contestant through its reference.
    if figure.y == "ratio" {
        let standing = row.reference.as_ref().and_then(|name| row.standing(name));
        let point = standing.and_then(|standing| standing.figure("ratio")).map(point);
        let first = row.contestants.first().map_or(String::new(), |first| first.name.clone());
        return point.into_iter().map(|point| (first.clone(), point)).collect();
    }
    let of = |standing: &report::Standing| Some((standing.name.clone(), point(standing.figure(&figure.y)?)));
    let told: Vec<(String, Point)> =
        row.contestants.iter().filter(|standing| wanted(&standing.name)).filter_map(of).collect();
    if !told.is_empty() {
        return told;
    }
    row.figure(&figure.y).map(|y| (String::new(), point((y, y, y)))).into_iter().collect()
}

/// What a curve is called: who, and the values of the keys that make curves.
fn label(figure: &Figure, row: &Row, contestant: &str) -> String {
    // Of a line of a generator, its kind.
    let short = |value: String| value.split(':').next().map(str::to_owned);
    let keys = figure.series.iter().filter_map(|key| short(row.value(key)?.to_string()));
    let mut words: Vec<String> = keys.collect();
    if !contestant.is_empty() && (figure.y != "ratio" || words.is_empty()) {
        words.insert(0, contestant.to_owned());
    }
    if words.is_empty() { figure.y.clone() } else { words.join(" ") }
}

/// A figure's picture and what is to be said below it; None without anything to draw.
fn draw(figure: &Figure, rows: &[Row], series: &mut Series) -> Option<(String, String)> {
    let rows: Vec<&Row> = rows.iter().filter(|row| matches(&figure.cases, &row.case)).collect();
    let y = Axis {
        title: figure.y_title.clone().unwrap_or_else(|| figure.y.clone()),
        log: figure.log_y,
        format: format_of(&figure.y),
    };
    let Some(x) = &figure.x else {
        let mut groups = Vec::new();
        for row in rows {
            let bars: Vec<Bar> = values(figure, row)
                .into_iter()
                .map(|(name, value)| {
                    let label = if name.is_empty() { figure.y.clone() } else { name };
                    Bar { number: series.number(&label), label, value }
                })
                .collect();
            if !bars.is_empty() {
                groups.push((row.case.clone(), bars));
            }
        }
        return (!groups.is_empty())
            .then(|| (chart::bars(&figure.title, &y, figure.mark, &groups), String::new()));
    };
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows {
        let Some(at) = row.value(x).and_then(|value| value.number()) else { continue };
        for (name, value) in values(figure, row) {
            let label = label(figure, row, &name);
            let point = Point { x: at, ..value };
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => {
                    let number = series.number(&label);
                    curves.push(Curve { label, number, points: vec![point], is_fit: false });
                }
            }
        }
    }
    if curves.is_empty() {
        return None;
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    let mut note = String::new();
    if figure.fit {
        note = fit(&mut curves);
    }
    let x = Axis { title: x.clone(), log: figure.log_x, format: short };
    Some((chart::curves(&figure.title, &x, &y, figure.mark, &curves), note))
}

/// Adds the law that fits each curve, and says what it says.
fn fit(curves: &mut Vec<Curve>) -> String {
    let mut notes = Vec::new();
    for curve in curves.clone() {
        let points: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.x, point.y)).collect();
        let Some(law) = Scalability::fit(&points) else { continue };
        notes.push(format!(
            "{}: serial share {:.4}, crosstalk {:.5}",
            escaped(&curve.label),
            law.serial,
            law.crosstalk
        ));
        let (first, last) = (points[0].0, points[points.len() - 1].0);
        let steps = (0..=40).map(|step| first + (last - first) * f64::from(step) / 40.0);
        let points = steps.map(|x| {
            let y = law.at(x);
            Point { x, y, low: y, high: y }
        });
        curves.push(Curve {
            label: format!("{}, fit", curve.label),
            points: points.collect(),
            is_fit: true,
            ..curve
        });
    }
    match notes.is_empty() {
        true => String::new(),
        false => format!(
            "Dotted: the universal scalability law fitted to the measured points, which is no measurement and says nothing of more threads than were run. {}.",
            notes.join("; ")
        ),
    }
}

fn format_of(key: &str) -> fn(f64) -> String {
    match key {
        "ops_per_s" => |rate| report::rate(rate).replace(".00 ", " "),
        key if key.ends_with("_ns") => |ns| report::time(Some(ns)),
        _ => short,
    }
}

/// A number in few letters.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e5 => report::rate(value),
        v if v >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::tests::assert_well_formed;

    #[test]
    fn the_page_stands_alone_with_a_picture_for_each_figure_and_all_values() {
        let mut suite = Suite::find("hits", true).unwrap();
        suite.about = "a < b".into();
        let rows = report::tests::rows();
        let page = html(&suite, &rows, &["only & half".into()]);
        for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(
            page.contains("prefers-color-scheme: dark")
                && page.contains("a &lt; b")
                && page.contains("only &amp; half")
        );
        let pictures: Vec<&str> =
            page.split("<figure>\n").skip(1).map(|rest| rest.split("<figcaption>").next().unwrap()).collect();
        assert_eq!(pictures.len(), suite.figures.len());
        pictures.into_iter().for_each(assert_well_formed);
        for words in ["2.00 M", "prefetching", "single_128: misses 0", "plain *"] {
            assert!(page.contains(words), "{words}");
        }
    }

    #[test]
    fn a_fit_is_drawn_as_one_and_called_one() {
        let law = Scalability { single: 1e6, serial: 0.1, crosstalk: 0.01 };
        let points = [1.0, 2.0, 4.0, 8.0].map(|x| Point { x, y: law.at(x), low: 0.0, high: 0.0 }).to_vec();
        let mut curves = vec![Curve { label: "octavo".into(), number: 0, points, is_fit: false }];
        let note = fit(&mut curves);
        assert!(
            note.contains("serial share 0.1000, crosstalk 0.01000") && note.contains("no measurement"),
            "{note}"
        );
        assert!(curves[1].is_fit && curves[1].points.len() == 41);
        assert_well_formed(&chart::curves(
            "t",
            &Axis { title: "x".into(), log: false, format: short },
            &Axis { title: "y".into(), log: false, format: short },
            None,
            &curves,
        ));
    }
}
