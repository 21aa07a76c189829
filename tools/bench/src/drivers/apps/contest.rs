//! The rounds of a case: contestants in turns, each with its own copy of the files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::side::{Scene, Side};
use crate::case::{Case, Clock};
use crate::error::Error;
use crate::group::Group;
use crate::machine;
use crate::report::Row;
use crate::scratch::Directory;
use crate::stage::Run;
use crate::statistics::median;
use crate::turns::Slices;

/// The contestants of all drivers here: a cache with a partition for each tenant, if there are
/// tenants; one partition for all; the kernel's page cache.
pub const CONTESTANTS: &[&str] = &["octavo", "one-cache", "kernel"];

/// The smallest memory: a server needs some of it for itself.
const MEMORY_BYTES_MIN: u64 = 24 << 20;

/// Refuses a case that no driver here can run. `jobs` are the driver's.
pub fn check(case: &Case, jobs: &[&str]) -> Result<(), String> {
    if case.memory.0 < MEMORY_BYTES_MIN {
        return Err(format!("memory of {} bytes: at least {MEMORY_BYTES_MIN} are possible", case.memory.0));
    }
    if !jobs.contains(&&*case.job.0) {
        return Err(format!("there is no job \"{}\"; the jobs are {}", case.job.0, jobs.join(", ")));
    }
    Ok(())
}

/// Returns the bytes of a program's files.
pub fn files_bytes(case: &Case) -> u64 {
    case.memory.0 / 100 * case.files_percent.0 as u64
}

/// Rounds of programs whose caches stay warm from round to round.
const ROUNDS_WARM: usize = 5;

/// Rounds of programs that begin with cold caches, and of quick runs.
const ROUNDS_COLD: usize = 3;

/// The time for the slices of a case, if the case names none.
const SECONDS: f64 = 30.0;

/// The time of a slice that fills the caches before anything is measured.
const WARM_TIME: Duration = Duration::from_secs(4);

/// The most such slices.
const WARM_SLICES_MAX: usize = 10;

/// The time of a slice in a quick run.
const QUICK_TIME: Duration = Duration::from_millis(600);

/// What a program did in a slice.
pub struct Done {
    pub operations: f64,
    pub seconds: f64,
}

/// Programs whose speed is measured.
pub trait Job {
    /// Runs the programs, for about `time` unless they have an end of their own. Returns what they
    /// did, in the order of `rows`.
    fn run(&self, side: &Side, time: Duration) -> Result<Vec<Done>, Error>;

    /// What is appended to the case's name for each row.
    fn rows(&self) -> &'static [&'static str] {
        &[""]
    }

    /// The number of files that the programs open, if they are many.
    fn files(&self) -> u64 {
        0
    }

    /// Directories that have a partition each. If empty, the cache has one partition.
    fn tenants(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether each slice begins with cold caches and a new server.
    fn is_cold(&self) -> bool {
        false
    }

    /// Prepares the files of a contestant, once before all cold slices.
    fn settle(&self, _: &Side) -> Result<(), Error> {
        Ok(())
    }
}

/// The files of a case: a directory for each contestant.
pub struct Files {
    directory: Directory,
}

impl Files {
    /// Lets `fill` make the files of the first contestant, and copies them for the others.
    pub fn new(
        case: &Case,
        run: &mut Run<'_>,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<Files, Error> {
        run.news(case, "making the files");
        let files = Files { directory: Directory::on_disk(run)? };
        let Some((first, others)) = case.contestants.split_first() else { return Ok(files) };
        std::fs::create_dir(files.lower(first)).map_err(Error::at("a directory"))?;
        fill(&files.lower(first))?;
        for other in others {
            run.step(case, "copying the files")?;
            let mut copy = Command::new("cp");
            copy.arg("-a").args([files.lower(first), files.lower(other)]);
            succeed(&mut copy)?;
        }
        Ok(files)
    }

    fn lower(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// Starts a contestant.
    fn start(&self, case: &Case, run: &Run<'_>, job: &dyn Job, name: &str) -> Result<Side, Error> {
        let program = run.options.program.as_deref();
        let program = program.ok_or_else(|| Error::new("there is no program that mounts directories"))?;
        let scene = Scene {
            program,
            lower: &self.lower(name),
            target: &self.lower(&format!("{name}-mounted")),
            memory_bytes: case.memory.0,
            programs_bytes: case.programs.0,
            files: job.files(),
            tenants: job.tenants(),
        };
        Side::start(name, &scene)
    }
}

/// The first lines of what a program that fails says. Some say thousands.
const COMPLAINTS_MAX: usize = 3;

/// Runs a program that must succeed. Returns its standard output.
pub fn succeed(command: &mut Command) -> Result<String, Error> {
    let output = command.output().map_err(Error::at(&command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let complaints = String::from_utf8_lossy(&output.stderr);
        let first: Vec<&str> = complaints.lines().take(COMPLAINTS_MAX).collect();
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        return Err(Error::new(format!("{}: {}: {}", words.join(" "), output.status, first.join("; "))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns why a case cannot run here: a program is missing (each is given with its package), or
/// control groups cannot be created.
pub fn hindrance(programs: &[(&str, &str)]) -> Option<String> {
    for (program, package) in programs {
        if machine::program(program).is_none() {
            return Some(format!("{program} is not installed (package {package})"));
        }
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("this kernel has no FUSE: there is no /dev/fuse".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("only root can limit the memory of the kernel's page cache".into());
    }
    let group = Group::new("trial", 1 << 20);
    group.err().map(|why| format!("memory control groups cannot be created: {why}"))
}

/// What the rounds have measured.
struct Measured {
    /// By row, then by contestant.
    slices: Vec<Vec<Slices>>,
    /// Seconds of each slice, in the same order.
    seconds: Vec<Vec<Vec<f64>>>,
    /// By contestant: pages read from the disk, and operations of the first row.
    pages: Vec<(f64, f64)>,
    /// The most memory that a server has taken.
    server_bytes: u64,
    /// The sizes of partitions at the end of each slice.
    partitions: Vec<(String, Vec<f64>)>,
}

impl Measured {
    fn new(case: &Case, job: &dyn Job) -> Measured {
        let (rows, sides) = (job.rows().len(), case.contestants.len());
        Measured {
            slices: vec![vec![Slices::default(); sides]; rows],
            seconds: vec![vec![Vec::new(); sides]; rows],
            pages: vec![(0.0, 0.0); sides],
            server_bytes: 0,
            partitions: Vec::new(),
        }
    }

    /// Runs a slice of contestant `number`.
    fn slice(&mut self, number: usize, side: &Side, job: &dyn Job, time: Duration) -> Result<(), Error> {
        let before = side.store_pages();
        let done = job.run(side, time)?;
        self.pages[number].0 += side.store_pages().saturating_sub(before) as f64;
        self.pages[number].1 += done.first().map_or(0.0, |done| done.operations);
        for (row, done) in done.iter().enumerate() {
            self.slices[row][number].rates.push(done.operations / done.seconds.max(1e-9));
            self.seconds[row][number].push(done.seconds);
        }
        for (name, bytes) in side.partitions() {
            match self.partitions.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sizes)) => sizes.push(bytes as f64),
                None => self.partitions.push((name, vec![bytes as f64])),
            }
        }
        self.look(side);
        Ok(())
    }

    /// Looks at the memory of a contestant.
    fn look(&mut self, side: &Side) {
        if let Some(bytes) = side.server_bytes() {
            self.server_bytes = self.server_bytes.max(bytes);
        }
    }

    fn rows(&self, case: &Case, run: &Run<'_>, job: &dyn Job) -> Vec<Row> {
        let names: Vec<&str> = case.contestants.iter().map(String::as_str).collect();
        let row = |(number, suffix): (usize, &&str)| {
            let mut row = Row { case: format!("{}{suffix}", case.name), ..Row::new(run.suite, case) };
            row.compare_named(case, Clock::Wall, &names, &self.slices[number]);
            if job.rows().len() == 1 {
                for (standing, (pages, operations)) in row.contestants.iter_mut().zip(&self.pages) {
                    standing.store_pages_per_op = Some(pages / operations.max(1.0));
                }
            }
            let seconds = |side: usize| median(&self.seconds[number][side]);
            row.add("seconds", seconds(0));
            row.add("reference_seconds", seconds(names.len() - 1));
            row.add("server_bytes", self.server_bytes);
            if let Some(load) = load_average() {
                row.add("load_average", load);
            }
            for (name, sizes) in &self.partitions {
                row.notes.push(format!("{name} had {:.1} MiB", median(sizes) / f64::from(1 << 20)));
            }
            row
        };
        job.rows().iter().enumerate().map(row).collect()
    }
}

/// Returns the mean number of threads that ran or wanted to in the last minute.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Measures a case. If that is impossible here, or fails, its row says why.
pub fn contest(
    case: &Case,
    run: &mut Run<'_>,
    files: Result<&Files, String>,
    job: &dyn Job,
) -> Result<Vec<Row>, Error> {
    let why = match files.map(|files| rounds(case, run, files, job)) {
        Ok(Ok(rows)) => return Ok(rows),
        Ok(Err(error)) => {
            run.options.unless_stopped()?;
            run.listener.warning(&format!("{}: {error}", case.name));
            error.to_string()
        }
        Err(why) => why,
    };
    let mut row = Row::new(run.suite, case);
    row.notes.push(format!("nothing was measured: {why}"));
    Ok(vec![row])
}

/// Runs the programs until the cache is warm: they have read half as much again as the memory, or
/// hardly anything in the last slice.
fn warm_up(case: &Case, side: &Side, job: &dyn Job, time: Duration) -> Result<(), Error> {
    let memory_pages = case.memory.0 >> 12;
    let first = side.store_pages();
    let mut before = first;
    for _ in 0..WARM_SLICES_MAX {
        job.run(side, time)?;
        let now = side.store_pages();
        if now - before < memory_pages / 32 || now - first >= memory_pages / 2 * 3 {
            break;
        }
        before = now;
    }
    Ok(())
}

fn rounds(case: &Case, run: &mut Run<'_>, files: &Files, job: &dyn Job) -> Result<Vec<Row>, Error> {
    let rounds = match job.is_cold() || run.options.quick {
        true => ROUNDS_COLD,
        false => ROUNDS_WARM,
    };
    let (time, warm) = match run.options.quick {
        true => (QUICK_TIME, QUICK_TIME),
        false => (run.time(case, SECONDS).div_f64((rounds * case.contestants.len()) as f64), WARM_TIME),
    };
    let mut measured = Measured::new(case, job);
    let mut sides: Vec<Option<Side>> = Vec::new();
    for name in &case.contestants {
        run.step(case, &format!("warming up {name}"))?;
        let side = files.start(case, run, job, name)?;
        match job.is_cold() {
            true => job.settle(&side)?,
            false => warm_up(case, &side, job, warm)?,
        }
        measured.look(&side);
        sides.push((!job.is_cold()).then_some(side));
    }
    for round in 0..rounds {
        for (number, name) in case.contestants.iter().enumerate() {
            run.step(case, &format!("round {} of {rounds}: {name}", round + 1))?;
            match &sides[number] {
                Some(side) => {
                    measured.slice(number, side, job, time)?;
                }
                None => {
                    let side = files.start(case, run, job, name)?;
                    measured.slice(number, &side, job, time)?;
                }
            }
        }
    }
    Ok(measured.rows(case, run, job))
}
