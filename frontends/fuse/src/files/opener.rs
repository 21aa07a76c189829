//! How the object of a file is made. The rules F1 to F8 are in `files.rs`.

use std::collections::HashMap;
use std::fs::File as LowerFile;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use octavo::disk::{OpenOptions, Store};
use octavo::{CacheMode, Object};
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;

use crate::errors::errno_of_open;
use crate::file::Access;
use crate::labels::{Chooser, Opened};
use crate::lock::lock;
use crate::lower::{self, Stamp};
use crate::nodes::Node;
use crate::options::MountOptions;
use crate::space::{Promise, Terms};

/// A new object, and its file.
pub(super) struct Made {
    pub object: Object,
    /// Below the source.
    pub path: PathBuf,
    pub stamp: Stamp,
    pub terms: Terms,
}

/// Opens the lower files of a mount.
pub(super) struct Opener {
    root: PathBuf,
    root_file: OwnedFd,
    chooser: Arc<Chooser>,
    direct: bool,
    /// Pages are kept under leases.
    has_leases: bool,
    /// The terms of the file systems of files, by device (S5).
    terms: Mutex<HashMap<(u32, u32), Terms>>,
}

impl Opener {
    /// # Errors
    /// Those of the lower file system.
    pub fn new(
        (root_file, root): (OwnedFd, PathBuf),
        options: &MountOptions,
        chooser: Arc<Chooser>,
    ) -> Result<Opener, Errno> {
        let opener = Opener {
            root,
            root_file,
            chooser,
            direct: options.direct,
            has_leases: options.has_leases(),
            terms: Mutex::default(),
        };
        // Now, so that no thread of the mount has to ask.
        opener.terms_of(&opener.root_file, &lower::stat(&opener.root_file)?);
        Ok(opener)
    }

    /// Opens the lower file of a node, and makes its object. `created` is a descriptor of the file.
    ///
    /// # Errors
    /// Those of the lower file system, ENFILE and ENOMEM.
    pub fn open(&self, node: &Node, access: Access, created: Option<OwnedFd>) -> Result<Made, Errno> {
        let place = node.place.at()?;
        // A descriptor that may write would keep the file from being executed below.
        let flags = if access.writes { OFlags::RDWR } else { OFlags::RDONLY };
        let lower = created.map_or_else(|| lower::open_again(&place, flags), Ok)?;
        let stat = lower::stat(&lower)?;
        let path = match lower::path_of(&place) {
            // The kernel does not tell longer paths.
            Err(Errno::NAMETOOLONG) => PathBuf::new(),
            path => path?,
        };
        let path = path.strip_prefix(&self.root).unwrap_or(&path);
        let opened = Opened::new(path, place.as_fd(), &self.root_file);
        let partition = (self.chooser)(&opened).ok_or(Errno::NOMEM)?;
        let name = octavo::display_name(&path.to_string_lossy());
        // F4.
        let grows = access.writes && (stat.stx_size == 0 || access.appends);
        let (read_only, direct) = (!access.writes, self.direct && !grows);
        let options = OpenOptions { read_only, direct, lock: false, create_len_bytes: None };
        let store = Store::from_file(&name, LowerFile::from(lower), &options).map_err(|error| {
            log::warn!("{name}: {error}");
            errno_of_open(&error)
        })?;
        let object = partition.open(store, &name).map_err(|error| {
            log::warn!("{name}: {error}");
            Errno::NFILE
        })?;
        let writes_back = object.cache_mode() == CacheMode::Writeback && !self.has_leases;
        let terms = if access.writes && writes_back { self.terms_of(&place, &stat) } else { Terms::NOTHING };
        // A file that has bytes: others have nothing to read.
        if let Some(advice) = (stat.stx_size > 0).then(|| opened.advice()).flatten() {
            // It fails for a file of which the cache has no room.
            let _ = object.advise(0, object.len_bytes(), advice);
        }
        Ok(Made { object, path: path.to_owned(), stamp: Stamp::of(&stat), terms })
    }

    /// The terms of the file system of a file (S5).
    fn terms_of(&self, lower: impl AsFd, stat: &Statx) -> Terms {
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        if let Some(known) = lock(&self.terms).get(&device) {
            return *known;
        }
        let found = rustix::fs::fstatfs(lower);
        let promise = found.as_ref().map_or(Promise::AtSync, |found| Promise::of_type(found.f_type as u64));
        let block_bytes = found.map_or(1, |found| found.f_bsize as u64);
        let terms = Terms { promise, block_bytes };
        lock(&self.terms).insert(device, terms);
        terms
    }
}
