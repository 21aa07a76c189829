//! What results say: a comparison of policies over many traces, as text, and as a page of HTML with
//! all curves.
//!
//! What is not here: running anything, and files.

pub mod page;
mod plot;
mod shares;
mod summary;
mod units;

use std::fmt::Write;

pub use plot::{Point, Series};
pub use shares::{shares_html, shares_text, shares_toml};
pub use summary::{BASE, Comparison, Contestant, LIMIT, LeftOut, PAGES_MIN, Summary, compare, cut};
pub use units::human_bytes;

use crate::simulate::Row;

/// A policy and the ways of its sets, in one word: `lru/16`.
pub fn label((policy, ways): Contestant) -> String {
    ways.map_or_else(|| policy.to_owned(), |ways| format!("{policy}/{ways}"))
}

/// Rows under each other for people: the first `words` columns to the left, numbers to the right.
pub fn aligned(rows: &[Vec<String>], words: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < words {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The rows for people.
pub fn results_text(rows: &[Row]) -> String {
    let head = ["trace", "policy", "capacity", "pages", "requests", "misses", "miss ratio", "Mreq/s"]
        .map(String::from);
    let mut lines = vec![head.to_vec()];
    for row in rows {
        let speed = if row.seconds > 0.0 { row.requests as f64 / row.seconds / 1e6 } else { 0.0 };
        lines.push(vec![
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
    aligned(&lines, 3)
}

/// The comparison for people.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut text = aligned(&comparison_rows(comparison), 1);
    text.push_str(&left_out_text(comparison));
    text
}

fn left_out_text(comparison: &Comparison) -> String {
    if comparison.left_out.is_empty() {
        return String::new();
    }
    let points = comparison
        .left_out
        .iter()
        .map(|point| format!("{} {} ({})", point.trace, point.capacity, point.asked_pages));
    let points: Vec<String> = points.collect();
    format!("Left out, below {PAGES_MIN} pages: {}.\n", points.join(", "))
}

fn comparison_rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let head = ["policy", "cut", "worst", "rank", "gap to OPT", "points", "worst at"].map(String::from);
    let optional = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    let lines = comparison.summaries.iter().map(|summary| {
        vec![
            label((summary.policy, summary.ways)),
            format!("{:.4}", summary.cut),
            format!("{:.3}", summary.cut_worst),
            optional(summary.rank, 2),
            optional(summary.gap, 4),
            summary.points.to_string(),
            format!("{} {}", summary.cut_worst_trace, summary.cut_worst_capacity),
        ]
    });
    std::iter::once(head.to_vec()).chain(lines).collect()
}

/// What the figures of a comparison are, for the page.
const LEGEND: &str = "<p class=\"faint\">cut: by how much of the misses of global LRU a policy has fewer, (LRU &minus; P) / LRU, where it has more \
&minus;(P &minus; LRU) / P; mean over all points (a trace at a capacity). worst: the lowest cut of a point. rank: the mean rank by \
misses among the policies that do not know the future. gap to OPT: how far the miss ratio lies above Belady's, in the mean. \
name/16: inside sets of 16 pages; global-...: other people's policies, for comparison, over the whole cache.</p>\n";

/// Everything, as a page that needs nothing else.
pub fn html(title: &str, rows: &[Row], comparison: &Comparison) -> String {
    let contestants = contestants(rows, comparison);
    let labels: Vec<String> = contestants.iter().copied().map(label).collect();
    let mut intro = String::new();
    if rows.iter().any(|row| !row.complete) {
        intro.push_str("<p><strong>Interrupted: some traces were not read to their ends.</strong></p>\n");
    }
    if !comparison.summaries.is_empty() {
        intro.push_str(&page::table(&comparison_rows(comparison), 1));
        intro.push_str(LEGEND);
        let _ = writeln!(intro, "<p class=\"faint\">{}</p>", page::escaped(&left_out_text(comparison)));
    }
    let mut body = String::new();
    for trace in in_order(rows.iter().map(|row| &*row.trace)) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == trace).collect();
        body.push_str(&trace_section(trace, &rows, &contestants));
    }
    page::page(title, &intro, &labels, &body)
}

fn trace_section(trace: &str, rows: &[&Row], contestants: &[Contestant]) -> String {
    let first = rows[0];
    let footprint = first.footprint_pages.map_or(String::new(), |pages| format!(" to {pages} pages"));
    let skipped = if first.skipped > 0 {
        format!(", {} bad records passed over", first.skipped)
    } else {
        String::new()
    };
    let unfinished = if first.complete { "" } else { ", interrupted" };
    let of = |contestant: Contestant| {
        let mut rows: Vec<&Row> =
            rows.iter().copied().filter(|row| (row.policy, row.ways) == contestant).collect();
        rows.sort_by_key(|row| row.asked_pages);
        rows
    };
    let series: Vec<Series> = contestants
        .iter()
        .enumerate()
        .map(|(number, contestant)| {
            let points = of(*contestant).into_iter().map(|row| Point {
                pages: row.capacity_pages as f64,
                miss_ratio: row.miss_ratio,
                error: 0.0,
            });
            Series { label: label(*contestant), number, points: points.collect() }
        })
        .collect();
    let capacities = in_order(rows.iter().map(|row| &*row.capacity));
    let mut lines = vec![vec!["policy".to_owned()]];
    lines[0].extend(capacities.iter().flat_map(|capacity| [format!("misses at {capacity}"), "ratio".into()]));
    for contestant in contestants {
        let rows = of(*contestant);
        let mut line = vec![label(*contestant)];
        for capacity in &capacities {
            let row = rows.iter().find(|row| row.capacity == *capacity);
            line.push(row.map_or(String::new(), |row| row.misses.to_string()));
            line.push(row.map_or(String::new(), |row| format!("{:.4}", row.miss_ratio)));
        }
        lines.push(line);
    }
    format!(
        "<h2>{}</h2>\n<figure>\n{}<figcaption>{} accesses{footprint}{skipped}{unfinished}. Miss ratio by capacity.</figcaption>\n</figure>\n\
        <details><summary>Exact misses</summary>\n{}</details>\n",
        page::escaped(trace),
        plot::svg(trace, &series, None),
        first.requests,
        page::table(&lines, 1)
    )
}

/// Curves of other sources as a page: titles with their series.
pub fn curves_html(title: &str, note: &str, page_bytes: u64, curves: &[(String, Vec<Series>)]) -> String {
    let mut labels: Vec<String> = Vec::new();
    for series in curves.iter().flat_map(|(_, series)| series) {
        labels.resize(labels.len().max(series.number + 1), String::new());
        labels[series.number].clone_from(&series.label);
    }
    let sections = curves.iter().map(|(title, series)| {
        format!(
            "<h2>{}</h2>\n<figure>\n{}</figure>\n",
            page::escaped(title),
            plot::svg(title, series, Some(page_bytes))
        )
    });
    let intro = format!("<p class=\"faint\">{}</p>", page::escaped(note));
    page::page(title, &intro, &labels, &sections.collect::<String>())
}

/// All contestants: those compared by rank of their cuts, then the others as they come.
fn contestants(rows: &[Row], comparison: &Comparison) -> Vec<Contestant> {
    let compared = comparison.summaries.iter().map(|summary| (summary.policy, summary.ways));
    in_order(compared.chain(rows.iter().map(|row| (row.policy, row.ways))))
}

/// Each once, in the order of first appearance.
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
    fn the_page_stands_alone_and_has_every_exact_count() {
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
        assert_eq!(page.matches("<svg viewBox=\"0 0 720").count(), 3);
        for (open, close) in
            [("<table>", "</table>"), ("<details>", "</details>"), ("<g ", "</g>"), ("<figure>", "</figure>")]
        {
            assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
        }
    }

    #[test]
    fn text_lines_up_and_says_what_was_interrupted() {
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
    fn a_page_of_curves_has_their_names_once() {
        let point = |pages| Point { pages, miss_ratio: 0.5, error: 0.1 };
        let series = || Series { label: "exact".into(), number: 0, points: vec![point(1.0), point(9.0)] };
        let page = curves_html("t", "n", 4096, &[("a".into(), vec![series()]), ("b".into(), vec![series()])]);
        assert_eq!(page.matches("id=\"c0\"").count(), 1);
        assert_eq!(page.matches("<polygon").count(), 2);
    }
}
