//! `octavo trace`: describes, converts and generates traces.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use octavo_sim::trace::{self, Format, Target, Writer};
use octavo_sim::{CHUNK, Distinct, Source, SourceError, generate};
use serde::Serialize;

use super::inputs::Json;
use super::reading::Reading;
use crate::error::Error;
use crate::output;
use crate::progress::Line;
use crate::units::{human_bytes, human_count};

/// Describe, convert and generate traces of page accesses
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo trace info P3.lis web.u64.zst
  octavo trace convert --format msr hm_1.csv.gz hm_1.u64.zst
  octavo trace info --columns time,op,offset:sectors,size:sectors,volume requests.csv
  octavo trace info --columns key --header-lines 1 keys.txt
  octavo trace generate zipf:pages=1000000,requests=30000000,seed=1 ycsb.u64.zst")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Info(Info),
    /// Write a trace in another format
    Convert {
        /// The trace: a file, `-`, or a workload such as gen:zipf:pages=1000
        trace: PathBuf,
        /// The file to write; `-` is standard output
        output: PathBuf,
        #[command(flatten)]
        reading: Reading,
        #[command(flatten)]
        writing: Writing,
    },
    /// Generate the accesses of a workload
    #[command(after_help = WORKLOADS)]
    Generate {
        /// The workload
        workload: String,
        /// The file to write; `-` is standard output
        output: PathBuf,
        #[command(flatten)]
        writing: Writing,
    },
}

/// Count the accesses and pages of traces
#[derive(Args)]
struct Info {
    /// The traces: files, `-`, or workloads such as gen:zipf:pages=1000
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Write one JSON object per trace and line instead of text
    #[arg(long)]
    json: bool,
}

const WORKLOADS: &str = "\
Workloads:
  uniform:pages=N                  every page as likely as every other
  zipf:pages=N                     YCSB's scrambled Zipf; skew=0.99, ranks=10000000000
  scans:pages=N,every=E,length=L   zipf, with a scan of L of `cold` other pages after each E accesses
  loop:pages=N                     all pages in order, again and again
  phases:pages=N,every=E           zipf, with other popular pages after each E accesses
  drift:pages=N,every=E            a page becomes the hottest after each E accesses, the others one rank colder
  mix:70=[zipf:pages=N],30=[..]    workloads side by side, by weight, each with pages of its own
All take requests=10000000 and seed=1.

Examples:
  octavo trace generate zipf:pages=1000000,requests=30000000,seed=1 ycsb.u64.zst
  octavo trace generate 'mix:requests=5000000,70=[zipf:pages=100000],30=[loop:pages=20000]' - | wc -c";

#[derive(Args)]
struct Writing {
    /// The format to write, if the file's name does not tell
    #[arg(long, value_name = "FORMAT", value_parser = target, help = target_help())]
    to: Option<Target>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

fn target_names() -> String {
    Target::names().collect::<Vec<_>>().join(", ")
}

fn target_help() -> String {
    format!("The format to write, if the file's name does not tell: {}", target_names())
}

fn target(name: &str) -> Result<Target, String> {
    let unknown = || format!("the format \"{name}\" cannot be written; known: {}", target_names());
    Target::named(name).ok_or_else(unknown)
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments, quiet: bool) -> Result<(), Error> {
    match &arguments.command {
        Command::Info(arguments) => info(arguments, quiet),
        Command::Convert { trace, output, reading, writing } => {
            let source = trace::open(trace, &reading.options());
            write(source.map_err(|error| Error::failed(error.to_string()))?, output, writing, quiet)
        }
        Command::Generate { workload, output, writing } => {
            let text = workload.strip_prefix(trace::GENERATED).unwrap_or(workload);
            let source = generate::parse(text).map_err(|error| Error::Usage(error.to_string()))?;
            write(source, output, writing, quiet)
        }
    }
}

/// The figures of a trace.
#[derive(Serialize)]
struct Summary {
    trace: String,
    /// None for a workload.
    format: Option<&'static str>,
    file_bytes: Option<u64>,
    requests: u64,
    pages_distinct: u64,
    pages_distinct_exact: bool,
    page_min: Option<u64>,
    page_max: Option<u64>,
    skipped: u64,
    /// What was recorded, and how that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<Recorded>,
}

/// What the header of a recording says.
#[derive(Serialize)]
struct Recorded {
    partition: String,
    policy: &'static str,
    ways: u32,
    capacity_pages: u64,
    page_bytes: u32,
    sample: f64,
    from_the_first_access: bool,
    /// Whether a replay of this part and those that follow it must have the recorded result at
    /// every access, provided that one thread used the partition.
    exact: bool,
    part: u32,
    began_unix_ms: u64,
    accesses_of_all_pages: Option<u64>,
    remark: Option<String>,
}

impl Recorded {
    fn of(path: &Path, source: &dyn Source) -> Option<Recorded> {
        let about = octavo_sim::recording::about(path).ok()?;
        let header = about.header;
        Some(Recorded {
            policy: header.policy.name(),
            ways: header.ways,
            capacity_pages: header.slots(),
            page_bytes: header.page_bytes,
            sample: header.sample(),
            from_the_first_access: header.from_the_first && about.part == 1,
            exact: header.is_exact() && about.part == 1 && source.skipped() == 0,
            part: about.part,
            began_unix_ms: about.began_unix_ms,
            accesses_of_all_pages: source.sample().map(|sample| sample.accesses),
            remark: source.remark(),
            partition: header.partition,
        })
    }
}

/// Prints the figures of every trace. The error at the end lists the traces that could not be read.
fn info(arguments: &Info, quiet: bool) -> Result<(), Error> {
    let mut problems = Vec::new();
    let mut json = if arguments.json { Json::StandardOutput } else { Json::Nowhere };
    for path in &arguments.traces {
        match summary(path, &arguments.reading, quiet) {
            Ok(summary) => json.lines_or(std::slice::from_ref(&summary), || summary.text())?,
            Err(error) => problems.push(error.to_string()),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Failed(problems)) }
}

fn summary(path: &Path, reading: &Reading, quiet: bool) -> Result<Summary, SourceError> {
    let mut source = trace::open(path, &reading.options())?;
    let is_generated = path.to_str().is_some_and(|path| path.starts_with(trace::GENERATED));
    let format = reading.options().format_of(path).filter(|_| !is_generated);
    let metadata = std::fs::metadata(path).ok().filter(|metadata| metadata.is_file() && !is_generated);
    let mut distinct = Distinct::default();
    let (mut requests, mut range) = (0, None);
    for_each(source.as_mut(), path, quiet, |pages| {
        requests += pages.len() as u64;
        distinct.add(pages);
        for page in pages {
            let (least, most) = range.unwrap_or((*page, *page));
            range = Some((least.min(*page), most.max(*page)));
        }
        true
    })?;
    Ok(Summary {
        trace: path.display().to_string(),
        format: format.map(Format::name),
        file_bytes: metadata.map(|metadata| metadata.len()),
        requests,
        pages_distinct: distinct.count(),
        pages_distinct_exact: distinct.is_exact(),
        page_min: range.map(|(least, _)| least),
        page_max: range.map(|(_, most)| most),
        skipped: source.skipped(),
        recording: if format == Some(Format::Octr) { Recorded::of(path, &*source) } else { None },
    })
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.trace);
        let mut line = |name: &str, value: String| text += &format!("  {name:<16} {value}\n");
        line("format", self.format.unwrap_or("generated").to_owned());
        if let Some(bytes) = self.file_bytes {
            line("file", human_bytes(bytes));
        }
        line("requests", self.requests.to_string());
        let about = if self.pages_distinct_exact { "" } else { "about (0.4 % standard error) " };
        line("distinct pages", format!("{about}{}", self.pages_distinct));
        if let (Some(least), Some(most)) = (self.page_min, self.page_max) {
            line("page numbers", format!("{least} to {most}"));
        }
        if self.skipped > 0 {
            line("passed over", format!("{} malformed", self.skipped));
        }
        let Some(recorded) = &self.recording else { return text };
        let Recorded { partition, policy, ways, capacity_pages, page_bytes, part, .. } = recorded;
        line(
            "partition",
            format!("\"{partition}\", {policy}, {ways} ways, {capacity_pages} pages of {page_bytes}"),
        );
        let since = match (recorded.from_the_first_access, part) {
            (true, _) => "from the first access",
            (false, 1) => "begun later",
            (false, _) => "from where the part before it ends",
        };
        line("recorded", format!("{:.3} % of the pages, {since}, part {part}", 100.0 * recorded.sample));
        let repeats = match (recorded.exact, part) {
            (true, _) => "exactly, if one thread used the partition",
            (false, 2..) if recorded.sample == 1.0 => {
                "nearly; exactly when replayed after all parts before it, if the first began with the partition"
            }
            (false, _) => "nearly",
        };
        line("repeats", repeats.to_owned());
        if let Some(accesses) = recorded.accesses_of_all_pages {
            line("of all accesses", accesses.to_string());
        }
        if let Some(remark) = &recorded.remark {
            text += &format!("  {remark}\n");
        }
        text
    }
}

/// Writes a whole source to a file.
fn write(mut source: Box<dyn Source>, path: &Path, writing: &Writing, quiet: bool) -> Result<(), Error> {
    let failed = |error: io::Error| Error::failed(format!("{}: {error}", path.display()));
    let mut writer = create(path, writing)?.map_err(failed)?;
    let mut written = Ok(());
    let read = for_each(source.as_mut(), path, quiet, |pages| {
        written = writer.write(pages);
        written.is_ok()
    });
    read.map_err(|error| Error::failed(error.to_string()))?;
    let accesses = written.and_then(|()| writer.finish()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe if path.as_os_str() == "-" => Error::ReaderGone,
        _ => failed(error),
    })?;
    if source.skipped() > 0 {
        output::error_line(&format!("octavo: skipped {} malformed lines or records", source.skipped()));
    }
    if quiet || path.as_os_str() == "-" {
        return Ok(());
    }
    output::text(&format!("{}: {accesses} requests\n", path.display()))
}

/// Opens the output. The outer error is one of the command line.
fn create(path: &Path, writing: &Writing) -> Result<io::Result<Writer>, Error> {
    if path.as_os_str() == "-" {
        let target = writing.to.unwrap_or(Target::U64);
        if io::stdout().is_terminal() && target != Target::Lirs {
            let message =
                "standard output is a terminal, and this format is not text; use --to lirs, which is";
            return Err(Error::Usage(message.into()));
        }
        output::must_be_open()?;
        let stdout = io::stdout().as_fd().try_clone_to_owned();
        return Ok(stdout.and_then(|stdout| Writer::new(File::from(stdout), target)));
    }
    let unknown = || {
        let (path, known) = (path.display(), target_names());
        Error::Usage(format!("{path}: the name does not tell the format; set it with --to: {known}"))
    };
    let target = writing.to.or_else(|| Target::of_name(path)).ok_or_else(unknown)?;
    match std::fs::metadata(path) {
        // Write to a pipe or a device; do not replace it.
        Ok(metadata) if !metadata.is_file() => {
            Ok(File::options().write(true).open(path).and_then(|file| Writer::new(file, target)))
        }
        Ok(_) if !writing.force => {
            Err(Error::failed(format!("{}: the file exists; --force replaces it", path.display())))
        }
        _ => Ok(Writer::create(path, target)),
    }
}

/// Passes a whole source to `take`, a chunk at a time, until that returns false. Shows the progress
/// of the trace at `path`.
fn for_each(
    source: &mut dyn Source,
    path: &Path,
    quiet: bool,
    mut take: impl FnMut(&[u64]) -> bool,
) -> Result<(), SourceError> {
    let mut line = Line::new(quiet);
    let (mut pages, mut requests) = (Vec::with_capacity(2 * CHUNK), 0);
    loop {
        pages.clear();
        let read = source.next(&mut pages);
        if !take(&pages) {
            return Ok(());
        }
        read?;
        if pages.is_empty() {
            return Ok(());
        }
        requests += pages.len() as u64;
        line.show(|| {
            let share = source.progress();
            let share = share.map_or_else(String::new, |share| format!("{:.0} %, ", 100.0 * share));
            format!("{}: {share}{} requests", path.display(), human_count(requests as f64))
        });
    }
}
