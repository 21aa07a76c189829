//! The header of a recording: the parameters of the partition's table.

use crate::code::{push_name, push_number};
use crate::decoder::Bytes;
use crate::event::WHOLE;
use octavo_table::{NODES_MAX, PolicyKind, Shape};

/// The parameters of a table, from which an equal one can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The partition's name.
    pub partition: String,
    /// Its policy.
    pub policy: PolicyKind,
    /// Pages per set: 8, 16 or 32.
    pub ways: u32,
    /// Bytes per page, a power of two.
    pub page_bytes: u32,
    /// Its table's shape.
    pub shape: Shape,
    /// Number of nodes that its table's segments are divided among.
    pub nodes: u32,
    /// Number of segments in use when the recording began, or, if the recording includes everything
    /// that happened to the table, when the table was created.
    pub segments: u32,
    /// The secret that places its pages in sets.
    pub secret: Secret,
    /// The sample bound: pages whose sample number is below it are recorded. With [`WHOLE`], all
    /// pages and the steps of the table are recorded.
    pub sample_below: u32,
    /// True if the table had never held a page when the recording began, and the recording includes
    /// everything else that happened to the table before.
    pub from_the_first: bool,
}

/// The secret that places a partition's pages in sets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// Not recorded: a sample needs none.
    Untold,
    /// The seed of [`octavo_table::Mixer::new`].
    Seed(u64),
    /// The mix is [`octavo_table::Mixer::weak`].
    Weak,
}

/// Prints no seed: a secret must not leak through a log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Header {
    /// Returns whether a replay repeats every hit and miss exactly.
    pub fn is_exact(&self) -> bool {
        self.from_the_first && self.sample_below == WHOLE
    }

    /// Returns the number of slots in use when the recording began.
    pub fn slots(&self) -> u64 {
        u64::from(self.segments) * u64::from(self.shape.sets_per_segment) * u64::from(self.ways)
    }

    /// Returns the share of all pages that was recorded, from 0 to 1.
    pub fn sample(&self) -> f64 {
        f64::from(self.sample_below) / f64::from(WHOLE)
    }

    /// Appends the header's bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        push_name(bytes, &self.partition);
        push_name(bytes, self.policy.name());
        let Shape { segments_max, sets_per_segment } = self.shape;
        let (secret, seed) = match self.secret {
            Secret::Untold => (0, 0),
            Secret::Seed(seed) => (1, seed),
            Secret::Weak => (2, 0),
        };
        for number in [self.ways, self.page_bytes, segments_max, sets_per_segment, self.segments] {
            push_number(bytes, u64::from(number));
        }
        push_number(bytes, u64::from(self.sample_below));
        // The field for nodes was added later: one node is encoded as 0.
        bytes.push(u8::from(self.from_the_first) | (self.nodes as u8 - 1) << 1);
        bytes.push(secret);
        push_number(bytes, seed);
    }

    /// Decodes a header, and returns it with the bytes that follow it. The header is checked: a
    /// table can be created from it.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
        let mut bytes = Bytes { all: bytes, at: 0 };
        let partition = bytes.name()?;
        let policy = bytes.name()?.parse::<PolicyKind>().map_err(|error| error.to_string())?;
        let (ways, page_bytes) = (bytes.small()?, bytes.small()?);
        let shape = Shape { segments_max: bytes.small()?, sets_per_segment: bytes.small()? };
        let (segments, sample_below) = (bytes.small()?, bytes.small()?);
        let begin = bytes.byte()?;
        let (from_the_first, nodes) = (begin & 1 == 1, u32::from(begin >> 1) + 1);
        let secret = match (bytes.byte()?, bytes.number()?) {
            (0, _) => Secret::Untold,
            (1, seed) => Secret::Seed(seed),
            (2, _) => Secret::Weak,
            _ => return Err("the secret is of an unknown kind".into()),
        };
        let header = Header {
            partition,
            policy,
            ways,
            page_bytes,
            shape,
            nodes,
            segments,
            secret,
            sample_below,
            from_the_first,
        };
        header.check()?;
        Ok((header, &bytes.all[bytes.at..]))
    }

    fn check(&self) -> Result<(), String> {
        if ![8, 16, 32].contains(&self.ways) {
            return Err(format!("sets have 8, 16 or 32 ways, not {}", self.ways));
        }
        if !self.page_bytes.is_power_of_two() {
            return Err(format!("pages have a power of two of bytes, not {}", self.page_bytes));
        }
        self.shape.check(self.ways)?;
        if !(1..=NODES_MAX.min(self.shape.segments_max)).contains(&self.nodes) {
            return Err(format!(
                "{} segments cannot be divided among {} nodes",
                self.shape.segments_max, self.nodes
            ));
        }
        if !(1..=self.shape.segments_max).contains(&self.segments) {
            return Err(format!(
                "1 to {} segments can be in use, not {}",
                self.shape.segments_max, self.segments
            ));
        }
        match self.sample_below {
            1..=WHOLE => Ok(()),
            below => Err(format!("a sample has 1 to {WHOLE} of {WHOLE} parts, not {below}")),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            partition: "vm1".into(),
            policy: PolicyKind::Octavo,
            ways: 16,
            page_bytes: 4096,
            shape: Shape { segments_max: 128, sets_per_segment: 32 },
            nodes: 3,
            segments: 4,
            secret: Secret::Seed(u64::MAX),
            sample_below: WHOLE,
            from_the_first: true,
        }
    }

    #[test]
    fn a_header_is_decoded_as_it_was_encoded_and_its_secret_is_not_printed() {
        let mut bytes = Vec::new();
        header().encode(&mut bytes);
        bytes.extend(b"rest");
        let (read, rest) = Header::decode(&bytes).unwrap();
        assert_eq!((read, rest), (header(), &b"rest"[..]));
        assert_eq!((header().slots(), header().sample()), (2048, 1.0));
        assert!(!format!("{:?}", header()).contains(&u64::MAX.to_string()));
        (0..bytes.len() - 4).for_each(|end| assert!(Header::decode(&bytes[..end]).is_err(), "{end}"));
    }

    #[test]
    fn a_header_from_which_no_table_can_be_made_is_refused() {
        let wrong: [fn(&mut Header); 9] = [
            |header| header.ways = 12,
            |header| header.page_bytes = 5000,
            |header| header.shape.segments_max = 1 << 17,
            |header| header.shape.sets_per_segment = 128,
            |header| header.shape.sets_per_segment = 3,
            |header| header.segments = 129,
            |header| header.nodes = 17,
            |header| (header.shape.segments_max, header.segments, header.nodes) = (2, 2, 3),
            |header| header.sample_below = 0,
        ];
        for change in wrong {
            let mut header = header();
            change(&mut header);
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert!(Header::decode(&bytes).is_err(), "{header:?}");
        }
    }
}
