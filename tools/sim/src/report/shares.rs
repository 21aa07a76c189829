//! What tenants miss by how memory is shared out, as text, and as a page of HTML with the sizes
//! over time.

use std::fmt::Write;

use super::plot::{even_ticks, even_ticks_of_bytes, short};
use super::{aligned, human_bytes, page};
use crate::tenants::{Outcome, Sizes};

fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let names = outcomes.first().map_or(&[][..], |outcome| &outcome.tenants[..]);
    let mut head = vec!["shared".to_owned(), "hits".to_owned(), "hit ratio".to_owned()];
    head.extend(names.iter().flat_map(|tenant| [tenant.name.clone(), "pages".to_owned(), "size".to_owned()]));
    let lines = outcomes.iter().map(|outcome| {
        let mut line =
            vec![outcome.way.to_owned(), outcome.hits.to_string(), format!("{:.4}", outcome.hit_ratio)];
        line.extend(outcome.tenants.iter().flat_map(|tenant| {
            let pages = tenant.pages.map_or("-".to_owned(), |pages| pages.to_string());
            let bytes = tenant.pages_bytes.map_or("-".to_owned(), human_bytes);
            [format!("{:.4}", tenant.hit_ratio), pages, bytes]
        }));
        line
    });
    std::iter::once(head).chain(lines).collect()
}

/// The ways of sharing under each other: hits in all, and for each tenant his hit ratio and his
/// pages.
pub fn shares_text(outcomes: &[Outcome]) -> String {
    aligned(&rows(outcomes), 1)
}

/// The partitions of a configuration: each tenant's `min` and `max` are the least and the most that
/// the best split gave it, and the plan, once it had learned for half of the run. Between them the
/// server moves memory as it did here. `metadata_bytes` are those of a page.
pub fn shares_toml(outcomes: &[Outcome], page_bytes: u64, metadata_bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    // What a server moves at a time, with its metadata.
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

/// A string of TOML.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// The same as a page that needs nothing else, with the sizes over time.
pub fn shares_html(title: &str, outcomes: &[Outcome]) -> String {
    let intro = page::table(&rows(outcomes), 1)
        + "<p class=\"faint\">unified: one cache for all. equal: a partition of the same size for each. utility: partitions that are resized as it \
        goes; their pages are means over time. hindsight: the best split that stays, known when all is over.</p>\n";
    let names: Vec<String> = outcomes
        .first()
        .map_or(Vec::new(), |outcome| outcome.tenants.iter().map(|tenant| tenant.name.clone()).collect());
    let mut body = String::new();
    for outcome in outcomes.iter().filter(|outcome| !outcome.sizes.is_empty()) {
        let _ = write!(
            body,
            "<h2>Sizes over time, {}</h2>\n<figure>{}</figure>\n",
            outcome.way,
            over_time(&outcome.sizes, &names)
        );
    }
    page::page(title, &intro, &names, &body)
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 316.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 44.0;

/// Bytes of each tenant by accesses so far.
fn over_time(sizes: &[Sizes], names: &[String]) -> String {
    let most = sizes.iter().flat_map(|sizes| &sizes.pages_bytes).max().copied().unwrap_or(1).max(1) as f64;
    let end = sizes.last().map_or(1, |sizes| sizes.requests).max(1) as f64;
    let x = |requests: u64| LEFT + requests as f64 / end * (WIDTH - LEFT - 8.0);
    let y = |bytes: f64| HEIGHT - BOTTOM - bytes / most * (HEIGHT - BOTTOM - 8.0);
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Sizes over time\">\n");
    for bytes in even_ticks_of_bytes(most, 6) {
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{WIDTH}\"/><text class=\"end\" x=\"{1}\" y=\"{2:.1}\">{3}</text>",
            y(bytes),
            LEFT - 6.0,
            y(bytes) + 4.0,
            human_bytes(bytes as u64)
        );
    }
    for requests in even_ticks(end, 8) {
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{0:.1} 8V{1}\"/><text class=\"middle\" x=\"{0:.1}\" y=\"{2}\">{3}</text>",
            x(requests as u64),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            short(requests)
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">accesses of all tenants</text>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 8.0
    );
    for (number, name) in names.iter().enumerate() {
        let points = sizes
            .iter()
            .map(|sizes| format!("{:.1},{:.1}", x(sizes.requests), y(sizes.pages_bytes[number] as f64)));
        let _ = writeln!(
            svg,
            "<g class=\"series s{number}\"><title>{}</title><polyline points=\"{}\"/></g>",
            page::escaped(name),
            points.collect::<Vec<_>>().join(" ")
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::TenantOutcome;

    #[test]
    fn the_page_shows_all_and_trusts_no_name() {
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
