//! Random calls, some of which are dropped at random points, must agree with a naive twin: for each
//! cell of the object, the values that a read may return.
//!
//! `OCTAVO_STEPS` sets the number of calls (default: 12,000), `OCTAVO_SEED` the seed. Timing makes
//! each run different.

use std::task::{Context, Poll};

use bytes::Bytes;
use octavo::{Advice, CacheMode, Memory, Op};
use octavo_async::{AsyncObject, DriverConfig};
use octavo_random::Random;

use crate::fixture::{
    Counted, PAGE, block_on, descriptors, is_alone, nothing_is_left, number, scene, until, waker, watch,
};

/// A cell is written as a whole, and holds one number many times.
const CELL: u64 = 512;
const PAGES: u64 = 1200;
const THREADS: u64 = 2;

/// One thread's part of the object, and what its cells may hold: the values in the order in which
/// they may appear. The first is the one that was seen last, or whose write was acknowledged; those
/// after it belong to writes that were dropped.
struct Part {
    object: AsyncObject,
    first_cell: u64,
    cells: Vec<Vec<u32>>,
    random: Random,
    last: u32,
    dropped: u64,
}

enum Kind {
    Read,
    View,
    ReadInto,
    Write,
    WriteBytes,
    Durable,
    Zero,
    Discard,
    Sync,
    WillNeed,
}

impl Part {
    fn step(&mut self) {
        let cell = self.random.below(self.cells.len() as u64);
        let most = [2, 8, 40][self.random.below(3) as usize];
        let cells = (1 + self.random.below(most)).min(self.cells.len() as u64 - cell);
        let kind = match self.random.below(40) {
            0..12 => Kind::Read,
            12..16 => Kind::View,
            16..18 => Kind::ReadInto,
            18..26 => Kind::Write,
            26..34 => Kind::WriteBytes,
            34 => Kind::Durable,
            35 => Kind::Zero,
            36 => Kind::Discard,
            37 => Kind::Sync,
            _ => Kind::WillNeed,
        };
        // Half of the calls are dropped if they are not ready after up to three polls.
        let polls = self.random.coin().then(|| self.random.below(4));
        self.call(&kind, cell as usize..(cell + cells) as usize, polls);
    }

    fn call(&mut self, kind: &Kind, cells: std::ops::Range<usize>, polls: Option<u64>) {
        let offset = (self.first_cell + cells.start as u64) * CELL;
        let len = cells.len() * CELL as usize;
        let object = self.object.clone();
        self.last += 1;
        let value = if matches!(kind, Kind::Zero | Kind::Discard) { 0 } else { self.last };
        let bytes = || value.to_le_bytes().repeat(len / 4);
        let (ended, was_polled) = match kind {
            Kind::Read => run(polls, async { object.read_bytes_at(offset, len).await.map(Some) }),
            Kind::View => run(polls, async { object.view_at(offset, len).await.map(Some) }),
            Kind::ReadInto => run(polls, async {
                let memory = Memory::new(Counted::new(vec![1; len]));
                let (op, result) = object.run(Op::ReadInto { offset, memory }).await;
                let Some(Op::ReadInto { memory, .. }) = op else { unreachable!() };
                result.map(|()| Some(Bytes::from_owner(memory.into_owner::<Counted>().unwrap())))
            }),
            Kind::Write => {
                let bytes = bytes();
                run(polls, async { object.write_at(offset, &bytes).await.map(|()| None) })
            }
            Kind::WriteBytes | Kind::Durable => {
                let bytes = Bytes::from_owner(Counted::new(bytes()));
                run(polls, async {
                    match kind {
                        Kind::Durable => object.write_durable_at(offset, bytes).await,
                        _ => object.write_bytes_at(offset, bytes).await,
                    }
                    .map(|()| None)
                })
            }
            Kind::Zero => run(polls, async { object.zero(offset, len as u64).await.map(|()| None) }),
            Kind::Discard => run(polls, async { object.discard(offset, len as u64).await.map(|()| None) }),
            Kind::Sync => run(polls, async { object.sync().await.map(|()| None) }),
            Kind::WillNeed => {
                run(polls, async { object.advise(offset, len as u64, Advice::WillNeed).await.map(|()| None) })
            }
        };
        self.dropped += u64::from(ended.is_none());
        let is_change =
            matches!(kind, Kind::Write | Kind::WriteBytes | Kind::Durable | Kind::Zero | Kind::Discard);
        match ended.map(|ended| ended.expect("the store does not fail")) {
            Some(Some(bytes)) => self.check(cells, &bytes),
            Some(None) if is_change => self.cells[cells].iter_mut().for_each(|cell| *cell = vec![value]),
            None if is_change && was_polled => {
                self.cells[cells].iter_mut().for_each(|cell| cell.push(value));
            }
            _ => {}
        }
    }

    fn check(&mut self, cells: std::ops::Range<usize>, bytes: &[u8]) {
        for (cell, bytes) in self.cells[cells.clone()].iter_mut().zip(bytes.chunks(CELL as usize)) {
            let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert!(bytes.chunks(4).all(|word| word == value.to_le_bytes()), "a cell in {cells:?} is torn");
            let seen = cell.iter().rposition(|may| *may == value);
            let seen = seen.unwrap_or_else(|| panic!("a cell in {cells:?} has {value}, not one of {cell:?}"));
            // Zeros may stand for several discards, the oldest of which may be the one.
            let seen = if value == 0 { cell.iter().position(|may| *may == 0).unwrap() } else { seen };
            cell.drain(..seen);
        }
    }
}

/// Runs a future to its end, or polls it a few times and drops it. Returns its output if it was
/// ready, and whether it was polled.
fn run<F: Future>(polls: Option<u64>, future: F) -> (Option<F::Output>, bool) {
    let Some(polls) = polls else { return (Some(block_on(future)), true) };
    let mut future = Box::pin(future);
    let (_, waker) = waker();
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (Some(output), true);
        }
        std::thread::yield_now();
    }
    (None, polls > 0)
}

fn agrees(mode: CacheMode, seed: u64, steps: u64) {
    let _watch = watch(60 + steps / 1000);
    let before = descriptors();
    let config = DriverConfig { requests_max: 8, reads_max_bytes: 64 << 10 };
    let scene = scene(PAGES, mode, config);
    let charged = scene.cache.stat().buffers_used_bytes;
    let cells = PAGES * PAGE / CELL / THREADS;
    let dropped: u64 = std::thread::scope(|scope| {
        let run = |thread: u64| {
            let object = scene.object.clone();
            scope.spawn(move || {
                let cells_now = vec![vec![0]; cells as usize];
                let random = Random::new(seed ^ thread << 32);
                let first_cell = thread * cells;
                let mut part = Part { object, first_cell, cells: cells_now, random, last: 0, dropped: 0 };
                (0..steps / THREADS).for_each(|_| part.step());
                // In the end every cell is read.
                for start in (0..cells as usize).step_by(64) {
                    part.call(&Kind::Read, start..(start + 64).min(cells as usize), None);
                }
                part.dropped
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{steps} calls, {dropped} dropped");
    assert!(dropped > steps / 10);
    nothing_is_left(scene, charged);
    until(|| descriptors() == before);
}

#[test]
fn random_calls_with_random_drops_agree_with_a_naive_twin() {
    if !is_alone("twin::random_calls_with_random_drops_agree_with_a_naive_twin") {
        return;
    }
    let seed = number("OCTAVO_SEED").unwrap_or(1);
    let steps = number("OCTAVO_STEPS").unwrap_or(12_000) / 2;
    println!("OCTAVO_SEED={seed}");
    agrees(CacheMode::Writeback, seed, steps);
    agrees(CacheMode::Writethrough, seed + 1, steps);
}
