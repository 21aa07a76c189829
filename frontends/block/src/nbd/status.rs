//! Block status: the metadata contexts that the server has, and the chunks that answer
//! `BLOCK_STATUS`. Not here: how holes are found (the engine), the bytes of a chunk (`wire.rs`).
//!
//! | context | status of data | status of a hole |
//! |---|---|---|
//! | `base:allocation` | 0 | `STATE_HOLE` and `STATE_ZERO` |
//! | `qemu:allocation-depth` | 1: the export itself has it | 0: unallocated |
//!
//! Both contexts describe the same extents.

use super::wire::{self, Extent, Form, Headers};
use crate::executor::STATUS_BYTES;
use crate::request::{Request, Verb};
use octavo::disk::Holes;

/// The names of the contexts. The identifier of a context is its index here, plus 1.
const NAMES: [&str; 2] = ["base:allocation", "qemu:allocation-depth"];

/// The statuses of data and of a hole, by context.
const STATUSES: [[u32; 2]; 2] = [[0, 0b11], [1, 0]];

/// The longest parts of a chunk besides its extents, and of an extent.
const CHUNK_BYTES: usize = 32 + 8;
const EXTENT_BYTES: usize = 16;

/// A set of contexts: bit `i` stands for `NAMES[i]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts(u8);

impl Contexts {
    pub const ALL: Contexts = Contexts((1 << NAMES.len()) - 1);

    /// Returns the contexts that a query lists: one by its name, or all of a namespace by the name
    /// of the namespace and a colon. Queries for anything else list none.
    pub fn listed(query: &[u8]) -> Contexts {
        Contexts::where_name(|name| {
            name.as_bytes() == query || (query.ends_with(b":") && name.as_bytes().starts_with(query))
        })
    }

    /// Returns the contexts that a query selects: one by its name, or none.
    pub fn selected(query: &[u8]) -> Contexts {
        Contexts::where_name(|name| name.as_bytes() == query)
    }

    fn where_name(matches: impl Fn(&str) -> bool) -> Contexts {
        let matching = NAMES.iter().enumerate().filter(|(_, name)| matches(name));
        Contexts(matching.fold(0, |set, (index, _)| set | 1 << index))
    }

    pub fn with(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the identifiers and names of the contexts.
    pub fn names(self) -> impl Iterator<Item = (u32, &'static str)> {
        self.indexes().map(|index| (index as u32 + 1, NAMES[index]))
    }

    fn indexes(self) -> impl Iterator<Item = usize> {
        (0..NAMES.len()).filter(move |index| self.0 & 1 << index != 0)
    }

    /// Returns the contexts with these identifiers. None if one is not in this set, or comes twice,
    /// or there is none.
    pub fn choose(self, ids: impl Iterator<Item = u32>) -> Option<Contexts> {
        let mut chosen = Contexts::default();
        for id in ids {
            let index = self.indexes().find(|index| *index as u32 + 1 == id)?;
            (chosen.0 & 1 << index == 0).then_some(())?;
            chosen.0 |= 1 << index;
        }
        (!chosen.is_empty()).then_some(chosen)
    }

    /// Returns the form of an answer with these contexts, as a request carries it.
    pub fn form(self) -> u8 {
        self.0
    }

    /// The contexts of a form. None if it has unknown ones.
    pub fn of_form(form: u8) -> Option<Contexts> {
        (form & !Contexts::ALL.0 == 0).then_some(Contexts(form))
    }

    /// Returns the most extents that an answer has room for.
    pub fn extents_max(self) -> u16 {
        (room_of(STATUS_BYTES, self) / EXTENT_BYTES) as u16
    }
}

/// Returns the bytes of `bytes` that each context has for its extents.
fn room_of(bytes: usize, contexts: Contexts) -> usize {
    bytes / contexts.count().max(1) - CHUNK_BYTES
}

// Even the smallest buffer has room for an extent of each context.
const _: () = assert!(4096 / NAMES.len() >= CHUNK_BYTES + EXTENT_BYTES);

/// Encodes the answer to a status request at the beginning of `to`, and returns its length: one
/// chunk for each context, with as many extents as there is room for.
///
/// # Panics
/// If the request does not ask for the status.
pub fn encode(to: &mut [u8], headers: Headers, request: &Request, holes: &Holes) -> usize {
    let Verb::Status { extents_max, form } = request.verb else { unreachable!("{request:?}") };
    let contexts = Contexts(form);
    let room = room_of(to.len(), contexts) / EXTENT_BYTES;
    let found = extents(request, holes, room.min(usize::from(extents_max)));
    let form = Form { headers, offset_bytes: request.offset_bytes };
    let (mut at, last) = (0, contexts.indexes().last());
    for index in contexts.indexes() {
        let [data, hole] = STATUSES[index];
        let extents: Vec<Extent> = found
            .iter()
            .map(|(len_bytes, is_hole)| (*len_bytes, if *is_hole { hole } else { data }))
            .collect();
        let (id, done) = (index as u32 + 1, Some(index) == last);
        at += wire::encode_status(&mut to[at..], form, request.tag, id, &extents, done);
    }
    at
}

/// Returns the first extents of a request's range, at most `most` and at least one: their lengths,
/// and whether they are holes.
fn extents(request: &Request, holes: &Holes, most: usize) -> Vec<(u64, bool)> {
    let mut extents = Vec::new();
    let (mut at, end) = (request.offset_bytes, holes.end);
    for hole in &holes.ranges {
        if hole.start > at {
            extents.push((hole.start - at, false));
        }
        extents.push((hole.end - hole.start, true));
        at = hole.end;
    }
    if end > at {
        extents.push((end - at, false));
    }
    extents.truncate(most);
    if extents.is_empty() {
        extents.push((request.len_bytes, false));
    }
    extents
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one hole")]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_lists_its_contexts_and_selects_none() {
        let all = |query: &str| {
            Contexts::listed(query.as_bytes()).names().map(|(_, name)| name).collect::<Vec<_>>()
        };
        assert_eq!(all("base:"), ["base:allocation"]);
        assert_eq!(all("qemu:"), ["qemu:allocation-depth"]);
        assert_eq!(all("qemu:allocation-depth"), ["qemu:allocation-depth"]);
        for query in ["", ":", "base", "base:a", "qemu:dirty-bitmap:", "qemu:dirty-bitmap:x", "x-octavo:"] {
            assert!(Contexts::listed(query.as_bytes()).is_empty(), "{query:?}");
        }
        assert!(Contexts::selected(b"base:").is_empty());
        assert!(!Contexts::selected(b"base:allocation").is_empty());
    }

    #[test]
    fn a_choice_has_each_selected_context_at_most_once() {
        let one = Contexts::selected(b"qemu:allocation-depth");
        assert_eq!(one.choose([2].into_iter()), Some(one));
        assert_eq!(Contexts::ALL.choose([2, 1].into_iter()), Some(Contexts::ALL));
        for ids in [&[][..], &[1], &[2, 2], &[2, 3], &[0], &[u32::MAX]] {
            assert_eq!(one.choose(ids.iter().copied()), None, "{ids:?}");
        }
    }

    #[test]
    fn extents_are_data_and_holes_in_turn_up_to_the_maximum() {
        let verb = Verb::Status { extents_max: 9, form: 3 };
        let request = Request { tag: 1, offset_bytes: 10, len_bytes: 90, verb, durable: false };
        let holes = Holes { ranges: vec![20..30, 30..35, 50..60], end: 70 };
        let all = [(10, false), (10, true), (5, true), (15, false), (10, true), (10, false)];
        for most in 1..=all.len() {
            assert_eq!(extents(&request, &holes, most), all[..most]);
        }
        let first = Holes { ranges: vec![10..100], end: 100 };
        assert_eq!(extents(&request, &first, 5), [(90, true)]);
    }
}
