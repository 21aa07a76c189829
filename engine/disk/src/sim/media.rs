//! [`Media`]: one file of a simulated disk: the bytes that reads see, the bytes that a crash would
//! leave, and the versions in between. Protects the meaning of *durable*. Not here: time, I/O in
//! flight, the choice of faults (`flight.rs`).
//!
//! Each sector of 512 bytes has three kinds of versions: `durable` is the version that no crash
//! loses, `unsynced` are the later versions in the order in which they landed, and `current` is the
//! latest version of all.

use std::collections::BTreeMap;

use octavo_random::Random;

/// The length of a sector, which a device writes whole or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The most versions of a sector that a crash can choose from. Without a limit, a test that never
/// syncs would keep every write in memory.
const VERSIONS_MAX: usize = 8;

type Sector = [u8; SECTOR_BYTES as usize];

struct Version {
    landing: u64,
    bytes: Sector,
}

/// Invariant: `current` and `durable` are equal in sectors without unsynced versions, and zero past
/// the longer of both lengths. Both are whole sectors long.
pub(super) struct Media {
    len_bytes: u64,
    len_bytes_durable: u64,
    current: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeMap<u64, Vec<Version>>,
    /// The number of syncs in flight. While there are any, no version may be dropped, because a
    /// sync may promise that very version.
    syncs_in_flight: usize,
}

fn range_of(sector: u64) -> std::ops::Range<usize> {
    (sector * SECTOR_BYTES) as usize..((sector + 1) * SECTOR_BYTES) as usize
}

fn sectors_bytes(len_bytes: u64) -> usize {
    len_bytes.next_multiple_of(SECTOR_BYTES) as usize
}

impl Media {
    pub(super) fn new(len_bytes: u64) -> Media {
        Media {
            len_bytes,
            len_bytes_durable: len_bytes,
            current: vec![0; sectors_bytes(len_bytes)],
            durable: vec![0; sectors_bytes(len_bytes)],
            unsynced: BTreeMap::new(),
            syncs_in_flight: 0,
        }
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the bytes that reads see, up to the length.
    pub(super) fn image(&self) -> &[u8] {
        &self.current[..self.len_bytes as usize]
    }

    /// Returns bytes `offset .. offset + len`, which lie in one sector.
    pub(super) fn read(&self, offset: u64, len: u64) -> &[u8] {
        &self.current[offset as usize..(offset + len) as usize]
    }

    /// Lands bytes that lie in one sector: reads see them from now on, and a crash may lose them.
    /// The sector's bytes past the end of the file become zeros, as a kernel writes them.
    pub(super) fn land(&mut self, offset: u64, bytes: &[u8], landing: u64) {
        self.current[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        let sector = offset / SECTOR_BYTES;
        let range = range_of(sector);
        self.current[range.end.min(range.start.max(self.len_bytes as usize))..range.end].fill(0);
        let mut version = Version { landing, bytes: [0; SECTOR_BYTES as usize] };
        version.bytes.copy_from_slice(&self.current[range_of(sector)]);
        let versions = self.unsynced.entry(sector).or_default();
        versions.push(version);
        if versions.len() > VERSIONS_MAX && self.syncs_in_flight == 0 {
            versions.remove(0);
        }
    }

    /// Lands zeros over any range inside the file.
    pub(super) fn land_zeros(&mut self, offset: u64, end: u64, landing: u64) {
        let zeros = [0; SECTOR_BYTES as usize];
        let mut at = offset;
        while at < end {
            let stop = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
            self.land(at, &zeros[..(stop - at) as usize], landing);
            at = stop;
        }
    }

    pub(super) fn sync_begins(&mut self) {
        self.syncs_in_flight += 1;
    }

    /// Makes everything that landed up to `landing` durable, and of each sector possibly later
    /// versions too.
    pub(super) fn sync_succeeds(&mut self, landing: u64, random: &mut Random) {
        self.syncs_in_flight -= 1;
        self.len_bytes_durable = self.len_bytes;
        let durable = &mut self.durable;
        self.unsynced.retain(|&sector, versions| {
            let promised = versions.iter().take_while(|version| version.landing <= landing).count();
            let mut kept = promised;
            while kept < versions.len() && random.coin() {
                kept += 1;
            }
            if kept > 0 {
                durable[range_of(sector)].copy_from_slice(&versions[kept - 1].bytes);
            }
            versions.drain(..kept);
            !versions.is_empty()
        });
    }

    pub(super) fn sync_is_ignored(&mut self) {
        self.syncs_in_flight -= 1;
    }

    /// Fails a sync. The latest version of each unsynced sector either becomes durable or is lost,
    /// and no later sync reports the loss. Reads return the surviving version at once, so a cache
    /// above may hold newer bytes.
    pub(super) fn sync_fails(&mut self, random: &mut Random) {
        self.syncs_in_flight -= 1;
        for sector in std::mem::take(&mut self.unsynced).into_keys() {
            let range = range_of(sector);
            if random.coin() {
                self.durable[range.clone()].copy_from_slice(&self.current[range]);
            } else {
                self.current[range.clone()].copy_from_slice(&self.durable[range]);
            }
        }
    }

    /// Changes the length. A longer file gains zeros. A crash may bring back the bytes that a
    /// shorter file loses, together with the longer length.
    pub(super) fn set_len_bytes(&mut self, len_bytes: u64, landing: u64) {
        if len_bytes < self.len_bytes {
            self.land_zeros(len_bytes, self.len_bytes, landing);
        }
        // A failed sync may have brought back bytes that the shorter file had lost. As in any file,
        // reads must not see them.
        let known = self.current.len().min(len_bytes as usize);
        let gained = self.current.get(self.len_bytes as usize..known).unwrap_or_default();
        if gained.iter().any(|byte| *byte != 0) {
            self.land_zeros(self.len_bytes, known as u64, landing);
        }
        self.len_bytes = len_bytes;
        let room = self.current.len().max(sectors_bytes(len_bytes));
        self.current.resize(room, 0);
        self.durable.resize(room, 0);
    }

    /// Cuts the power and restores it: each sector keeps its durable version or any later one, and
    /// so does the length.
    pub(super) fn crash(&mut self, random: &mut Random) {
        self.syncs_in_flight = 0;
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            let chosen = random.below(versions.len() as u64 + 1) as usize;
            if chosen > 0 {
                self.durable[range_of(sector)].copy_from_slice(&versions[chosen - 1].bytes);
            }
        }
        if self.len_bytes != self.len_bytes_durable && random.coin() {
            self.len_bytes = self.len_bytes_durable;
        }
        self.len_bytes_durable = self.len_bytes;
        self.durable.truncate(self.len_bytes as usize);
        self.durable.resize(sectors_bytes(self.len_bytes), 0);
        self.current.clone_from(&self.durable);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Makes a file of 1,024 bytes whose last 512 are sevens and durable, and cuts it to 600. A
    /// sync that then fails brings the lost sevens back or not.
    fn cut_by_a_failed_sync(random: &mut Random) -> Media {
        let mut media = Media::new(1024);
        media.land(512, &[7; 512], 1);
        media.sync_begins();
        media.sync_succeeds(1, random);
        media.set_len_bytes(600, 2);
        media.sync_begins();
        media.sync_fails(random);
        media
    }

    #[test]
    fn a_file_that_grows_gains_zeros_even_where_a_failed_sync_has_brought_back_lost_bytes() {
        let mut brought_back = 0;
        for seed in 0..16 {
            let mut media = cut_by_a_failed_sync(&mut Random::new(seed));
            brought_back += u32::from(media.current[1023] == 7);
            media.set_len_bytes(550, 3);
            media.set_len_bytes(2048, 4);
            assert_eq!(media.image()[550..], [0; 2048 - 550]);
            assert_eq!(media.image()[512..550], [7; 38]);
        }
        assert!(brought_back > 0);
    }

    /// A failed sync brought back bytes past the end; a write of the last, partial sector kept them
    /// in a version of it; and a crash showed them once the file was longer again.
    #[test]
    fn a_write_of_the_last_sector_leaves_zeros_past_the_end() {
        for seed in 0..16 {
            let mut random = Random::new(seed);
            let mut media = cut_by_a_failed_sync(&mut random);
            media.land(512, &[9; 88], 3);
            media.set_len_bytes(1024, 4);
            media.crash(&mut random);
            let (written, beyond) = media.image()[512..].split_at(88);
            assert!(written != [9; 88] || beyond.iter().all(|byte| *byte == 0), "seed {seed}: {beyond:?}");
        }
    }
}
