//! Merges the traces of several tenants into one stream of accesses.
//!
//! All traces begin and end together: the accesses of each trace are spread evenly over the run. A
//! trace with twice as many accesses as another contributes two for each one of the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::mix::Tenant;
use crate::footprint::Footprint;
use crate::source::{CHUNK, Source, SourceError};

/// An access: the tenant's number, and the page in the tenant's trace.
pub(super) type Access = (u16, u64);

/// The traces, while they are read.
pub(super) struct Merge {
    streams: Vec<Stream>,
    /// The tenants that have accesses left: the share of the trace that was taken, in units of
    /// 2^-40, and the tenant's number. The tenant with the smallest share comes next.
    turns: BinaryHeap<Reverse<(u64, u16)>>,
    given: u64,
    requests: u64,
}

struct Stream {
    name: String,
    source: Box<dyn Source>,
    pages: Vec<u64>,
    next: usize,
    taken: u64,
    requests: u64,
}

impl Stream {
    fn turn(&self) -> u64 {
        ((u128::from(2 * self.taken + 1) << 40) / u128::from(2 * self.requests.max(1))) as u64
    }

    fn page(&mut self) -> Result<Option<u64>, SourceError> {
        if self.next == self.pages.len() {
            self.pages.clear();
            self.next = 0;
            self.source.next(&mut self.pages)?;
        }
        let page = self.pages.get(self.next).copied();
        if page.is_some() != (self.taken < self.requests) {
            let Stream { name, requests, .. } = self;
            return Err(SourceError(format!(
                "{name}: the trace had {requests} accesses and has changed since"
            )));
        }
        self.next += 1;
        self.taken += 1;
        Ok(page)
    }
}

impl Merge {
    /// Begins to read the tenants' traces, whose lengths are known.
    ///
    /// # Errors
    /// A trace cannot be opened.
    pub fn open(tenants: &[Tenant<'_>], footprints: &[Footprint]) -> Result<Merge, SourceError> {
        let stream = |(tenant, footprint): (&Tenant<'_>, &Footprint)| {
            let (name, source) = (tenant.trace.name.clone(), (tenant.trace.open)()?);
            Ok(Stream { name, source, pages: Vec::new(), next: 0, taken: 0, requests: footprint.requests })
        };
        let streams = tenants.iter().zip(footprints).map(stream).collect::<Result<Vec<_>, _>>()?;
        let turns =
            streams.iter().enumerate().map(|(number, stream)| Reverse((stream.turn(), number as u16)));
        let requests = footprints.iter().map(|footprint| footprint.requests).sum();
        Ok(Merge { turns: turns.collect(), streams, given: 0, requests })
    }

    /// Appends the next accesses; none at the end. Returns the share of all accesses so far.
    ///
    /// # Errors
    /// A trace cannot be read, or its length differs from that of its first reading.
    pub fn next(&mut self, batch: &mut Vec<Access>) -> Result<Option<f64>, SourceError> {
        for _ in 0..CHUNK {
            let Some(Reverse((_, tenant))) = self.turns.pop() else { break };
            let stream = &mut self.streams[usize::from(tenant)];
            if let Some(page) = stream.page()? {
                batch.push((tenant, page));
                self.turns.push(Reverse((stream.turn(), tenant)));
                self.given += 1;
            }
        }
        Ok(Some(self.given as f64 / self.requests.max(1) as f64))
    }
}
