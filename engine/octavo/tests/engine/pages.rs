//! Pages that say what they are, so that every read can be checked: no torn page, no page of
//! another place, no version older than one that was read or replied to before.

use crate::random::Random;
use octavo::Object;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const PAGE: usize = 4096;

/// A page of the given object, number and version. Version 0 is a page of zeros: never written, or
/// discarded.
fn page(object: u64, number: u64, version: u64) -> Vec<u8> {
    let mut random = Random(object << 40 ^ number << 32 ^ version);
    let mut bytes = random.bytes(PAGE);
    bytes[..8].copy_from_slice(&object.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version of a whole page; panics at one that is not what it says.
fn version(object: u64, number: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    assert!(bytes == page(object, number, version), "object {object}: page {number} is torn, or another's");
    version
}

/// What threads share about one object. One thread at a time writes a page, so that versions say
/// which came later.
pub struct Shared {
    pub object: Object,
    number: u64,
    /// Per page: the latest version that a write took, and the latest that is known to have been
    /// read or replied to.
    taken: Vec<AtomicU64>,
    seen: Vec<AtomicU64>,
    /// Discards make pages go back to zeros: then only what they say is checked.
    pub discards: bool,
}

impl Shared {
    pub fn new(object: Object, number: u64, pages: u64, discards: bool) -> Shared {
        let counts = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        Shared { object, number, taken: counts(), seen: counts(), discards }
    }

    /// The version that a read which begins now may not be older than.
    pub fn floor(&self, number: u64) -> u64 {
        self.seen[number as usize].load(Relaxed)
    }

    /// Checks what a read of a page brought, which began when `floor` was its floor.
    pub fn check(&self, number: u64, floor: u64, bytes: &[u8]) {
        let version = version(self.number, number, bytes);
        let taken = self.taken[number as usize].load(Relaxed);
        assert!(version <= taken, "page {number}: version {version} was not written yet");
        assert!(self.discards || version >= floor, "page {number}: version {version} after {floor}");
        self.replied(number, version);
    }

    /// The next version of a page, and its bytes.
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

    /// Pins a page, if that can be, and sees that it is the same before and after others had a
    /// turn.
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
