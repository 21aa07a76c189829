//! [`Resident`]: answers reads whose pages are all resident, by one `writev` of the pinned pages,
//! so that the kernel makes the only copy.

use std::io::IoSlice;

use octavo::{Object, Pin};

use crate::device::Device;
use crate::wire::OutHeader;

/// Answers reads, and keeps the memory of the lists that this takes.
#[derive(Default)]
pub struct Resident {
    pins: Vec<Pin<'static>>,
    parts: Vec<IoSlice<'static>>,
}

impl Resident {
    /// Answers a read of a range inside the object if all of its pages are resident.
    pub fn reply(&mut self, device: &Device, unique: u64, object: &Object, offset: u64, len: usize) -> bool {
        let page_bytes = object.page_bytes();
        let end = offset + len as u64;
        let part_of = |pin: &Pin<'_>, at: u64| {
            let skip = (at % page_bytes) as usize;
            skip..pin.len().min(skip + (end - at) as usize)
        };
        let mut head = OutHeader::default();
        if offset / page_bytes == (end - 1) / page_bytes {
            let Ok(Some(pin)) = object.try_pin(offset) else { return false };
            let part = &pin[part_of(&pin, offset)];
            let mut parts = [IoSlice::new(&[]), IoSlice::new(part)];
            device.reply_with(unique, part.len(), &mut parts, &mut head);
            return true;
        }
        // Looked at first, because a pin counts as a hit.
        if object.resident_bytes(offset, len as u64).ok() != Some(len as u64) {
            return false;
        }
        let first = offset - offset % page_bytes;
        let pages = (first..end).step_by(page_bytes as usize).map(|page| page.max(offset));
        let mut pins = emptied(std::mem::take(&mut self.pins));
        for at in pages.clone() {
            match object.try_pin(at) {
                Ok(Some(pin)) => pins.push(pin),
                _ => {
                    self.pins = emptied(pins);
                    return false;
                }
            }
        }
        let mut parts = emptied(std::mem::take(&mut self.parts));
        parts.push(IoSlice::new(&[]));
        let pinned = pages.zip(pins.iter());
        parts.extend(pinned.map(|(at, pin)| IoSlice::new(&pin[part_of(pin, at)])));
        let len = parts.iter().map(|part| part.len()).sum();
        device.reply_with(unique, len, &mut parts, &mut head);
        self.parts = emptied(parts);
        self.pins = emptied(pins);
        true
    }
}

/// Returns an empty list that has the memory of `list`, for values of another lifetime.
fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    // The standard library collects such lists in place.
    list.into_iter().map(|_| unreachable!("it is empty")).collect()
}
