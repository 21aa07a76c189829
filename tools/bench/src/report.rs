//! Rows: the figures of a case with everything that is needed to judge them, and the table of a
//! run.
//!
//! Not here: charts (`page.rs`).

use octavo_draw::{Table, nanoseconds, rate};
use serde::Serialize;

use crate::case::{Case, Clock, Value};
use crate::content::PAGE_BYTES;
use crate::machine;
use crate::statistics::{Spread, median, ratios};
use crate::turns::{Plan, Slices, Team};

/// The figures of a case. As JSON one object: these fields, the keys of the case, and the figures
/// of its driver.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the suite.
    pub suite: String,
    /// The name of the case.
    pub case: String,
    /// Operations per second of the first contestant: the median over its slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    /// The comparison of the first contestant with the reference.
    #[serde(flatten)]
    pub compared: Option<Compared>,
    /// The number of rounds.
    pub n: usize,
    /// The clock that slices were timed with.
    pub clock: &'static str,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// The figures of all contestants, in the order of the case.
    pub contestants: Vec<Standing>,
    /// The keys of the case.
    #[serde(flatten)]
    pub keys: Pairs,
    /// The figures and facts of the driver.
    #[serde(flatten)]
    pub facts: Pairs,
    /// The machine and the build.
    #[serde(flatten)]
    pub machine: Machine,
    /// Notes for the readers of this row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The comparison of the first contestant with the reference.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The contestant that the first one is compared with.
    pub reference: String,
    /// Operations per second of the reference.
    pub reference_ops_per_s: f64,
    /// The first contestant divided by the reference: the median over the rounds.
    pub ratio: f64,
    /// The lowest ratio of a round.
    pub ratio_min: f64,
    /// The highest ratio of a round.
    pub ratio_max: f64,
}

/// The figures of one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// The name of the contestant.
    pub name: String,
    /// Operations per second, over the slices.
    pub ops_per_s: Spread,
    /// The first contestant of the case divided by this one, over the rounds.
    pub ratio: Spread,
    /// The number of 4 KiB pages that an operation read from the store, as the kernel counts them
    /// for the process. `None` if they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_pages_per_op: Option<f64>,
    /// The median time of an operation, in nanoseconds. `None` if operations were not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// The 99th percentile, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// The 99.9th percentile, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
}

/// Names with their values, in order. As JSON a map.
#[derive(Clone, Debug, Default)]
pub struct Pairs(pub Vec<(&'static str, Value)>);

impl Serialize for Pairs {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The machine and the build of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The commit of the build.
    pub commit: &'static str,
    /// The compiler and flags of the build.
    pub flags: &'static str,
    /// The name of the processor.
    pub cpu: String,
    /// The number of processors that the process may use.
    pub cpus: usize,
    /// The release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Returns the facts about this machine and this build.
    pub fn this() -> Machine {
        Machine {
            commit: machine::COMMIT,
            flags: machine::FLAGS,
            cpu: machine::cpu(),
            cpus: machine::cpus(),
            kernel: machine::kernel(),
        }
    }

    /// Formats it as a line.
    pub fn line(&self) -> String {
        let Machine { commit, flags, cpu, cpus, kernel } = self;
        format!("commit {commit}, {cpus} x {cpu}, Linux {kernel}, {flags}")
    }
}

impl Row {
    /// Creates a row without figures.
    pub fn new(suite: &str, case: &Case) -> Row {
        let keys = Case::KEYS.iter().filter_map(|key| Some((*key, case.value(key)?)));
        Row {
            suite: suite.into(),
            case: case.name.clone(),
            ops_per_s: None,
            compared: None,
            n: 0,
            clock: "none",
            page_bytes: PAGE_BYTES,
            contestants: Vec::new(),
            keys: Pairs(keys.collect()),
            facts: Pairs::default(),
            machine: Machine::this(),
            notes: Vec::new(),
        }
    }

    /// Creates a row about one contestant of a case, without figures.
    pub fn of_contestant(suite: &str, case: &Case, name: &str) -> Row {
        let mut row = Row { case: format!("{}_{name}", case.name), ..Row::new(suite, case) };
        row.add("who", name);
        row
    }

    /// Adds the figures of `teams` from their `slices`, in the same order. The reference is the
    /// fastest of those that the case names.
    pub fn compare(&mut self, case: &Case, plan: Plan, teams: &[Team<'_>], slices: &[Slices]) {
        let names: Vec<&str> = teams.iter().map(|team| team.name).collect();
        self.compare_named(case, plan.pace.clock, &names, slices);
    }

    /// As [`compare`](Row::compare), for contestants that are not teams.
    pub fn compare_named(&mut self, case: &Case, clock: Clock, names: &[&str], slices: &[Slices]) {
        let Some(first) = slices.first() else { return };
        for (name, slices) in names.iter().zip(slices) {
            let percentile = |share| slices.times.as_ref().map(|times| times.percentile_ns(share));
            self.contestants.push(Standing {
                name: (*name).into(),
                ops_per_s: Spread::of(&slices.rates),
                ratio: Spread::of(&ratios(&first.rates, &slices.rates)),
                store_pages_per_op: None,
                p50_ns: percentile(0.5),
                p99_ns: percentile(0.99),
                p999_ns: percentile(0.999),
            });
        }
        self.ops_per_s = Some(median(&first.rates));
        self.n = first.rates.len();
        self.clock = clock.name();
        let named = self.contestants.iter().filter(|standing| case.reference.contains(&standing.name));
        let fastest = named.max_by(|a, b| a.ops_per_s.median.total_cmp(&b.ops_per_s.median));
        self.compared = fastest.map(|reference| Compared {
            reference: reference.name.clone(),
            reference_ops_per_s: reference.ops_per_s.median,
            ratio: reference.ratio.median,
            ratio_min: reference.ratio.min,
            ratio_max: reference.ratio.max,
        });
    }

    /// Returns the name of the contestant that the first one is compared with.
    pub fn reference(&self) -> Option<&str> {
        Some(&self.compared.as_ref()?.reference)
    }

    /// Adds a figure or a fact that the driver found.
    pub fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.0.push((name, value.into()));
    }

    /// Returns a figure by its name, for charts: a figure of the row, a key of the case, or a
    /// figure of the driver.
    pub fn figure(&self, name: &str) -> Option<f64> {
        match name {
            "ops_per_s" => self.ops_per_s,
            "ratio" => Some(self.compared.as_ref()?.ratio),
            _ => self.value(name)?.number(),
        }
    }

    /// Returns a key of the case, or a figure of the driver.
    pub fn value(&self, name: &str) -> Option<&Value> {
        let mut pairs = self.keys.0.iter().chain(&self.facts.0);
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the figures of a contestant.
    pub fn standing(&self, name: &str) -> Option<&Standing> {
        self.contestants.iter().find(|standing| standing.name == name)
    }
}

impl Standing {
    /// Returns a figure by its name: its value, and its lowest and highest value in any round.
    pub fn figure(&self, name: &str) -> Option<(f64, f64, f64)> {
        let alone = |figure: Option<f64>| figure.map(|figure| (figure, figure, figure));
        let spread = |spread: Spread| Some((spread.median, spread.min, spread.max));
        match name {
            "ops_per_s" => spread(self.ops_per_s),
            "ratio" => spread(self.ratio),
            "store_pages_per_op" => alone(self.store_pages_per_op),
            "p50_ns" => alone(self.p50_ns),
            "p99_ns" => alone(self.p99_ns),
            "p999_ns" => alone(self.p999_ns),
            _ => None,
        }
    }
}

/// Returns the table of all contestants of `rows`.
pub fn contestants(rows: &[Row]) -> Table {
    let any = |is: fn(&Standing) -> bool| rows.iter().any(|row| row.contestants.iter().any(is));
    let counted = any(|standing| standing.store_pages_per_op.is_some());
    let timed = any(|standing| standing.p99_ns.is_some());
    let mut head = vec!["case", "contestant", "ops/s", "+-", "ratio", "min", "max", "n"];
    head.extend(counted.then_some("pages/op"));
    head.extend(["p50", "p99", "p99.9"].into_iter().filter(|_| timed));
    let mut table = Table::new(2, head);
    for row in rows {
        for (number, standing) in row.contestants.iter().enumerate() {
            let is_reference = row.reference() == Some(&standing.name);
            let Standing { name, ops_per_s, ratio, store_pages_per_op, p50_ns, p99_ns, p999_ns } = standing;
            let mut line = vec![
                if number == 0 { row.case.clone() } else { String::new() },
                format!("{name}{}", if is_reference { " *" } else { "" }),
                rate(ops_per_s.median),
                format!("{:.1} %", 100.0 * ops_per_s.mad / ops_per_s.median.max(1e-9)),
            ];
            line.extend([ratio.median, ratio.min, ratio.max].map(|ratio| match number {
                0 => String::new(),
                _ => format!("{ratio:.3}"),
            }));
            line.push(ops_per_s.n.to_string());
            if counted {
                line.push(store_pages_per_op.map_or(String::new(), |pages| format!("{pages:.3}")));
            }
            if timed {
                line.extend([*p50_ns, *p99_ns, *p999_ns].map(|ns| ns.map_or(String::new(), nanoseconds)));
            }
            table.row(line);
        }
    }
    table
}

/// Returns the figures and facts of drivers: a line for each row that has some.
pub fn facts(rows: &[Row]) -> Vec<String> {
    let rows = rows.iter().filter(|row| !row.facts.0.is_empty() || !row.notes.is_empty());
    rows.map(|row| {
        let facts = row.facts.0.iter().map(|(name, value)| format!("{name} {value}"));
        format!("{}: {}", row.case, facts.chain(row.notes.iter().cloned()).collect::<Vec<_>>().join(", "))
    })
    .collect()
}

/// The meaning of the table's columns.
pub const LEGEND: &str = "ops/s: the median of n slices. +-: the median distance from it. ratio: the first \
contestant of a case divided by this one, slice by slice: the median of n rounds, with the lowest and the \
highest round. *: the reference, which is the fastest of those that the case names. pages/op: pages of \
4 KiB that an operation read from the store.";

/// Formats rows as a table for people.
pub fn table(title: &str, rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!("{title} ({})\n\n", first.machine.line());
    if rows.iter().any(|row| !row.contestants.is_empty()) {
        text += &contestants(rows).text();
        text += &format!("\n{LEGEND}\n\n");
    }
    for line in facts(rows) {
        text += &format!("{line}\n");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::Error;
    use crate::turns::{Pace, Worker};

    /// Returns a row for each of `cases`, as a run makes them.
    pub(crate) fn rows_of(cases: &[Case]) -> Vec<Row> {
        let plan = Plan::new(true, Default::default(), Pace::new(9.0, 120), 3);
        let slices = |rates: &[f64]| Slices { rates: rates.to_vec(), times: None };
        let never = |_| -> Result<Box<dyn Worker>, Error> { unreachable!("no contestant runs") };
        let teams = ["octavo", "plain", "prefetching"].map(|name| Team::boxed(name, never));
        let slices = [slices(&[1e6, 4e6, 2e6]), slices(&[4e6, 4e6, 4e6]), slices(&[1e6, 1e6, 1e6])];
        let row = |case| {
            let mut row = Row::new("hits", case);
            row.compare(case, plan, &teams, &slices);
            row.add("misses", 0u64);
            row
        };
        cases.iter().map(row).collect()
    }

    fn rows() -> Vec<Row> {
        let reference = ["plain", "prefetching"].map(String::from).to_vec();
        rows_of(&[Case { name: "single_128".into(), reference, ..Case::default() }])
    }

    #[test]
    fn a_rows_ratio_is_the_median_of_the_rounds_and_not_a_ratio_of_medians() {
        let row = &rows()[0];
        let compared = row.compared.as_ref().unwrap();
        assert_eq!((compared.ratio, compared.ratio_min, compared.ratio_max, row.n), (0.5, 0.25, 1.0, 3));
        assert_eq!((row.reference(), compared.reference_ops_per_s), (Some("plain"), 4e6));
        assert_eq!((row.figure("ops_per_s"), row.figure("misses")), (Some(2e6), Some(0.0)));
        assert_eq!(row.figure("bytes"), Some(128.0));
        assert_eq!(row.standing("prefetching").unwrap().figure("ratio"), Some((2.0, 1.0, 4.0)));
    }

    #[test]
    fn a_table_has_all_contestants_and_the_machine() {
        let text = table("Hits", &rows());
        for words in
            ["plain *", "0.500  0.250  1.000", "single_128: misses 0", "prefetching", "Linux", "opt-level"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(table("Hits", &[]), "");
    }
}
