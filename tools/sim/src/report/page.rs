//! A page of HTML that needs nothing else: its style lies in it, and it has no script. Light or
//! dark as the reader's system is.

use std::fmt::Write;

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c1c1c; --faint: #6b6b6b; --rule: #dcdcdc; --paper: #fff; --light: 42%; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --faint: #9a9a9a; --rule: #3a3a3a; --paper: #161616; --light: 64%; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
p, summary, figcaption { max-width: 46rem; } .faint, figcaption { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child, .word { text-align: left; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; max-width: 56rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--rule); fill: none; }
.series { stroke: hsl(var(--hue) 70% var(--light)); fill: hsl(var(--hue) 70% var(--light)); stroke-dasharray: var(--dash); }
.series polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .series circle { stroke: none; } .band { stroke: none; opacity: .18; }
.series:hover polyline { stroke-width: 4; }
.legend { position: sticky; top: 0; background: var(--paper); padding: .4rem 0; border-bottom: 1px solid var(--rule); font-size: 13px; }
.legend label { display: inline-block; margin-right: .9rem; white-space: nowrap; }
.legend svg { width: 26px; height: 8px; vertical-align: middle; stroke-width: 2.5; }
";

/// Dashes of the line: those of a page's series that share a hue differ in them.
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// Text that may stand anywhere in HTML, also in an attribute.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A page with a legend of its series, which can be switched off one by one; `body` follows it.
pub fn page(title: &str, intro: &str, series: &[String], body: &str) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}"
    );
    let hues = series.len().div_ceil(DASHES.len()).max(6);
    for number in 0..series.len() {
        let _ = writeln!(
            page,
            ".s{number} {{ --hue: {}; --dash: {}; }} body:has(#c{number}:not(:checked)) .series.s{number} {{ display: none; }}",
            number % hues * 360 / hues,
            DASHES[number / hues % DASHES.len()]
        );
    }
    let _ = write!(page, "</style>\n<h1>{title}</h1>\n{intro}\n<div class=\"legend\">");
    for (number, label) in series.iter().enumerate() {
        let _ = writeln!(
            page,
            "<label><input type=\"checkbox\" id=\"c{number}\" checked> \
            <svg viewBox=\"0 0 26 8\"><path class=\"series s{number}\" style=\"display: inline\" d=\"M0 4H26\"/></svg> {}</label>",
            escaped(label)
        );
    }
    let _ = write!(page, "</div>\n{body}</html>\n");
    page
}

/// A table: the first row is its head, and so many columns at the left are words.
pub fn table(rows: &[Vec<String>], words: usize) -> String {
    let mut table = String::from("<div class=\"wide\"><table>\n");
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        table.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = if column < words { " class=\"word\"" } else { "" };
            let _ = write!(table, "<{tag}{class}>{}</{tag}>", escaped(cell));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</table></div>\n");
    table
}
