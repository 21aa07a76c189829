//! The report of a day as an HTML page.

use octavo_draw::{Axis, Chart, Page, Point, Series, Style};

use super::report::Report;
use super::samples::Minute;

/// A curve's name, and its value in a minute.
type Curve = (&'static str, fn(&Minute) -> f64);

impl Report {
    /// Returns the report as a page that needs no other file.
    pub fn html(&self) -> String {
        let mut page = Page::new("A day in operation");
        page.intro.list(&self.facts());
        for (title, sentences) in [("Wrong blocks", &self.lost), ("Failed steps", &self.troubles)] {
            if !sentences.is_empty() {
                page.intro.warning(title);
                page.intro.list(sentences);
            }
        }
        let p99 = Axis::new("p99, microseconds", octavo_draw::short).log(true);
        self.figure(&mut page, "Times of requests", p99, &[("p99", |minute| minute.p99_us)]);
        let ratio = Axis::new("hits", octavo_draw::fraction);
        self.figure(&mut page, "Hit ratio", ratio, &[("hits", |minute| minute.hit_ratio)]);
        let bytes = Axis::new("bytes", |bytes| octavo_draw::bytes(bytes as u64)).binary();
        let curves: [Curve; 2] = [
            ("resident", |minute| minute.resident_max_bytes as f64),
            ("dirty", |minute| minute.dirty_max_bytes as f64),
        ];
        self.figure(&mut page, "Memory", bytes, &curves);
        page.body.heading("Times by phase and event");
        page.body.table(&self.times());
        page.body.heading("Events");
        page.body.table(&self.deeds());
        page.body.details("The server's warnings", false, |html| html.list(&self.server_warnings));
        page.html()
    }

    fn figure(&self, page: &mut Page, title: &str, y: Axis, curves: &[Curve]) {
        let curve = |page: &mut Page, (label, value): &Curve| Series {
            label: (*label).into(),
            number: page.series(label),
            points: self
                .minutes
                .iter()
                .map(|minute| Point::exact(minute.minute as f64, value(minute)))
                .collect(),
            style: Style::Measured,
        };
        let series = curves.iter().map(|one| curve(page, one)).collect();
        let x = Axis::new("minute", octavo_draw::short);
        let svg = Chart { title: title.into(), x, y, mark: None, series }.svg();
        page.body.figure(title, &svg, "");
    }
}
