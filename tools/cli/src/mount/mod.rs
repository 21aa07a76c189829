//! `octavo mount`: a directory as a file system whose data goes through a cache.
//!
//! 1. The options and the directories are checked (`options`, `place`).
//! 2. With `--daemon`, the program runs itself again in the background, and waits until the file
//!    system is usable (`daemon`). The rest is what the second process does.
//! 3. The cache is made, and the directory mounted.
//! 4. The main thread sleeps until a signal arrives, or until someone unmounts the directory.
//! 5. The directory is unmounted, requests in flight are completed, and all bytes made durable.

mod daemon;
mod journal;
mod lower;
mod memory;
mod mount_octavo;
mod options;
pub mod place;
pub mod served;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueHint};
use octavo::{Cache, CacheMode, Object, ObjectStat};

use crate::config::DRAIN_TIMEOUT_DEFAULT;
use crate::config::s3::S3Section;
use crate::control::drain;
use crate::control::stop::{self, Stop};
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::logger::{self, Settings, Wishes};
use crate::remotes::Remotes;
use crate::{mounts, output, units};
use journal::Journal;
use lower::{Asked, Lower};
pub use mount_octavo::{Helper, is_helper};
use options::Options;
pub use options::threads_of;

/// How long a source may take for a dirty byte that has not answered all requests for
/// [`DRAIN_TIMEOUT_DEFAULT`].
const LAST_TRY: Duration = Duration::from_secs(10);

/// The most files whose loss is told by name.
const NAMED_MAX: usize = 100;

/// How long the service manager is asked to wait for the next sign of progress at the end.
const LAST_WORD: Duration = DRAIN_TIMEOUT_DEFAULT.saturating_add(Duration::from_secs(60));

/// Mount a directory as a file system with a cache, for unmodified programs
#[derive(Args)]
#[command(after_help = "\
Options of -o (as in fstab; separated by commas):
  ro, rw                  refuse writes, or not [default: rw]
  memory_max=SIZE         as --memory-max; at least 4MiB
  writeback, writethrough when writes reach SOURCE [default: writethrough]
  policy=NAME             which pages are evicted, such as octavo or lru [default: octavo]
  coherence=MODE          close-to-open: other programs may change SOURCE, and each open sees it;
                          lease: each read sees it, and files that are open for writing are not
                          cached;
                          exclusive: no other program changes SOURCE, which saves requests
                          [default: close-to-open]
  attr_timeout=SECONDS    how long the kernel keeps names and attributes
                          [default: 1, or an hour with coherence=exclusive]
  allow_other, no_allow_other
                          whether other users have access [default: only if root mounts]
  suid, dev               honour set-user-ID bits and device files; only for root
  noexec                  run no programs
  threads=N               [default: one for each processor, 2 to 16]
  files_max=N             files whose pages are kept, open or not
                          [default: as many as memory_max has room for]
  nodes_max=N             files and directories that the kernel may know at a time
  log=FILE                where the log goes with --daemon, up to 1 MiB and then to FILE.1
                          [default: mount-PATH.log in the state directory]
Options of mount(8) such as noauto, nofail, _netdev, user and x-... are ignored.

Examples:
  octavo mount /srv/data /mnt               /srv/data with a cache, at /mnt
  octavo mount /srv/data /srv/data          over itself: all programs use the cache
  octavo mount /srv/data /mnt --memory-max 1GiB --daemon
                                            in the background; returns when it is usable
  umount /mnt                               ends it, as SIGTERM and Ctrl-C do
  mount -t octavo -o ro,memory_max=1g /srv/data /mnt
                                            the same from mount(8), which needs root

In /etc/fstab:
  /srv/data  /mnt  octavo  memory_max=1g,nofail  0  0

Once fsync has returned, data is durable in SOURCE. Without --writeback, every write reaches SOURCE
before it returns. octavo-mount(1) says what programs can rely on.")]
pub struct Arguments {
    /// The directory whose files are cached
    #[arg(value_hint = ValueHint::DirPath)]
    source: PathBuf,
    /// The directory where they appear; it need not be empty, and may be SOURCE
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Options of the mount, as in fstab; see below
    #[arg(short, long, value_name = "OPTION,...")]
    options: Vec<String>,
    /// The limit on all memory of the cache [default: 128MiB]
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<String>,
    /// Write to SOURCE later, or when a program calls fsync
    #[arg(long)]
    writeback: bool,
    /// Refuse writes
    #[arg(short, long)]
    read_only: bool,
    /// Serve in the background; return when the mount is usable
    #[arg(short, long)]
    daemon: bool,
    /// This is the process in the background.
    #[arg(long, hide = true)]
    in_background: bool,
    /// Check the options and the directories, and mount nothing
    #[arg(long)]
    check: bool,
}

impl Arguments {
    /// All options, as `-o` has them.
    fn list(&self) -> String {
        let mut list = self.options.clone();
        list.extend(self.memory_max.iter().map(|size| format!("memory_max={size}")));
        list.extend(self.writeback.then(|| "writeback".to_owned()));
        list.extend(self.read_only.then(|| "ro".to_owned()));
        list.join(",")
    }
}

/// How much the command line wants to hear.
#[derive(Clone, Copy)]
pub struct Loudness {
    /// The number of `-v`.
    pub verbose: u8,
    /// `-q`.
    pub quiet: bool,
}

/// Mounts a directory, and serves it until a signal arrives or it is unmounted.
pub fn run(
    arguments: &Arguments,
    environment: &Environment,
    loudness: Loudness,
    log: Settings,
) -> Result<(), Error> {
    if arguments.in_background {
        daemon::leave();
    }
    // First: a signal must neither leave a dead mount behind nor wait for a source that hangs.
    let stop = if arguments.check || arguments.daemon {
        Stop::not_needed();
        None
    } else {
        Some(Stop::start(None)?)
    };
    // Each cached file takes two descriptors.
    crate::process::raise_fds_max();
    let list = arguments.list();
    let mut options = Options::read([&*list])?;
    let source = place::source(&arguments.source).map_err(Error::Usage)?;
    if Remotes::address(&source).is_some() {
        if options.cache_mode == CacheMode::Writeback {
            let source = source.display();
            return Err(Error::Usage(format!("{source} is read-only; leave out writeback")));
        }
        options.mount.read_only = true;
    }
    let path = place::target(&source, &arguments.path).map_err(Error::Usage)?;
    if let Some(log) = &mut options.log {
        *log = std::path::absolute(&log).unwrap_or_else(|_| log.clone());
        if mounts::resolved(log).starts_with(&path) {
            let (log, path) = (log.display(), path.display());
            return Err(Error::Usage(format!("the log {log} is below {path}, which is to be mounted")));
        }
    }
    memory::check(&options)?;
    let Some(stop) = stop else {
        if arguments.check {
            return Ok(());
        }
        let shown = ["-v", "-v"].into_iter().take(loudness.verbose.into());
        let mut words: Vec<OsString> = ["mount", "--in-background"].map(Into::into).into();
        words.extend(shown.chain(loudness.quiet.then_some("-q")).map(OsString::from));
        if !list.is_empty() {
            words.extend(["-o".into(), list.into()]);
        }
        match &options.log {
            Some(log) => drop(daemon::open_log(log)?),
            None => options.log = default_log(environment, &path),
        }
        if let Some(log) = &options.log {
            words.extend(["-o".into(), format!("log={}", log.display()).into()]);
        }
        words.extend(["--".into(), source.into(), path.clone().into()]);
        return daemon::start(words, &path, loudness.quiet);
    };
    logger::queue()?;
    logger::take_panics();
    let log_file = options.log.as_deref();
    serve(&options, &source, &path, (environment, &stop), |line| {
        // Errors until now were those of a command, without the time.
        logger::change(log.of_server(&Wishes::default(), &Wishes::default()));
        match arguments.in_background {
            true => {
                daemon::ready(line, log_file)?;
                log_file.map_or(Ok(()), |log| daemon::bound_log(log.to_owned()))
            }
            false if loudness.quiet => Ok(()),
            false => output::notice(line),
        }
    })
}

/// The log of a mount at `path` that names no other, if it can be written.
fn default_log(environment: &Environment, path: &Path) -> Option<PathBuf> {
    let directory = environment.state_dir()?;
    make_private_dir(&directory).ok()?;
    let log = journal::log_of(&directory, path);
    // A comma would begin another option.
    let is_usable = !log.to_string_lossy().contains(',') && !mounts::resolved(&log).starts_with(path);
    (is_usable && daemon::open_log(&log).is_ok()).then_some(log)
}

/// Opens the journal of a mount that writes back, and shows what earlier mounts of the source have
/// lost. A mount without a journal only lacks the next one's message.
fn open_journal(environment: &Environment, options: &Options, source: &Path) -> Option<Journal> {
    if options.mount.read_only || options.cache_mode == CacheMode::Writethrough {
        return None;
    }
    let shown = source.display();
    let opened = environment.state_dir().ok_or_else(|| "there is no directory for it".to_owned());
    match opened.and_then(|directory| Journal::open(&directory, source)) {
        Ok((journal, lost)) => {
            for line in lost {
                log::error!("an earlier mount of {shown} has lost bytes: {line}");
            }
            Some(journal)
        }
        Err(why) => {
            log::warn!("{shown}: no record of bytes that may be lost: {why}");
            None
        }
    }
}

/// Gives up what could not be drained, and names it: in the error, and for the next mount.
fn give_up(lost: Vec<String>, path: &Path, journal: Option<&Journal>) -> Error {
    let at = logger::timestamp(SystemTime::now());
    let lines: Vec<String> = lost.iter().map(|line| format!("{at} {}: {line}", path.display())).collect();
    if let Some(Err(error)) = journal.map(|journal| journal.add(&lines)) {
        log::error!("the next mount cannot tell what is lost: {error}");
    }
    Error::Failed(lost)
}

/// Steps 3 to 5. `ready` gets the line that says that the directory is mounted.
fn serve(
    options: &Options,
    source: &Path,
    path: &Path,
    (environment, stop): (&Environment, &Stop),
    ready: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    crate::heap::bound();
    crate::heap::keep_trimmed();
    let (cache, partition) = memory::make(options).map_err(Error::failed)?;
    let (end, ended) = channel();
    let signalled = end.clone();
    stop.watch(&cache);
    let journal = open_journal(environment, options, source);
    let remotes = Remotes::new(&cache, S3Section::default());
    let choose = move |_: &Asked<'_>| partition.clone();
    let mount =
        Lower::start(&cache, &remotes, source, path, &options.mount, choose).map_err(Error::failed)?;
    let mount = Arc::new(mount);
    let watched = mount.clone();
    let watch = std::thread::Builder::new().name("unmounted".into()).spawn(move || {
        watched.wait_until_ended(Duration::MAX);
        let _ = end.send(None);
    });
    watch.map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;

    stop.serving(move |signal| _ = signalled.send(Some(signal)));

    let supervisor = environment.supervisor();
    let line = summary(options, source, path);
    supervisor.ready(&line);
    let told = ready(&format!("{line}\n"));
    let why = match (&told, ended.recv()) {
        (Ok(()), Ok(Some(signal))) => stop::name(signal).to_owned(),
        _ => format!("{} was unmounted", path.display()),
    };
    supervisor.stopping("unmounting, and making all bytes durable");
    log::info!("{why}: making all bytes durable");
    let patience = end_requests(&mount, source, path);
    let drained = drain_within(&cache, patience, |dirty_bytes| {
        if dirty_bytes > 0 {
            log::info!("{} dirty left", units::human_bytes(dirty_bytes));
        }
        supervisor.extend(LAST_WORD);
    });
    let Some(refusals) = drained else {
        return Err(give_up(unanswered(&cache, source), path, journal.as_ref()));
    };
    if !refusals.is_empty() {
        let lost = drain::lost(refusals).into_iter().map(|loss| loss.line).collect();
        return Err(give_up(lost, path, journal.as_ref()));
    }
    if mount.has_ended() {
        mount.free_reserved();
    }
    drain::close(&cache);
    told
}

/// Unmounts, and fails the requests that wait for too long, and all later ones. Returns how long
/// draining may take.
fn end_requests(mount: &Lower, source: &Path, path: &Path) -> Duration {
    mount.begin_stop();
    let has_ended = mount.wait_until_ended(DRAIN_TIMEOUT_DEFAULT);
    // Even if none waits: nobody takes the next one, of a program that has a file open.
    mount.abort();
    if has_ended {
        return Duration::MAX;
    }
    let (source, path) = (source.display(), path.display());
    log::warn!("{path}: {source} does not answer: the requests that wait for it have failed");
    LAST_TRY
}

/// Names what is lost because the source does not answer.
fn unanswered(cache: &Cache, source: &Path) -> Vec<String> {
    let objects = drain::objects(cache);
    let stats = Object::stats_of(&objects);
    let dirty: Vec<_> = objects.iter().zip(&stats).filter(|(_, stat)| stat.dirty_bytes > 0).collect();
    let of_file = |(object, stat): &(&Object, &ObjectStat)| {
        format!("{}: {} are lost", object.name(), units::human_bytes(stat.dirty_bytes))
    };
    let mut lost: Vec<String> = dirty.iter().take(NAMED_MAX).map(of_file).collect();
    if dirty.len() > NAMED_MAX {
        lost.push(format!("and bytes of {} more files", dirty.len() - NAMED_MAX));
    }
    let bytes = units::human_bytes(dirty.iter().map(|(_, stat)| stat.dirty_bytes).sum());
    let source = source.display();
    let why = format!(
        "{source} does not answer: {bytes} are lost, and what was written without a sync may not be durable"
    );
    lost.insert(0, why);
    lost
}

/// Drains all objects, as [`drain::drain`] does. `None` if no dirty byte is written for `patience`.
fn drain_within(
    cache: &Cache,
    patience: Duration,
    mut progress: impl FnMut(u64),
) -> Option<Vec<drain::Refusal>> {
    enum News {
        DirtyBytes(u64),
        Drained(Vec<drain::Refusal>),
    }
    let (tell, told) = channel();
    let objects = drain::objects(cache);
    std::thread::spawn(move || {
        let refusals = drain::drain(objects, DRAIN_TIMEOUT_DEFAULT, |dirty_bytes| {
            let _ = tell.send(News::DirtyBytes(dirty_bytes));
        });
        let _ = tell.send(News::Drained(refusals));
    });
    let mut least = u64::MAX;
    let mut moved = Instant::now();
    loop {
        match told.recv_timeout(patience.saturating_sub(moved.elapsed())) {
            Ok(News::DirtyBytes(dirty_bytes)) => {
                if dirty_bytes < least {
                    least = dirty_bytes;
                    moved = Instant::now();
                }
                progress(dirty_bytes);
            }
            Ok(News::Drained(refusals)) => return Some(refusals),
            Err(_) => return None,
        }
    }
}

/// What is mounted where, and how, in a line.
fn summary(options: &Options, source: &Path, path: &Path) -> String {
    let mode = match (options.mount.read_only, options.cache_mode) {
        (true, _) => "read-only",
        (_, CacheMode::Writeback) => "write-back",
        (_, CacheMode::Writethrough) => "write-through",
    };
    let memory = units::human_bytes(options.memory_max_bytes);
    format!("{} is mounted at {}: {mode}, {memory} of cache", source.display(), path.display())
}
