//! What the subcommands that run over traces have in common: which traces, where results go, news for a terminal, and interruption.
//!
//! What is not here: what is done with the traces.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use octavo_sim::plan::Policy;
use octavo_sim::simulate::{Progress, Step, Trace, WAYS};
use octavo_sim::trace::{self, Format};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::config::suggest;
use crate::error::Error;
use crate::output;
use crate::trace::Reading;

/// Which traces to read, and how.
#[derive(Args)]
pub struct Traces {
    /// Traces: files, `-` for standard input, or `gen:SPEC` for generated accesses
    #[arg(long = "trace", value_name = "FILE", num_args = 1..)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// Standard input, which can be read only once.
const STANDARD_INPUT: &str = "-";

impl Traces {
    /// The traces to open, each with a name of its own. `folder`: all files in it whose names tell their format.
    pub fn all(&self, folder: Option<&Path>) -> Result<Vec<Trace<'static>>, Error> {
        let mut paths = self.paths.clone();
        if let Some(folder) = folder {
            paths.extend(recognised(folder)?);
        }
        if paths.is_empty() {
            return Err(Error::Usage("no trace is given; use --trace FILE".into()));
        }
        refuse_twice("trace", paths.iter().map(|path| path.display().to_string()))?;
        let options = self.reading.options();
        let traces = paths.iter().map(|path| {
            let opened = path.clone();
            Trace { name: name(path, &paths), open: Box::new(move || trace::open(&opened, &options)) }
        });
        Ok(traces.collect())
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.reading.options().page_bytes
    }

    /// Refuses standard input where a trace is read more than once, for a reason.
    pub fn refuse_standard_input(&self, why: &str) -> Result<(), Error> {
        if self.paths.iter().any(|path| path.as_os_str() == STANDARD_INPUT) {
            return Err(Error::Usage(format!("standard input can be read only once, and {why}; use a file")));
        }
        Ok(())
    }
}

fn recognised(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error: std::io::Error| Error::failed(format!("{}: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() && Format::of_name(&path).is_some() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Error::failed(format!("{}: no file in it has the name of a trace", folder.display())));
    }
    paths.sort();
    Ok(paths)
}

/// A trace's file name, or where others have the same, all of its path.
fn name(path: &Path, all: &[PathBuf]) -> String {
    let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let whole = path.display().to_string();
    if whole.starts_with(trace::GENERATED) || all.iter().filter(|other| file(other) == file(path)).count() > 1
    {
        return whole;
    }
    file(path).unwrap_or(whole)
}

/// Policies by their words, each once.
pub fn policies(words: &[String]) -> Result<Vec<Policy>, Error> {
    let mut policies = Vec::new();
    for word in words {
        let known: Vec<&str> = Policy::all().iter().map(|policy| policy.name()).collect();
        policies.extend(Policy::named(word).map_err(|error| {
            let meant = suggest::nearest(word, &known)
                .map_or(String::new(), |name| format!("; did you mean \"{name}\"?"));
            Error::Usage(format!("--policy: {error}{meant}"))
        })?);
    }
    refuse_twice("policy", policies.iter().map(|policy| policy.name().to_owned()))?;
    Ok(policies)
}

/// Ways that the table is compiled for, each once.
pub fn ways(ways: &[u32]) -> Result<(), Error> {
    if let Some(other) = ways.iter().find(|ways| !WAYS.contains(ways)) {
        return Err(Error::Usage(format!("--ways {other}: sets have 8, 16 or 32 ways")));
    }
    refuse_twice("number of ways", ways.iter().map(u32::to_string))
}

/// Threads to use: as many as asked for, else as there are processors.
pub fn jobs(asked: Option<u64>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |jobs| jobs as usize)
}

pub fn refuse_twice(what: &str, words: impl Iterator<Item = String>) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for word in words {
        if !seen.insert(word.clone()) {
            return Err(Error::Usage(format!("the {what} \"{word}\" is given twice")));
        }
    }
    Ok(())
}

/// A flag that the first SIGINT or SIGTERM sets; the second ends the process.
pub fn interruption() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, so that the first signal finds the flag down.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Error::failed(format!("signals cannot be handled: {error}")))?;
    }
    Ok(stop)
}

/// Whether somebody asked for an end, as the error that tells the shell.
pub fn unless_interrupted(stop: &AtomicBool) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted(SIGINT)) } else { Ok(()) }
}

/// Where lines of JSON go.
pub enum Json {
    Nowhere,
    StandardOutput,
    File(PathBuf, File),
}

impl Json {
    /// To a file, `-` for standard output, or nowhere.
    pub fn to(path: Option<&Path>) -> Result<Json, Error> {
        match path {
            None => Ok(Json::Nowhere),
            Some(path) if path.as_os_str() == "-" => Ok(Json::StandardOutput),
            Some(path) => {
                let file = File::create(path)
                    .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
                Ok(Json::File(path.to_owned(), file))
            }
        }
    }

    /// Whether standard output is taken.
    pub fn is_on_standard_output(&self) -> bool {
        matches!(self, Json::StandardOutput)
    }

    /// An object a line.
    pub fn lines<T: Serialize>(&mut self, items: &[T]) -> Result<(), Error> {
        let mut text = String::new();
        for item in items {
            text.push_str(&serde_json::to_string(item).expect("results are names and numbers"));
            text.push('\n');
        }
        match self {
            Json::Nowhere => Ok(()),
            Json::StandardOutput => output::text(&text),
            Json::File(path, file) => file
                .write_all(text.as_bytes())
                .map_err(|error| Error::failed(format!("{}: {error}", path.display()))),
        }
    }
}

/// Writes a page to a file.
pub fn write_page(path: &Path, page: &str) -> Result<(), Error> {
    std::fs::write(path, page).map_err(|error| Error::failed(format!("{}: {error}", path.display())))
}

/// News of what goes on, on standard error if that is a terminal.
pub struct News {
    shown: bool,
    last: Option<Instant>,
    begin: Instant,
    traces: usize,
    trace: usize,
}

impl News {
    const PAUSE: Duration = Duration::from_millis(100);

    /// Of a run over so many traces.
    pub fn new(quiet: bool, traces: usize) -> News {
        let shown = std::io::stderr().is_terminal() && !quiet;
        News { shown, last: None, begin: Instant::now(), traces, trace: 0 }
    }

    /// The next trace begins.
    pub fn next_trace(&mut self) {
        self.trace += 1;
    }

    /// Shows how far it is.
    pub fn show(&mut self, progress: Progress<'_>) {
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < Self::PAUSE) {
            return;
        }
        self.last = Some(Instant::now());
        let step = match progress.step {
            Step::Count => "counting pages",
            Step::Run => "running",
            Step::Future => "running with foresight",
        };
        let share = progress.share.map_or(String::new(), |share| format!("{:3.0} %, ", 100.0 * share));
        let _ = write!(
            std::io::stderr(),
            "\r[{}/{}] {}: {step}, {share}{:.1} M accesses, {} s\x1b[K",
            self.trace,
            self.traces,
            progress.trace,
            progress.requests as f64 / 1e6,
            self.begin.elapsed().as_secs()
        );
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
