//! The directory of a tier: its files, the room in them, and who may use them (F5, F6).
//!
//! ```text
//!  format         what the other files are; they are deleted if it says something else
//!  lock           locked by the process that uses the directory
//!  blocks-00000   places 0 to n-1, each for a header and a block
//!  blocks-00001   places n to 2n-1, and so on
//! ```
//!
//! A *place* is a number; file and offset follow from it. Room is allocated in steps before a place
//! is used, so that a full disk is noticed there and not in the middle of a block. Not here: which
//! block is in which place.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};

use super::buffer::Aligned;
use super::config::TierConfig;
#[cfg(test)]
use super::faults::Faults;
use super::header::{FORMAT, HEADER_BYTES};
use crate::error::{Error, ErrorKind};

/// Length of a file of blocks, unless there would be more than [`FILES_WANTED`].
const FILE_BYTES: u64 = 1 << 30;
const FILES_WANTED: u64 = 64;

/// Most files, each of which stays open.
const FILES_MAX: u64 = 512;

/// Bytes that are counted besides headers and data: the file `format`; and for each file and each
/// place, what a file system may need to note where the data is. Ext4 takes a block for 340
/// extents, and a place has two at most.
const FIXED_BYTES: u64 = 64 << 10;
const BYTES_A_FILE: u64 = 32 << 10;
const BYTES_A_PLACE: u64 = 32;

/// Room is allocated in steps of this length.
const STEP_BYTES: u64 = 64 << 20;

/// How long the tier does without more room before it asks again (F5).
const FULL_LASTS: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 30_000 });

/// How long `open` waits for a process that is just ending.
const LOCK_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 3000 });
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Returns the bytes of disk that so many places take, in files of any length.
pub(super) fn bytes_for(places: u64, stride: u64) -> u64 {
    FIXED_BYTES + BYTES_A_FILE + places.saturating_mul(stride + BYTES_A_PLACE)
}

/// How many places there are, and how they are divided among files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    /// Bytes from one place to the next.
    stride: u64,
    places_a_file: u64,
    places: u64,
}

impl Geometry {
    /// The division of a new directory.
    fn new(config: &TierConfig) -> Geometry {
        let stride = u64::from(config.block_bytes) + HEADER_BYTES as u64;
        let file_bytes = FILE_BYTES.max(config.max_bytes / FILES_WANTED);
        Geometry::with(config, (file_bytes / stride).max(1))
    }

    /// The division of a directory that has been used with this number of places in a file.
    fn with(config: &TierConfig, places_a_file: u64) -> Geometry {
        let stride = u64::from(config.block_bytes) + HEADER_BYTES as u64;
        let fit = |bytes: u64| bytes.saturating_sub(FIXED_BYTES) / (stride + BYTES_A_PLACE);
        let files = fit(config.max_bytes).div_ceil(places_a_file);
        let places = fit(config.max_bytes.saturating_sub(files * BYTES_A_FILE));
        Geometry { stride, places_a_file, places: places.min(u64::from(u32::MAX) - 1) }
    }

    fn files(&self) -> u64 {
        self.places.div_ceil(self.places_a_file)
    }

    /// The length of a file whose places are all in use.
    fn file_bytes(&self, file: u64) -> u64 {
        let first = file * self.places_a_file;
        self.places_a_file.min(self.places.saturating_sub(first)) * self.stride
    }

    fn file_and_offset(&self, place: u32) -> (usize, u64) {
        let place = u64::from(place);
        ((place / self.places_a_file) as usize, place % self.places_a_file * self.stride)
    }

    fn text(&self) -> String {
        format!(
            "Octavo keeps blocks of remote objects here. The directory may be deleted while no \
             process uses it.\nformat {FORMAT}\nblock_bytes {}\nblocks_per_file {}\n",
            self.stride - HEADER_BYTES as u64,
            self.places_a_file
        )
    }

    /// The division that the text of a file `format` describes, if it is of this format and has
    /// blocks of this length.
    fn from_text(config: &TierConfig, text: &str) -> Option<Geometry> {
        let number = text.lines().last()?.strip_prefix("blocks_per_file ")?.parse().ok()?;
        // As long files as `new` can make at most, so that lengths do not overflow.
        let may_be = (1..=u64::from(u32::MAX)).contains(&number);
        let geometry = may_be.then(|| Geometry::with(config, number))?;
        (geometry.text() == text && geometry.files() <= FILES_MAX).then_some(geometry)
    }
}

/// The files of a tier.
pub(super) struct Files {
    directory: PathBuf,
    geometry: Geometry,
    direct: bool,
    /// Files are made when their first place is needed.
    files: Vec<OnceLock<File>>,
    room: Mutex<Room>,
    zeros: Aligned,
    _lock: File,
    #[cfg(test)]
    pub faults: Faults,
}

/// The places without a block.
struct Room {
    /// Places that may be used. The last is the next.
    free: Vec<u32>,
    /// All places from here on have never been used.
    fresh: u32,
    /// By file: bytes from its start that are allocated.
    ready: Vec<u64>,
    /// The disk is full, and is not asked until then.
    full_until: Option<Instant>,
    times_full: u64,
}

impl Files {
    /// Opens a directory, or makes it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with what is wrong with the directory.
    pub fn open(config: &TierConfig) -> Result<Files, Error> {
        let directory = &config.directory;
        let wrong = |what: &str, error: &dyn Display| {
            Error::new(
                ErrorKind::Config,
                &directory.to_string_lossy(),
                format!("the file tier {what}: {error}"),
            )
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| wrong("cannot make its directory", &error))?;
        check_entries(directory).map_err(|error| wrong("cannot use its directory", &error))?;
        let lock = lock(directory).map_err(|error| wrong("cannot lock its directory", &error))?;
        let geometry = prepare(config).map_err(|error| wrong("cannot write to its directory", &error))?;
        let direct = probe(directory).map_err(|error| wrong("cannot write to its directory", &error))?;
        if !direct {
            log::info!(
                "{}: the file system has no direct I/O; reads go through its cache",
                directory.display()
            );
        }
        let count = geometry.files() as usize;
        let files = Files {
            directory: directory.clone(),
            geometry,
            direct,
            files: (0..count).map(|_| OnceLock::new()).collect(),
            room: Mutex::new(Room {
                free: Vec::new(),
                fresh: 0,
                ready: vec![0; count],
                full_until: None,
                times_full: 0,
            }),
            zeros: Aligned::new(HEADER_BYTES),
            _lock: lock,
            #[cfg(test)]
            faults: Faults::default(),
        };
        files.open_old().map_err(|error| wrong("cannot open its files", &error))?;
        Ok(files)
    }

    /// Opens the files that are there. Shortens or deletes those that `max_bytes` no longer allows.
    fn open_old(&self) -> io::Result<()> {
        for number in old_files(&self.directory)? {
            let path = file_path(&self.directory, number);
            let bytes_max = self.geometry.file_bytes(number);
            if bytes_max == 0 {
                fs::remove_file(path)?;
                continue;
            }
            let file = open_file(&path, self.direct)?;
            if file.metadata()?.len() > bytes_max {
                file.set_len(bytes_max)?;
            }
            self.files[number as usize].get_or_init(|| file);
        }
        Ok(())
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of places.
    pub fn places_max(&self) -> u64 {
        self.geometry.places
    }

    /// Returns the places that an earlier process may have written, by file.
    pub fn old_places(&self) -> Vec<std::ops::Range<u32>> {
        let of_file = |(number, file): (usize, &OnceLock<File>)| {
            let bytes = file.get().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
            let first = number as u64 * self.geometry.places_a_file;
            first as u32..(first + bytes / self.geometry.stride) as u32
        };
        self.files.iter().enumerate().map(of_file).collect()
    }

    /// Says which places have no block, after all old ones were looked at.
    pub fn set_free(&self, mut free: Vec<u32>) {
        let mut next = 0;
        for old in self.old_places().into_iter().filter(|old| !old.is_empty()) {
            // Places that an earlier process did not reach, in files before the last one.
            free.extend(next..old.start);
            next = old.end;
        }
        free.sort_unstable_by(|one, two| two.cmp(one));
        let mut room = self.room();
        (room.free, room.fresh) = (free, next);
    }

    /// Takes a place that has no block, and allocates its room. `None` if the disk is full.
    pub fn allocate(&self) -> Option<u32> {
        let mut room = self.room();
        let place = match room.free.pop() {
            Some(place) => place,
            None if u64::from(room.fresh) < self.geometry.places => {
                room.fresh += 1;
                room.fresh - 1
            }
            None => return None,
        };
        let Err(error) = self.make_ready(&mut room, place) else { return Some(place) };
        room.free.push(place);
        if let Some(error) = error {
            log::warn!("{}: no room for more blocks: {error}", self.directory.display());
            room.full_until = Some(Instant::now() + FULL_LASTS);
            room.times_full += 1;
        }
        None
    }

    /// Whether the disk was full, and it is time to ask again. Says so once.
    pub fn may_grow_again(&self) -> bool {
        let mut room = self.room();
        let may = room.full_until.is_some_and(|until| Instant::now() >= until);
        if may {
            room.full_until = None;
        }
        may
    }

    /// Allocates the room of a place, and some beyond it. The error is `None` if the disk was full
    /// a moment ago.
    fn make_ready(&self, room: &mut Room, place: u32) -> Result<(), Option<io::Error>> {
        let (number, offset) = self.geometry.file_and_offset(place);
        let end = offset + self.geometry.stride;
        if room.ready[number] >= end {
            return Ok(());
        }
        if room.full_until.is_some() {
            return Err(None);
        }
        let file = match self.files[number].get() {
            Some(file) => file,
            None => {
                let file = open_file(&file_path(&self.directory, number as u64), self.direct)?;
                self.files[number].get_or_init(|| file)
            }
        };
        while room.ready[number] < end {
            let from = room.ready[number];
            let to = (from + STEP_BYTES).max(end).min(self.geometry.file_bytes(number as u64));
            self.reserve(file, from, to - from)?;
            room.ready[number] = to;
        }
        Ok(())
    }

    fn reserve(&self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_reserve()?;
        let before = file.metadata()?.len();
        match fallocate(file, FallocateFlags::empty(), offset, len).map_err(io::Error::from) {
            // Then room is found, or not, when a block is written.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                file.set_len(before.max(offset + len))
            }
            Err(error) => {
                // A part may have been allocated. Others need it more.
                file.set_len(before)?;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn file_of(&self, place: u32) -> io::Result<(&File, u64)> {
        let (number, offset) = self.geometry.file_and_offset(place);
        let file = self.files.get(number).and_then(OnceLock::get);
        Ok((file.ok_or(io::ErrorKind::NotFound)?, offset))
    }

    /// Reads the bytes from `at` of a place.
    pub fn read(&self, place: u32, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_read()?;
        let (file, offset) = self.file_of(place)?;
        let offset = offset + at as u64;
        file.read_exact_at(bytes, offset)?;
        self.drop_cache(file, offset, bytes.len());
        Ok(())
    }

    /// Writes the bytes from `at` of a place.
    pub fn write(&self, place: u32, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (file, offset) = self.file_of(place)?;
        let offset = offset + at as u64;
        #[cfg(test)]
        if let Err(error) = self.faults.before_write() {
            file.write_all_at(&bytes[..bytes.len() / 2 / HEADER_BYTES * HEADER_BYTES], offset)?;
            return Err(error);
        }
        file.write_all_at(bytes, offset)?;
        self.drop_cache(file, offset, bytes.len());
        Ok(())
    }

    /// Overwrites the header of a place with zeros.
    pub fn erase(&self, place: u32) -> io::Result<()> {
        self.write(place, 0, &self.zeros)
    }

    /// Without direct I/O: what the kernel keeps besides would take memory twice. Only a hint.
    fn drop_cache(&self, file: &File, offset: u64, len: usize) {
        if !self.direct {
            let _ = fadvise(file, offset, std::num::NonZeroU64::new(len as u64), Advice::DontNeed);
        }
    }

    /// Returns how often the disk had no room.
    pub fn times_full(&self) -> u64 {
        self.room().times_full
    }

    /// Returns the bytes of disk that the files take.
    pub fn allocated_bytes(&self) -> u64 {
        let format = fs::metadata(self.directory.join(FORMAT_NAME)).ok();
        let blocks = self.files.iter().filter_map(|file| file.get()?.metadata().ok());
        blocks.chain(format).map(|metadata| metadata.blocks() * 512).sum()
    }

    /// Returns the most memory that the list of places takes.
    pub fn memory_bytes(&self) -> u64 {
        self.geometry.places * size_of::<u32>() as u64
    }
}

const FORMAT_NAME: &str = "format";
const LOCK_NAME: &str = "lock";
const PROBE_NAME: &str = "probe";
const BLOCKS_NAME: &str = "blocks-";

fn file_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{BLOCKS_NAME}{number:05}"))
}

/// Opens a file of the tier for reading and writing, or makes it. Follows no link.
fn open_file(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { OFlags::NOFOLLOW | OFlags::DIRECT } else { OFlags::NOFOLLOW };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Checks that the directory is a tier's, or empty: a tier deletes files.
fn check_entries(directory: &Path) -> io::Result<()> {
    let mut other = None;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        match name.to_str() {
            Some(FORMAT_NAME) => return Ok(()),
            Some(LOCK_NAME | PROBE_NAME | "lost+found") => {}
            _ => other = Some(name),
        }
    }
    if fs::metadata(directory)?.mode() & 0o022 != 0 {
        log::warn!("{}: others may write to the directory of the file tier", directory.display());
    }
    match other {
        Some(name) => {
            Err(io::Error::other(format!("it has other files, such as {name:?}: name an empty one")))
        }
        None => Ok(()),
    }
}

/// F6.
fn lock(directory: &Path) -> io::Result<File> {
    let file = open_file(&directory.join(LOCK_NAME), false)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if since.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PAUSE)
            }
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another process uses it")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Returns the division of the directory. If the directory has another format, deletes its blocks.
fn prepare(config: &TierConfig) -> io::Result<Geometry> {
    let path = config.directory.join(FORMAT_NAME);
    let text = match fs::read(&path) {
        Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(geometry) = text.as_ref().and_then(|text| Geometry::from_text(config, text)) {
        return Ok(geometry);
    }
    if text.is_some() {
        let directory = config.directory.display();
        log::warn!("{directory}: the blocks there have another format or length: the file tier starts empty");
    }
    for number in old_files(&config.directory)? {
        fs::remove_file(file_path(&config.directory, number))?;
    }
    let geometry = Geometry::new(config);
    let file = open_file(&path, false)?;
    file.set_len(0)?;
    file.write_all_at(geometry.text().as_bytes(), 0)?;
    Ok(geometry)
}

/// Returns the numbers of the files of blocks that are there, in order.
fn old_files(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(BLOCKS_NAME)?.parse().ok());
        numbers.extend(number.filter(|number| *file_path(directory, *number) == *directory.join(&name)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns whether direct I/O works in a directory.
///
/// # Errors
/// The directory cannot be written at all.
fn probe(directory: &Path) -> io::Result<bool> {
    let path = directory.join(PROBE_NAME);
    let mut bytes = Aligned::new(HEADER_BYTES);
    let mut try_with = |direct: bool| {
        let file = open_file(&path, direct)?;
        match file.write_all_at(&bytes, 0).and_then(|()| file.read_exact_at(&mut bytes, 0)) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            tried => tried,
        }
    };
    let tried = try_with(true).map(|()| true).or_else(|_| try_with(false).map(|()| false));
    let _ = fs::remove_file(&path);
    tried
}
