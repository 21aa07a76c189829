//! The catalog of evacuated pages: the partitions and objects that the pages belong to. Encodes and
//! decodes it.

use std::io;
use std::ops::Range;

use octavo_recording::Secret;

use super::header::{ALIGN_BYTES, invalid};
use crate::state::partition::PAGE_INDEX_BITS;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Catalog {
    pub partitions: Vec<PartitionEntry>,
}

/// A partition, as it was when its pages left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartitionEntry {
    pub name: String,
    pub page_bytes: u32,
    /// The policy whose bits the records have.
    pub policy: String,
    pub secret: Secret,
    /// A number above those of all objects. Earlier versions number new objects from here on.
    pub next_id: u64,
    /// Where the partition's chunks lie in the file.
    pub chunks: Range<u64>,
    /// The records in these chunks.
    pub pages: u64,
    pub objects: Vec<ObjectEntry>,
}

/// An object, as it was when it was closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectEntry {
    pub id: u64,
    pub name: String,
    pub identity: Vec<u8>,
    pub len_bytes: u64,
    /// See [`Store::stamp`](octavo_disk::Store::stamp).
    pub stamp: Vec<u8>,
    pub pages: u64,
}

impl Catalog {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, self.partitions.len() as u64);
        for partition in &self.partitions {
            put_bytes(&mut bytes, partition.name.as_bytes());
            put(&mut bytes, u64::from(partition.page_bytes));
            put_bytes(&mut bytes, partition.policy.as_bytes());
            let (kind, seed) = match partition.secret {
                Secret::Seed(seed) => (1, seed),
                Secret::Untold | Secret::Weak => (0, 0),
            };
            let PartitionEntry { next_id, chunks, pages, objects, .. } = partition;
            [kind, seed, *next_id, chunks.start, chunks.end, *pages, objects.len() as u64]
                .into_iter()
                .for_each(|number| put(&mut bytes, number));
            for object in objects {
                put(&mut bytes, object.id);
                put_bytes(&mut bytes, object.name.as_bytes());
                put_bytes(&mut bytes, &object.identity);
                put(&mut bytes, object.len_bytes);
                put_bytes(&mut bytes, &object.stamp);
                put(&mut bytes, object.pages);
            }
        }
        bytes
    }

    /// Decodes a catalog. The chunks of its partitions lie before `end`.
    pub fn decode(bytes: &[u8], end: u64) -> io::Result<Catalog> {
        let mut rest = Rest(bytes);
        let mut partitions = Vec::new();
        let mut chunks_end = ALIGN_BYTES;
        // Each round consumes bytes, so their number bounds the rounds.
        for _ in 0..rest.number()? {
            let partition = rest.partition()?;
            let chunks = &partition.chunks;
            if chunks.start != chunks_end || chunks.end < chunks.start || chunks.end > end {
                return Err(invalid("the chunks of a partition lie outside of the file of pages"));
            }
            chunks_end = chunks.end;
            partitions.push(partition);
        }
        match rest.0 {
            [] => Ok(Catalog { partitions }),
            _ => Err(invalid("the catalog of the evacuated pages is too long")),
        }
    }
}

fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    put(bytes, value.len() as u64);
    bytes.extend(value);
}

/// The part of a catalog that is not yet decoded.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, len: u64) -> io::Result<&'b [u8]> {
        let taken = usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len));
        let (taken, rest) = taken.ok_or_else(|| invalid("the catalog of the evacuated pages is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let len = self.number()?;
        Ok(self.take(len)?.to_vec())
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| invalid("a name in the catalog of pages is not UTF-8"))
    }

    fn partition(&mut self) -> io::Result<PartitionEntry> {
        let name = self.text()?;
        let page_bytes = u32::try_from(self.number()?).map_err(|_| invalid("a page size is impossible"))?;
        let policy = self.text()?;
        let secret = match (self.number()?, self.number()?) {
            (1, seed) => Secret::Seed(seed),
            _ => Secret::Weak,
        };
        let next_id = self.id()?;
        let chunks = self.number()?..self.number()?;
        let (pages, objects_count) = (self.number()?, self.number()?);
        let mut objects = Vec::new();
        for _ in 0..objects_count {
            objects.push(self.object()?);
        }
        if objects.iter().any(|object| object.id >= next_id) {
            return Err(invalid("the catalog has an object with an impossible number"));
        }
        Ok(PartitionEntry { name, page_bytes, policy, secret, next_id, chunks, pages, objects })
    }

    fn object(&mut self) -> io::Result<ObjectEntry> {
        Ok(ObjectEntry {
            id: self.id()?,
            name: self.text()?,
            identity: self.bytes()?,
            len_bytes: self.number()?,
            stamp: self.bytes()?,
            pages: self.number()?,
        })
    }

    /// The number of an object: it must fit into a page's key.
    fn id(&mut self) -> io::Result<u64> {
        match self.number()? {
            id if (1..=1 << (64 - PAGE_INDEX_BITS)).contains(&id) => Ok(id),
            _ => Err(invalid("the catalog has an object with an impossible number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Catalog {
        let object = |id| ObjectEntry {
            id,
            name: "disk".into(),
            identity: vec![1, 2, 3],
            len_bytes: 8192,
            stamp: vec![9; 5],
            pages: 2,
        };
        let partition = |name: &str, chunks| PartitionEntry {
            name: name.into(),
            page_bytes: 4096,
            policy: "octavo".into(),
            secret: Secret::Seed(77),
            next_id: 5,
            chunks,
            pages: 4,
            objects: vec![object(1), object(4)],
        };
        let partitions = vec![partition("a", ALIGN_BYTES..20480), partition("b", 20480..40960)];
        Catalog { partitions }
    }

    #[test]
    fn a_catalog_survives_its_encoding() {
        let decoded = Catalog::decode(&sample().encode(), 40960).unwrap();
        assert_eq!(decoded, sample());
    }

    #[test]
    fn a_catalog_that_is_cut_off_anywhere_is_refused() {
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            assert!(Catalog::decode(&bytes[..len], 40960).is_err(), "{len} of {} bytes", bytes.len());
        }
        assert!(Catalog::decode(&[&bytes[..], &[0]].concat(), 40960).is_err(), "a byte more");
        assert!(Catalog::decode(&bytes, 40959).is_err(), "chunks past the end");
    }

    #[test]
    fn no_changed_byte_of_a_catalog_makes_its_decoder_panic() {
        let bytes = sample().encode();
        let mut accepted = 0;
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                accepted += usize::from(Catalog::decode(&changed, 40960).is_ok());
            }
        }
        // Names and stamps may have any bytes: the checksum is what finds these changes.
        assert!(accepted > 0 && accepted < bytes.len() * 8);
    }
}
