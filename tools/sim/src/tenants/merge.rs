//! Several tenants' traces as one stream of accesses.
//!
//! All begin and end together: a trace's accesses are spread evenly over the run, so one of twice
//! as many accesses has two for the other's one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::simulate::Trace;
use crate::source::{CHUNK, Source, SourceError};

/// An access: the tenant's number, and the page among his.
pub(super) type Access = (u16, u64);

/// The traces, while they are read.
pub(super) struct Merge {
    streams: Vec<Stream>,
    /// Whose turn it is: the share of his trace that he has had, in 2^-40, and his number.
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
            return Err(SourceError(format!("{name}: it had {requests} accesses and has changed since")));
        }
        self.next += 1;
        self.taken += 1;
        Ok(page)
    }
}

impl Merge {
    /// Begins to read traces of so many accesses each.
    pub fn open(traces: &[&Trace<'_>], requests: &[u64]) -> Result<Merge, SourceError> {
        let mut streams = Vec::new();
        for (trace, requests) in traces.iter().zip(requests) {
            let source = (trace.open)()?;
            streams.push(Stream {
                name: trace.name.clone(),
                source,
                pages: Vec::new(),
                next: 0,
                taken: 0,
                requests: *requests,
            });
        }
        let turns =
            streams.iter().enumerate().map(|(number, stream)| Reverse((stream.turn(), number as u16)));
        Ok(Merge { turns: turns.collect(), streams, given: 0, requests: requests.iter().sum() })
    }

    /// Appends the next accesses; none at the end. Returns the share of all that was given.
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
