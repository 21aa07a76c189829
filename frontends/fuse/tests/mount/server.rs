//! A mount that another process serves: this program, run once more with an environment variable.
//! A test may kill it. Mappings of a mount's files need it too: a thread that unmaps one waits for
//! the server with the address space locked, in which the server may want memory.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use octavo::{Cache, CacheConfig, CacheMode, PartitionConfig};
use octavo_fuse::{Coherence, Mount, MountOptions};

const VARIABLE: &str = "OCTAVO_FUSE_TEST_SERVES";
const MEMORY_BYTES: u64 = 64 << 20;
const READY: &str = "the directory is mounted";

/// A directory that another process mounts elsewhere.
pub struct Server {
    child: Child,
    /// The lower directory.
    pub source: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    _directory: tempfile::TempDir,
}

/// Serves what the variable says, until the standard input ends. Without it, nothing is to do.
#[test]
fn another_test_can_run_this_one_as_its_server() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let [mode, coherence, memory, source, target] = what.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let memory_max_bytes = memory.parse().unwrap();
    let cache = Cache::new(CacheConfig { memory_max_bytes, ..CacheConfig::default() }).unwrap();
    let cache_mode = if mode == "writeback" { CacheMode::Writeback } else { CacheMode::Writethrough };
    let config = PartitionConfig { cache_mode, ..PartitionConfig::new("files") };
    let partition = cache.partition(config).unwrap();
    let coherence = if coherence == "lease" { Coherence::Lease } else { Coherence::default() };
    let options = MountOptions { coherence, ..MountOptions::default() };
    let mount = match Mount::start(cache, source.as_ref(), target.as_ref(), &options, move |_| {
        Some(partition.clone())
    }) {
        Ok(mount) => mount,
        Err(why) => return println!("\ncannot mount: {why}"),
    };
    println!("\n{READY}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(mount.stop(), Vec::<String>::new());
}

/// Runs a server with 64 MiB. `None` where FUSE is missing.
pub fn server(mode: CacheMode) -> Option<Server> {
    server_with(mode, MEMORY_BYTES)
}

/// Runs a server that keeps pages under leases.
pub fn lease_server(mode: CacheMode) -> Option<Server> {
    start(mode, Coherence::Lease, MEMORY_BYTES)
}

/// Runs a server with this much memory.
pub fn server_with(mode: CacheMode, memory_max_bytes: u64) -> Option<Server> {
    start(mode, Coherence::default(), memory_max_bytes)
}

fn start(mode: CacheMode, coherence: Coherence, memory_max_bytes: u64) -> Option<Server> {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    [&source, &target].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let child = run((mode, coherence), memory_max_bytes, &source, &target)?;
    Some(Server { child, source, target, _directory: directory })
}

fn run(
    (mode, coherence): (CacheMode, Coherence),
    memory_max_bytes: u64,
    source: &Path,
    target: &Path,
) -> Option<Child> {
    let mode = if mode == CacheMode::Writeback { "writeback" } else { "writethrough" };
    let coherence = if coherence == Coherence::Lease { "lease" } else { "" };
    let what = format!("{mode}\n{coherence}\n{memory_max_bytes}\n{}\n{}", source.display(), target.display());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server::another_test_can_run_this_one_as_its_server", "--nocapture"])
        .env(VARIABLE, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    while !said.ends_with(&format!("{READY}\n")) {
        if output.read_line(&mut said).unwrap() == 0 {
            child.wait().unwrap();
            assert!(std::env::var_os("OCTAVO_REQUIRE_CLIENTS").is_none(), "{said}");
            println!("skipped: {said}");
            return None;
        }
    }
    // Read on, so that its last lines do not fail.
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    Some(child)
}

impl Server {
    pub fn process(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Unmounts. Everything is in the lower directory afterwards.
    pub fn stop(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success(), "the server stops without errors");
    }

    /// Kills the server. The mount stays, without a server.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Runs another server, for the same directories or another target.
    pub fn start_again(&mut self, mode: CacheMode, target: &Path) {
        self.target = target.to_owned();
        self.child = run((mode, Coherence::default()), MEMORY_BYTES, &self.source, target).unwrap();
    }
}

/// Takes a mount away whose server has ended.
pub fn unmount(target: &Path) -> bool {
    let flags = rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(target, flags).is_ok()
        || Command::new("fusermount3").arg("-uz").arg(target).status().is_ok_and(|status| status.success())
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test has failed: calls that wait for the server then get an error.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            unmount(&self.target);
        }
    }
}
