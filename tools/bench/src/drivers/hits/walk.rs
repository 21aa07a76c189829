//! A walk over places: the ways to read the engine's pages, and the code that they share.

use std::borrow::Cow;
use std::hint::black_box;
use std::ops::Range;

use octavo::disk::AlignedBytes;
use octavo::{Object, Pin, Read};

use crate::case::{Call, Case};
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::reference::{AHEAD_SHORT, UNIT_SHIFT};
use crate::statistics::Histogram;
use crate::turns::{Worker, timed};

/// Operations of a turn, for short operations and for whole pages: about 0.1 ms, and a multiple of
/// every batch.
pub const TURN_SHORT: usize = 4096;
pub const TURN_PAGES: usize = 256;

/// The bit of a place that marks a write.
pub const WRITES: u32 = 1 << 31;

/// A thread's position in a stream of places.
pub struct Way<'t> {
    pub places: Cow<'t, [u32]>,
    pub at: usize,
    /// Operations of a turn.
    pub turn: usize,
}

impl Way<'_> {
    /// Returns the numbers of the next places; near the end of the stream, of those at its start.
    /// The places that a prefetching walk looks ahead at are inside the stream too.
    pub fn numbers(&mut self) -> Range<usize> {
        if self.at + self.turn + AHEAD_SHORT > self.places.len() {
            self.at = 0;
        }
        let numbers = self.at..self.at + self.turn;
        self.at += self.turn;
        numbers
    }

    /// Returns the next places.
    pub fn next(&mut self) -> &[u32] {
        let numbers = self.numbers();
        &self.places[numbers]
    }
}

/// Returns the offset of a place, in bytes.
pub fn offset(place: u32) -> u64 {
    u64::from(place & !WRITES) << UNIT_SHIFT
}

/// Returns the page of a place, and the offset in it.
pub fn split(place: u32) -> (u64, usize) {
    (offset(place) / PAGE_BYTES as u64, offset(place) as usize % PAGE_BYTES)
}

/// Returns the offset of the page of a place.
pub fn page_offset(place: u32) -> u64 {
    offset(place) & !(PAGE_BYTES as u64 - 1)
}

/// Reads `len` bytes of each place in batches that fill `buffers`. Calls `then` after each batch.
pub fn read_batches(
    object: &Object,
    places: &[u32],
    len: usize,
    buffers: &mut [u8],
    mut then: impl FnMut(&mut [Read<'_>]),
) -> Result<(), Error> {
    let chunks = buffers.chunks_exact_mut(len);
    let mut reads: Vec<Read<'_>> = chunks.map(|buffer| Read { offset: 0, buffer }).collect();
    for places in places.chunks_exact(reads.len()) {
        for (read, place) in reads.iter_mut().zip(places) {
            read.offset = offset(*place);
        }
        object.read_batch(&mut reads)?;
        then(&mut reads);
    }
    Ok(())
}

/// Pins the pages of places in batches. Calls `then` with each batch's pins and places.
pub fn pin_batches<'o>(
    object: &'o Object,
    places: &[u32],
    batch: usize,
    mut then: impl FnMut(&mut Vec<Option<Pin<'o>>>, &[u32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut offsets, mut pins) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
    for places in places.chunks_exact(batch) {
        offsets.clear();
        offsets.extend(places.iter().map(|place| page_offset(*place)));
        object.pin_batch(&offsets, &mut pins)?;
        then(&mut pins, places)?;
        pins.clear();
    }
    Ok(())
}

/// Creates a worker that accesses places of the object by the case's call.
pub fn walker<'t>(object: Object, case: &'t Case, mut way: Way<'t>) -> impl Worker + 't {
    let (len, batch) = (case.bytes.0 as usize, case.batch.0);
    let mut buffers = AlignedBytes::new(len * batch);
    move |mut times: Option<&mut Histogram>| {
        let places = way.next();
        let buffer = &mut buffers[..len];
        match (case.call, &times) {
            (Call::Single, None) if case.reads.0 == 100 => {
                for place in places {
                    object.read_at(u64::from(*place) << UNIT_SHIFT, buffer)?;
                    black_box(buffer.as_mut_ptr());
                }
            }
            (Call::Single, _) => mixed(&object, places, buffer, times)?,
            (Call::Pin, None) => {
                for place in places {
                    black_box(object.pin(page_offset(*place))?);
                }
            }
            (Call::Pin, Some(_)) => {
                for place in places {
                    timed(&mut times, || object.pin(page_offset(*place)).map(drop))?;
                }
            }
            (Call::PinBatch, _) => pin_batches(&object, places, batch, |pins, _| {
                black_box(pins);
                Ok(())
            })?,
            (Call::Batch | Call::Queue, _) => read_batches(&object, places, len, &mut buffers, |reads| {
                black_box(reads.as_mut_ptr());
            })?,
        }
        Ok(places.len() as u64)
    }
}

/// Reads places, and writes places with the content that they have.
fn mixed(
    object: &Object,
    places: &[u32],
    buffer: &mut [u8],
    mut times: Option<&mut Histogram>,
) -> Result<(), Error> {
    for place in places {
        let (offset, writes) = (offset(*place), place & WRITES != 0);
        if writes {
            let (page, skip) = split(*place);
            content::fill_part(page, skip, buffer);
        }
        timed(&mut times, || match writes {
            true => object.write_at(offset, buffer),
            false => object.read_at(offset, buffer),
        })?;
        black_box(buffer.as_mut_ptr());
    }
    Ok(())
}

/// Operations of a turn.
pub fn turn_of(case: &Case) -> usize {
    if case.bytes.0 as usize == PAGE_BYTES { TURN_PAGES } else { TURN_SHORT }
}
