//! The same random requests to Octavo and to qemu-storage-daemon must have the same results and
//! leave the same bytes. `OCTAVO_STEPS` sets the number of requests (default: 2,000), and
//! `OCTAVO_SEED` their seed.

use crate::driver::{Driver, PATIENCE, Rig};
use blkio::ReqFlags;
use octavo_block::VhostSettings;
use octavo_random::Random;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const LEN: u64 = 16 << 20;
const REQUEST: usize = 128 << 10;

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves a file of zeros at a socket. None if the program is not installed.
fn start_qemu(folder: &Path, socket: &Path) -> Option<Qemu> {
    let file = folder.join("disk.raw");
    std::fs::File::create(&file).unwrap().set_len(LEN).unwrap();
    let mut command = Command::new("qemu-storage-daemon");
    command
        .arg("--blockdev")
        .arg(format!("driver=file,node-name=disk,filename={},discard=unmap", file.display()))
        .arg("--export")
        .arg(format!(
            "type=vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            socket.display()
        ))
        .stdin(Stdio::null());
    let child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: qemu-storage-daemon is not installed");
            return None;
        }
        child => Qemu(child.unwrap()),
    };
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < PATIENCE, "qemu-storage-daemon does not listen");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Some(child)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn octavo_and_qemu_have_the_same_bytes_after_the_same_requests() {
    let (steps, seed) = (number("OCTAVO_STEPS", 2000), number("OCTAVO_SEED", 1));
    println!("OCTAVO_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qemu.sock");
    let Some(_qemu) = start_qemu(folder.path(), &socket) else { return };
    let rig =
        Rig::new(LEN, VhostSettings { is_writeback: seed.is_multiple_of(2), ..VhostSettings::default() });
    let mut disks = [rig.driver(1), Driver::connect(&socket, 1)];
    let mut random = Random::new(seed);
    for step in 0..steps {
        let len = 512 * (1 + random.below((REQUEST / 512) as u64));
        // Some requests end past the end of the disk.
        let (begins_past, ends_past) = (random.one_in(50), random.one_in(50));
        let offset = 512 * random.below(LEN / 512 + if begins_past { 64 } else { 0 });
        let len = if ends_past { len } else { len.min(LEN.saturating_sub(offset)).max(512) };
        let (verb, cut) = (random.below(10), 512 * random.below(len / 512) as usize);
        let bytes = random.bytes(len as usize);
        let results = disks.each_mut().map(|disk| {
            // The requests of two pieces are chains of four descriptors.
            let parts = [(0, cut), (cut, len as usize - cut)]
                .map(|(at, len)| libc::iovec { iov_base: disk.at(at).cast(), iov_len: len });
            let parts = if cut == 0 { &parts[1..] } else { &parts[..] };
            let (start, count) = (parts.as_ptr(), parts.len() as u32);
            let queue = &mut disk.queues[0];
            match verb {
                0..4 => queue.readv(offset, start, count, 1, ReqFlags::empty()),
                4..8 => {
                    disk.fill(0, &bytes);
                    disk.queues[0].writev(offset, start, count, 1, ReqFlags::empty());
                }
                8 => queue.write_zeroes(offset, len, 1, ReqFlags::empty()),
                _ => queue.flush(1, ReqFlags::empty()),
            }
            disk.wait(0)
        });
        let what = format!("seed {seed}, step {step}: verb {verb}, {len} bytes at {offset}, cut at {cut}");
        assert_eq!(results[0].1 == 0, results[1].1 == 0, "{what}: {results:?}");
        if verb < 4 && results[0].1 == 0 {
            let [ours, theirs] = disks.each_ref().map(|disk| disk.bytes(0, len as usize));
            assert!(ours == theirs, "{what}: other bytes");
        }
    }
    for offset in (0..LEN).step_by(1 << 20) {
        let [ours, theirs] = disks.each_mut().map(|disk| disk.read(offset, 1 << 20));
        assert!(ours == theirs, "seed {seed}: other bytes in the MiB at {offset} at the end");
    }
}
