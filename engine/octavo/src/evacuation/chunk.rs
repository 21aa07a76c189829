//! A chunk of evacuated pages: a head, a record for each page, and the pages' bytes. The bytes
//! begin at the next multiple of [`ALIGN_BYTES`].
//!
//! | bytes of the head | |
//! |---|---|
//! | 0..4 | number of the partition in the catalog |
//! | 4..8 | bytes of a page |
//! | 8..12 | number of records |
//! | 12..16 | zero |
//! | 16..24 | checksum of the bytes before and of the records |
//!
//! A record has the number of the page (8 bytes), that of its object (4), the policy's bits (2),
//! and two zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::header::{ALIGN_BYTES, checksum, invalid};
use super::workers::GOAL_BYTES;
use crate::ways::WAYS;

const HEAD_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;

/// The most records of a chunk: this program writes fewer, earlier ones wrote up to 1 MiB of the
/// smallest pages and a set more.
const RECORDS_MAX: u32 = (1 << 20) / 4096 + 64;

/// A page of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub object: u32,
    pub page: u64,
    /// See [`policy_bits`](octavo_table::SetGuard::policy_bits).
    pub bits: u16,
}

/// A chunk that collects pages of one partition.
pub(super) struct Chunk {
    partition: u32,
    page_bytes: usize,
    records: Vec<Record>,
    pages: Vec<u8>,
}

impl Chunk {
    pub fn new(partition: u32, page_bytes: usize) -> Chunk {
        let pages = Vec::with_capacity(GOAL_BYTES + WAYS * page_bytes);
        Chunk { partition, page_bytes, records: Vec::new(), pages }
    }

    /// Adds a page, whose bytes `copy` writes to the address that it gets.
    pub fn push(&mut self, record: Record, copy: impl FnOnce(*mut u8)) {
        let at = self.pages.len();
        self.pages.resize(at + self.page_bytes, 0);
        self.records.push(record);
        copy(self.pages[at..].as_mut_ptr());
    }

    pub fn is_full(&self) -> bool {
        self.pages.len() >= GOAL_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn clear(&mut self) {
        self.records.clear();
        self.pages.clear();
    }

    /// The bytes that the chunk takes in a file.
    pub fn len_bytes(&self) -> u64 {
        pages_after(0, self.records.len()) + self.pages.len() as u64
    }

    /// Writes the chunk to the file at `at`.
    pub fn write(&self, file: &File, at: u64) -> io::Result<()> {
        let mut head = Vec::with_capacity(HEAD_BYTES + RECORD_BYTES * self.records.len());
        let numbers = [self.partition, self.page_bytes as u32, self.records.len() as u32, 0];
        numbers.into_iter().for_each(|number| head.extend(number.to_le_bytes()));
        head.extend([0; 8]);
        for Record { object, page, bits } in &self.records {
            head.extend(page.to_le_bytes());
            head.extend(object.to_le_bytes());
            head.extend(u32::from(*bits).to_le_bytes());
        }
        let sum = sum_of(&head);
        head[16..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&head, at)?;
        file.write_all_at(&self.pages, pages_after(at, self.records.len()))
    }
}

/// Where the pages of a chunk begin that begins at `at`.
fn pages_after(at: u64, records: usize) -> u64 {
    (at + (HEAD_BYTES + RECORD_BYTES * records) as u64).next_multiple_of(ALIGN_BYTES)
}

fn sum_of(head: &[u8]) -> u64 {
    checksum(&[&head[..16], &head[HEAD_BYTES..]].concat())
}

/// The records of a chunk in a file.
pub(super) struct Records {
    pub records: Vec<Record>,
    /// Where the bytes of the first page lie in the file; those of the others follow.
    pub pages: u64,
    /// The offset of the next chunk.
    pub end: u64,
}

impl Records {
    /// Reads the records of the chunk at `at`, which must belong to this partition.
    pub fn read(file: &File, at: u64, partition: u32, page_bytes: u32) -> io::Result<Records> {
        let mut head = vec![0; HEAD_BYTES];
        file.read_exact_at(&mut head, at)?;
        let number =
            |head: &[u8], at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let count = number(&head, 8);
        if (number(&head, 0), number(&head, 4)) != (partition, page_bytes) {
            return Err(invalid("a chunk of pages belongs to another partition"));
        }
        if count == 0 || count > RECORDS_MAX {
            return Err(invalid("a chunk of pages has an impossible number of records"));
        }
        head.resize(HEAD_BYTES + RECORD_BYTES * count as usize, 0);
        file.read_exact_at(&mut head[HEAD_BYTES..], at + HEAD_BYTES as u64)?;
        if head[16..HEAD_BYTES] != sum_of(&head).to_le_bytes() {
            return Err(invalid("a chunk of pages has a wrong checksum"));
        }
        let records = head[HEAD_BYTES..].chunks_exact(RECORD_BYTES).map(|record| Record {
            page: u64::from_le_bytes(record[..8].try_into().expect("eight bytes")),
            object: number(record, 8),
            bits: number(record, 12) as u16,
        });
        let pages = pages_after(at, count as usize);
        let end = pages + u64::from(count) * u64::from(page_bytes);
        Ok(Records { records: records.collect(), pages, end })
    }
}
