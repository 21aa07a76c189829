//! Reports on sharing memory among tenants: the hit ratios of each way of sharing as text and HTML,
//! with the sizes over time, and the resulting partitions as TOML.

use std::fmt::Write;

use octavo_draw::{Axis, Chart, Page, Point, Series, Style, Table, bytes, short};

use crate::tenants::{Outcome, Sizes};

fn table(outcomes: &[Outcome]) -> Table {
    let tenants = outcomes.first().map_or(&[][..], |outcome| &outcome.tenants[..]);
    let columns = tenants.iter().flat_map(|tenant| [&*tenant.name, "pages", "size"]);
    let mut table = Table::new(1, ["shared", "hits", "hit ratio"].into_iter().chain(columns));
    for outcome in outcomes {
        let all = [outcome.way.to_owned(), outcome.hits.to_string(), format!("{:.4}", outcome.hit_ratio)];
        let each = outcome.tenants.iter().flat_map(|tenant| {
            let pages = tenant.pages.map_or("-".to_owned(), |pages| pages.to_string());
            [format!("{:.4}", tenant.hit_ratio), pages, tenant.pages_bytes.map_or("-".to_owned(), bytes)]
        });
        table.row(all.into_iter().chain(each));
    }
    table
}

/// Formats the ways of sharing as a table: the hits of all tenants, and each tenant's hit ratio and
/// pages.
pub fn shares_text(outcomes: &[Outcome]) -> String {
    table(outcomes).text()
}

/// Writes the partitions of a configuration file. Each tenant's `min` and `max` are the least and
/// the most memory that two plans gave it: the best fixed split, and the utility-based plan in the
/// second half of the run, after it had learned. Within these limits, the server moves memory as
/// the utility-based plan did. `metadata_bytes` is the metadata of one page.
pub fn shares_toml(outcomes: &[Outcome], page_bytes: u64, metadata_bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    // The least memory that a server moves at a time: a segment with its metadata, rounded up.
    const LEAST_MIB: u64 = 3;
    let of = |way| outcomes.iter().find(|outcome| outcome.way == way);
    let (Some(utility), Some(best)) = (of("utility"), of("hindsight")) else { return String::new() };
    let learned = &utility.sizes[utility.sizes.len() / 2..];
    let mut text = String::from("# Partitions for octavo.toml, by octavo plan.\n");
    for (number, tenant) in best.tenants.iter().enumerate() {
        let sizes = learned.iter().map(|sizes| sizes.pages[number]).chain(tenant.pages);
        let bytes = |pages: Option<u64>| pages.unwrap_or(0) * (page_bytes + metadata_bytes);
        let (min, max) = (bytes(sizes.clone().min()) / MIB, bytes(sizes.max()).div_ceil(MIB).max(LEAST_MIB));
        let name = quoted(&tenant.name);
        let _ = write!(text, "[[partition]]\nname = {name}\nmin = \"{min}MiB\"\nmax = \"{max}MiB\"\n");
    }
    text
}

/// Quotes `text` as a TOML string.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Explains the ways of sharing.
const LEGEND: &str = "unified: one cache for all tenants. equal: a partition of the same size for each. \
utility: partitions that are resized during the run; their pages are means over time. hindsight: the best \
fixed split, known only after the run.";

/// Draws the ways of sharing as one self-contained page, with the sizes over time.
pub fn shares_html(title: &str, outcomes: &[Outcome]) -> String {
    let mut page = Page::new(title);
    page.intro.table(&table(outcomes));
    page.intro.note(LEGEND);
    for tenant in outcomes.first().into_iter().flat_map(|outcome| &outcome.tenants) {
        page.series(&tenant.name);
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.sizes.is_empty()) {
        let names = outcome.tenants.iter().map(|tenant| &*tenant.name);
        page.body.figure(&format!("Sizes over time, {}", outcome.way), &over_time(&outcome.sizes, names), "");
    }
    page.html()
}

/// Draws the bytes of each tenant over the accesses so far. Tenant `n` is the page's series `n`.
fn over_time<'o>(sizes: &[Sizes], names: impl Iterator<Item = &'o str>) -> String {
    let series = names.enumerate().map(|(number, name)| {
        let point = |at: &Sizes| Point::exact(at.requests as f64, at.pages_bytes[number] as f64);
        let points = sizes.iter().map(point).collect();
        Series { label: name.into(), number, points, style: Style::Estimated }
    });
    Chart {
        title: "Sizes over time".into(),
        x: Axis::new("accesses of all tenants", short),
        y: Axis::new("size", |value| bytes(value as u64)).binary(),
        mark: None,
        series: series.collect(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::TenantOutcome;

    #[test]
    fn the_page_has_all_ways_of_sharing_and_escapes_names() {
        let tenant = |pages: Option<u64>| TenantOutcome {
            name: "a<b".into(),
            requests: 10,
            hits: 5,
            hit_ratio: 0.5,
            pages,
            pages_bytes: pages.map(|pages| pages * 4096),
        };
        let outcome = |way, pages, sizes| Outcome {
            kind: "plan",
            way,
            requests: 10,
            hits: 5,
            hit_ratio: 0.5,
            tenants: vec![tenant(pages)],
            sizes,
        };
        let sizes = vec![Sizes { requests: 5, pages: vec![7], pages_bytes: vec![28_672], moved: 0 }];
        let outcomes = [outcome("unified", None, Vec::new()), outcome("utility", Some(7), sizes)];
        let page = shares_html("t", &outcomes);
        assert!(page.contains("a&lt;b") && !page.contains("a<b") && page.contains("<polyline"), "{page}");
        assert!(!page.contains("NaN"), "{page}");
        let text = shares_text(&outcomes);
        assert!(
            text.contains("unified     5     0.5000  0.5000      -       -") && text.contains("28 KiB"),
            "{text}"
        );
    }
}
