//! Whole rings: an input writes descriptors, tables, headers and indices into a guest's memory, and
//! lets the device look at them between any two steps.

use super::input::Input;
use super::walk::{Chain, Memory};
use octavo_block::fuzzing::{Guest, Ring, Setup};
use std::cell::RefCell;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Two regions with a hole between them, and a third that follows the second.
const REGIONS: [(u64, u64); 3] = [(0x1_0000, 0x2000), (0x2_0000, 0x2000), (0x2_2000, 0x1000)];
const MEMORY: usize = 0x5000;
const DISK: usize = 0x1_0000;
/// The most entries of a ring.
const SIZE: u16 = 16;

/// Steps of one input: enough for every interleaving that matters.
const STEPS_MAX: usize = 96;
/// Bytes of the region that records requests in flight.
const RECORD: u64 = 320;

/// Drives a device with the steps that an input encodes.
///
/// # Panics
/// If the device writes outside of the guest's buffers, or reports a wrong result.
pub fn chains(bytes: &[u8]) {
    thread_local! {
        static RIG: RefCell<Rig> = RefCell::new(Rig::new());
    }
    RIG.with_borrow_mut(|rig| rig.run(bytes));
}

struct Rig {
    guest: Guest,
    /// The disk may differ from its beginning.
    is_dirty: bool,
}

/// The checker's knowledge of a ring.
struct State {
    setup: Setup,
    /// The index of the next request, and of the next used entry.
    next: u16,
    used: u16,
    /// The device may have overwritten tables or rings at the guest's request, so the checker no
    /// longer knows the guest's requests.
    is_blind: bool,
}

impl Rig {
    fn new() -> Rig {
        Rig { guest: Guest::new(&REGIONS, DISK as u64, SIZE), is_dirty: true }
    }

    fn run(&mut self, bytes: &[u8]) {
        let mut input = Input(bytes);
        self.reset();
        let flags = input.byte();
        let size = 1 << (input.byte() % 5);
        let (descriptors, available, used) = match flags >> 6 {
            // Over each other, or anywhere.
            0 if flags & 32 != 0 => (0x1_0000, 0x1_0008, 0x1_0010),
            1 if flags & 32 != 0 => {
                (address(&mut input) & !15, address(&mut input) & !1, address(&mut input) & !3)
            }
            _ => (0x1_0000, 0x1_0400, 0x1_0800),
        };
        let setup = Setup {
            size,
            descriptors,
            available,
            used,
            next: if flags & 1 == 0 { 0 } else { input.word() },
            has_event_index: flags & 2 != 0,
            is_durable: flags & 4 != 0,
            has_record: flags & 8 != 0,
        };
        if setup.next != 0 {
            for ring in [available, used] {
                self.write(ring.wrapping_add(2), &setup.next.to_le_bytes());
            }
        }
        let mut steps = STEPS_MAX;
        // Each ring begins where the one before it stopped, until one is broken.
        let mut next = setup.next;
        while let Some(after) = self.ring(&Setup { next, ..setup }, &mut input, &mut steps) {
            next = after;
        }
    }

    /// Makes memory and disk as they were at the beginning.
    fn reset(&mut self) {
        self.guest.memory().write_all_at(&[0; MEMORY], 0).expect("the memory is a file");
        self.guest.record().write_all_at(&[0; RECORD as usize], 0).expect("the record is a file");
        if std::mem::take(&mut self.is_dirty) {
            let bytes: Vec<u8> = (0..DISK).map(|at| (at / 512 + at % 7) as u8).collect();
            self.guest.object().write_at(0, &bytes).expect("the disk takes bytes");
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        write(self.guest.memory(), address, bytes);
    }

    /// Runs one ring. Returns the index of the next request if another ring follows.
    fn ring(&mut self, setup: &Setup, input: &mut Input, steps: &mut usize) -> Option<u16> {
        let memory = self.guest.memory().try_clone().expect("there are descriptors");
        let record = self.guest.record().try_clone().expect("there are descriptors");
        // The device repeats the requests of the record before the checker looks at memory.
        self.is_dirty |= setup.has_record;
        let mut ring = self.guest.ring(setup)?;
        let used = copy(&memory);
        let used = Memory { regions: &REGIONS, bytes: &used }.word(setup.used + 2)?;
        let is_blind = ring.resumed.is_err() || used != setup.next;
        ring.resumed.ok()?;
        let mut state = State { setup: *setup, next: setup.next, used, is_blind };
        while *steps > 0 && !input.is_empty() {
            *steps -= 1;
            match input.byte() % 12 {
                0 => {
                    let place = setup.descriptors + 16 * u64::from(input.byte() % 20);
                    write(&memory, place, &descriptor(input));
                }
                1..=3 => request(&memory, setup, input, true),
                4 => request(&memory, setup, input, false),
                5 => {
                    let (address, count) = (address(input), usize::from(input.byte() % 65));
                    write(&memory, address, input.take(count));
                }
                6 => {
                    let index = input.word();
                    write(&memory, setup.available + 2, &index.to_le_bytes());
                }
                7 => {
                    let event = input.word();
                    write(&memory, setup.available, &event.to_le_bytes());
                    write(&memory, setup.available + 4 + 2 * u64::from(setup.size), &event.to_le_bytes());
                }
                8 => {
                    let (at, count) = (u64::from(input.word()) % RECORD, usize::from(input.byte() % 33));
                    let bytes = input.take(count.min((RECORD - at) as usize));
                    record.write_all_at(bytes, at).expect("the record is a file");
                    state.is_blind = true;
                }
                9 => return Some(state.used),
                10 => offer(&memory, setup, u16::from(input.byte())),
                _ => {
                    self.is_dirty = true;
                    serve(&mut ring, &memory, &mut state)?;
                }
            }
        }
        self.is_dirty = true;
        serve(&mut ring, &memory, &mut state)?;
        None
    }
}

/// Lets the device look at the ring, and checks what it has done. `None` if the ring is broken.
fn serve(ring: &mut Ring, memory: &std::fs::File, state: &mut State) -> Option<()> {
    let setup = &state.setup;
    let before = copy(memory);
    let guest = Memory { regions: &REGIONS, bytes: &before };
    let size = u64::from(setup.size);
    let index = guest.word(setup.available + 2)?;
    let count = index.wrapping_sub(state.next);
    let slot = |index: u16| setup.available + 4 + 2 * (u64::from(index) % size);
    let heads: Vec<u16> = match u64::from(count) <= size {
        true => (0..count).filter_map(|n| guest.word(slot(state.next.wrapping_add(n)))).collect(),
        false => Vec::new(),
    };
    let chains: Vec<Chain> = heads.iter().map(|head| guest.walk(setup.descriptors, size, *head)).collect();
    let mut read = guest.positions(setup.descriptors, 16 * size);
    read.extend(guest.positions(setup.available, 6 + 2 * size));
    read.extend(chains.iter().flat_map(|chain| chain.tables.iter().cloned()));
    let used = guest.positions(setup.used, 6 + 8 * size);
    let writable: Vec<Range<usize>> =
        chains.iter().flat_map(|chain| chain.writable.iter().cloned()).collect();
    let overlap = |some: &[Range<usize>], others: &[Range<usize>]| {
        some.iter().any(|a| others.iter().any(|b| a.start < b.end && b.start < a.end))
    };
    // The guest may also write over its used ring.
    state.is_blind |= guest.word(setup.used + 2) != Some(state.used);
    state.is_blind |= overlap(&writable, &read) || overlap(&writable, &used) || overlap(&used, &read);

    let served = ring.serve();
    if state.is_blind {
        return served.ok();
    }
    let after = copy(memory);
    let mut expected = before.clone();
    for range in writable.iter().chain(&used).cloned() {
        expected[range.clone()].copy_from_slice(&after[range]);
    }
    if expected != after {
        let at = expected.iter().zip(&after).position(|(old, new)| old != new);
        panic!("the device wrote to byte {at:x?} of the memory");
    }
    let guest = Memory { regions: &REGIONS, bytes: &after };
    let now = guest.word(setup.used + 2)?;
    let ended = now.wrapping_sub(state.used);
    assert!(usize::from(ended) <= heads.len(), "{ended} requests ended of {}", heads.len());
    let mut left = heads.iter().zip(&chains).collect::<Vec<_>>();
    for n in 0..ended {
        let entry = setup.used + 4 + 8 * (u64::from(state.used.wrapping_add(n)) % size);
        let (id, high) = (guest.word(entry)?, guest.word(entry + 2)?);
        let len = u32::from(guest.word(entry + 4)?) | u32::from(guest.word(entry + 6)?) << 16;
        let found = left.iter().position(|(head, _)| **head == id);
        let (_, chain) = left.swap_remove(found.expect("a request ends that was made available, once"));
        assert!(high == 0 && u64::from(len) <= chain.writable_bytes, "{len} bytes were written");
    }
    if served.is_ok() && u64::from(count) <= size {
        assert!(
            left.is_empty(),
            "requests did not end: {:?}",
            left.iter().map(|(head, _)| head).collect::<Vec<_>>()
        );
        (state.next, state.used) = (index, now);
    }
    served.ok()
}

fn copy(memory: &std::fs::File) -> Vec<u8> {
    let mut bytes = vec![0; MEMORY];
    memory.read_exact_at(&mut bytes, 0).expect("the memory is a file");
    bytes
}

/// Writes bytes to the guest's memory, as far as it has such memory.
fn write(memory: &std::fs::File, address: u64, bytes: &[u8]) {
    let mut done = 0;
    for part in (Memory { regions: &REGIONS, bytes: &[] }).positions(address, bytes.len() as u64) {
        memory
            .write_all_at(&bytes[done..done + part.len()], part.start as u64)
            .expect("the memory is a file");
        done += part.len();
    }
}

/// An address: mostly of the guest, at times not.
fn address(input: &mut Input) -> u64 {
    let word = u64::from(input.word());
    match word >> 14 {
        0 => 0x1_0000 + (word & 0x1fff),
        1 => 0x2_0000 + (word & 0x3fff),
        2 => 0x1_1000 + (word & 0xfff),
        _ => [u64::MAX, 0, 0xffff, 0x1_1ff8, 0x2_1fff, 0x2_2fff, u64::MAX - 15, 1 << 63][word as usize & 7],
    }
}

fn len(input: &mut Input) -> u32 {
    let word = u32::from(input.word());
    match word >> 15 {
        0 => word & 0x1fff,
        _ => [512, 4096, 16, 1, u32::MAX, 0x8000_0000, 0x2000, 0][word as usize & 7],
    }
}

fn descriptor(input: &mut Input) -> [u8; 16] {
    let (address, len, flags, next) = (address(input), len(input), input.byte(), input.byte() % 20);
    encode(address, len, u16::from(flags % 8), u16::from(next))
}

fn encode(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Makes a request of three descriptors available: in the ring's table, or in an indirect one.
fn request(memory: &std::fs::File, setup: &Setup, input: &mut Input, is_direct: bool) {
    let head = u16::from(input.byte() % 16);
    let kind = input.byte();
    let sector = u64::from(input.byte());
    let (header_at, data_at, data_len) = (address(input), address(input), len(input));
    // In, out, flush, id, discard, zeroes, anything.
    let code = [0, 1, 4, 8, 11, 13, 0, u32::from(kind)][usize::from(kind % 8)];
    let sector = if sector < 0xf0 { sector % 130 } else { u64::MAX >> (sector & 15) };
    let header = [&code.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    write(memory, header_at, &header);
    // Ranges of a discard begin with a sector.
    if matches!(code, 11 | 13) {
        let range =
            [&(sector % 64).to_le_bytes()[..], &u32::from(kind >> 4).to_le_bytes(), &[kind >> 7, 0, 0, 0]];
        write(memory, data_at, &range.concat());
    }
    let is_written = matches!(code, 0 | 8);
    let (table, first) = match is_direct {
        true => (setup.descriptors, head),
        false => (0x2_2f00, 0),
    };
    let data = 1 | if is_written { 2 } else { 0 };
    write(memory, table + 16 * u64::from(first), &encode(header_at, 16, 1, first + 1));
    write(memory, table + 16 * u64::from(first + 1), &encode(data_at, data_len, data, first + 2));
    write(memory, table + 16 * u64::from(first + 2), &encode(header_at.wrapping_add(32), 1, 2, 0));
    if !is_direct {
        write(memory, setup.descriptors + 16 * u64::from(head), &encode(table, 48, 4, 0));
    }
    offer(memory, setup, head);
}

/// Makes a head available.
fn offer(memory: &std::fs::File, setup: &Setup, head: u16) {
    let mut index = [0; 2];
    let parts = (Memory { regions: &REGIONS, bytes: &[] }).positions(setup.available + 2, 2);
    let [part] = &parts[..] else { return };
    memory.read_exact_at(&mut index, part.start as u64).expect("the memory is a file");
    let index = u16::from_le_bytes(index);
    write(memory, setup.available + 4 + 2 * u64::from(index % setup.size), &head.to_le_bytes());
    write(memory, setup.available + 2, &index.wrapping_add(1).to_le_bytes());
}
