//! A walk over places: how the engine is read, and what every look at pages shares.

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

/// A thread that accesses places of the object, by the case's call.
pub struct Walker<'t> {
    pub object: Object,
    pub case: &'t Case,
    pub places: Cow<'t, [u32]>,
    pub at: usize,
    pub buffers: AlignedBytes,
}

/// The offset of a place, in bytes.
pub fn offset(place: u32) -> u64 {
    u64::from(place & !WRITES) << UNIT_SHIFT
}

/// The page of a place, and the offset in it.
pub fn split(place: u32) -> (u64, usize) {
    (offset(place) / PAGE_BYTES as u64, offset(place) as usize % PAGE_BYTES)
}

/// The offset of the page of a place.
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

impl Worker for Walker<'_> {
    fn turn(&mut self, mut times: Option<&mut Histogram>) -> Result<u64, Error> {
        let numbers = next_turn(&mut self.at, turn_of(self.case), self.places.len());
        let places = &self.places[numbers];
        let len = self.case.bytes.0 as usize;
        match (self.case.call, &times) {
            (Call::Single, None) if self.case.reads.0 == 100 => {
                let buffer = &mut self.buffers[..len];
                for place in places {
                    self.object.read_at(u64::from(*place) << UNIT_SHIFT, buffer)?;
                    black_box(buffer.as_mut_ptr());
                }
            }
            (Call::Single, _) => mixed(&self.object, places, &mut self.buffers[..len], times)?,
            (Call::Pin, None) => {
                for place in places {
                    black_box(self.object.pin(page_offset(*place))?);
                }
            }
            (Call::Pin, Some(_)) => {
                for place in places {
                    timed(&mut times, || self.object.pin(page_offset(*place)).map(drop))?;
                }
            }
            (Call::PinBatch, _) => pin_batches(&self.object, places, self.case.batch.0, |pins, _| {
                black_box(pins);
                Ok(())
            })?,
            (Call::Batch | Call::Queue, _) => {
                read_batches(&self.object, places, len, &mut self.buffers, |reads| {
                    black_box(reads.as_mut_ptr());
                })?;
            }
        }
        Ok(places.len() as u64)
    }
}

/// Reads places, and writes places with the content that they have.
pub fn mixed(
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

// ---- The references

/// Operations of a turn.
pub fn turn_of(case: &Case) -> usize {
    if case.bytes.0 as usize == PAGE_BYTES { TURN_PAGES } else { TURN_SHORT }
}

/// The next `turn` operations of a stream; near its end, those at its start. The places that a
/// prefetching walk looks ahead at are inside the stream too.
pub fn next_turn(at: &mut usize, turn: usize, count: usize) -> Range<usize> {
    if *at + turn + AHEAD_SHORT > count {
        *at = 0;
    }
    let numbers = *at..*at + turn;
    *at += turn;
    numbers
}
