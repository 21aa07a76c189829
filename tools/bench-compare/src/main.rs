//! Benchmarks of other authors' caches beside Octavo, in Octavo's drivers:
//! `cargo run --release -- [--quick] [--json FILE] [--html FILE]`.
//!
//! Each cache has its recommended settings. All of them copy the bytes of pages out, as a reader of
//! a page cache needs. Rows that Octavo loses are shown like all others. Not here: the drivers and
//! the report (`tools/bench`), and the rivals (`rivals.rs`).

mod rivals;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use octavo_bench::{Begun, Listener, Options, Progress, Row, Suite};

const USAGE: &str = "\
octavo-bench-compare [--case PATTERN] [--json FILE] [--html FILE] [--quick] [--seconds N] [--file PATH]

  --case PATTERN  run only cases whose names match; * stands for any characters
  --json FILE     write a JSON object per case and line; - is standard output
  --html FILE     write a page with charts and tables
  --quick         only see that everything works; the figures mean nothing
  --seconds N     time to measure each case for [default: what the suite says]
  --file PATH     files to make on a disk: this and others with this prefix; they must not exist, and
                  are removed [default: in the directory for temporary files]";

const SUITE: &str = include_str!("../suites/compare.toml");

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Arguments {
    case: Option<String>,
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    quick: bool,
    seconds: Option<u64>,
    file: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n\n{USAGE}"));
            match &*word {
                "--quick" => arguments.quick = true,
                "--case" => arguments.case = Some(value()?),
                "--json" => arguments.json = Some(value()?.into()),
                "--html" => arguments.html = Some(value()?.into()),
                "--file" => arguments.file = Some(value()?.into()),
                "--seconds" => {
                    let seconds =
                        value()?.parse().map_err(|_| "--seconds needs a whole number".to_owned())?;
                    arguments.seconds = Some(seconds);
                }
                _ => return Err(format!("unknown argument {word}\n\n{USAGE}")),
            }
        }
        Ok(arguments)
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let rivals = rivals::all();
    let names: Vec<&str> = rivals.iter().map(|rival| rival.name()).collect();
    let suite = Suite::parse("compare", "suites/compare.toml", SUITE, arguments.quick, &names);
    let mut suite = suite.map_err(|error| error.to_string())?;
    if let Some(pattern) = &arguments.case {
        suite.cases.retain(|case| octavo_bench::matches(pattern, &case.name));
    }
    let own = || std::env::temp_dir().join(format!("octavo-bench-compare-{}", std::process::id()));
    let options = Options {
        quick: arguments.quick,
        time: arguments.seconds.map(Duration::from_secs),
        file: arguments.file.clone().unwrap_or_else(own),
        program: None,
        stop: Default::default(),
        rivals,
    };
    let mut printer = Printer { rows: Vec::new(), warnings: Vec::new(), progress: Progress::new(false) };
    octavo_bench::run(&suite, &options, &mut printer).map_err(|error| error.to_string())?;
    printer.progress.clear();
    if let Some(path) = &arguments.html {
        let page = octavo_bench::html(&suite, &printer.rows, &printer.warnings);
        std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let lines = || {
        printer.rows.iter().map(|row| serde_json::to_string(row).expect("a row is names and numbers") + "\n")
    };
    match &arguments.json {
        None => print!("{}", octavo_bench::table(&suite.title, &printer.rows)),
        Some(path) if path.as_os_str() == "-" => print!("{}", lines().collect::<String>()),
        Some(path) => {
            let text: String = lines().collect();
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

struct Printer {
    rows: Vec<Row>,
    warnings: Vec<String>,
    progress: Progress,
}

impl Listener for Printer {
    fn begins(&mut self, case: &Begun) {
        self.progress.begins(case);
    }

    fn row(&mut self, row: &Row) {
        self.rows.push(row.clone());
    }

    fn progress(&mut self, news: &str) {
        self.progress.news(news);
    }

    fn warning(&mut self, warning: &str) {
        self.progress.clear();
        eprintln!("warning: {warning}");
        self.warnings.push(warning.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_parses_and_runs_all_rivals() {
        let rivals = rivals::all();
        let names: Vec<&str> = rivals.iter().map(|rival| rival.name()).collect();
        for quick in [false, true] {
            let suite = Suite::parse("compare", "compare.toml", SUITE, quick, &names).unwrap();
            let run = |name: &str| {
                suite.cases.iter().any(|case| case.contestants.iter().any(|known| known == name))
            };
            assert!(names.iter().all(|name| run(name)), "a rival that never runs");
        }
    }

    #[test]
    fn known_arguments_are_parsed_and_others_are_refused() {
        let parse = |words: &[&str]| Arguments::parse(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(
            parse(&["--quick", "--seconds", "3"]).ok().and_then(|arguments| arguments.seconds),
            Some(3)
        );
        assert!(parse(&["--json"]).is_err() && parse(&["--fast"]).is_err());
    }
}
