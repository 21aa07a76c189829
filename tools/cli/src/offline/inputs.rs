//! What the subcommands that run over traces share: the options for traces and results, the output
//! of results, and the progress on a terminal.
//!
//! Not here: what is done with the traces.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use octavo_sim::plan::Policy;
use octavo_sim::recording::{self, About};
use octavo_sim::simulate::{Progress, Step, Trace, WAYS};
use octavo_sim::trace::{self, Format};
use octavo_sim::{Sample, Source, SourceError};
use serde::Serialize;

use super::reading::Reading;
use crate::error::Error;
use crate::progress::Line;
use crate::{interruption, output, suggest};

/// Which traces to read, and how.
#[derive(Args)]
pub struct Traces {
    /// Traces: files, `-` for standard input, or `gen:SPEC` for a generated workload
    #[arg(long = "trace", value_name = "FILE", num_args = 1..)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

/// How results are made and where they go: what `simulate`, `mrc` and `plan` share.
#[derive(Args)]
pub struct Running {
    /// Choose samples and the sets of pages by this seed; the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write one JSON object per result and line; `-` or nothing is standard output, in place of
    /// the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write a page with all curves
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Threads [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,
}

/// The sets of policies that work inside sets.
#[derive(Args)]
pub struct Ways {
    /// Pages of a set, for policies inside sets: 8, 16, 32
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16")]
    ways: Vec<u32>,
}

impl Running {
    /// Threads to use.
    pub fn jobs(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(processors, |jobs| jobs as usize)
    }
}

impl Ways {
    /// Ways that the table is compiled for, each once.
    pub fn checked(&self) -> Result<Vec<u32>, Error> {
        if let Some(other) = self.ways.iter().find(|ways| !WAYS.contains(ways)) {
            return Err(Error::Usage(format!("--ways {other}: sets have 8, 16 or 32 ways")));
        }
        refuse_twice("number of ways", self.ways.iter().map(u32::to_string))?;
        Ok(self.ways.clone())
    }
}

/// Standard input, which can be read only once.
const STANDARD_INPUT: &str = "-";

impl Traces {
    /// The traces to open, each with a unique name. `folder` adds all its files whose names tell
    /// their format.
    pub fn named(&self, folder: Option<&Path>) -> Result<Vec<Named>, Error> {
        let mut paths = self.paths.clone();
        if let Some(folder) = folder {
            paths.extend(recognised(folder)?);
        }
        if paths.is_empty() {
            return Err(Error::Usage("no trace is given; use --trace FILE".into()));
        }
        refuse_twice("trace", paths.iter().map(|path| path.display().to_string()))?;
        let options = self.reading.options();
        let traces = recording::parts(&paths).into_iter().map(|files| {
            let (name, opened, told) =
                (name(&files[0], &paths), files.clone(), Arc::new(AtomicBool::new(false)));
            let options = options.clone();
            let open = move || -> Result<Box<dyn Source>, SourceError> {
                let source = trace::open_parts(&opened, &options)?;
                Ok(Box::new(Remarking { source, told: Arc::clone(&told) }))
            };
            Named { files, trace: Trace { name, open: Box::new(open) } }
        });
        Ok(traces.collect())
    }

    /// The header of a trace, if it is a recording.
    pub fn recorded(&self, files: &[PathBuf]) -> Result<Option<About>, Error> {
        let is_recording = self.reading.options().format_of(&files[0]) == Some(Format::Octr);
        // Standard input cannot be read twice.
        if files[0].as_os_str() == STANDARD_INPUT || !is_recording {
            return Ok(None);
        }
        recording::about(&files[0]).map(Some).map_err(|error| Error::failed(error.to_string()))
    }

    /// Whether malformed parts of traces are skipped.
    pub fn skip_bad(&self) -> bool {
        self.reading.options().skip_bad
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.reading.options().page_bytes
    }

    /// Refuses standard input for a run that reads its traces more than once, and says why it does.
    pub fn refuse_standard_input(&self, why: &str) -> Result<(), Error> {
        if self.paths.iter().any(|path| path.as_os_str() == STANDARD_INPUT) {
            return Err(Error::Usage(format!("standard input can be read only once, and {why}; use a file")));
        }
        Ok(())
    }
}

/// A trace and its files. Only a recording can have several.
pub struct Named {
    pub files: Vec<PathBuf>,
    pub trace: Trace<'static>,
}

/// A source that prints the remark about its end to standard error, once.
struct Remarking {
    source: Box<dyn Source>,
    told: Arc<AtomicBool>,
}

impl Source for Remarking {
    fn next(&mut self, pages: &mut Vec<u64>) -> Result<(), SourceError> {
        let before = pages.len();
        self.source.next(pages)?;
        // Relaxed: a flag alone; nothing is published with it.
        if pages.len() == before
            && let Some(remark) = self.source.remark()
            && !self.told.swap(true, Ordering::Relaxed)
        {
            output::error_line(&format!("octavo: {remark}"));
        }
        Ok(())
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }

    fn skipped(&self) -> u64 {
        self.source.skipped()
    }

    fn sample(&self) -> Option<Sample> {
        self.source.sample()
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
        return Err(Error::failed(format!(
            "{}: no file in this folder has a name that tells the format of a trace",
            folder.display()
        )));
    }
    paths.sort();
    Ok(paths)
}

/// A trace's file name, or its whole path if another trace has the same file name.
fn name(path: &Path, all: &[PathBuf]) -> String {
    let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let whole = path.display().to_string();
    if whole.starts_with(trace::GENERATED) || all.iter().filter(|other| file(other) == file(path)).count() > 1
    {
        return whole;
    }
    file(path).unwrap_or(whole)
}

/// Policies by their names or groups, each once.
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

/// Memory that this process can take without swapping, by the machine and its cgroups. None: the
/// kernel does not report it.
pub fn memory_available_bytes() -> Option<u64> {
    octavo::pressure::PressureSource::linux().sample().available_bytes
}

/// Refuses a word that is given more than once.
pub fn refuse_twice(what: &str, words: impl Iterator<Item = String>) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for word in words {
        if !seen.insert(word.clone()) {
            return Err(Error::Usage(format!("the {what} \"{word}\" is given twice")));
        }
    }
    Ok(())
}

/// The destination of JSON lines.
pub enum Json {
    Nowhere,
    StandardOutput,
    File(PathBuf, File),
}

impl Json {
    /// A file, standard output for `-`, or nowhere.
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

    /// Whether JSON goes to standard output, so that nothing else may.
    pub fn is_on_standard_output(&self) -> bool {
        matches!(self, Json::StandardOutput)
    }

    /// Writes one object per line, and a text to standard output if the objects do not go there.
    pub fn lines_or<T: Serialize>(
        &mut self,
        items: &[T],
        text: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        self.lines(items)?;
        if self.is_on_standard_output() { Ok(()) } else { output::text(&text()) }
    }

    /// Writes one object per line.
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

/// Writes a page to a file, if one is named.
pub fn write_page(path: Option<&Path>, page: impl FnOnce() -> String) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, page()).map_err(|error| Error::failed(format!("{}: {error}", path.display())))
}

/// A run over traces: where its results go, its progress, and whether it was interrupted.
pub struct Run {
    pub json: Json,
    stop: Arc<AtomicBool>,
    line: Line,
    begin: Instant,
    traces: usize,
    trace: usize,
}

impl Run {
    /// Starts a run over `traces` traces.
    pub fn start(json: Option<&Path>, quiet: bool, traces: usize) -> Result<Run, Error> {
        let (json, stop) = (Json::to(json)?, interruption::flag()?);
        Ok(Run { json, stop, line: Line::new(quiet), begin: Instant::now(), traces, trace: 0 })
    }

    /// Runs `work` for the next trace. `work` gets the flag that an interruption raises, and a
    /// function that shows the progress.
    pub fn next<T>(
        &mut self,
        work: impl FnOnce(&AtomicBool, &mut dyn FnMut(Progress<'_>)) -> Result<T, SourceError>,
    ) -> Result<T, Error> {
        self.trace += 1;
        let Run { stop, line, begin, traces, trace, .. } = self;
        let mut show = |progress: Progress<'_>| {
            line.show(|| {
                let step = match progress.step {
                    Step::Count => "counting pages",
                    Step::Run => "running",
                    Step::Future => "running with foresight",
                };
                let share =
                    progress.share.map_or(String::new(), |share| format!("{:3.0} %, ", 100.0 * share));
                let (name, accesses) = (progress.trace, progress.requests as f64 / 1e6);
                let seconds = begin.elapsed().as_secs();
                format!("[{trace}/{traces}] {name}: {step}, {share}{accesses:.1} M accesses, {seconds} s")
            });
        };
        let result = work(stop, &mut show);
        line.clear();
        result.map_err(|error| Error::failed(error.to_string()))
    }

    /// Fails if the run was interrupted.
    pub fn unless_interrupted(&self) -> Result<(), Error> {
        interruption::unless_interrupted(&self.stop)
    }
}
