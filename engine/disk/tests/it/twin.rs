//! Every kind of store against its naive twin, a `Vec<u8>`: random reads, writes, clearings, syncs
//! and changes of length must agree.

use octavo_disk::{AlignedBytes, IoBuffer, Op, Ring, SimDisk, SimFaults, SimOptions, Store};

use crate::fixture::*;
use crate::unruly::unruly;

const LEN_MAX: u64 = 100_000;

struct Twin(Vec<u8>);

impl Twin {
    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let start = offset.min(self.0.len());
        let end = (offset + len).min(self.0.len());
        padded(&self.0[start..end], len)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let start = offset.min(self.0.len());
        let end = (offset + bytes.len()).min(self.0.len());
        self.0[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

/// Pushes I/Os that do not overlap together, and compares the reads when all have completed.
fn batch(ring: &Ring, store: &Store, twin: &mut Twin, random: &mut Random) {
    let block = u64::from(store.block_bytes());
    let mut at = random.below(4) * block;
    let mut ios: Vec<(Op, u64, AlignedBytes)> = Vec::new();
    for _ in 0..1 + random.below(12) {
        let len = (1 + random.below(6 * 4096 / block)) * block;
        let op = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Zero, Op::Discard][random.below(6) as usize];
        ios.push((op, at, aligned(&pattern(random.next_u64(), len as usize))));
        at += len + random.below(3) * block;
    }
    for (token, (op, offset, bytes)) in ios.iter().enumerate() {
        if matches!(op, Op::Zero | Op::Discard) {
            ring.push_clear(store, *op, *offset, bytes.len() as u64, token as u64);
            continue;
        }
        let whole = bytes.io_buffer();
        // Pieces begin at multiples of 4096, like frames.
        let cut = if random.below(2) == 0 { whole.len.min(4096) } else { whole.len };
        let mut pieces = vec![IoBuffer { len: cut, ..whole }];
        if cut < whole.len {
            pieces.push(IoBuffer { ptr: whole.ptr.wrapping_add(cut), len: whole.len - cut });
        }
        // SAFETY: `ios` outlives the waits below.
        unsafe { ring.push(store, *op, *offset, &pieces, token as u64) };
    }
    successes(ring, ios.len());
    for (op, offset, bytes) in &ios {
        match op {
            Op::Write => twin.write(*offset as usize, bytes),
            Op::Zero | Op::Discard => twin.write(*offset as usize, &vec![0; bytes.len()]),
            _ => {
                assert!(bytes[..] == twin.read(*offset as usize, bytes.len()), "{} at {offset}", bytes.len())
            }
        }
    }
}

fn agree(ring: &Ring, store: &Store, seed: u64, rounds: u32) {
    let mut random = Random::new(seed);
    let mut twin = Twin(vec![0; store.len_bytes() as usize]);
    for _ in 0..rounds {
        match random.below(8) {
            0 => {
                let len = random.below(LEN_MAX);
                store.set_len_bytes(len).unwrap();
                twin.0.resize(len as usize, 0);
            }
            1 => {
                let block = u64::from(store.block_bytes());
                let (offset, len) =
                    (random.below(LEN_MAX / block) * block, random.below(20_000 / block) * block);
                let op = if random.below(2) == 0 { Op::Zero } else { Op::Discard };
                clear(ring, store, op, offset, len).unwrap();
                twin.write(offset as usize, &vec![0; len as usize]);
            }
            2 => sync(ring, store).unwrap(),
            _ => batch(ring, store, &mut twin, &mut random),
        }
        assert_eq!(store.len_bytes(), twin.0.len() as u64);
    }
    let whole = LEN_MAX.next_multiple_of(4096) as usize;
    assert!(read(ring, store, 0, whole) == twin.read(0, whole));
    if std::path::Path::new(store.name()).exists() {
        assert!(std::fs::read(store.name()).unwrap() == twin.0, "the file, as other programs read it");
    }
}

#[test]
fn files_agree_with_their_twin() {
    for directory in directories() {
        for_seeds(0..20, |seed| {
            for ring in rings(4) {
                let len = Random::new(seed).below(LEN_MAX) as usize;
                agree(&ring, &open(&file(directory.path(), &vec![0; len])), seed, 60);
            }
        });
    }
}

#[test]
fn memory_agrees_with_its_twin() {
    for_seeds(0..20, |seed| {
        let ring = &rings(4)[0];
        agree(ring, &Store::memory("memory", Random::new(seed).below(LEN_MAX)), seed, 100);
    });
}

#[test]
fn a_simulated_disk_that_only_reorders_shortens_and_clears_by_writing_agrees_with_its_twin() {
    for_seeds(0..30, |seed| {
        for ring in rings(4) {
            let faults = SimFaults { p_short: 0.4, p_unsupported: 0.3, ..SimFaults::default() };
            let block_bytes = if seed % 2 == 0 { 512 } else { 4096 };
            let disk = SimDisk::new(SimOptions { seed, faults, block_bytes, ..SimOptions::default() });
            agree(&ring, &disk.store("data", Random::new(seed).below(LEN_MAX)), seed, 60);
        }
    });
}

#[test]
fn a_back_end_that_answers_late_in_part_and_in_any_order_agrees_with_its_twin() {
    for_seeds(0..40, |seed| {
        for ring in rings(4) {
            let len = Random::new(seed).below(LEN_MAX) as usize;
            agree(&ring, &unruly(seed, len), seed, 60);
        }
    });
}
