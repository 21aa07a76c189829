//! The system calls that the threads of a mount make for a request.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use octavo::CacheMode;
use octavo_fuse::{MountOptions, MountStat};

use crate::rig::rig_with;

const READS: u64 = 2000;

/// Reads resident pages one after the other. Returns what the mount counted meanwhile.
fn hits(threads: usize) -> Option<MountStat> {
    let rig = rig_with(CacheMode::Writethrough, &MountOptions { threads, ..MountOptions::default() })?;
    let mount = rig.mount.as_ref().unwrap();
    fs::write(rig.source.join("file"), vec![7; 1 << 20]).unwrap();
    let file = File::open(rig.target.join("file")).unwrap();
    let mut page = [0; 4096];
    let mut read = |number: u64| file.read_exact_at(&mut page, number % 256 * 4096).unwrap();
    (0..256).for_each(&mut read);
    let before = mount.stat();
    (0..READS).for_each(read);
    let after = mount.stat();
    Some(MountStat {
        requests: after.requests - before.requests,
        empty_reads: after.empty_reads - before.empty_reads,
        waits: after.waits - before.waits,
        ..after
    })
}

/// A read after each reply found nothing, and cost as much as a third of the request.
#[test]
fn a_hit_costs_one_sleep_one_read_and_one_reply() {
    let Some(did) = hits(1) else { return };
    assert!(did.requests >= READS && did.requests < READS + 10, "{did:?}");
    // A read after a reply that finds a request saves a sleep; one that finds none costs a call. In
    // whatever order they come, at most a seventh of the requests costs a call more.
    assert!(did.waits + did.empty_reads <= did.requests + did.requests / 6, "{did:?}");
}

/// Each request once woke every thread that slept, and all but one read nothing.
#[test]
fn a_request_wakes_one_thread() {
    let Some(did) = hits(4) else { return };
    assert!(did.requests >= READS, "{did:?}");
    assert!(did.empty_reads < did.requests / 2, "{did:?}");
}
