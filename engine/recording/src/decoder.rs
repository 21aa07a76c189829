//! Decodes events. The bytes may come from anywhere: malformed ones are refused. Not here: the
//! definition of events (`event`), and their encoding (`encoder`).

use crate::code::{ELSEWHERE, FAR, Last, NEAR_BACK, more, op, seldom, without_page};
use crate::event::{Event, NAME_BYTES_MAX, OBJECT_BITS, PAGE_BITS, Place, Step, Totals};
use octavo_table::Learned;

/// Bytes that no encoder produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The offset of the event in its block, in bytes.
    pub at: usize,
    /// What is wrong with the event.
    pub what: &'static str,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: event at byte {} of the block", self.what, self.at)
    }
}

/// An iterator over the events of a block. After a malformed event, for which it returns an error,
/// it ends.
#[derive(Debug)]
pub struct Decoder<B> {
    bytes: Bytes<B>,
    last: Last,
}

impl<B: AsRef<[u8]>> Decoder<B> {
    /// Decodes a block that [`Encoder::take`](crate::Encoder::take) returned.
    pub fn new(block: B) -> Decoder<B> {
        Decoder { bytes: Bytes { all: block, at: 0 }, last: Last::new() }
    }

    /// Returns the block's memory.
    pub fn into_block(self) -> B {
        self.bytes.all
    }

    fn event(&mut self) -> Result<Event, &'static str> {
        let first = self.bytes.byte()?;
        let (op, low) = (first >> 4, first & 0xf);
        if op == op::WITHOUT_PAGE {
            return self.without_page(low);
        }
        let key = self.key(low)?;
        let step = |step| Ok(Event::Step { key, step });
        match op {
            op::ACCESS..=op::ACCESS_LAST => {
                Ok(Event::Access { key, write: op & op::WRITE != 0, hit: op & op::HIT != 0 })
            }
            op::CLAIM => step(Step::Claim(self.bytes.place()?)),
            op::PUBLISH_CLEAN => step(Step::Publish { dirty: false }),
            op::PUBLISH_DIRTY => step(Step::Publish { dirty: true }),
            op::TOUCH => step(Step::Touch),
            op::OVERWRITE => step(Step::Overwrite),
            op::BEGIN_STORE => step(Step::BeginStore),
            op::END_STORE => step(Step::EndStore),
            op::BEGIN_WRITEBACK => step(Step::BeginWriteback),
            op::WRITTEN_BACK => step(Step::EndWriteback { written: true }),
            op::RESIDENT => Ok(Event::Resident { key, dirty: false, bits: self.bytes.bits()? }),
            _ => match self.bytes.byte()? {
                seldom::RELEASE => step(Step::Release),
                seldom::NOT_WRITTEN_BACK => step(Step::EndWriteback { written: false }),
                seldom::DROP => step(Step::Drop { even_dirty: false }),
                seldom::DROP_EVEN_DIRTY => step(Step::Drop { even_dirty: true }),
                seldom::SUPERSEDE => step(Step::Supersede(self.bytes.place()?)),
                seldom::SUPERSEDE_REFUSED => step(Step::SupersedeRefused(self.bytes.place()?)),
                seldom::CLAIM_AHEAD => step(Step::ClaimAhead(self.bytes.place()?)),
                seldom::CLAIM_ONCE => step(Step::ClaimOnce(self.bytes.place()?)),
                seldom::PIN => step(Step::Pin { slot: self.bytes.small()? }),
                seldom::HELD => step(Step::Held { slot: self.bytes.small()?, pins: self.bytes.small()? }),
                seldom::RESIDENT_DIRTY => Ok(Event::Resident { key, dirty: true, bits: self.bytes.bits()? }),
                _ => Err("no event of a page has this code"),
            },
        }
    }

    fn without_page(&mut self, kind: u8) -> Result<Event, &'static str> {
        Ok(match kind {
            without_page::UNPIN => Event::Unpin { slot: self.bytes.small()? },
            without_page::JOIN => Event::Join { segment: self.bytes.small()? },
            without_page::LEAVE => Event::Leave { segment: self.bytes.small()? },
            without_page::SETTLED => Event::Settled,
            without_page::MOVE_BEGUN => Event::MoveBegun,
            without_page::SET_MOVED => Event::SetMoved { set: self.bytes.small()? },
            without_page::ADVANCE_BUSY => Event::Advance { done: false },
            without_page::ADVANCE_DONE => Event::Advance { done: true },
            without_page::RETIRE_REFUSED => Event::Retire { segment: self.bytes.small()?, retired: false },
            without_page::RETIRE => Event::Retire { segment: self.bytes.small()?, retired: true },
            without_page::TOTALS => {
                Event::Totals(Totals { hits: self.bytes.number()?, misses: self.bytes.number()? })
            }
            without_page::OPENED => Event::Opened { object: self.bytes.number()?, name: self.bytes.name()? },
            without_page::POLICY => Event::Policy {
                policy: self.bytes.name()?.parse().map_err(|_| "a policy has an unknown name")?,
            },
            without_page::LEARNED => Event::Learned(self.learned()?),
            without_page::LIVE => Event::Live { first: self.bytes.small()?, count: self.bytes.small()? },
            _ => match self.bytes.byte()? {
                more::CLOSED => Event::Closed { object: self.bytes.number()? },
                _ => return Err("no event has this code"),
            },
        })
    }

    fn learned(&mut self) -> Result<Learned, &'static str> {
        let (leader, orders, count) = (self.bytes.number()?, self.bytes.number()?, self.bytes.number()?);
        let (orders_max, count_max) = (Learned::ORDERS as u64, Learned::DENSITIES_MAX as u64);
        if leader > u64::from(u8::MAX) || orders > orders_max || count > count_max {
            return Err("a learned state has too many orders or densities");
        }
        let misses = (0..orders).map(|_| Ok((self.bytes.small()?, self.bytes.small()?)));
        let misses = misses.collect::<Result<_, &'static str>>()?;
        let densities = (0..count).map(|_| self.bytes.bits()).collect::<Result<_, _>>()?;
        Ok(Learned { leader: leader as u8, misses, densities })
    }

    fn key(&mut self, place: u8) -> Result<u64, &'static str> {
        let distance = match place {
            ELSEWHERE => {
                let object = self.bytes.number()?;
                if object >> OBJECT_BITS != 0 {
                    return Err("the number of an object has more than 24 bits");
                }
                self.last.turn_to(object);
                self.bytes.distance()?
            }
            FAR => self.bytes.distance()?,
            near => i64::from(near) - NEAR_BACK,
        };
        let object = self.last.object;
        if object == u64::MAX {
            return Err("the first event of a block names no object");
        }
        let page = (self.last.page as i64).wrapping_add(distance) as u64;
        if page >> PAGE_BITS != 0 {
            return Err("the number of a page has more than 40 bits");
        }
        self.last.page = page;
        Ok(object << PAGE_BITS | page)
    }
}

impl<B: AsRef<[u8]>> Iterator for Decoder<B> {
    type Item = Result<Event, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (at, end) = (self.bytes.at, self.bytes.all.as_ref().len());
        if at == end {
            return None;
        }
        let event = self.event().map_err(|what| Malformed { at, what });
        if event.is_err() {
            self.bytes.at = end;
        }
        Some(event)
    }
}

#[derive(Debug)]
pub(super) struct Bytes<B> {
    pub all: B,
    pub at: usize,
}

impl<B: AsRef<[u8]>> Bytes<B> {
    fn take(&mut self, count: usize) -> Result<&[u8], &'static str> {
        let taken = self.all.as_ref()[self.at..].get(..count).ok_or("the event is cut off")?;
        self.at += count;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn place(&mut self) -> Result<Place, &'static str> {
        Place::from_byte(self.byte()?)
    }

    pub fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number has more than 64 bits")
    }

    pub fn small(&mut self) -> Result<u32, &'static str> {
        u32::try_from(self.number()?).map_err(|_| "a number has more than 32 bits")
    }

    fn bits(&mut self) -> Result<u16, &'static str> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn distance(&mut self) -> Result<i64, &'static str> {
        let folded = self.number()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    pub fn name(&mut self) -> Result<String, &'static str> {
        let len = self.number()?;
        if len > NAME_BYTES_MAX as u64 {
            return Err("a name has more than 1024 bytes");
        }
        let bytes = self.take(len as usize)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a name is not UTF-8")
    }
}
