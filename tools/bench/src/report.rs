//! Rows: what a case measured and all that is needed to judge it; and the table for people.
//!
//! What is not here: pictures (`page.rs`).

use serde::Serialize;

use crate::case::{Case, Value};
use crate::content::PAGE_BYTES;
use crate::machine;
use crate::statistics::{Spread, median, ratios};
use crate::turns::{Plan, Slices, Team};

/// A case's figures. Serialised, it is one object: its own keys, those of the case, and what the
/// driver found.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The suite.
    pub suite: String,
    /// The case.
    pub case: String,
    /// Operations per second of the first contestant: the median of its slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    /// Whom it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Operations per second of that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_ops_per_s: Option<f64>,
    /// The one through the other: the median over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The least ratio of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_min: Option<f64>,
    /// The greatest ratio of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_max: Option<f64>,
    /// Rounds.
    pub n: usize,
    /// What time is measured with.
    pub clock: &'static str,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// What everybody did who ran, in their order.
    pub contestants: Vec<Standing>,
    /// The keys of the case.
    #[serde(flatten)]
    pub keys: Pairs,
    /// What the driver adds.
    #[serde(flatten)]
    pub facts: Pairs,
    /// Where and with what it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// For people: what they should know about this row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What one contestant did.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// Who.
    pub name: String,
    /// Operations per second, over the slices.
    pub ops_per_s: Spread,
    /// The first contestant of the case through this one, over the rounds.
    pub ratio: Spread,
    /// Pages of 4 KiB read of the store for each operation, as the kernel counts them for the
    /// process; where they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_pages_per_op: Option<f64>,
    /// The time that half of the operations did not exceed, in nanoseconds; where they were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// And of 99 in a hundred,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// and of 999 in a thousand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
}

/// Names with their values, in order; serialised as a map.
#[derive(Clone, Debug, Default)]
pub struct Pairs(pub Vec<(&'static str, Value)>);

impl Serialize for Pairs {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Where a run was made, and with what.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// What the program was built from.
    pub commit: &'static str,
    /// How it was built.
    pub flags: &'static str,
    /// The processor.
    pub cpu: String,
    /// How many of them this process may use.
    pub cpus: usize,
    /// The kernel.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        Machine {
            commit: machine::COMMIT,
            flags: machine::FLAGS,
            cpu: machine::cpu(),
            cpus: machine::cpus(),
            kernel: machine::kernel(),
        }
    }

    /// In a line.
    pub fn line(&self) -> String {
        let Machine { commit, flags, cpu, cpus, kernel } = self;
        format!("commit {commit}, {cpus} x {cpu}, Linux {kernel}, {flags}")
    }
}

impl Row {
    /// A row without figures yet.
    pub fn new(suite: &str, case: &Case) -> Row {
        let keys = Case::KEYS.iter().filter_map(|key| Some((*key, case.value(key)?)));
        Row {
            suite: suite.into(),
            case: case.name.clone(),
            ops_per_s: None,
            reference: None,
            reference_ops_per_s: None,
            ratio: None,
            ratio_min: None,
            ratio_max: None,
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

    /// Adds what contestants did; `teams` and `slices` go together. The reference is the fastest of
    /// those that the case names.
    pub fn compare(&mut self, case: &Case, plan: Plan, teams: &[&dyn Team], slices: &[Slices]) {
        let Some(first) = slices.first() else { return };
        for (team, slices) in teams.iter().zip(slices) {
            let percentile = |share| slices.times.as_ref().map(|times| times.percentile_ns(share));
            self.contestants.push(Standing {
                name: team.name().into(),
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
        self.clock = plan.clock.name();
        let named = self.contestants.iter().filter(|standing| case.reference.contains(&standing.name));
        let Some(reference) = named.max_by(|a, b| a.ops_per_s.median.total_cmp(&b.ops_per_s.median)) else {
            return;
        };
        self.reference = Some(reference.name.clone());
        self.reference_ops_per_s = Some(reference.ops_per_s.median);
        let ratio = reference.ratio;
        (self.ratio, self.ratio_min, self.ratio_max) = (Some(ratio.median), Some(ratio.min), Some(ratio.max));
    }

    /// Adds something that was found.
    pub fn fact(&mut self, name: &'static str, value: Value) {
        self.facts.0.push((name, value));
    }

    /// A count that was found.
    pub fn count(&mut self, name: &'static str, count: u64) {
        self.fact(name, Value::Count(count));
    }

    /// A number that was found.
    pub fn number(&mut self, name: &'static str, number: f64) {
        self.fact(name, Value::Number(number));
    }

    /// A figure of the row by its name, for pictures: its own, the case's or the driver's.
    pub fn figure(&self, name: &str) -> Option<f64> {
        match name {
            "ops_per_s" => self.ops_per_s,
            "ratio" => self.ratio,
            _ => self.value(name)?.number(),
        }
    }

    /// A key of the case, or what the driver found.
    pub fn value(&self, name: &str) -> Option<&Value> {
        let mut pairs = self.keys.0.iter().chain(&self.facts.0);
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The standing of a contestant.
    pub fn standing(&self, name: &str) -> Option<&Standing> {
        self.contestants.iter().find(|standing| standing.name == name)
    }
}

impl Standing {
    /// A figure by its name, and how far it spreads.
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

/// Rows as people read them, in lines of cells: the first line is the head, the first two cells of
/// each are words.
pub fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let any = |is: fn(&Standing) -> bool| rows.iter().any(|row| row.contestants.iter().any(is));
    let counted = any(|standing| standing.store_pages_per_op.is_some());
    let timed = any(|standing| standing.p99_ns.is_some());
    let mut head = vec!["case", "contestant", "ops/s", "+-", "ratio", "min", "max", "n"];
    if counted {
        head.push("pages/op");
    }
    if timed {
        head.extend(["p50", "p99", "p99.9"]);
    }
    let mut lines = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    for row in rows {
        for (number, standing) in row.contestants.iter().enumerate() {
            let is_reference = row.reference.as_ref() == Some(&standing.name);
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
                line.extend([*p50_ns, *p99_ns, *p999_ns].map(time));
            }
            lines.push(line);
        }
    }
    lines
}

/// What drivers found, a line for each row that they said something of.
pub fn facts(rows: &[Row]) -> Vec<String> {
    let told = rows.iter().filter(|row| !row.facts.0.is_empty() || !row.notes.is_empty());
    told.map(|row| {
        let facts = row.facts.0.iter().map(|(name, value)| format!("{name} {value}"));
        format!("{}: {}", row.case, facts.chain(row.notes.iter().cloned()).collect::<Vec<_>>().join(", "))
    })
    .collect()
}

/// What the columns are.
pub const LEGEND: &str = "ops/s: median of n slices; +-: median distance from it. ratio: the first contestant of a case through this one, \
slice by slice of n rounds, with the least and the greatest round. *: the reference, which is the fastest of those that the case names. pages/op: pages of 4 KiB that it read of the store for each operation.";

/// Rows as people read them.
pub fn table(title: &str, rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!("{title} ({})\n\n", first.machine.line());
    if rows.iter().any(|row| !row.contestants.is_empty()) {
        text += &octavo_sim::report::aligned(&lines(rows), 2);
        text += &format!("\n{LEGEND}\n\n");
    }
    for line in facts(rows) {
        text += &format!("{line}\n");
    }
    text
}

/// Operations per second for people: `12.34 M`.
pub fn rate(ops_per_s: f64) -> String {
    match ops_per_s {
        r if r >= 1e9 => format!("{:.2} G", r / 1e9),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r if r >= 100.0 || r == r.trunc() => format!("{r:.0}"),
        r => format!("{r:.3}"),
    }
}

/// A time for people.
pub fn time(ns: Option<f64>) -> String {
    match ns {
        None => String::new(),
        Some(ns) if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        Some(ns) if ns >= 1e4 => format!("{:.1} us", ns / 1e3),
        Some(ns) => format!("{ns:.0} ns"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Error;
    use crate::suite::Suite;
    use crate::turns::Worker;

    /// A contestant that has only a name.
    struct Name(&'static str);

    impl Team for Name {
        fn name(&self) -> &str {
            self.0
        }

        fn worker<'t>(&'t self, _: usize) -> Result<Box<dyn Worker + 't>, Error> {
            unreachable!("nobody runs")
        }
    }

    /// Three rows as a run makes them.
    pub(crate) fn rows() -> Vec<Row> {
        let suite = Suite::find("hits", true).unwrap();
        let plan = Plan::new(true, Default::default(), Default::default(), 3);
        let slices = |rates: &[f64]| Slices { rates: rates.to_vec(), times: None };
        let mut rows = Vec::new();
        for case in &suite.cases[..3] {
            let mut row = Row::new("hits", case);
            row.compare(
                case,
                plan,
                &[&Name("octavo"), &Name("plain"), &Name("prefetching")],
                &[slices(&[1e6, 4e6, 2e6]), slices(&[4e6, 4e6, 4e6]), slices(&[1e6, 1e6, 1e6])],
            );
            row.count("misses", 0);
            rows.push(row);
        }
        rows
    }

    #[test]
    fn a_rows_ratio_is_the_median_of_the_rounds_and_not_a_ratio_of_medians() {
        let row = &rows()[0];
        let ratios = (row.ratio, row.ratio_min, row.ratio_max, row.n);
        assert_eq!(ratios, (Some(0.5), Some(0.25), Some(1.0), 3));
        assert_eq!((row.reference.as_deref(), row.reference_ops_per_s), (Some("plain"), Some(4e6)));
        assert_eq!((row.figure("ops_per_s"), row.figure("misses")), (Some(2e6), Some(0.0)));
        assert_eq!(row.figure("bytes"), Some(128.0));
        assert_eq!(row.standing("prefetching").unwrap().figure("ratio"), Some((2.0, 1.0, 4.0)));
    }

    #[test]
    fn a_table_has_everybody_and_the_machine() {
        let text = table("Hits", &rows());
        for words in
            ["plain *", "0.500  0.250  1.000", "single_128: misses 0", "prefetching", "Linux", "opt-level"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(table("Hits", &[]), "");
    }
}
