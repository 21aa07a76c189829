//! The worth of a page by each eviction order of `octavo`, with its tables and constants.

use crate::policy::lead::{BUCKETS, Order};

pub(super) const USES_MAX: u16 = 63;

/// The search for a victim reduces larger ages to this, so that eight bits hold the age of every
/// page, and of its ghost later on.
pub(super) const AGE_MAX: u8 = 180;

pub(super) fn uses(meta: u16) -> u16 {
    meta >> 2 & USES_MAX
}

/// Returns the ticks since the last use.
pub(crate) fn age(meta: u16, clock: u16) -> u8 {
    (clock as u8).wrapping_sub((meta >> 8) as u8)
}

/// Returns the index of the cell, below `CLASSES * BUCKETS`, for a history and an age.
#[inline(always)]
pub(crate) fn cell(meta: u16, age: u8) -> usize {
    FIRST_CELL[meta as usize & 0xff] as usize + BUCKET[age as usize] as usize
}

/// The first cell of a history, by its lower byte.
const FIRST_CELL: [u16; 256] = {
    let mut cells = [0; 256];
    let mut meta = 0;
    while meta < cells.len() {
        let by_uses = match meta >> 2 {
            0..=1 => 0,
            2 => 1,
            3 => 2,
            4..=5 => 3,
            6..=8 => 4,
            9..=15 => 5,
            16..=31 => 6,
            _ => 7,
        };
        cells[meta] = ((by_uses * 4 + (meta & 3)) * BUCKETS) as u16;
        meta += 1;
    }
    cells
};

/// The bucket of an age.
pub(super) const BUCKET: [u8; 256] = {
    let mut buckets = [0; 256];
    let mut age = 0;
    while age < buckets.len() {
        let odd = 2 * age + 1;
        let doubling = odd.ilog2() as usize;
        // The two bits after the highest.
        buckets[age] = (4 * doubling + ((odd << 2 >> doubling) & 3)) as u8;
        age += 1;
    }
    buckets
};

/// `log2(uses) * 256`.
pub(super) const LOG2_256: [u32; USES_MAX as usize + 1] = [
    0, 0, 256, 406, 512, 594, 662, 719, 768, 812, 850, 886, 918, 947, 975, 1000, 1024, 1046, 1068, 1087,
    1106, 1124, 1142, 1158, 1174, 1189, 1203, 1217, 1231, 1244, 1256, 1268, 1280, 1291, 1302, 1313, 1324,
    1334, 1343, 1353, 1362, 1372, 1380, 1389, 1398, 1406, 1414, 1422, 1430, 1437, 1445, 1452, 1459, 1466,
    1473, 1480, 1487, 1493, 1500, 1506, 1512, 1518, 1524, 1530,
];

/// `sqrt(uses) * 256`.
const SQRT_256: [u16; USES_MAX as usize + 1] = {
    let mut roots = [0u16; USES_MAX as usize + 1];
    let mut uses = 0;
    while uses < roots.len() {
        roots[uses] = ((uses as u32) << 16).isqrt() as u16;
        uses += 1;
    }
    roots
};

/// Half-life of a use in `Order::Lrfu`, in turnovers.
pub(super) const HALF_LIFE: u32 = 8;

/// `2^24 / (age + 1)`, rounded up: a multiplication by it replaces a division, with exact results
/// for the numbers that `Order::Rate` divides.
pub(super) const PER_TICK: [u32; 256] = {
    let mut quotients = [0; 256];
    let mut age = 0;
    while age < quotients.len() {
        quotients[age] = (1u32 << 24).div_ceil(age as u32 + 1);
        age += 1;
    }
    quotients
};

/// Returns the worth of a page by an order; the page with the least worth is evicted. `density`
/// returns the density of a cell.
#[inline(always)]
pub(super) fn worth(order: Order, meta: u16, age: u8, ways: usize, density: impl Fn(usize) -> u16) -> u32 {
    let uses = uses(meta) as u32;
    let youth = u8::MAX - age;
    let (worth, among_equals) = match order {
        Order::Density => (density(cell(meta, age)) as u32, youth),
        Order::Rate => {
            let rate = ((uses as u64 * 256 * PER_TICK[age as usize] as u64) >> 24) as u32;
            let is_due = uses == 1 && age as usize >= ways / 8;
            (if is_due { 0 } else { rate }, youth)
        }
        Order::Lrfu => (LOG2_256[uses as usize] * HALF_LIFE * ways as u32 + youth as u32 * 256, youth),
        // A page that has not been used for `AGE_MAX` ticks is worth nothing, however often it was
        // used before.
        Order::Lfu => (if age < AGE_MAX { uses } else { 0 }, age),
        Order::Recency => {
            (((SQRT_256[uses as usize] as u64 * PER_TICK[age as usize] as u64) >> 16) as u32, youth)
        }
    };
    worth << 8 | among_equals as u32
}
