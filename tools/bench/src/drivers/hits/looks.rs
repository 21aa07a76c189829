//! Contestants that look at every byte of what they ask for: by a pin, where it lies, or by a read,
//! in a copy of their own.
//!
//! A pin alone copies nothing and gives nothing. What decides between the two is how long it takes
//! until the bytes have been looked at, so all of them sum the same words of the same places. The
//! batches are of the case's `batch`.

use std::hint::black_box;

use octavo::disk::AlignedBytes;
use octavo::{Object, Read};

use super::{Field, Streams, begin, next_turn, offset, turn_of};
use crate::Error;
use crate::case::Case;
use crate::content::PAGE_BYTES;
use crate::statistics::Histogram;
use crate::turns::{Team, Worker};

/// Who can run.
pub const NAMES: &[&str] = &["pin", "read", "pin-batch", "read-batch"];

/// One of them.
pub struct Looking<'t> {
    pub name: &'t str,
    pub field: &'t Field,
    pub case: &'t Case,
    pub streams: &'t Streams,
}

impl Team for Looking<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error> {
        let (len, batch) = (self.case.bytes.0 as usize, self.case.batch.0);
        Ok(Box::new(LookingThread {
            object: &self.field.object,
            name: self.name,
            places: &self.streams.object,
            at: begin(thread, self.case.threads.0, self.streams.object.len()),
            turn: turn_of(self.case),
            buffers: (0..batch).map(|_| AlignedBytes::new(len)).collect(),
        }))
    }
}

struct LookingThread<'t> {
    object: &'t Object,
    name: &'t str,
    places: &'t [u32],
    at: usize,
    turn: usize,
    /// One for each operation of a batch; as long as an operation.
    buffers: Vec<AlignedBytes>,
}

/// Looks at all of them, eight at once.
#[inline]
fn look_at(bytes: &[u8]) {
    black_box(bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
}

/// The start of the page of an offset, and the offset inside it.
fn split(place: u32) -> (u64, usize) {
    let (offset, page_bytes) = (offset(place), PAGE_BYTES as u64);
    (offset / page_bytes * page_bytes, (offset % page_bytes) as usize)
}

impl Worker for LookingThread<'_> {
    fn turn(&mut self, _: Option<&mut Histogram>) -> Result<u64, Error> {
        let places = &self.places[next_turn(&mut self.at, self.turn, self.places.len())];
        let (batch, len) = (self.buffers.len(), self.buffers[0].len());
        let none = || Error::new("a page that is cached could not be pinned");
        match self.name {
            "pin" => {
                for (page, skip) in places.iter().copied().map(split) {
                    let pin = self.object.pin(page)?.ok_or_else(none)?;
                    look_at(&pin[skip..skip + len]);
                }
            }
            "read" => {
                for place in places {
                    let buffer = &mut self.buffers[0];
                    self.object.read_at(offset(*place), buffer)?;
                    look_at(buffer);
                }
            }
            "pin-batch" => {
                let (mut pages, mut pins) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
                for places in places.chunks_exact(batch) {
                    pages.clear();
                    pages.extend(places.iter().map(|place| split(*place).0));
                    self.object.pin_batch(&pages, &mut pins)?;
                    for (pin, place) in pins.drain(..).zip(places) {
                        let skip = split(*place).1;
                        look_at(&pin.ok_or_else(none)?[skip..skip + len]);
                    }
                }
            }
            _ => {
                let buffers = self.buffers.iter_mut();
                let mut reads: Vec<Read<'_>> = buffers.map(|buffer| Read { offset: 0, buffer }).collect();
                for places in places.chunks_exact(batch) {
                    for (read, place) in reads.iter_mut().zip(places) {
                        read.offset = offset(*place);
                    }
                    self.object.read_batch(&mut reads)?;
                    reads.iter().for_each(|read| look_at(read.buffer));
                }
            }
        }
        Ok(places.len() as u64)
    }
}
