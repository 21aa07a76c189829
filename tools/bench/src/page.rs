//! A run as one self-contained HTML page: the charts of the suite's figures, then all values.

use octavo_draw::{Axis, Bar, Bars, Chart, Page, Point, Series, Style, nanoseconds, rate, short};

use crate::report::{self, Row};
use crate::statistics::Scalability;
use crate::suite::{Figure, Suite, matches};

/// Draws the page of a suite's rows.
pub fn html(suite: &Suite, rows: &[Row], warnings: &[String]) -> String {
    let mut page = Page::new(&suite.title);
    page.intro.paragraph(suite.about.trim());
    if let Some(row) = rows.first() {
        page.intro.note(&row.machine.line());
    }
    warnings.iter().for_each(|warning| page.intro.warning(warning));
    for figure in &suite.figures {
        if let Some((svg, note)) = draw(figure, rows, &mut page) {
            page.body.figure(&figure.title, &svg, &format!("{} {note}", figure.about.trim()));
        }
    }
    page.body.heading("All figures");
    page.body.table(&report::contestants(rows));
    page.body.note(report::LEGEND);
    let facts = report::facts(rows);
    if !facts.is_empty() {
        page.body.details("Other figures and notes", true, |body| body.list(&facts));
    }
    page.html()
}

/// Returns the values of a row that a figure shows, with the names of their contestants.
fn values(figure: &Figure, row: &Row) -> Vec<(String, Point)> {
    let wanted = |name: &String| figure.contestants.as_ref().is_none_or(|names| names.contains(name));
    let point = |(y, low, high)| Point { x: 0.0, y, low, high };
    // A ratio belongs to the case: the first contestant divided by the reference.
    if figure.y == "ratio" {
        let standing = row.reference().and_then(|name| row.standing(name));
        let ratio = standing.and_then(|standing| standing.figure("ratio")).map(point);
        let first = row.contestants.first().map_or(String::new(), |first| first.name.clone());
        return ratio.into_iter().map(|ratio| (first.clone(), ratio)).collect();
    }
    let of = |standing: &report::Standing| Some((standing.name.clone(), point(standing.figure(&figure.y)?)));
    let found: Vec<(String, Point)> =
        row.contestants.iter().filter(|standing| wanted(&standing.name)).filter_map(of).collect();
    match found.is_empty() {
        true => row.figure(&figure.y).map(|y| (String::new(), point((y, y, y)))).into_iter().collect(),
        false => found,
    }
}

/// Returns the name of a curve: the contestant, and the values of the keys that tell curves apart.
fn label(figure: &Figure, row: &Row, contestant: &str) -> String {
    // Of a generator's line, the name contains only the kind.
    let short = |value: String| value.split(':').next().map(str::to_owned);
    let keys = figure.series.iter().filter_map(|key| short(row.value(key)?.to_string()));
    let mut words: Vec<String> = keys.collect();
    if !contestant.is_empty() && (figure.y != "ratio" || words.is_empty()) {
        words.insert(0, contestant.to_owned());
    }
    if words.is_empty() { figure.y.clone() } else { words.join(" ") }
}

/// Draws a figure. Returns the chart and a note for its caption, or `None` if no row has a value.
fn draw(figure: &Figure, rows: &[Row], page: &mut Page) -> Option<(String, String)> {
    let rows: Vec<&Row> = rows.iter().filter(|row| matches(&figure.cases, &row.case)).collect();
    let title = figure.title.clone();
    let y_title = figure.y_title.as_ref().unwrap_or(&figure.y);
    let y = Axis::new(y_title, format_of(&figure.y)).log(figure.log_y);
    let Some(x) = &figure.x else {
        let groups: Vec<(String, Vec<Bar>)> = rows
            .into_iter()
            .map(|row| (row.case.clone(), bars(figure, row, page)))
            .filter(|(_, bars)| !bars.is_empty())
            .collect();
        let is_empty = groups.is_empty();
        let svg = Bars { title, axis: y, mark: figure.mark, groups }.svg();
        return (!is_empty).then_some((svg, String::new()));
    };
    let mut curves: Vec<Series> = Vec::new();
    for row in rows {
        let Some(x) = row.value(x).and_then(|value| value.number()) else { continue };
        for (name, value) in values(figure, row) {
            let label = label(figure, row, &name);
            let point = Point { x, ..value };
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => {
                    let number = page.series(&label);
                    curves.push(Series { label, number, points: vec![point], style: Style::Measured });
                }
            }
        }
    }
    if curves.is_empty() {
        return None;
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    let note = if figure.fit { fit(&mut curves) } else { String::new() };
    let x = Axis::new(x, short).log(figure.log_x);
    Some((Chart { title, x, y, mark: figure.mark, series: curves }.svg(), note))
}

fn bars(figure: &Figure, row: &Row, page: &mut Page) -> Vec<Bar> {
    let bar = |(name, value): (String, Point)| {
        let label = if name.is_empty() { figure.y.clone() } else { name };
        Bar { number: page.series(&label), label, value }
    };
    values(figure, row).into_iter().map(bar).collect()
}

/// Fits the universal scalability law to each curve, and adds the fit as a curve. Returns a note
/// with its parameters.
fn fit(curves: &mut Vec<Series>) -> String {
    let mut notes = Vec::new();
    for curve in curves.clone() {
        let points: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.x, point.y)).collect();
        let Some(law) = Scalability::fit(&points) else { continue };
        let (serial, crosstalk) = (law.serial, law.crosstalk);
        notes.push(format!("{}: serial share {serial:.4}, crosstalk {crosstalk:.5}", curve.label));
        let (first, last) = (points[0].0, points[points.len() - 1].0);
        let steps = (0..=40).map(|step| first + (last - first) * f64::from(step) / 40.0);
        let points = steps.map(|x| Point::exact(x, law.at(x))).collect();
        let label = format!("{}, fit", curve.label);
        curves.push(Series { label, points, style: Style::Fitted, ..curve });
    }
    match notes.is_empty() {
        true => String::new(),
        false => format!(
            "Dotted: the universal scalability law, fitted to the measured points. It is no measurement, and \
            does not predict more threads than were run. {}.",
            notes.join("; ")
        ),
    }
}

fn format_of(key: &str) -> fn(f64) -> String {
    match key {
        "ops_per_s" => |per_s| rate(per_s).replace(".00 ", " "),
        key if key.ends_with("_ns") => nanoseconds,
        _ => short,
    }
}

#[cfg(test)]
mod tests {
    use octavo_draw::assert_well_formed;

    use super::*;
    use crate::report::tests::rows_of;

    #[test]
    fn the_page_needs_no_other_file_and_has_a_chart_for_each_figure_and_all_values() {
        let mut suite = Suite::find("hits", true).unwrap();
        suite.about = "a < b".into();
        let rows = rows_of(&suite.cases[..3]);
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
            page.split("<figure>\n").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect();
        assert_eq!(pictures.len(), suite.figures.len());
        pictures.into_iter().for_each(assert_well_formed);
        for words in ["2.00 M", "prefetching", "single_128: misses 0", "plain *"] {
            assert!(page.contains(words), "{words}");
        }
    }

    #[test]
    fn a_fit_is_drawn_and_described_as_a_fit() {
        let law = Scalability { single: 1e6, serial: 0.1, crosstalk: 0.01 };
        let points = [1.0, 2.0, 4.0, 8.0].map(|x| Point::exact(x, law.at(x))).to_vec();
        let mut curves = vec![Series { label: "octavo".into(), number: 0, points, style: Style::Measured }];
        let note = fit(&mut curves);
        assert!(
            note.contains("serial share 0.1000, crosstalk 0.01000") && note.contains("no measurement"),
            "{note}"
        );
        assert!(curves[1].style == Style::Fitted && curves[1].points.len() == 41);
        let (x, y) = (Axis::new("x", short), Axis::new("y", short));
        assert_well_formed(&Chart { title: "t".into(), x, y, mark: None, series: curves }.svg());
    }
}
