//! A lower file system that hangs: another mount, whose server is stopped. Hits go on, programs can
//! be killed, and the mount can be ended.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_fuse::{Coherence, Mount, MountOptions};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom, Timestamps, XattrFlags};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::server::{Server, server, unmount};

/// How long anything may take that must not wait for the lower file system.
const PATIENCE: Duration = Duration::from_secs(60);

const PAGE: u64 = 4096;

/// How long a test may take. Each of its waits is shorter.
const WHOLE_PATIENCE: Duration = Duration::from_secs(600);

/// Tells a test that it is the process of its own: the process of the lower mount, and where both
/// mounts are.
const VARIABLE: &str = "OCTAVO_FUSE_TEST_HANGS";

/// A process that runs a test above the mount of another process. Its end ends both.
struct Alone {
    process: Child,
    lower: Server,
    directory: tempfile::TempDir,
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // The test has failed. Once the lower mount has no server, nothing waits for it.
        let _ = self.process.kill();
        self.lower.kill();
        unmount(&self.lower.target);
        unmount(&self.directory.path().join("target"));
        let _ = self.process.wait();
    }
}

/// Runs a test in a process of its own. In this one, children that other tests start get copies of
/// the descriptors of lower files, and hang when they close them.
fn alone(test: &str, mode: CacheMode, body: fn(Hung)) {
    // The kernel keeps what it knows: no request about `hot` but its reads comes later.
    alone_above(test, (mode, Coherence::Exclusive), |_| true, body);
}

/// As [`alone`], above a lower mount that `prepare` has prepared, if it could.
fn alone_above(
    test: &str,
    (mode, coherence): (CacheMode, Coherence),
    prepare: fn(&Server) -> bool,
    body: fn(Hung),
) {
    if let Ok(what) = std::env::var(VARIABLE) {
        return body(Hung::new(&what, (mode, coherence)));
    }
    let Some(lower) = server(CacheMode::Writethrough) else { return };
    if !prepare(&lower) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    fs::create_dir(&target).unwrap();
    let number = lower.process().as_raw_nonzero();
    let what = format!("{number}\n{}\n{}", lower.target.display(), target.display());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(VARIABLE, what).stdout(Stdio::null());
    let mut alone = Alone { process: command.spawn().unwrap(), lower, directory };
    let since = Instant::now();
    let ended = loop {
        if let Some(ended) = alone.process.try_wait().unwrap() {
            break ended;
        }
        assert!(since.elapsed() < WHOLE_PATIENCE, "the test ends");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(ended.success(), "the test fails in its process: {ended}");
    alone.lower.stop();
}

/// A directory on the mount of another process, mounted again with two threads.
struct Hung {
    lower: Pid,
    upper: Option<Mount>,
    target: PathBuf,
    programs: Vec<Program>,
}

impl Hung {
    fn new(what: &str, (mode, coherence): (CacheMode, Coherence)) -> Hung {
        let [number, source, target] = what.split('\n').collect::<Vec<_>>().try_into().unwrap();
        let lower = Pid::from_raw(number.parse().unwrap()).unwrap();
        let target = PathBuf::from(target);
        let program = |number| Program::start(&target.join(format!("none{number}")));
        let programs = (0..4).map(program).collect();
        let cache = Cache::new(CacheConfig { memory_max_bytes: 64 << 20, ..CacheConfig::default() }).unwrap();
        let partition =
            cache.partition(PartitionConfig { cache_mode: mode, ..PartitionConfig::new("files") }).unwrap();
        let options = MountOptions { threads: 2, coherence, ..MountOptions::default() };
        let choose = move |_: &octavo_fuse::Opened<'_>| Some(partition.clone());
        let upper = Mount::start(cache, source.as_ref(), &target, &options, choose).unwrap();
        Hung { lower, upper: Some(upper), target, programs }
    }

    fn mount(&self) -> &Mount {
        self.upper.as_ref().unwrap()
    }

    fn send(&self, signal: Signal) {
        kill_process(self.lower, signal).unwrap();
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let Some(upper) = self.upper.take() else { return };
        // The test has failed: nothing waits any more, and nothing is waited for.
        upper.begin_stop();
        upper.abort();
        let _ = kill_process(self.lower, Signal::CONT);
        std::mem::forget(upper);
    }
}

/// A thread that reads a resident page whenever it is asked to.
struct Hits {
    ask: Sender<()>,
    done: Receiver<bool>,
}

impl Hits {
    fn of(path: &Path) -> Hits {
        let file = File::open(path).unwrap();
        let mut page = [0; PAGE as usize];
        file.read_exact_at(&mut page, 0).unwrap();
        let (ask, asked) = channel();
        let (tell, done) = channel();
        std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let _ = tell.send(file.read_exact_at(&mut page, 0).is_ok());
            }
        });
        Hits { ask, done }
    }

    fn check(&self, after: &str) {
        self.ask.send(()).unwrap();
        assert_eq!(self.done.recv_timeout(PATIENCE), Ok(true), "a hit of another file after {after}");
    }
}

type Call = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Calls of every kind, each in a folder of its own, so that the kernel has them wait for nothing
/// but the server. What they need is opened now.
fn calls(root: &Path) -> Vec<(String, Call)> {
    let mut calls: Vec<(String, Call)> = Vec::new();
    let mut add = |name: &str, make: &dyn Fn(PathBuf, File) -> Call| {
        let folder = root.join(format!("{} {name}", calls.len()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("file");
        fs::write(&path, vec![5; 64 * PAGE as usize]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        calls.push((name.to_owned(), make(path, file)));
    };
    for _ in 0..3 {
        add("lookup", &|path, _| Box::new(move || fs::metadata(path.with_file_name("none")).map(drop)));
        add("extending write", &|_, file| Box::new(move || file.write_all_at(&[1; 100], 64 * PAGE)));
        add("write of a part", &|_, file| Box::new(move || file.write_all_at(&[1; 100], 7 * PAGE + 9)));
        add("write of a page", &|_, file| Box::new(move || file.write_all_at(&[1; 4096], 8 * PAGE)));
        add("read", &|_, file| Box::new(move || file.read_exact_at(&mut [0; 4096], 30 * PAGE)));
        add("long read", &|_, file| Box::new(move || file.read_exact_at(&mut [0; 100_000], 9)));
        add("sync", &|_, file| Box::new(move || file.sync_all()));
    }
    add("data sync", &|_, file| Box::new(move || file.sync_data()));
    add("cut", &|_, file| Box::new(move || file.set_len(5000)));
    add("cut to nothing", &|_, file| Box::new(move || file.set_len(0)));
    add("growth", &|_, file| Box::new(move || file.set_len(100 * PAGE)));
    add("create", &|path, _| Box::new(move || File::create(path.with_file_name("new")).map(drop)));
    add("open", &|path, file| {
        drop(file);
        Box::new(move || OpenOptions::new().append(true).open(path).map(drop))
    });
    add("close", &|_, file| {
        Box::new(move || {
            drop(file);
            Ok(())
        })
    });
    add("mkdir", &|path, _| Box::new(move || fs::create_dir(path.with_file_name("new"))));
    add("rmdir", &|path, _| {
        let below = path.with_file_name("below");
        fs::create_dir(&below).unwrap();
        Box::new(move || fs::remove_dir(below))
    });
    add("unlink", &|path, _| Box::new(move || fs::remove_file(path)));
    add("rename", &|path, _| Box::new(move || fs::rename(&path, path.with_file_name("new"))));
    add("rename without replacing", &|path, _| {
        Box::new(move || {
            let flags = RenameFlags::NOREPLACE;
            Ok(rustix::fs::renameat_with(CWD, &path, CWD, path.with_file_name("new"), flags)?)
        })
    });
    add("link", &|path, _| Box::new(move || fs::hard_link(&path, path.with_file_name("new"))));
    add("symlink", &|path, _| {
        Box::new(move || std::os::unix::fs::symlink("file", path.with_file_name("new")))
    });
    add("readlink", &|path, _| {
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        Box::new(move || fs::read_link(link).map(drop))
    });
    add("mknod", &|path, _| {
        Box::new(move || {
            let (new, mode) = (path.with_file_name("new"), Mode::from_raw_mode(0o600));
            Ok(rustix::fs::mknodat(CWD, &new, FileType::Fifo, mode, 0)?)
        })
    });
    add("chmod", &|_, file| Box::new(move || file.set_permissions(fs::Permissions::from_mode(0o640))));
    add("chown", &|_, file| {
        Box::new(move || {
            let user = rustix::process::geteuid();
            Ok(rustix::fs::fchown(&file, Some(user), None)?)
        })
    });
    add("utimes", &|_, file| {
        Box::new(move || {
            let time = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            Ok(rustix::fs::futimens(&file, &times)?)
        })
    });
    // Not every file system has these: their results are not looked at.
    let key = CString::new("user.octavo.test").unwrap();
    add("setxattr", &|_, file| {
        let key = key.clone();
        Box::new(move || {
            let _ = rustix::fs::fsetxattr(&file, &key, b"value", XattrFlags::empty());
            Ok(())
        })
    });
    add("getxattr", &|_, file| {
        let key = key.clone();
        Box::new(move || {
            let _ = rustix::fs::fgetxattr(&file, &key, &mut [0; 100][..]);
            Ok(())
        })
    });
    add("listxattr", &|_, file| {
        Box::new(move || {
            let _ = rustix::fs::flistxattr(&file, &mut [0; 1000][..]);
            Ok(())
        })
    });
    add("removexattr", &|_, file| {
        let key = key.clone();
        Box::new(move || {
            let _ = rustix::fs::fremovexattr(&file, &key);
            Ok(())
        })
    });
    add("statfs", &|_, file| Box::new(move || Ok(rustix::fs::fstatfs(&file).map(drop)?)));
    add("opendir", &|path, _| Box::new(move || fs::read_dir(path.parent().unwrap()).map(drop)));
    add("getdents", &|path, _| {
        let entries = fs::read_dir(path.parent().unwrap()).unwrap();
        Box::new(move || entries.into_iter().try_for_each(|entry| entry.map(drop)))
    });
    add("sync of a directory", &|path, _| {
        let folder = File::open(path.parent().unwrap()).unwrap();
        Box::new(move || folder.sync_all())
    });
    add("fallocate", &|_, file| {
        Box::new(move || {
            let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 100 * PAGE);
            Ok(())
        })
    });
    add("seek of a hole", &|_, file| {
        Box::new(move || Ok(rustix::fs::seek(&file, SeekFrom::Hole(0)).map(drop)?))
    });
    add("copy", &|path, file| {
        let to = File::create(path.with_file_name("to")).unwrap();
        Box::new(move || Ok(rustix::fs::copy_file_range(&file, None, &to, None, 10_000).map(drop)?))
    });
    calls
}

/// Runs calls on threads, and returns the names and results of those that have ended.
fn run(calls: Vec<(String, Call)>, mut between: impl FnMut(&str)) -> Receiver<(String, io::Result<()>)> {
    let (tell, ended) = channel();
    for (name, call) in calls {
        let tell = tell.clone();
        let shown = name.clone();
        std::thread::spawn(move || {
            let result = call();
            let _ = tell.send((name, result));
        });
        between(&shown);
    }
    ended
}

/// Returns the results of all calls.
fn results(ended: &Receiver<(String, io::Result<()>)>) -> Vec<(String, io::Result<()>)> {
    let mut results = Vec::new();
    loop {
        match ended.recv_timeout(PATIENCE) {
            Ok(one) => results.push(one),
            Err(RecvTimeoutError::Disconnected) => return results,
            Err(RecvTimeoutError::Timeout) => panic!("calls do not end; {} have", results.len()),
        }
    }
}

/// A program that looks a name up when it is told to. It is started before the mount, and so has no
/// copies of the descriptors of lower files.
struct Program(Child);

impl Program {
    fn start(path: &Path) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", "read word && exec stat \"$0\""]).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Program(command.spawn().unwrap())
    }

    /// Has it look the name up, kills it, and waits for its end.
    fn go_and_die(mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        // Wherever it is by then, it must end.
        std::thread::sleep(Duration::from_millis(200));
        self.0.kill().unwrap();
        let since = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(since.elapsed() < PATIENCE, "a program that was killed ends");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Two requests of most kinds once stopped a mount of two threads, hits of other files with it.
#[test]
fn a_hung_file_system_stops_only_what_needs_it() {
    let test = "hung::a_hung_file_system_stops_only_what_needs_it";
    alone(test, CacheMode::Writethrough, |hung| only_what_needs_it_stops(hung, CacheMode::Writethrough));
}

#[test]
fn a_hung_file_system_that_is_written_back_to_stops_only_what_needs_it() {
    let test = "hung::a_hung_file_system_that_is_written_back_to_stops_only_what_needs_it";
    alone(test, CacheMode::Writeback, |hung| only_what_needs_it_stops(hung, CacheMode::Writeback));
}

fn only_what_needs_it_stops(mut hung: Hung, mode: CacheMode) {
    fs::write(hung.target.join("hot"), vec![7; 4 * PAGE as usize]).unwrap();
    let hits = Hits::of(&hung.target.join("hot"));
    let calls = calls(&hung.target);
    let count = calls.len();
    hung.send(Signal::STOP);
    let ended = run(calls, |name| hits.check(name));
    // Programs whose requests wait for a thread, too.
    for program in std::mem::take(&mut hung.programs) {
        program.go_and_die();
        hits.check("a program was killed");
    }
    hung.send(Signal::CONT);
    let results = results(&ended);
    assert_eq!(results.len(), count);
    for (name, result) in results {
        let is_expected = match (&*name, &result) {
            ("lookup", Err(error)) => error.kind() == io::ErrorKind::NotFound,
            (_, result) => result.is_ok(),
        };
        assert!(is_expected, "{mode:?}: {name}: {result:?}");
    }
    hits.check("everything goes on");
    let upper = hung.upper.take().unwrap();
    drop(hits);
    assert_eq!(upper.stop(), Vec::<String>::new());
}

/// Programs once waited for as long as the lower file system hung, though the server had ended.
#[test]
fn an_aborted_mount_fails_what_still_waits() {
    let test = "hung::an_aborted_mount_fails_what_still_waits";
    alone(test, CacheMode::Writeback, |mut hung| {
        fs::write(hung.target.join("hot"), vec![7; 4 * PAGE as usize]).unwrap();
        let hits = Hits::of(&hung.target.join("hot"));
        let calls = calls(&hung.target);
        hung.send(Signal::STOP);
        let ended = run(calls, |name| hits.check(name));
        hung.mount().begin_stop();
        assert!(!hung.mount().wait_until_ended(Duration::from_millis(500)));
        hung.mount().abort();
        let results = results(&ended);
        assert!(results.iter().any(|(name, result)| name == "lookup" && result.is_err()));
        hits.ask.send(()).unwrap();
        assert_eq!(hits.done.recv_timeout(PATIENCE), Ok(false), "a hit has no server any more");
        hung.send(Signal::CONT);
        assert!(hung.mount().wait_until_ended(PATIENCE), "the threads end with the hang");
        let upper = hung.upper.take().unwrap();
        // What was cut off may not be below.
        let _ = upper.wait();
    });
}

/// The path of a mount below another one is looked up by that one, to be unmounted.
#[test]
fn a_mount_with_file_systems_below_a_hung_one_can_be_ended() {
    let test = "hung::a_mount_with_file_systems_below_a_hung_one_can_be_ended";
    let mount_below = |lower: &Server| {
        let path = lower.target.join("below");
        fs::create_dir(&path).unwrap();
        let mounted = rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), Some(c"size=4m"));
        if let Err(errno) = &mounted {
            println!("skipped: cannot mount a tmpfs: {errno}");
        }
        mounted.is_ok()
    };
    let modes = (CacheMode::Writeback, Coherence::default());
    alone_above(test, modes, mount_below, |mut hung| {
        assert_eq!(hung.mount().paths_below().count(), 1);
        let below = hung.target.join("below/file");
        fs::write(&below, b"as before").unwrap();
        let open = File::open(&below).unwrap();
        let path = hung.target.join("none");
        hung.send(Signal::STOP);
        // The kernel no longer keeps the name `below`.
        std::thread::sleep(Duration::from_millis(1500));
        let call: Call = Box::new(move || fs::metadata(path).map(drop));
        let ended = run(vec![("lookup".to_owned(), call)], |_| ());
        let mut bytes = [0; 9];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"as before", "the file system below does not wait");
        hung.mount().begin_stop();
        hung.mount().abort();
        assert!(results(&ended).iter().all(|(_, result)| result.is_err()));
        assert!(open.read_exact_at(&mut bytes, 0).is_err());
        drop(open);
        hung.send(Signal::CONT);
        assert!(hung.mount().wait_until_ended(PATIENCE), "the threads end with the hang");
        let upper = hung.upper.take().unwrap();
        let _ = upper.wait();
    });
}
