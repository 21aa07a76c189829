//! [`WarmPages`]: a file of evacuated pages that is complete and was not used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::catalog::Catalog;
use super::header::{ALIGN_BYTES, HEADER_BYTES, checksum, decode, invalid};

/// Pages that a cache has evacuated, for another cache. Holds only the list of partitions and
/// objects in memory.
#[derive(Debug)]
pub struct WarmPages {
    pub(super) file: File,
    pub(super) catalog: Catalog,
}

impl WarmPages {
    /// Opens a file that [`Cache::evacuate`](crate::Cache::evacuate) has written.
    ///
    /// # Errors
    /// `InvalidData`: the file is no complete and unused evacuation of this version; the text says
    /// why. Any error of a read.
    pub fn open(file: File) -> io::Result<WarmPages> {
        let file_bytes = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        if file_bytes < HEADER_BYTES as u64 {
            return Err(invalid("the file of pages has no header"));
        }
        file.read_exact_at(&mut header, 0)?;
        let (range, sum) = decode(&header)?;
        if range.start < ALIGN_BYTES || range.end > file_bytes {
            return Err(invalid("the catalog of the evacuated pages lies outside of their file"));
        }
        let mut catalog = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut catalog, range.start)?;
        if checksum(&catalog) != sum {
            return Err(invalid("the catalog of the evacuated pages has a wrong checksum"));
        }
        let catalog = Catalog::decode(&catalog, range.start)?;
        Ok(WarmPages { file, catalog })
    }

    /// Returns the number of pages in the file.
    pub fn pages(&self) -> u64 {
        self.catalog.partitions.iter().map(|partition| partition.pages).sum()
    }

    /// Returns the bytes of these pages.
    pub fn bytes(&self) -> u64 {
        let bytes = |page_bytes: u32, pages: u64| u64::from(page_bytes) * pages;
        self.catalog.partitions.iter().map(|partition| bytes(partition.page_bytes, partition.pages)).sum()
    }
}
