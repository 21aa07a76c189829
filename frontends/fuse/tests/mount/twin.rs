//! Random file operations on a mount and on a plain directory: results, errors and bytes agree.
//! `OCTAVO_SEED` repeats a run, `OCTAVO_STEPS` sets its length.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use octavo::CacheMode;
use octavo_random::Random;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use crate::mapping::Mapping;
use crate::server::{Server, lease_server, server};

const NAMES: [&str; 9] = ["a", "b", "c", "d/a", "d/b", "d/e/a", "d/e", "d", "a/x"];
const SLOTS: u64 = 4;

/// One call. Files that are open have a slot.
#[derive(Clone, Debug)]
enum Step {
    Open { slot: usize, name: &'static str, flags: OFlags, mode: u32 },
    OpenUnnamed { slot: usize },
    Close(usize),
    Read { slot: usize, at: u64, len: usize },
    Write { slot: usize, at: u64, len: usize, seed: u64 },
    Append { slot: usize, len: usize, seed: u64 },
    ReadMapped { slot: usize, at: u64, len: usize },
    WriteMapped { slot: usize, at: u64, len: usize, seed: u64, syncs: bool },
    Cut { slot: usize, len: u64 },
    CutPath { name: &'static str, len: u64 },
    Fallocate { slot: usize, mode: FallocateFlags, at: u64, len: u64 },
    Copy { from: usize, to: usize, at: u64, to_at: u64, len: usize },
    Seek { slot: usize, at: SeekFrom },
    Sync { slot: usize, data: bool },
    Rename { from: &'static str, to: &'static str, flags: RenameFlags },
    Link { from: &'static str, to: &'static str },
    LinkUnnamed { slot: usize, to: &'static str },
    Symlink { target: &'static str, name: &'static str },
    Unlink(&'static str),
    MakeDirectory(&'static str, u32),
    RemoveDirectory(&'static str),
    MakeFifo(&'static str),
    SetMode { name: &'static str, mode: u32 },
    SetTime { name: &'static str, seconds: i64 },
    SetAttribute { name: &'static str, key: &'static str, len: usize, seed: u64, flags: XattrFlags },
    GetAttribute { name: &'static str, key: &'static str, room: usize },
    RemoveAttribute { name: &'static str, key: &'static str },
    ListAttributes { name: &'static str },
    Look { name: &'static str },
    List { name: &'static str },
    ReadLink { name: &'static str },
}

/// Offsets and lengths around pages, and some behind the largest transfer.
fn place(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.below(8) * 4096,
        1 => (random.below(30) * 4096 + 1).saturating_sub(random.below(3)),
        2 => random.below(3 << 20),
        _ => random.below(60_000),
    }
}

fn length(random: &mut Random) -> usize {
    match random.below(12) {
        0 => 0,
        1 => random.below(8) as usize * 4096,
        2 => random.below(2_500_000) as usize,
        _ => random.below(12_000) as usize,
    }
}

fn open_flags(random: &mut Random) -> OFlags {
    let mut flags = random.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
    for (flag, every) in [
        (OFlags::CREATE, 1),
        (OFlags::EXCL, 6),
        (OFlags::TRUNC, 5),
        (OFlags::APPEND, 5),
        (OFlags::DSYNC, 12),
        (OFlags::NOFOLLOW, 6),
        (OFlags::DIRECTORY, 30),
    ] {
        flags.set(flag, random.one_in(every));
    }
    // Without CREATE, EXCL means nothing; with DIRECTORY, CREATE is refused.
    flags.set(OFlags::CREATE, !random.one_in(3));
    flags | OFlags::CLOEXEC | OFlags::NONBLOCK
}

/// Those that the kernel passes on: not to collapse and to insert ranges.
fn fallocate_mode(random: &mut Random) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    random.pick(&[
        FallocateFlags::empty(),
        keep,
        FallocateFlags::PUNCH_HOLE | keep,
        FallocateFlags::PUNCH_HOLE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::ZERO_RANGE | keep,
    ])
}

impl Step {
    fn of_a_file(random: &mut Random) -> Step {
        let slot = random.below(SLOTS) as usize;
        let (at, len, seed) = (place(random), length(random), random.next_u64());
        match random.below(24) {
            0..4 => Step::Read { slot, at, len },
            4..9 => Step::Write { slot, at, len, seed },
            9 => Step::Append { slot, len, seed },
            10..12 => Step::ReadMapped { slot, at, len },
            12..14 => Step::WriteMapped { slot, at, len, seed, syncs: random.coin() },
            14..16 => Step::Cut { slot, len: at },
            16..19 => {
                let blocks = |bytes: u64| bytes.next_multiple_of(4096);
                let (at, len) = (at % 100_000, len as u64 % 200_000);
                let (at, len) = if random.coin() { (blocks(at), blocks(len)) } else { (at, len) };
                Step::Fallocate { slot, mode: fallocate_mode(random), at, len }
            }
            19..21 => {
                let (to, to_at) = (random.below(SLOTS) as usize, place(random));
                Step::Copy { from: slot, to, at, to_at, len }
            }
            21 => Step::Seek {
                slot,
                at: random.pick(&[SeekFrom::Data(at), SeekFrom::Hole(at), SeekFrom::End(0)]),
            },
            22 => Step::Sync { slot, data: random.coin() },
            _ => Step::Close(slot),
        }
    }

    fn of_a_name(random: &mut Random) -> Step {
        let (name, other) = (random.pick(&NAMES), random.pick(&NAMES));
        let (slot, seed) = (random.below(SLOTS) as usize, random.next_u64());
        let key = random.pick(&["user.a", "user.bb", "user.", "trusted.c", "nonsense"]);
        match random.below(26) {
            0..6 => Step::Open { slot, name, flags: open_flags(random), mode: random.below(0o1000) as u32 },
            6 => Step::OpenUnnamed { slot },
            7 => Step::CutPath { name, len: place(random) },
            8..10 => {
                let none = RenameFlags::empty();
                let flags = random.pick(&[none, none, RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]);
                Step::Rename { from: name, to: other, flags }
            }
            10 => Step::Link { from: name, to: other },
            11 => Step::LinkUnnamed { slot, to: name },
            12 => Step::Symlink { target: other, name },
            13 => Step::Unlink(name),
            14 => Step::MakeDirectory(name, 0o700 | random.below(0o10000) as u32),
            15 => Step::RemoveDirectory(name),
            16 => Step::MakeFifo(name),
            17 => Step::SetMode { name, mode: random.below(0o10000) as u32 },
            18 => Step::SetTime { name, seconds: random.below(1 << 33) as i64 },
            19 => {
                let flags = random.pick(&[XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]);
                Step::SetAttribute { name, key, len: random.below(100) as usize, seed, flags }
            }
            20 => Step::GetAttribute { name, key, room: random.below(120) as usize },
            21 => Step::RemoveAttribute { name, key },
            22 => Step::ListAttributes { name },
            23 => Step::List { name },
            24 => Step::ReadLink { name },
            _ => Step::Look { name },
        }
    }
}

/// A directory, and the files of it that are open.
struct World<'w> {
    root: &'w Path,
    open: Vec<Option<OwnedFd>>,
}

fn fill(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

impl World<'_> {
    fn file(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Makes the call. Returns what the program sees.
    fn apply(&mut self, step: &Step) -> Result<Vec<u8>, Errno> {
        let path = |name: &str| self.root.join(name);
        let nothing = |()| Vec::new();
        match *step {
            Step::Open { slot, name, flags, mode } => {
                let opened = rustix::fs::open(path(name), flags, Mode::from_raw_mode(mode))?;
                self.open[slot] = Some(opened);
            }
            Step::OpenUnnamed { slot } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                self.open[slot] = Some(rustix::fs::open(self.root, flags, Mode::from_raw_mode(0o640))?);
            }
            Step::Close(slot) => self.open[slot] = None,
            Step::CutPath { name, len } => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                rustix::fs::ftruncate(rustix::fs::open(path(name), flags, Mode::empty())?, len)?;
            }
            Step::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags)?;
            }
            Step::Link { from, to } => rustix::fs::link(path(from), path(to))?,
            Step::LinkUnnamed { slot, to } => {
                rustix::fs::linkat(self.file(slot)?, "", CWD, path(to), AtFlags::EMPTY_PATH)?;
            }
            Step::Symlink { target, name } => rustix::fs::symlink(target, path(name))?,
            Step::Unlink(name) => rustix::fs::unlink(path(name))?,
            Step::MakeDirectory(name, mode) => rustix::fs::mkdir(path(name), Mode::from_raw_mode(mode))?,
            Step::RemoveDirectory(name) => rustix::fs::rmdir(path(name))?,
            Step::MakeFifo(name) => {
                rustix::fs::mknodat(CWD, path(name), rustix::fs::FileType::Fifo, Mode::RUSR, 0)?;
            }
            Step::SetMode { name, mode } => rustix::fs::chmod(path(name), Mode::from_raw_mode(mode))?,
            Step::SetTime { name, seconds } => {
                let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, path(name), &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let stat = rustix::fs::lstat(path(name))?;
                return Ok(format!("{} {}", stat.st_mtime, stat.st_mtime_nsec).into_bytes());
            }
            Step::SetAttribute { name, key, len, seed, flags } => {
                return rustix::fs::lsetxattr(path(name), key, &fill(seed, len), flags).map(nothing);
            }
            Step::GetAttribute { name, key, room } => {
                let mut value = vec![0; room];
                let len = rustix::fs::lgetxattr(path(name), key, &mut value)?;
                value.truncate(len);
                return Ok([len.to_string().into_bytes(), value].concat());
            }
            Step::RemoveAttribute { name, key } => rustix::fs::lremovexattr(path(name), key)?,
            Step::ListAttributes { name } => {
                let mut list = vec![0; 1000];
                let len = rustix::fs::llistxattr(path(name), &mut list[..])?;
                return Ok(list[..len].to_vec());
            }
            Step::Look { name } => return look(&path(name)),
            Step::List { name } => return list(&path(name)),
            Step::ReadLink { name } => return Ok(rustix::fs::readlink(path(name), Vec::new())?.into_bytes()),
            _ => return self.apply_to_bytes(step),
        }
        Ok(Vec::new())
    }

    fn apply_to_bytes(&self, step: &Step) -> Result<Vec<u8>, Errno> {
        match *step {
            Step::Read { slot, at, len } => {
                let mut bytes = vec![0; len];
                let len = rustix::io::pread(self.file(slot)?, &mut bytes[..], at)?;
                bytes.truncate(len);
                return Ok(bytes);
            }
            Step::Write { slot, at, len, seed } => {
                let written = rustix::io::pwrite(self.file(slot)?, &fill(seed, len), at)?;
                return Ok(written.to_string().into_bytes());
            }
            Step::Append { slot, len, seed } => {
                let file = self.file(slot)?;
                rustix::fs::seek(file, SeekFrom::End(0))?;
                let written = rustix::io::write(file, &fill(seed, len))?;
                let at = rustix::fs::seek(file, SeekFrom::Current(0))?;
                return Ok(format!("{written} {at}").into_bytes());
            }
            Step::ReadMapped { slot, at, len } => {
                let file = self.file(slot)?;
                let mapping = Mapping::new(file.as_fd(), at / 4096 * 4096, len, false)?;
                return Ok(mapping.read(file_left(file, at / 4096 * 4096)?));
            }
            Step::WriteMapped { slot, at, len, seed, syncs } => {
                let file = self.file(slot)?;
                let at = at / 4096 * 4096;
                let mut mapping = Mapping::new(file.as_fd(), at, len, true)?;
                let len = len.min(file_left(file, at)?);
                mapping.write(&fill(seed, len));
                if syncs {
                    mapping.sync()?;
                }
            }
            Step::Cut { slot, len } => rustix::fs::ftruncate(self.file(slot)?, len)?,
            Step::Fallocate { slot, mode, at, len } => {
                rustix::fs::fallocate(self.file(slot)?, mode, at, len)?;
            }
            Step::Copy { from, to, mut at, mut to_at, len } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                let copied = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len)?;
                return Ok(format!("{copied} {at} {to_at}").into_bytes());
            }
            Step::Seek { slot, at } => return seek(self.file(slot)?, at),
            Step::Sync { slot, data: false } => rustix::fs::fsync(self.file(slot)?)?,
            Step::Sync { slot, data: true } => rustix::fs::fdatasync(self.file(slot)?)?,
            _ => unreachable!("apply() handles the others"),
        }
        Ok(Vec::new())
    }
}

/// Where holes are is the lower file system's decision, and its plain files are written otherwise.
/// That a hole has no data is not.
fn seek(file: &OwnedFd, at: SeekFrom) -> Result<Vec<u8>, Errno> {
    let found = rustix::fs::seek(file, at);
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_dir() {
        return Ok(Vec::new());
    }
    let SeekFrom::Data(from) = at else {
        return found
            .map(|end| if at == SeekFrom::End(0) { end.to_string().into_bytes() } else { Vec::new() });
    };
    let left = file_left(file, from)?;
    let len = found.map_or(left, |data| (data - from) as usize);
    let mut bytes = vec![0; len];
    match rustix::io::pread(file, &mut bytes[..], from) {
        // It may only be written.
        Err(Errno::BADF) => {}
        read => assert!(read? == len && bytes.iter().all(|byte| *byte == 0), "a hole has data"),
    }
    Ok(Vec::new())
}

/// The bytes of a file behind an offset.
fn file_left(file: &OwnedFd, at: u64) -> Result<usize, Errno> {
    Ok((rustix::fs::fstat(file)?.st_size as u64).saturating_sub(at) as usize)
}

/// The attributes that must agree.
fn look(path: &Path) -> Result<Vec<u8>, Errno> {
    let stat = rustix::fs::lstat(path)?;
    let len = if stat.st_mode & libc_directory() == libc_directory() { 0 } else { stat.st_size };
    Ok(format!("{:o} {} {} {} {len}", stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid).into_bytes())
}

fn libc_directory() -> u32 {
    rustix::fs::FileType::Directory.as_raw_mode()
}

fn list(path: &Path) -> Result<Vec<u8>, Errno> {
    let entries = fs::read_dir(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| format!("{:?} {:?}", entry.file_name(), entry.file_type().unwrap()))
        .collect();
    names.sort();
    Ok(names.join("\n").into_bytes())
}

/// Everything below a directory: names, attributes and bytes.
fn tree(root: &Path, below: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    let mut entries: Vec<_> =
        fs::read_dir(root.join(below)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    for name in entries {
        let (below, path) = (below.join(&name), root.join(below).join(&name));
        let meta = fs::symlink_metadata(&path).unwrap();
        let bytes = match meta.file_type() {
            kind if kind.is_file() => fs::read(&path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let look = String::from_utf8(look(&path).unwrap()).unwrap();
        found.push((format!("{} {look} {}", below.display(), meta.mtime() > 0), bytes));
        if meta.is_dir() {
            tree(root, &below, found);
        }
    }
}

fn assert_same_trees(one: &Path, other: &Path, context: &str) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    tree(one, Path::new(""), &mut first);
    tree(other, Path::new(""), &mut second);
    let names = |found: &[(String, Vec<u8>)]| found.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), names(&second), "{context}");
    for ((name, bytes), (_, others)) in first.iter().zip(&second) {
        let at = bytes.iter().zip(others).position(|(byte, other)| byte != other);
        assert!(bytes == others, "{context}: {name} differs at {at:?}");
    }
}

/// Says where two results differ, without their bytes.
fn difference(one: &Result<Vec<u8>, Errno>, other: &Result<Vec<u8>, Errno>) -> String {
    let short = |result: &Result<Vec<u8>, Errno>| match result {
        Ok(bytes) if bytes.len() < 200 => format!("{:?}", String::from_utf8_lossy(bytes)),
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(errno) => format!("{errno:?}"),
    };
    let at = match (one, other) {
        (Ok(one), Ok(other)) => one.iter().zip(other).position(|(byte, other)| byte != other),
        _ => None,
    };
    format!("the mount: {}, the directory: {}; first difference at {at:?}", short(one), short(other))
}

fn run(server: impl Fn(CacheMode) -> Option<Server>, cache_mode: CacheMode, seed: u64, steps: u64) {
    let Some(mut rig) = server(cache_mode) else { return };
    let plain = rig.source.parent().unwrap().join("plain");
    fs::create_dir(&plain).unwrap();
    let mut random = Random::new(seed);
    let empty = || (0..SLOTS).map(|_| None).collect();
    let mut above = World { root: &rig.target, open: empty() };
    let mut beside = World { root: &plain, open: empty() };
    for number in 0..steps {
        let step =
            if random.below(3) == 0 { Step::of_a_name(&mut random) } else { Step::of_a_file(&mut random) };
        let (one, other) = (above.apply(&step), beside.apply(&step));
        assert!(
            one == other,
            "{cache_mode:?}, OCTAVO_SEED={seed}, step {number}: {step:?}: {}",
            difference(&one, &other)
        );
        if number % 500 == 499 {
            assert_same_trees(&rig.target, &plain, &format!("{cache_mode:?}, OCTAVO_SEED={seed}, {number}"));
        }
    }
    drop(above);
    drop(beside);
    assert_same_trees(&rig.target, &plain, &format!("{cache_mode:?}, OCTAVO_SEED={seed}, the end"));
    let source = rig.source.clone();
    rig.stop();
    assert_same_trees(&source, &plain, &format!("{cache_mode:?}, OCTAVO_SEED={seed}, below"));
}

fn steps() -> u64 {
    std::env::var("OCTAVO_STEPS").map_or(1_500, |steps| steps.parse().unwrap())
}

#[test]
fn a_write_through_mount_agrees_with_a_plain_directory() {
    octavo_random::for_seeds(1..2, |seed| run(server, CacheMode::Writethrough, seed, steps()));
}

#[test]
fn a_write_back_mount_agrees_with_a_plain_directory() {
    octavo_random::for_seeds(2..3, |seed| run(server, CacheMode::Writeback, seed, steps()));
}

#[test]
fn a_mount_with_leases_agrees_with_a_plain_directory() {
    octavo_random::for_seeds(3..4, |seed| run(lease_server, CacheMode::Writeback, seed, steps()));
}
