//! Contestants that read every byte they ask for: in place under a pin, or in a private copy.
//!
//! A pin alone copies nothing and returns no data. What matters is the time until all bytes have
//! been read, so all contestants here combine the same words of the same places. Batches have the
//! case's `batch`.

use std::hint::black_box;

use octavo::Object;
use octavo::disk::AlignedBytes;

use super::walk::{Way, offset, page_offset, pin_batches, read_batches, split};
use crate::case::Case;
use crate::error::Error;
use crate::statistics::Histogram;
use crate::turns::Worker;

/// The contestants.
pub const NAMES: &[&str] = &["pin", "read", "pin-batch", "read-batch"];

/// Combines all words of `bytes`, eight bytes at a time.
#[inline]
fn look_at(bytes: &[u8]) {
    black_box(bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
}

/// Creates a worker of one of these contestants.
pub fn looking<'t>(name: &'t str, object: Object, case: &'t Case, mut way: Way<'t>) -> impl Worker + 't {
    let (batch, len) = (case.batch.0, case.bytes.0 as usize);
    let mut buffers = AlignedBytes::new(len * batch);
    let none = || Error::new("a resident page could not be pinned");
    move |_: Option<&mut Histogram>| {
        let places = way.next();
        match name {
            "pin" => {
                for place in places {
                    let pin = object.pin(page_offset(*place))?.ok_or_else(none)?;
                    look_at(&pin[split(*place).1..][..len]);
                }
            }
            "read" => {
                for place in places {
                    object.read_at(offset(*place), &mut buffers[..len])?;
                    look_at(&buffers[..len]);
                }
            }
            "pin-batch" => pin_batches(&object, places, batch, |pins, places| {
                for (pin, place) in pins.drain(..).zip(places) {
                    look_at(&pin.ok_or_else(none)?[split(*place).1..][..len]);
                }
                Ok(())
            })?,
            _ => read_batches(&object, places, len, &mut buffers, |reads| {
                reads.iter().for_each(|read| look_at(read.buffer));
            })?,
        }
        Ok(places.len() as u64)
    }
}
