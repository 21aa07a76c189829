//! Suites: which cases to measure and which figures to draw, as TOML.
//!
//! ```toml
//! title = "Hits"                  # the title of the report
//! about = "..."                   # what the suite shows, and what it does not
//! [base]                          # the keys of all cases
//! driver = "hits"
//! contestants = ["octavo", "plain"]
//! reference = ["plain"]
//! [quick]                         # the keys of all cases in a quick run
//! memory = "16MiB"
//! [[case]]                        # an array of values stands for one case per value
//! name = "{call}_{bytes}"
//! call = ["single", "batch"]
//! bytes = [128, 4096]
//! [[figure]]                      # a chart of the rows
//! title = "Hits of 128 bytes"
//! cases = "*_128"
//! y = "ops_per_s"
//! ```
//!
//! Every error names its file and line. Not here: the keys of cases (`case.rs`).

use std::path::Path;

use serde::Deserialize;

use crate::case::{Case, CaseText};
use crate::drivers;
use crate::error::Error;

/// The built-in suites, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("hits", include_str!("../suites/hits.toml")),
    ("misses", include_str!("../suites/misses.toml")),
    ("pins", include_str!("../suites/pins.toml")),
    ("scaling", include_str!("../suites/scaling.toml")),
    ("churn", include_str!("../suites/churn.toml")),
    ("ycsb", include_str!("../suites/ycsb.toml")),
    ("resize", include_str!("../suites/resize.toml")),
    ("fit", include_str!("../suites/fit.toml")),
    ("writeback", include_str!("../suites/writeback.toml")),
    ("stores", include_str!("../suites/stores.toml")),
    ("paper", include_str!("../suites/paper.toml")),
    ("memory", include_str!("../suites/memory.toml")),
    ("nbd", include_str!("../suites/nbd.toml")),
    ("vhost", include_str!("../suites/vhost.toml")),
    ("fuse", include_str!("../suites/fuse.toml")),
    ("apps", include_str!("../suites/apps.toml")),
    ("numa", include_str!("../suites/numa.toml")),
    ("twins", include_str!("../suites/twins.toml")),
    ("partitions", include_str!("../suites/partitions.toml")),
];

/// The most cases of a suite. With a few arrays too many, a suite would take days to run.
const CASES_MAX: usize = 1000;

/// The longest file that is read as a suite.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Cases to measure and figures to draw.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The name in rows.
    pub name: String,
    /// The title of the report.
    pub title: String,
    /// What the suite shows, for people.
    pub about: String,
    /// The cases, in the order of the file.
    pub cases: Vec<Case>,
    /// The figures, in the order of the file.
    pub figures: Vec<Figure>,
}

/// A chart of some rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The title above the chart.
    pub title: String,
    /// The caption: what the chart shows, and what it does not show.
    #[serde(default)]
    pub about: String,
    /// A pattern of the names of cases; `*` stands for any characters. Default: all cases.
    #[serde(default = "all")]
    pub cases: String,
    /// The key on the horizontal axis. Default: none; the chart then has bars for each case.
    pub x: Option<String>,
    /// The figure that is drawn: `ops_per_s`, `ratio`, a percentile, or another figure of the rows.
    pub y: String,
    /// The title of the vertical axis. Default: `y`.
    pub y_title: Option<String>,
    /// The contestants to draw. Default: all.
    pub contestants: Option<Vec<String>>,
    /// Whether the horizontal axis is logarithmic. Default: no.
    #[serde(default)]
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic. Default: no.
    #[serde(default)]
    pub log_y: bool,
    /// The keys whose values distinguish the curves.
    #[serde(default)]
    pub series: Vec<String>,
    /// A line across the chart at this value: a goal, or a baseline.
    pub mark: Option<f64>,
    /// Whether to fit the universal scalability law to each curve over threads. Default: no.
    #[serde(default)]
    pub fit: bool,
}

fn all() -> String {
    "*".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteText {
    title: String,
    about: String,
    #[serde(default)]
    base: CaseText,
    #[serde(default)]
    quick: CaseText,
    case: Vec<toml::Spanned<CaseText>>,
    #[serde(default)]
    figure: Vec<toml::Spanned<Figure>>,
}

impl Suite {
    /// Returns the names of the built-in suites.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in suite by its name, or reads a suite from a file such as `./mine.toml`.
    pub fn find(name: &str, quick: bool) -> Result<Suite, Error> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Suite::parse(name, &format!("{name}.toml"), text, quick, &[]);
        }
        if !name.contains(['/', '.']) {
            let known: Vec<&str> = Suite::names().collect();
            return Err(Error::new(format!(
                "there is no suite \"{name}\"; there are {}, and files such as ./mine.toml",
                known.join(", ")
            )));
        }
        let path = Path::new(name);
        let length = std::fs::metadata(path).map_err(Error::at(name))?.len();
        if length > TEXT_BYTES_MAX {
            return Err(Error::new(format!(
                "{name}: {length} bytes are too long for a suite; at most {TEXT_BYTES_MAX} are possible"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(Error::at(name))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Suite::parse(&stem, name, &text, quick, &[])
    }

    /// Parses a suite. `file` is its name in errors; `rivals` are the names of contestants that the
    /// caller adds. If `quick` is set, the keys of the suite's table `quick` apply.
    pub fn parse(name: &str, file: &str, text: &str, quick: bool, rivals: &[&str]) -> Result<Suite, Error> {
        let parsed: SuiteText = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            Error::new(format!("{file}:{}: {}", line(text, at), error.message()))
        })?;
        let mut cases: Vec<Case> = Vec::new();
        for item in parsed.case {
            let at = item.span().start;
            let wrong = |what: String| Error::new(format!("{file}:{}: {what}", line(text, at)));
            let mut case = item.into_inner().or(&parsed.base);
            if quick {
                case = parsed.quick.clone().or(&case);
            }
            for case in case.cases() {
                if case.name.is_empty() {
                    return Err(wrong("this case has no name".into()));
                }
                if cases.iter().any(|other| other.name == case.name) {
                    return Err(wrong(format!(
                        "two cases are called \"{}\"; put {{key}} of what differs into the name",
                        case.name
                    )));
                }
                drivers::check(&case, rivals).map_err(wrong)?;
                cases.push(case);
                if cases.len() > CASES_MAX {
                    return Err(wrong(format!("more than {CASES_MAX} cases")));
                }
            }
        }
        let known = [Case::KEYS, drivers::FACTS].concat();
        let mut figures = Vec::new();
        for item in parsed.figure {
            let at = item.span().start;
            let figure = item.into_inner();
            let wrong = |what: String| Err(Error::new(format!("{file}:{}: {what}", line(text, at))));
            if let Some(key) = figure.x.iter().chain(&figure.series).find(|key| !known.contains(&&***key)) {
                return wrong(format!("{key} is no key of a case; the keys are {}", Case::KEYS.join(", ")));
            }
            // A quick suite can have fewer cases.
            if !quick && !cases.iter().any(|case| matches(&figure.cases, &case.name)) {
                return wrong(format!("no case is called \"{}\"", figure.cases));
            }
            figures.push(figure);
        }
        Ok(Suite { name: name.into(), title: parsed.title, about: parsed.about, cases, figures })
    }
}

fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

impl Suite {
    /// Returns a case of a quick built-in suite, with a small memory.
    #[cfg(test)]
    pub fn quick_case(suite: &str, name: &str) -> Case {
        let suite = Suite::find(suite, true).unwrap();
        let case = suite.cases.iter().find(|case| case.name == name);
        case.unwrap_or_else(|| panic!("{name} is no case")).clone().with_memory_bytes(8 << 20)
    }

    /// Keeps the cases that the user names: by a pattern, or by the first words of names (`fio` for
    /// `fio_random_50`). If `names` is empty, keeps all that do not have to be named.
    pub fn retain(&mut self, names: &[String]) {
        let is_named = |case: &Case| {
            names.iter().any(|name| {
                let rest = case.name.strip_prefix(&**name);
                matches(name, &case.name) || rest.is_some_and(|rest| rest.starts_with('_'))
            })
        };
        self.cases.retain(|case| if names.is_empty() { !case.by_name } else { is_named(case) });
    }

    /// Returns the same cases with another size of the cache's frames, in bytes.
    pub fn with_memory_bytes(mut self, bytes: u64) -> Result<Suite, Error> {
        for case in &mut self.cases {
            *case = case.clone().with_memory_bytes(bytes);
            drivers::check(case, &[]).map_err(|what| Error::new(format!("{}: {what}", case.name)))?;
        }
        Ok(self)
    }
}

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "\
title = \"T\"
about = \"a\"
[base]
driver = \"hits\"
contestants = [\"octavo\", \"plain\"]
reference = [\"plain\"]
[quick]
memory = \"16MiB\"
[[case]]
name = \"{call}_{bytes}_{threads}\"
call = [\"single\", \"batch\"]
bytes = [128, 4096]
threads = [1, \"1x\", \"2x\"]
[[figure]]
title = \"F\"
x = \"threads\"
y = \"ops_per_s\"
";

    fn parse(text: &str) -> Result<Suite, String> {
        Suite::parse("s", "s.toml", text, false, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn every_built_in_suite_parses_quick_and_slow() {
        for name in Suite::names() {
            for quick in [false, true] {
                let suite = Suite::find(name, quick).unwrap();
                assert!(!suite.cases.is_empty() && !suite.about.is_empty(), "{name}");
                assert!(!suite.figures.is_empty(), "{name} draws nothing");
            }
        }
    }

    #[test]
    fn arrays_stand_for_all_combinations_and_equal_numbers_of_threads_for_one_case() {
        let suite = parse(SMALL).unwrap();
        let threads = 2 + usize::from(crate::machine::cpus() > 1);
        assert_eq!(suite.cases.len(), 4 * threads);
        assert_eq!(suite.cases[0].name, "single_128_1");
        assert_eq!(suite.cases[0].memory.0, 1 << 30);
        let quick = Suite::parse("s", "s.toml", SMALL, true, &[]).unwrap();
        assert_eq!(quick.cases[0].memory.0, 16 << 20);
    }

    #[test]
    fn cases_are_chosen_by_patterns_and_by_first_words() {
        let chosen = |names: &[&str]| {
            let mut suite = parse(&SMALL.replace("threads = [1, \"1x\", \"2x\"]", "threads = 1")).unwrap();
            suite.cases[0].by_name = true;
            suite.retain(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
            suite.cases.into_iter().map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), ["single_4096_1", "batch_128_1", "batch_4096_1"]);
        assert_eq!(chosen(&["single"]), ["single_128_1", "single_4096_1"]);
        assert_eq!(chosen(&["*_128_1", "batch_4096_1"]), ["single_128_1", "batch_128_1", "batch_4096_1"]);
        assert!(chosen(&["sing", "batch_"]).is_empty());
    }

    #[test]
    fn errors_name_their_file_and_line() {
        for (from, to, expected) in [
            ("memory = \"16MiB\"", "memry = \"16MiB\"", "s.toml:8: unknown field `memry`"),
            ("memory = \"16MiB\"", "memory = \"16XB\"", "s.toml:8: unknown unit \"XB\""),
            ("[128, 4096]", "[128, 100]", "s.toml:9: "),
            ("[128, 4096]", "[]", "s.toml:12: an array without values"),
            ("\"2x\"", "\"twice\"", "s.toml:13: \"twice\": threads are"),
            ("\"batch\"]", "\"bach\"]", "s.toml:11: \"bach\" is none of single, batch"),
            ("[\"plain\"]", "[\"plane\"]", "s.toml:9: there is no contestant \"plane\""),
            ("_{threads}", "", "s.toml:9: two cases are called \"single_128\""),
            ("x = \"threads\"", "x = \"thread\"", "s.toml:14: thread is no key"),
            ("x = \"threads\"", "cases = \"no*\"", "s.toml:14: no case is called"),
            ("driver = \"hits\"", "workload = \"zipff\"", "s.toml:4: "),
            ("title = \"T\"", "title = ", "s.toml:1: "),
        ] {
            let text = SMALL.replacen(from, to, 1);
            assert_ne!(text, SMALL, "{from}");
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(expected), "{to}: {error}");
        }
        assert!(Suite::find("hit", false).unwrap_err().to_string().contains("there are hits, misses"));
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        assert!(
            matches("*", "") && matches("a*c", "abbc") && matches("*_128", "batch_128") && matches("a", "a")
        );
        assert!(!matches("a*c", "abcd") && !matches("a", "ab") && matches("a*b*c", "a-b-b-c"));
    }
}
