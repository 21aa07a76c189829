//! The naive twin of an object on a simulated disk: for each sector, what a read may show and what
//! a crash may leave.

const SECTOR: usize = 512;
type Bytes = [u8; SECTOR];

/// The versions of a sector since the last sync that covered it, oldest first. A crash leaves any
/// of them; a read shows one of `versions[now..]`, which is more than one only after something has
/// failed.
struct Sector {
    versions: Vec<Bytes>,
    now: usize,
    /// How many versions syncs have removed.
    drained: usize,
    /// Versions before this index are incomplete: too many failures made more versions possible
    /// than are kept. A write of the whole sector ends that state, though an older version may
    /// still come back.
    known: usize,
}

impl Sector {
    fn is_lost(&self) -> bool {
        self.now < self.known
    }
}

/// The most versions kept per sector. Each failing partial write doubles the possible ones.
const POSSIBLE_MAX: usize = 100;

pub struct Twin {
    sectors: Vec<Sector>,
    /// The lengths since the last sync; the last one is the present length.
    lens: Vec<u64>,
    lens_drained: usize,
    /// A sync of the store has failed: cached pages may be newer than the store, so a later read
    /// may return older bytes than an earlier one.
    pub failed: bool,
}

/// What a sync that starts now will cover, counted from the first version because other syncs may
/// end before it.
pub struct Mark {
    nows: Vec<usize>,
    lens: usize,
}

impl Twin {
    /// The twin of a new store of zeros, never to be longer than `len_max`.
    pub fn new(len: u64, len_max: u64) -> Twin {
        let zeros = || Sector { versions: vec![[0; SECTOR]], now: 0, drained: 0, known: 0 };
        let sectors = (0..len_max.div_ceil(SECTOR as u64)).map(|_| zeros()).collect();
        Twin { sectors, lens: vec![len], lens_drained: 0, failed: false }
    }

    pub fn len(&self) -> u64 {
        self.lens[self.lens.len() - 1]
    }

    /// Calls `f` with each sector of the range, the part of it that is meant, and where that part
    /// lies in the range.
    fn each(
        &mut self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&mut Sector, std::ops::Range<usize>, usize),
    ) {
        let (mut at, end) = (offset as usize, offset as usize + len);
        while at < end {
            let skip = at % SECTOR;
            let part = skip..SECTOR.min(skip + end - at);
            f(&mut self.sectors[at / SECTOR], part.clone(), at - offset as usize);
            at += part.len();
        }
    }

    /// A write has ended: well, or (not `certain`) with an error.
    pub fn write(&mut self, offset: u64, bytes: &[u8], certain: bool) {
        self.each(offset, bytes.len(), |sector, part, at| {
            let mut new = sector.versions[sector.now..].to_vec();
            new.iter_mut().for_each(|v| v[part.clone()].copy_from_slice(&bytes[at..at + part.len()]));
            new.sort();
            new.dedup();
            let mut is_lost = sector.is_lost() && !(certain && part.len() == SECTOR);
            if certain {
                sector.now = sector.versions.len();
            }
            is_lost |= sector.versions.len() + new.len() > sector.now + POSSIBLE_MAX;
            new.truncate(if is_lost { 1 } else { new.len() });
            sector.versions.extend(new);
            if is_lost {
                sector.known = sector.versions.len();
            }
        });
    }

    /// Bytes past a new end are lost, and added bytes read as zeros, also if a failed sync has
    /// brought old bytes back.
    pub fn set_len(&mut self, len: u64) {
        self.write(len.min(self.len()), &vec![0; len.abs_diff(self.len()) as usize], true);
        self.lens.push(len);
    }

    /// Checks that a read returned possible bytes. Unless a sync has failed, later reads must
    /// return the same bytes.
    pub fn read(&mut self, offset: u64, bytes: &[u8]) {
        let failed = self.failed;
        self.each(offset, bytes.len(), |sector, part, at| {
            let read = &bytes[at..at + part.len()];
            let fits = |version: &&Bytes| version[part.clone()] == *read;
            let matching: Vec<Bytes> = sector.versions[sector.now..].iter().filter(fits).copied().collect();
            let place = offset as usize + at;
            assert!(!matching.is_empty() || sector.is_lost(), "byte {place}: not among the {} possible", {
                let old = sector.versions.iter().rposition(|v| v[part.clone()] == *read);
                format!("{} (it is version {old:?}, {} on)", sector.versions.len() - sector.now, sector.now)
            });
            if !failed && !sector.is_lost() && matching.len() < sector.versions.len() - sector.now {
                sector.now = sector.versions.len();
                sector.versions.extend(matching);
            }
        });
    }

    pub fn mark(&self) -> Mark {
        let nows = self.sectors.iter().map(|sector| sector.drained + sector.now).collect();
        Mark { nows, lens: self.lens_drained + self.lens.len() - 1 }
    }

    /// A sync of some bytes has ended well; it had begun at `mark`.
    pub fn synced(&mut self, mark: &Mark, offset: u64, end: u64) {
        let (first, last) = (offset as usize / SECTOR, (end as usize).div_ceil(SECTOR));
        for (sector, now) in self.sectors.iter_mut().zip(&mark.nows).take(last).skip(first) {
            let durable = sector.now.min(now.saturating_sub(sector.drained));
            sector.versions.drain(..durable);
            sector.now -= durable;
            sector.known = sector.known.saturating_sub(durable);
            sector.drained += durable;
        }
        let durable = mark.lens.saturating_sub(self.lens_drained);
        self.lens.drain(..durable);
        self.lens_drained += durable;
    }

    /// Bytes that only the cache has may be lost.
    pub fn forget(&mut self) {
        self.sectors.iter_mut().for_each(|sector| sector.now = 0);
    }

    /// Checks that the image after a crash is possible, and continues from it.
    pub fn crashed(&mut self, image: &[u8]) {
        assert!(self.lens.contains(&(image.len() as u64)), "{} bytes are left", image.len());
        let len_max = self.sectors.len() * SECTOR;
        self.forget();
        self.read(0, image);
        *self = Twin::new(image.len() as u64, len_max as u64);
        self.write(0, image, true);
        self.synced(&self.mark(), 0, len_max as u64);
    }
}

#[test]
fn what_a_whole_write_covers_may_come_back_though_nobody_knows_all_that_it_was() {
    let mut twin = Twin::new(SECTOR as u64, SECTOR as u64);
    let mut one_of_all = [0; SECTOR];
    // 1. Each of these may have been made or not: 256 possible, which are too many to follow.
    for at in 0..8 {
        twin.write(at, &[1], false);
        one_of_all[at as usize] = (at % 2) as u8;
    }
    twin.read(0, &one_of_all);
    // 2. Now all is known again.
    twin.write(0, &[7; SECTOR], true);
    let is_other = |twin: &mut Twin| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| twin.read(0, &[8; SECTOR])))
    };
    assert!(is_other(&mut twin).is_err());
    // 3. Until the store loses it.
    twin.failed = true;
    twin.forget();
    twin.read(0, &one_of_all);
    // 4. What is durable does not come back.
    twin.write(0, &[7; SECTOR], true);
    twin.synced(&twin.mark(), 0, SECTOR as u64);
    twin.forget();
    assert!(is_other(&mut twin).is_err());
    twin.read(0, &[7; SECTOR]);
}
