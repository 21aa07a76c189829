//! The encoding that encoder, decoder and header share: the codes of events, of places and of
//! numbers.

use crate::event::NAME_BYTES_MAX;

/// Codes of events, in the byte's upper half.
pub(crate) mod op {
    /// An access. The bits `HIT` and `WRITE` are added to it.
    pub const ACCESS: u8 = 0;
    pub const ACCESS_LAST: u8 = ACCESS + HIT + WRITE;
    pub const HIT: u8 = 1;
    pub const WRITE: u8 = 2;
    pub const CLAIM: u8 = 4;
    pub const PUBLISH_CLEAN: u8 = 5;
    pub const PUBLISH_DIRTY: u8 = 6;
    pub const TOUCH: u8 = 7;
    pub const OVERWRITE: u8 = 8;
    pub const BEGIN_STORE: u8 = 9;
    pub const END_STORE: u8 = 10;
    pub const BEGIN_WRITEBACK: u8 = 11;
    pub const WRITTEN_BACK: u8 = 12;
    pub const RESIDENT: u8 = 13;
    /// An infrequent event of a page; the byte behind the place says which.
    pub const SELDOM: u8 = 14;
    /// An event of no page; the lower half says which.
    pub const WITHOUT_PAGE: u8 = 15;
}

pub(crate) mod seldom {
    pub const RELEASE: u8 = 0;
    pub const NOT_WRITTEN_BACK: u8 = 1;
    pub const DROP: u8 = 2;
    pub const DROP_EVEN_DIRTY: u8 = 3;
    pub const SUPERSEDE: u8 = 4;
    pub const SUPERSEDE_REFUSED: u8 = 5;
    pub const PIN: u8 = 6;
    pub const RESIDENT_DIRTY: u8 = 7;
    pub const CLAIM_AHEAD: u8 = 8;
    pub const CLAIM_ONCE: u8 = 9;
    pub const HELD: u8 = 10;
}

pub(crate) mod without_page {
    pub const UNPIN: u8 = 0;
    pub const JOIN: u8 = 1;
    pub const LEAVE: u8 = 2;
    pub const ADVANCE_BUSY: u8 = 3;
    pub const ADVANCE_DONE: u8 = 4;
    pub const RETIRE_REFUSED: u8 = 5;
    pub const RETIRE: u8 = 6;
    pub const TOTALS: u8 = 7;
    pub const OPENED: u8 = 8;
    pub const POLICY: u8 = 9;
    pub const LIVE: u8 = 10;
    pub const LEARNED: u8 = 11;
    pub const MOVE_BEGUN: u8 = 12;
    pub const SET_MOVED: u8 = 13;
    pub const SETTLED: u8 = 14;
    /// Another event of no page; the byte behind says which.
    pub const MORE: u8 = 15;
}

pub(crate) mod more {
    pub const CLOSED: u8 = 0;
}

/// Codes of places, in the byte's lower half: the distance from the previous page of the same
/// object, plus this number.
pub(crate) const NEAR_BACK: i64 = 4;
pub(crate) const NEAR_END: u8 = 14;
/// The distance is longer and follows as a number.
pub(crate) const FAR: u8 = 14;
/// The page belongs to another object: the object's number follows, and then the distance from that
/// object's last page.
pub(crate) const ELSEWHERE: u8 = 15;

/// The previous page, and the last pages of a few objects before it.
#[derive(Debug)]
pub(crate) struct Last {
    pub object: u64,
    pub page: u64,
    others: [(u64, u64); Last::OBJECTS],
}

impl Last {
    const OBJECTS: usize = 16;

    /// Creates the state at the start of a block, with an object number that no object has.
    pub fn new() -> Last {
        Last { object: u64::MAX, page: 0, others: [(u64::MAX, 0); Last::OBJECTS] }
    }

    /// Changes the object; `page` becomes the last page of that object.
    #[cold]
    pub fn turn_to(&mut self, object: u64) {
        self.others[self.object as usize % Last::OBJECTS] = (self.object, self.page);
        let (known, page) = self.others[object as usize % Last::OBJECTS];
        (self.object, self.page) = (object, if known == object { page } else { 0 });
    }
}

/// Appends a number: seven bits per byte, the lowest seven first. The highest bit of a byte says
/// that more bytes follow.
pub(crate) fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(crate) fn push_name(bytes: &mut Vec<u8>, name: &str) {
    let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    push_number(bytes, name.len() as u64);
    bytes.extend(name.as_bytes());
}
