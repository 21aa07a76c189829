//! The space of a file in its file system: what is allocated, reserving more, and giving back what
//! lies past the end. Not here: when that is wanted; the holes of a range for clients
//! (`io/survey.rs`).

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};

use crate::error::IoError;
use crate::op::Op;
use crate::store::file::FileStore;
use crate::store::{Kind, Store};

/// The unit in which space past the end is given back: pages of the kernel.
const UNIT_BYTES: u64 = 4096;

impl Store {
    /// Allocates the space of a range, which may reach past the store's end, without changing the
    /// length or a byte. Bytes that are written there later find space, if the file system keeps
    /// such promises.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`: there is no room; a part of the range may be allocated. `EOPNOTSUPP`:
    /// the store or its file system cannot allocate.
    ///
    /// # Examples
    /// ```
    /// let store = octavo_disk::Store::memory("scratch", 4096);
    /// assert!(store.reserve(0, 8192).is_err(), "only files have a file system");
    /// ```
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let failed =
            |errno: Errno| IoError::new(self.name(), Op::Write, offset, len, errno.raw_os_error(), None);
        let Kind::File(file) = self.kind() else { return Err(failed(Errno::OPNOTSUPP)) };
        let descriptor = file.buffered();
        retry_on_intr(|| fallocate(descriptor, FallocateFlags::KEEP_SIZE, offset, len)).map_err(failed)
    }

    /// Returns where the data that begins at `offset` ends: at the next hole, or at the store's
    /// end. Returns `offset` if it lies in a hole, past the end, or if nobody knows.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(octavo_disk::Store::memory("scratch", 4096).data_end(0), 0);
    /// ```
    pub fn data_end(&self, offset: u64) -> u64 {
        let Kind::File(file) = self.kind() else { return offset };
        seek(file.buffered(), SeekFrom::Hole(offset)).unwrap_or(offset)
    }

    /// Gives back the space that [`reserve`](Store::reserve) has allocated past the store's end, at
    /// most up to `end`. Changes the file's times. Does nothing if another program has changed the
    /// file's length.
    ///
    /// # Errors
    /// Those of the file system.
    ///
    /// # Examples
    /// ```
    /// octavo_disk::Store::memory("scratch", 4096).free_surplus(8192)?;
    /// # Ok::<(), octavo_disk::IoError>(())
    /// ```
    pub fn free_surplus(&self, end: u64) -> Result<(), IoError> {
        let Kind::File(file) = self.kind() else { return Ok(()) };
        let failed = |errno: Errno| IoError::new(self.name(), Op::Write, end, 0, errno.raw_os_error(), None);
        file.free_surplus(end).map_err(failed)
    }
}

impl FileStore {
    fn free_surplus(&self, end: u64) -> Result<(), Errno> {
        self.alone(|| {
            let (file, len) = (self.buffered(), self.len_bytes());
            if rustix::fs::fstat(file)?.st_size as u64 != len {
                return Ok(());
            }
            // Ext4 punches no hole past the end, and tmpfs frees nothing when the length stays.
            let start = len.next_multiple_of(UNIT_BYTES);
            if start < end {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                match fallocate(file, punch, start, end - start) {
                    Ok(()) | Err(Errno::OPNOTSUPP) => {}
                    Err(errno) => return Err(errno),
                }
            }
            rustix::fs::ftruncate(file, len)
        })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::store::open::OpenOptions;

    #[test]
    fn space_is_reserved_and_given_back_without_a_change_of_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [7; 5000]).unwrap();
        let options = OpenOptions { direct: false, ..OpenOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let blocks = || std::fs::metadata(&path).unwrap().blocks();
        let before = blocks();
        match store.reserve(0, 1 << 20) {
            Err(error) if error.errno() == libc::EOPNOTSUPP => {
                println!("SKIPPED: the file system of temporary files cannot allocate");
                return;
            }
            reserved => reserved.unwrap(),
        }
        assert!(blocks() >= (1 << 20) / 512, "{} blocks", blocks());
        store.free_surplus(1 << 20).unwrap();
        assert!(blocks() <= before.max(16), "{} blocks, before {before}", blocks());
        assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
        // A file that another program has lengthened keeps all.
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                use std::io::Write;
                file.write_all(&[8; 5000])
            })
            .unwrap();
        store.free_surplus(1 << 20).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000);
    }

    #[test]
    fn the_end_of_data_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let options = OpenOptions { direct: false, ..OpenOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        assert_eq!((store.data_end(4096), store.data_end(1 << 30)), (8192, 1 << 30));
    }
}
