//! Results as text and as HTML: a comparison of policies over many traces, miss-ratio curves, and
//! memory shared among tenants.
//!
//! Not here: running simulations, files, and drawing (`octavo-draw`).

mod shares;
mod summary;

use octavo_draw::{Axis, Chart, Page, Style, Table, bytes, fraction, short};
pub use octavo_draw::{aligned, bytes as human_bytes};
pub use shares::{shares_html, shares_text, shares_toml};
pub use summary::{BASE, Comparison, Contestant, LIMIT, LeftOut, PAGES_MIN, Summary, compare, cut};

use crate::mrc::CurvePoint;
use crate::simulate::Row;

/// Names a policy and the ways of its sets: `lru/16`.
pub fn label((policy, ways): Contestant) -> String {
    ways.map_or_else(|| policy.to_owned(), |ways| format!("{policy}/{ways}"))
}

/// Formats the rows of a simulation as a table.
pub fn results_text(rows: &[Row]) -> String {
    let head = ["trace", "policy", "capacity", "pages", "requests", "misses", "miss ratio", "Mreq/s"];
    let mut table = Table::new(3, head);
    for row in rows {
        let speed = if row.seconds > 0.0 { row.requests as f64 / row.seconds / 1e6 } else { 0.0 };
        table.row([
            row.trace.clone(),
            label((row.policy, row.ways)),
            row.capacity.clone(),
            row.capacity_pages.to_string(),
            row.requests.to_string(),
            row.misses.to_string(),
            format!("{:.4}{}", row.miss_ratio, if row.complete { "" } else { " (interrupted)" }),
            format!("{speed:.1}"),
        ]);
    }
    table.text()
}

/// Formats a comparison as a table, followed by the points that were left out.
pub fn comparison_text(comparison: &Comparison) -> String {
    comparison_table(comparison).text() + &left_out_text(comparison)
}

fn left_out_text(comparison: &Comparison) -> String {
    if comparison.left_out.is_empty() {
        return String::new();
    }
    let name = |point: &LeftOut| format!("{} {} ({})", point.trace, point.capacity, point.asked_pages);
    let points: Vec<String> = comparison.left_out.iter().map(name).collect();
    format!("Left out, below {PAGES_MIN} pages: {}.\n", points.join(", "))
}

fn comparison_table(comparison: &Comparison) -> Table {
    let mut table = Table::new(1, ["policy", "cut", "worst", "rank", "gap to OPT", "points", "worst at"]);
    let optional = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    for summary in &comparison.summaries {
        table.row([
            label((summary.policy, summary.ways)),
            format!("{:.4}", summary.cut),
            format!("{:.3}", summary.cut_worst),
            optional(summary.rank, 2),
            optional(summary.gap, 4),
            summary.points.to_string(),
            format!("{} {}", summary.cut_worst_trace, summary.cut_worst_capacity),
        ]);
    }
    table
}

/// What the columns of a comparison mean.
const LEGEND: &str = "cut: the share of global LRU's misses that a policy avoids, (LRU \u{2212} P) / LRU; \
where it misses more, \u{2212}(P \u{2212} LRU) / P. The mean over all points (a trace at a capacity). \
worst: the lowest cut of a point. rank: the mean rank by misses among the policies that do not know the \
future. gap to OPT: the mean difference of the miss ratio from Belady's OPT. name/16: in sets of 16 pages; \
global-...: other authors' policies over the whole cache, for comparison.";

/// Draws the results and the comparison as one self-contained page.
pub fn html(title: &str, rows: &[Row], comparison: &Comparison) -> String {
    let contestants = contestants(rows, comparison);
    let mut page = Page::new(title);
    for contestant in &contestants {
        page.series(&label(*contestant));
    }
    if rows.iter().any(|row| !row.complete) {
        page.intro.warning("Interrupted: some traces were not read to their ends.");
    }
    if !comparison.summaries.is_empty() {
        page.intro.table(&comparison_table(comparison));
        page.intro.note(LEGEND);
        page.intro.note(&left_out_text(comparison));
    }
    for trace in in_order(rows.iter().map(|row| &*row.trace)) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == trace).collect();
        trace_section(&mut page, trace, &rows, &contestants);
    }
    page.html()
}

fn trace_section(page: &mut Page, trace: &str, rows: &[&Row], contestants: &[Contestant]) {
    let first = rows[0];
    let footprint = first.footprint_pages.map_or(String::new(), |pages| format!(" to {pages} pages"));
    let skipped = match first.skipped {
        0 => String::new(),
        count => format!(", {count} bad records skipped"),
    };
    let unfinished = if first.complete { "" } else { ", interrupted" };
    let caption =
        format!("{} accesses{footprint}{skipped}{unfinished}. Miss ratio by capacity.", first.requests);
    let capacities = in_order(rows.iter().map(|row| &*row.capacity));
    let columns = capacities.iter().flat_map(|capacity| [format!("misses at {capacity}"), "ratio".into()]);
    let mut table = Table::new(1, std::iter::once("policy".to_owned()).chain(columns));
    let mut curves = Vec::new();
    for contestant in contestants {
        let mut rows: Vec<&Row> =
            rows.iter().copied().filter(|row| (row.policy, row.ways) == *contestant).collect();
        rows.sort_by_key(|row| row.asked_pages);
        let cells = capacities.iter().flat_map(|capacity| {
            let row = rows.iter().find(|row| row.capacity == *capacity);
            row.map_or_else(Default::default, |row| {
                [row.misses.to_string(), format!("{:.4}", row.miss_ratio)]
            })
        });
        table.row(std::iter::once(label(*contestant)).chain(cells));
        let point = |row: &&Row| CurvePoint::new(row.capacity_pages, row.miss_ratio, 0.0);
        curves.push(Series { label: label(*contestant), points: rows.iter().map(point).collect() });
    }
    let svg = curves_svg(page, trace, &curves, None);
    page.body.figure(trace, &svg, &caption);
    page.body.details("Exact misses", false, |body| body.table(&table));
}

/// A miss-ratio curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name of the curve. Curves of several traces with one name have one colour.
    pub label: String,
    /// The points, in ascending order of capacity.
    pub points: Vec<CurvePoint>,
}

/// Draws miss-ratio curves as one self-contained page: a chart for each title.
pub fn curves_html(title: &str, note: &str, page_bytes: u64, curves: &[(String, Vec<Series>)]) -> String {
    let mut page = Page::new(title);
    page.intro.note(note);
    for (title, series) in curves {
        let svg = curves_svg(&mut page, title, series, Some(page_bytes));
        page.body.figure(title, &svg, "");
    }
    page.html()
}

/// Draws curves over capacity. The capacity is in bytes if `page_bytes` is known, else in pages.
fn curves_svg(page: &mut Page, title: &str, curves: &[Series], page_bytes: Option<u64>) -> String {
    let x = match page_bytes {
        Some(page_bytes) => {
            let title = format!("capacity, in pages of {}", bytes(page_bytes));
            Axis::new(title, |value| bytes(value as u64)).binary()
        }
        None => Axis::new("capacity, pages", short),
    };
    let scale = page_bytes.unwrap_or(1) as f64;
    let point = |point: &CurvePoint| {
        let error = point.error.unwrap_or(0.0);
        octavo_draw::Point {
            x: point.capacity_pages.max(1) as f64 * scale,
            y: point.miss_ratio,
            low: (point.miss_ratio - error).max(0.0),
            high: (point.miss_ratio + error).min(1.0),
        }
    };
    let series = curves.iter().map(|curve| octavo_draw::Series {
        number: page.series(&curve.label),
        label: curve.label.clone(),
        points: curve.points.iter().map(point).collect(),
        style: Style::Estimated,
    });
    let (title, y) = (format!("Miss ratio by capacity: {title}"), Axis::new("miss ratio", fraction));
    Chart { title, x: x.log(true), y, mark: None, series: series.collect() }.svg()
}

/// All contestants: first those in the comparison, in the order of their cuts, then the others in
/// the order of their rows.
fn contestants(rows: &[Row], comparison: &Comparison) -> Vec<Contestant> {
    let compared = comparison.summaries.iter().map(|summary| (summary.policy, summary.ways));
    in_order(compared.chain(rows.iter().map(|row| (row.policy, row.ways))))
}

/// Returns each item once, in the order of first appearance.
fn in_order<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_no_other_file_and_has_every_exact_count() {
        let mut rows = summary::tests::rows();
        rows[0].trace = "<a>".into();
        rows[1].misses = 123_456_789_012_345_678;
        let page = html("Suite", &rows, &compare(&rows));
        for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("&lt;a&gt;") && !page.contains("<a>"));
        assert!(page.contains("<td>123456789012345678</td>"));
        assert!(page.contains("Left out, below 64 pages: b 63p (63)."));
        assert_eq!(page.matches("<svg viewBox=\"0 0 760").count(), 3);
        for (open, close) in
            [("<table>", "</table>"), ("<details>", "</details>"), ("<g ", "</g>"), ("<figure>", "</figure>")]
        {
            assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
        }
    }

    #[test]
    fn columns_line_up_and_interrupted_runs_are_marked() {
        let mut rows = summary::tests::rows();
        let compared = compare(&rows);
        let text = comparison_text(&compared);
        assert!(text.lines().nth(1).unwrap().starts_with("global-opt   0.2500"), "{text}");
        assert!(text.contains("b 64p") && text.contains("Left out, below 64 pages: b 63p (63)"), "{text}");
        rows[2].complete = false;
        let text = results_text(&rows);
        assert!(text.contains("0.5000 (interrupted)") && text.contains("fifo/16"), "{text}");
        assert!(html("t", &rows, &compared).contains("Interrupted"));
    }

    #[test]
    fn a_curve_of_several_traces_has_one_entry_in_the_legend() {
        let points = || [1, 9].map(|pages| CurvePoint::new(pages, 0.5, 0.1)).to_vec();
        let series = || Series { label: "exact".into(), points: points() };
        let page = curves_html("t", "n", 4096, &[("a".into(), vec![series()]), ("b".into(), vec![series()])]);
        assert_eq!(page.matches("id=\"c0\"").count(), 1);
        assert_eq!(page.matches("<polygon").count(), 2);
    }
}
