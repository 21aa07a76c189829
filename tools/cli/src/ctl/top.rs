//! `octavo ctl top`: a live view of the partitions of a running server, side by side.
//!
//! It sends the requests `stat`, `partitions` and `mrc`, and computes rates from two samples; the
//! server has no verb for it. The first sample shows the figures since the server's start. `--once`
//! prints these as a table. Not here: the connection, which is in `connection`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use octavo_block::Class;
use octavo_share::Curve;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, TableState};
use serde_json::{Value, json};

use super::connection;
use super::tables::{resident, table};
use crate::control::protocol::{Request, Verb};
use crate::control::report::{PartitionReport, Report};
use crate::error::Error;
use crate::limits::NO_BOUND;
use crate::output;
use crate::units::{human_bytes, human_count, human_time, percent};

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(2);

/// How many miss ratios the sparkline of a partition shows.
const HISTORY: usize = 16;

/// Most partitions whose miss curve is requested per sample: each is a request of its own.
const CURVES_MAX: usize = 64;

/// A column: its title, the number that it is sorted by, and the text that it shows.
type Column = (&'static str, fn(&Shown) -> f64, fn(&Shown) -> String);

/// The columns, in their order. The first one is sorted by its text.
const COLUMNS: [Column; 14] = [
    ("PARTITION", |_| 0.0, |shown| shown.now.name.clone()),
    ("SIZE", |shown| shown.charged_bytes() as f64, |shown| human_bytes(shown.charged_bytes())),
    ("MIN", |shown| shown.limits[0] as f64, |shown| limit(shown.limits[0])),
    ("LOW", |shown| shown.limits[1] as f64, |shown| limit(shown.limits[1])),
    ("HIGH", |shown| shown.limits[2] as f64, |shown| limit(shown.limits[2])),
    ("MAX", |shown| shown.limits[3] as f64, |shown| limit(shown.limits[3])),
    ("HITS", |shown| shown.ratio("hits", "misses"), |shown| shown.percent("hits", "misses")),
    (MISS_RATIO, |shown| shown.ratio("misses", "hits"), |shown| sparkline(&shown.miss_ratios)),
    (
        "UTILITY",
        |shown| shown.utility.unwrap_or(-1.0),
        |shown| match shown.utility {
            Some(utility) => format!("{}/MiB", human_count(utility)),
            None => "-".into(),
        },
    ),
    (
        "AHEAD",
        |shown| shown.ratio("ahead_used", "ahead_wasted"),
        |shown| shown.percent("ahead_used", "ahead_wasted"),
    ),
    (
        "DIRTY",
        |shown| shown.now.figure("dirty_bytes") as f64,
        |shown| {
            let [dirty, most] =
                ["dirty_bytes", "dirty_max_bytes"].map(|name| human_bytes(shown.now.figure(name)));
            format!("{dirty} of {most}")
        },
    ),
    ("PRESSURE", Shown::evicted_per_s, |shown| format!("{}/s", human_count(shown.evicted_per_s()))),
    ("HIT P99", |shown| shown.p99_number(Class::Hit), |shown| shown.p99_text(Class::Hit)),
    ("MISS P99", |shown| shown.p99_number(Class::Miss), |shown| shown.p99_text(Class::Miss)),
];

const MISS_RATIO: &str = "MISS RATIO";

/// Asks the server.
pub type Ask<'a> = &'a dyn Fn(&Request) -> Result<Value, Error>;

/// The column that a word names. The error lists the known names.
pub fn column(word: &str) -> Result<usize, String> {
    let known = COLUMNS.map(|(title, ..)| if title == MISS_RATIO { "MISSES" } else { title });
    let is_meant = |name: &str| name.eq_ignore_ascii_case(word);
    let found = COLUMNS.iter().zip(known).position(|((title, ..), name)| is_meant(title) || is_meant(name));
    found.ok_or_else(|| format!("\"{word}\" is no column; known: {}", known.join(", ").to_lowercase()))
}

/// How the partitions are shown.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// On the terminal, until `q`.
    Screen,
    /// One table.
    Table,
    /// One JSON object.
    Json,
}

/// Shows the partitions, once or until `q`.
pub fn run(ask: Ask<'_>, form: Form, sort: usize) -> Result<(), Error> {
    let mut view = View { sort, ..View::default() };
    view.look(ask, Instant::now())?;
    match form {
        Form::Table => {
            let columns = COLUMNS.map(|(title, _, cell)| (title, cell));
            return output::text(&format!("{}\n\n{}", view.head, table(1, &columns, view.sorted())));
        }
        Form::Json => {
            let partitions: Vec<Value> = view.sorted().into_iter().map(Shown::json).collect();
            return output::text(&format!("{}\n", json!({"partitions": partitions})));
        }
        Form::Screen => {}
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Error::Usage("top needs a terminal; --once prints one table, --json one object".into()));
    }
    let failed = |error: std::io::Error| Error::failed(format!("terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = watch(&mut view, ask, &mut terminal);
    let restored = ratatui::try_restore().map_err(failed);
    shown.and(restored)
}

/// Draws the screen and handles keys, until one of them quits.
fn watch(view: &mut View, ask: Ask<'_>, terminal: &mut DefaultTerminal) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::failed(format!("terminal: {error}"));
    let mut next = Instant::now() + PERIOD;
    loop {
        terminal.draw(|frame| view.draw(frame)).map_err(failed)?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left).map_err(failed)? {
            if let Event::Key(key) = event::read().map_err(failed)?
                && key.kind == KeyEventKind::Press
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if control => return Ok(()),
                    KeyCode::Left | KeyCode::Char('<') => view.sort = view.sort.saturating_sub(1),
                    KeyCode::Right | KeyCode::Char('>') => view.sort = (view.sort + 1).min(COLUMNS.len() - 1),
                    KeyCode::Char('r') => view.reversed = !view.reversed,
                    KeyCode::Down | KeyCode::Char('j') => view.table.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => view.table.select_previous(),
                    KeyCode::PageDown => view.table.scroll_down_by(10),
                    KeyCode::PageUp => view.table.scroll_up_by(10),
                    _ => {}
                }
            }
        } else {
            view.look(ask, Instant::now())?;
            next = Instant::now() + PERIOD;
        }
    }
}

/// The state of the screen.
#[derive(Default)]
struct View {
    head: String,
    partitions: Vec<Shown>,
    /// When the last sample was taken.
    looked: Option<Instant>,
    sort: usize,
    reversed: bool,
    table: TableState,
}

/// A partition at two samples.
#[derive(Default)]
struct Shown {
    now: PartitionReport,
    then: PartitionReport,
    /// Seconds between them.
    elapsed: f64,
    /// `min`, `low`, `high`, `max`.
    limits: [u64; 4],
    /// The last first.
    miss_ratios: VecDeque<f64>,
    /// Recent misses that another MiB would have saved; `None`: the partition has no miss curve.
    utility: Option<f64>,
}

impl View {
    /// Asks the server, and compares with the last sample.
    fn look(&mut self, ask: Ask<'_>, now: Instant) -> Result<(), Error> {
        let answer = ask(&Request::new(Verb::Stat))?;
        let report: Report = serde_json::from_value(answer).map_err(connection::unreadable)?;
        let settings = ask(&Request::new(Verb::Partitions))?;
        let elapsed = match self.looked.replace(now) {
            Some(then) => now.duration_since(then).as_secs_f64(),
            None => report.uptime_s as f64,
        };
        let allowed_bytes = settings["reaper"]["allowed_bytes"].as_u64().unwrap_or(u64::MAX);
        self.head = head(&report, allowed_bytes);
        let mut before: HashMap<String, Shown> =
            self.partitions.drain(..).map(|shown| (shown.now.name.clone(), shown)).collect();
        for (at, partition) in report.partitions.into_iter().enumerate() {
            let named = |one: &&Value| one["name"] == partition.name.as_str();
            let limits = settings["partitions"].as_array().into_iter().flatten().find(named);
            let known = before.remove(&partition.name).unwrap_or_default();
            let name = Some(partition.name.clone());
            let mut shown = Shown::of(partition, known, limits, elapsed);
            if at < CURVES_MAX {
                // A partition without a miss curve, or one that was removed in the meantime, has
                // none.
                let curve = ask(&Request { partition: name, ..Request::new(Verb::Mrc) }).ok();
                shown.utility = curve.as_ref().and_then(utility);
            }
            self.partitions.push(shown);
        }
        Ok(())
    }

    /// The partitions in the chosen order.
    fn sorted(&self) -> Vec<&Shown> {
        let mut all: Vec<&Shown> = self.partitions.iter().collect();
        match COLUMNS[self.sort] {
            _ if self.sort == 0 => all.sort_by(|a, b| a.now.name.cmp(&b.now.name)),
            // Numbers: the largest first.
            (_, number, _) => all.sort_by(|a, b| number(b).total_cmp(&number(a))),
        }
        if self.reversed {
            all.reverse();
        }
        all
    }

    fn draw(&mut self, frame: &mut ratatui::Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Line::from(self.head.as_str()).bold(), head);
        let sorted = self.sorted();
        let cells: Vec<_> = sorted.iter().map(|shown| COLUMNS.map(|(.., cell)| cell(shown))).collect();
        let widths: Vec<Constraint> = (0..COLUMNS.len())
            .map(|column| cells.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
            .zip(COLUMNS)
            .map(|(width, (title, ..))| Constraint::Length(width.max(title.len()) as u16))
            .collect();
        let titles = COLUMNS.iter().enumerate().map(|(column, (title, ..))| {
            let style = if column == self.sort { Style::new().reversed() } else { Style::new().bold() };
            Cell::from(*title).style(style)
        });
        let rows = cells.into_iter().map(|cells| {
            Row::new(cells.into_iter().enumerate().map(|(column, cell)| match column {
                0 => Line::from(cell),
                _ => Line::from(cell).right_aligned(),
            }))
        });
        let table = Table::new(rows, widths)
            .header(Row::new(titles))
            .column_spacing(2)
            .row_highlight_style(Style::new().reversed());
        frame.render_stateful_widget(table, body, &mut self.table);
        let keys = "q quit   \u{2190} \u{2192} sort by   r reverse   \u{2191} \u{2193} scroll";
        frame.render_widget(Line::from(keys).dim(), foot);
    }
}

impl Shown {
    /// A partition now, compared with `known`, its state `elapsed` seconds ago.
    fn of(now: PartitionReport, known: Shown, limits: Option<&Value>, elapsed: f64) -> Shown {
        let limit = |(key, without): (&str, u64)| {
            // A limit that is not a number in the answer is not set.
            limits.and_then(|limits| limits[key].as_u64()).unwrap_or(without)
        };
        let limits = [("min", 0), ("low", 0), ("high", u64::MAX), ("max", u64::MAX)].map(limit);
        let Shown { now: then, miss_ratios, .. } = known;
        let mut shown = Shown { now, then, elapsed, limits, miss_ratios, utility: None };
        if shown.since("hits") + shown.since("misses") > 0 {
            shown.miss_ratios.push_front(shown.ratio("misses", "hits"));
            shown.miss_ratios.truncate(HISTORY);
        }
        shown
    }

    /// The figures of the columns, without rounding; null where there is none.
    fn json(&self) -> Value {
        let bound = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        let share = |part: &str, rest: &str| {
            let is_any = self.since(part) + self.since(rest) > 0;
            is_any.then(|| self.ratio(part, rest))
        };
        let [min, low, high, max] = self.limits;
        json!({
            "name": self.now.name,
            "charged_bytes": self.charged_bytes(),
            "min_bytes": min,
            "low_bytes": low,
            "high_bytes": bound(high),
            "max_bytes": bound(max),
            "hit_ratio": share("hits", "misses"),
            "misses_saved_per_mib": self.utility,
            "ahead_used_ratio": share("ahead_used", "ahead_wasted"),
            "dirty_bytes": self.now.figure("dirty_bytes"),
            "dirty_max_bytes": self.now.figure("dirty_max_bytes"),
            "evictions_per_s": self.evicted_per_s(),
            "hit_p99_ns": self.p99_ns(Class::Hit),
            "miss_p99_ns": self.p99_ns(Class::Miss),
        })
    }

    fn since(&self, name: &str) -> u64 {
        self.now.figure(name).saturating_sub(self.then.figure(name))
    }

    /// The figure `part` divided by the sum of the figures `part` and `rest`.
    fn ratio(&self, part: &str, rest: &str) -> f64 {
        let (part, rest) = (self.since(part), self.since(rest));
        part as f64 / (part + rest).max(1) as f64
    }

    fn percent(&self, part: &str, rest: &str) -> String {
        percent(self.since(part), self.since(part) + self.since(rest))
    }

    fn charged_bytes(&self) -> u64 {
        self.now.figure("charged_bytes")
    }

    /// Pages evicted per second for other pages, or by a resize.
    fn evicted_per_s(&self) -> f64 {
        let evicted = self.since("evictions_capacity") + self.since("evictions_resize");
        evicted as f64 / self.elapsed.max(1.0)
    }
}

impl Shown {
    /// The time that 99 % of the requests since the last sample did not exceed, for all exports of
    /// the partition: the end of a bucket. `None`: there was no request.
    fn p99_ns(&self, class: Class) -> Option<u64> {
        let mut buckets = BTreeMap::<u64, u64>::new();
        let mut each = |report: &PartitionReport, count: fn(&mut u64, u64)| {
            let shared = report.objects.iter().flat_map(|object| &object.exports);
            let own = report.objects.iter().map(|object| &object.latency);
            let all = own.chain(shared.map(|export| &export.latency));
            for times in all.filter_map(|latency| latency.get(class.name())) {
                times.buckets.iter().for_each(|(end, more)| count(buckets.entry(*end).or_default(), *more));
            }
        };
        each(&self.now, |sum, more| *sum += more);
        // An export that was removed and added again counts from 0.
        each(&self.then, |sum, more| *sum = sum.saturating_sub(more));
        let rank = (buckets.values().sum::<u64>() as f64 * 0.99).ceil() as u64;
        let mut below = 0;
        buckets.into_iter().find_map(|(end, count)| {
            below += count;
            (below >= rank && count > 0).then_some(end)
        })
    }

    fn p99_number(&self, class: Class) -> f64 {
        self.p99_ns(class).map_or(-1.0, |ns| ns as f64)
    }

    fn p99_text(&self, class: Class) -> String {
        self.p99_ns(class).map_or_else(|| "-".into(), human_time)
    }
}

fn limit(bytes: u64) -> String {
    if bytes == u64::MAX { NO_BOUND.into() } else { human_bytes(bytes) }
}

/// A line about the server.
fn head(report: &Report, allowed_bytes: u64) -> String {
    let cache = &report.cache;
    let pressure = match allowed_bytes < cache.memory_max_bytes {
        true => format!("; the system is short of memory: up to {} now", human_bytes(allowed_bytes)),
        false => String::new(),
    };
    format!(
        "octavo {}, {} partitions, {} connected; memory {} of {}{}{pressure}",
        report.version,
        report.partitions.len(),
        report.connections,
        human_bytes(cache.memory_charged_bytes),
        human_bytes(cache.memory_max_bytes),
        resident(report),
    )
}

/// Miss ratios from 0 to 1 as a sparkline, the oldest first.
fn sparkline(miss_ratios: &VecDeque<f64>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |ratio: &f64| BARS[((ratio.clamp(0.0, 1.0) * 8.0) as usize).min(7)];
    miss_ratios.iter().rev().map(bar).collect()
}

/// Recent misses that another MiB would have saved: the slope of the curve over the next eighth of
/// the size.
fn utility(answer: &Value) -> Option<f64> {
    let point = |point: &Value| Some((point["bytes"].as_u64()?, point["misses"].as_f64()?));
    let points: Vec<(u64, f64)> = answer["points"].as_array()?.iter().filter_map(point).collect();
    if points.is_empty() {
        return None;
    }
    let curve = Curve::new(answer["references"].as_f64()?, points);
    let size = answer["current_bytes"].as_u64()?;
    let more = (size / 8).max(1 << 20);
    let saved = curve.misses_at(size) - curve.misses_at(size + more);
    Some(saved / (more as f64 / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_utility_is_the_slope_of_the_curve() {
        let mib = 1u64 << 20;
        let points = [(0, 100), (8, 60), (16, 20)];
        let points = points.map(|(mibs, misses)| json!({"bytes": mibs * mib, "misses": misses}));
        let curve = json!({"references": 100, "current_bytes": 8 * mib, "points": points});
        assert_eq!(utility(&curve), Some(5.0));
        let full = json!({"references": 100, "current_bytes": 32 * mib, "points": points});
        assert_eq!(utility(&full), Some(0.0));
        assert_eq!(utility(&json!({"current_bytes": mib, "points": []})), None);
    }

    #[test]
    fn figures_since_the_last_sample_are_shown_and_sorted() {
        let report = |value| serde_json::from_value::<PartitionReport>(value).unwrap();
        let then = || report(json!({"hits": 100, "misses": 100}));
        let now = |name: &str, hits: u64, dirty_bytes: u64| {
            report(json!({"name": name, "hits": hits, "misses": 110, "dirty_bytes": dirty_bytes,
                          "evictions_capacity": 20}))
        };
        let shown = |now| Shown::of(now, Shown { now: then(), ..Shown::default() }, None, 2.0);
        let mut view = View {
            partitions: vec![shown(now("a", 190, 1)), shown(now("b", 130, 5)), shown(now("c", 110, 3))],
            ..View::default()
        };
        let cells = COLUMNS.map(|(.., cell)| cell(&view.partitions[0]));
        let mut names = |sort| {
            view.sort = sort;
            view.sorted().iter().map(|shown| &*shown.now.name).collect::<String>()
        };
        assert_eq!(names(column("dirty").unwrap()), "bca");
        assert_eq!(names(column("misses").unwrap()), "cba");
        assert_eq!(names(column("Partition").unwrap()), "abc");
        assert!(column("size of it").unwrap_err().contains("known: partition, size, min"));
        assert_eq!((cells[6].as_str(), cells[7].as_str(), cells[11].as_str()), ("90.0 %", "▁", "10/s"));
        assert_eq!((cells[5].as_str(), cells[12].as_str()), ("max", "-"));
    }

    #[test]
    fn the_99th_percentile_is_that_of_the_requests_since_the_last_sample() {
        let report = |buckets| {
            let miss = json!({"latency": {"miss": {"buckets": buckets}}});
            serde_json::from_value::<PartitionReport>(json!({"objects": [miss]})).unwrap()
        };
        let then = report(json!([[1000, 500], [8000, 100]]));
        let now = report(json!([[1000, 698], [2000, 1], [8000, 101]]));
        let shown = Shown { now, then, ..Shown::default() };
        assert_eq!((shown.p99_ns(Class::Miss), shown.p99_ns(Class::Hit)), (Some(1000), None));
        let slow = Shown { then: report(json!([[1000, 600]])), ..shown };
        assert_eq!(slow.p99_text(Class::Miss), "8.0 µs");
    }
}
