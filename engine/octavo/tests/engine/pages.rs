//! Pages that contain their own object, number and version, so that every read can be checked: no
//! torn page, no page of another place, no version older than one that was read or acknowledged
//! before.

use octavo::Object;
use octavo_random::Random;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const PAGE: usize = 4096;

/// The bytes of one version of a page. Version 0 stands for a page of zeros: never written, or
/// discarded.
fn page(object: u64, number: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(object << 40 ^ number << 32 ^ version);
    let mut bytes = random.bytes(PAGE);
    bytes[..8].copy_from_slice(&object.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version of a page. Panics if the bytes are not those of that version.
fn version(object: u64, number: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    assert!(bytes == page(object, number, version), "object {object}: page {number} is torn, or another's");
    version
}

/// What threads share about one object. One thread at a time writes a page, so that a higher
/// version is a later write.
pub struct Shared {
    pub object: Object,
    number: u64,
    /// Per page: the latest version that a write has begun, and the latest that was read or
    /// acknowledged.
    taken: Vec<AtomicU64>,
    seen: Vec<AtomicU64>,
    /// With discards a page may become zeros again, so the order of versions is not checked.
    pub discards: bool,
}

impl Shared {
    pub fn new(object: Object, number: u64, pages: u64, discards: bool) -> Shared {
        let counts = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        Shared { object, number, taken: counts(), seen: counts(), discards }
    }

    /// The oldest version that a read which begins now may return.
    pub fn floor(&self, number: u64) -> u64 {
        self.seen[number as usize].load(Relaxed)
    }

    /// Checks the bytes of a read that began when `floor` was the oldest version allowed.
    pub fn check(&self, number: u64, floor: u64, bytes: &[u8]) {
        let version = version(self.number, number, bytes);
        let taken = self.taken[number as usize].load(Relaxed);
        assert!(version <= taken, "page {number}: version {version} was not written yet");
        assert!(self.discards || version >= floor, "page {number}: version {version} after {floor}");
        self.replied(number, version);
    }

    /// Begins the next version of a page; returns it with its bytes.
    pub fn next(&self, number: u64) -> (u64, Vec<u8>) {
        let version = self.taken[number as usize].fetch_add(1, Relaxed) + 1;
        (version, page(self.number, number, version))
    }

    pub fn replied(&self, number: u64, version: u64) {
        self.seen[number as usize].fetch_max(version, Relaxed);
    }

    pub fn read(&self, number: u64) {
        let floor = self.floor(number);
        let mut bytes = vec![0xEE; PAGE];
        self.object.read_at(number * PAGE as u64, &mut bytes).unwrap();
        self.check(number, floor, &bytes);
    }

    pub fn write(&self, number: u64) {
        let (version, bytes) = self.next(number);
        self.object.write_at(number * PAGE as u64, &bytes).unwrap();
        self.replied(number, version);
    }

    /// Pins a page, if it can be pinned, and checks that its bytes stay the same while other
    /// threads run.
    pub fn pin(&self, number: u64) {
        let floor = self.floor(number);
        if let Some(pin) = self.object.pin(number * PAGE as u64).unwrap() {
            self.check(number, floor, &pin);
            let bytes = pin.to_vec();
            #[cfg(not(shuttle))]
            std::thread::yield_now();
            #[cfg(shuttle)]
            shuttle::thread::yield_now();
            assert!(pin[..] == bytes, "a pin has changed");
        }
    }
}
