//! The page: its style, its blocks, and the legend that shows and hides series.

use std::fmt::Write;

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c1c1c; --faint: #6b6b6b; --rule: #dcdcdc; --paper: #fff; --light: 42%; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --faint: #9a9a9a; --rule: #3a3a3a; --paper: #161616; --light: 64%; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
p, summary, figcaption { max-width: 46rem; } .faint, figcaption { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child, .word { text-align: left; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; max-width: 56rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); }
.end { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: var(--rule); fill: none; }
.series { stroke: hsl(var(--hue) 70% var(--light)); fill: hsl(var(--hue) 70% var(--light));
  stroke-dasharray: var(--dash); }
.series polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.series circle, .series rect, .series text, .band { stroke: none; } .band { opacity: .18; }
.series:hover polyline { stroke-width: 4; }
svg .series text.name, svg text.group { font-weight: 600; }
svg .series text.name { fill: hsl(var(--hue) 70% var(--light)); }
.mark { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; }
.spread { stroke-width: 1; opacity: .6; } .whisker { stroke: var(--ink); opacity: .5; }
.fit polyline { stroke-dasharray: 2 4; opacity: .7; }
.legend { position: sticky; top: 0; background: var(--paper); padding: .4rem 0;
  border-bottom: 1px solid var(--rule); font-size: 13px; }
.legend label { display: inline-block; margin-right: .9rem; white-space: nowrap; }
.legend svg { width: 26px; height: 8px; vertical-align: middle; stroke-width: 2.5; }
";

/// Line styles that tell series of the same hue apart.
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// Escapes `text` for HTML, attributes included.
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

/// A report page. A series has one number, and so one colour and one checkbox, in all of its
/// charts.
#[derive(Debug, Default)]
pub struct Page {
    title: String,
    series: Vec<String>,
    /// The blocks above the legend.
    pub intro: Html,
    /// The blocks below the legend.
    pub body: Html,
}

impl Page {
    /// An empty page.
    pub fn new(title: &str) -> Page {
        Page { title: title.into(), ..Page::default() }
    }

    /// Returns the number of the series called `label`, and adds it to the legend if it is new.
    pub fn series(&mut self, label: &str) -> usize {
        self.series.iter().position(|known| known == label).unwrap_or_else(|| {
            self.series.push(label.to_owned());
            self.series.len() - 1
        })
    }

    /// The page as one HTML file.
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
            <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
            <title>{title}</title>\n<style>\n{STYLE}"
        );
        let hues = self.series.len().div_ceil(DASHES.len()).max(6);
        for number in 0..self.series.len() {
            let (hue, dash) = (number % hues * 360 / hues, DASHES[number / hues % DASHES.len()]);
            let _ = writeln!(
                page,
                ".s{number} {{ --hue: {hue}; --dash: {dash}; }} \
                body:has(#c{number}:not(:checked)) .series.s{number} {{ display: none; }}"
            );
        }
        let _ = write!(page, "</style>\n<h1>{title}</h1>\n{}\n<div class=\"legend\">", self.intro.0);
        for (number, label) in self.series.iter().enumerate() {
            let _ = writeln!(
                page,
                "<label><input type=\"checkbox\" id=\"c{number}\" checked> <svg viewBox=\"0 0 26 8\">\
                <path class=\"series s{number}\" style=\"display: inline\" d=\"M0 4H26\"/></svg> {}</label>",
                escaped(label)
            );
        }
        let _ = write!(page, "</div>\n{}</html>\n", self.body.0);
        page
    }
}

/// Blocks of a page, in order. All texts are escaped.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    /// Adds a paragraph in a weaker colour, for legends and notes.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p class=\"faint\">{}</p>", escaped(text));
    }

    /// Adds a bold paragraph.
    pub fn warning(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p><strong>{}</strong></p>", escaped(text));
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(text));
    }

    /// Adds a chart under a heading, with a caption if it is not empty.
    pub fn figure(&mut self, title: &str, svg: &str, caption: &str) {
        self.heading(title);
        let caption = match caption.trim() {
            "" => String::new(),
            text => format!("<figcaption>{}</figcaption>\n", escaped(text)),
        };
        let _ = writeln!(self.0, "<figure>\n{svg}{caption}</figure>");
    }

    /// Adds a table that scrolls sideways if it is wide.
    pub fn table(&mut self, table: &Table) {
        self.0.push_str("<div class=\"wide\"><table>\n");
        for (number, row) in table.rows.iter().enumerate() {
            let tag = if number == 0 { "th" } else { "td" };
            self.0.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let class = if column < table.words { " class=\"word\"" } else { "" };
                let _ = write!(self.0, "<{tag}{class}>{}</{tag}>", escaped(cell));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</table></div>\n");
    }

    /// Adds a bullet list.
    pub fn list(&mut self, items: &[String]) {
        let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
        let _ = writeln!(self.0, "<ul>\n{items}</ul>");
    }

    /// Adds blocks that the reader can fold away.
    pub fn details(&mut self, summary: &str, is_open: bool, blocks: impl FnOnce(&mut Html)) {
        let open = if is_open { " open" } else { "" };
        let _ = writeln!(self.0, "<details{open}><summary>{}</summary>", escaped(summary));
        blocks(self);
        self.0.push_str("</details>\n");
    }
}

/// A table. Its first row is the head; its first `words` columns are text, the others numbers.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    words: usize,
}

impl Table {
    /// A table with a head and no other row.
    pub fn new<S: Into<String>>(words: usize, head: impl IntoIterator<Item = S>) -> Table {
        Table { rows: vec![head.into_iter().map(Into::into).collect()], words }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as plain text in columns: text to the left, numbers to the right.
    pub fn text(&self) -> String {
        aligned(&self.rows, self.words)
    }
}

/// Formats rows as columns of equal width: the first `words` columns to the left, the others to the
/// right.
pub fn aligned(rows: &[Vec<String>], words: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths = (0..columns).map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0));
    let widths: Vec<usize> = widths.collect();
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
