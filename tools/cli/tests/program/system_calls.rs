//! What a request costs the server, counted by strace.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients;
use crate::nbd_client::Client;
use crate::server::{PATIENCE, Setup, served, wait_for};

const READS: usize = 300;

/// Calls that are not the reads': the wait that the first one ends, and the end of the connection
/// and its thread.
const OTHERS_MAX: usize = 40;

/// What a silence takes, for a client that is held up by a busy machine: a sleep that ends in vain,
/// the memory that goes back, and the polls.
const PER_SILENCE: usize = 8;

/// A connection used to poll before each read: three calls, and a slower wake-up.
#[test]
fn a_resident_page_is_served_with_two_system_calls() {
    if !clients::present(&["strace"]) {
        return;
    }
    let (directory, server) = served(&Setup::default());
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.read(0, 65_536);
    // 1. Attach to the connection's thread alone.
    let thread = connection_thread(server.pid());
    let log = directory.join("strace");
    let mut strace = Command::new(clients::find("strace").unwrap())
        .args(["-p", thread.file_name().unwrap().to_str().unwrap(), "-o"])
        .arg(&log)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !is_traced(&thread) {
        if strace.try_wait().unwrap().is_some() {
            clients::skip("strace may not attach to the server");
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "strace does not attach");
        std::thread::sleep(Duration::from_millis(5));
    }
    // 2. One request at a time; strace ends with the thread.
    for read in 0..READS {
        assert_eq!(client.read(read as u64 % 16 * 4096, 4096), [0; 4096]);
    }
    drop(client);
    strace.wait().unwrap();
    // 3. Looks of a busy wait are not counted: there are few under strace, which makes every call
    //    slow.
    let log = fs::read_to_string(&log).unwrap();
    let in_vain = |line: &&str| line.contains("EAGAIN");
    let looks = log.lines().filter(in_vain).filter(|line| line.contains("MSG_DONTWAIT")).count();
    let silences = log.lines().filter(in_vain).count() - looks;
    let calls = log.lines().count() - looks;
    println!("{calls} calls for {READS} reads, {looks} looks, {silences} silences");
    assert!(
        calls <= 2 * READS + OTHERS_MAX + PER_SILENCE * silences,
        "{calls} calls for {READS} reads, {silences} silences:\n{log}"
    );
}

/// Waits until the only connection is the client's, which the server has answered, and returns its
/// thread. On a busy machine, the thread of the connection that showed that the server listens
/// (`Server::start`) may not have ended yet.
fn connection_thread(pid: u32) -> PathBuf {
    let more = || format!("threads of connections: {:?}", connection_threads(pid));
    wait_for(more, || connection_threads(pid).try_into().ok().map(|[thread]: [PathBuf; 1]| thread))
}

fn connection_threads(pid: u32) -> Vec<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread that ends meanwhile has no name any more.
    let serves = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("octavo-nbd-"))
    };
    threads.filter_map(|thread| Some(thread.ok()?.path())).filter(serves).collect()
}

fn is_traced(thread: &std::path::Path) -> bool {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
}
