//! Segments that join and leave in a whole recording. `sampled.rs` has those of a sample.

use octavo_recording::Event;
use octavo_table::{Move, NoBytes, Pass, SegmentIndex};

use super::Twin;

impl<const W: usize> Twin<W> {
    /// Names the partition's segments when the recording began. The table has as many segments,
    /// which may have other numbers.
    pub fn name_segments(&mut self, first: u32, count: u32) {
        if std::mem::take(&mut self.is_unnamed) {
            self.segments.clear();
        }
        self.segments.extend((first..first.saturating_add(count)).take(self.segments_max as usize));
    }

    /// Makes the next step of a resize. For a recording that begins with its partition, the table
    /// makes exactly the recorded step. For a recording that begins later, the table's directory
    /// has another history and needs other moves, so the table only gets as many segments as the
    /// partition has.
    pub fn resize(&mut self, event: &Event) {
        match event {
            Event::Join { segment } if *segment < self.segments_max => drop(self.segments.insert(*segment)),
            Event::Leave { segment } => drop(self.segments.remove(segment)),
            _ => {}
        }
        match event {
            _ if !self.is_from_the_first => self.follow(),
            Event::Join { segment } => self.join(SegmentIndex(*segment)),
            Event::Leave { segment } => self.leave(SegmentIndex(*segment)),
            Event::Settled => self.settle(),
            Event::MoveBegun => self.begin_move(),
            Event::SetMoved { set } => self.move_set(*set),
            Event::Advance { done } => self.advance(*done),
            Event::Retire { segment, retired } => self.retire(SegmentIndex(*segment), *retired),
            _ => {}
        }
    }

    /// Makes moves until the table has as many segments as the partition, or until a page is busy.
    /// The next step of the busy page calls this function again.
    pub fn follow(&mut self) {
        // Each turn makes a move, cleans a page, or begins to add or remove a segment.
        loop {
            if let Some(mv) = self.pending.last() {
                let Some(busy) = self.table.advance(*mv, &mut NoBytes).busy else {
                    self.pending.pop();
                    continue;
                };
                // The cache writes a dirty page before it moves it.
                let slot = self.table.slot(busy);
                let seen = slot.load();
                if slot.begin_writeback(seen).is_err() {
                    return;
                }
                let _no_waiter = self.table.end_writeback(busy, seen.version(), true);
                continue;
            }
            self.emptied.append(&mut self.leaving);
            let table = &self.table;
            self.emptied.retain(|segment| table.retire(*segment).is_err());
            let live = self.table.live_segments() as usize - self.emptied.len();
            let wanted = self.segments.len().max(1);
            if live < wanted
                && let Some(segment) = self.table.spare_segment()
            {
                self.pending = self.table.join(segment);
                continue;
            }
            let leaving = self.table.segments_to_leave(live.saturating_sub(wanted), &self.emptied, None);
            if leaving.is_empty() {
                return;
            }
            self.pending = self.table.leave_all(&leaving);
            self.leaving = leaving;
        }
    }

    /// Returns whether a segment may join or leave: all earlier recorded moves have been made.
    fn is_settled(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.found.misfits += 1;
        }
        self.pending.is_empty()
    }

    fn join(&mut self, segment: SegmentIndex) {
        if segment.0 >= self.table.shape().segments_max || self.table.is_live(segment) {
            self.found.misfits += 1;
        } else if self.is_settled() {
            self.pending = self.table.join(segment);
        }
    }

    fn leave(&mut self, segment: SegmentIndex) {
        let gone = (self.emptied.len() + self.leaving.len()) as u32;
        let others = self.table.live_segments().saturating_sub(gone);
        let may = segment.0 < self.table.shape().segments_max
            && self.table.is_live(segment)
            && !self.emptied.contains(&segment)
            && !self.leaving.contains(&segment)
            && others > 1;
        if !may {
            self.found.misfits += 1;
        } else if self.may_leave_too || self.is_settled() {
            self.leaving.push(segment);
            self.pending = self.table.leave_all(&self.leaving);
            self.may_leave_too = !self.pending.is_empty();
            if self.pending.is_empty() {
                self.emptied.append(&mut self.leaving);
            }
        }
    }

    /// Notes that the last of the pending moves was made.
    fn end_move(&mut self) {
        let Some(from) = self.pending.pop().map(Move::from) else { return };
        let is_last = self.pending.last().is_none_or(|next| next.from() != from);
        if is_last && self.leaving.last() == Some(&from) {
            self.leaving.pop();
            self.emptied.push(from);
        }
        if self.pending.is_empty() {
            self.emptied.append(&mut self.leaving);
        }
    }

    /// Makes all pending moves at once: the partition had no pages, so neither has the table.
    fn settle(&mut self) {
        self.may_leave_too = false;
        while let Some(mv) = self.pending.last() {
            let busy = self.table.advance(*mv, &mut NoBytes).busy;
            if busy.is_some() {
                self.found.misfits += 1;
                return;
            }
            self.end_move();
        }
        self.has_begun = false;
    }

    fn begin_move(&mut self) {
        self.may_leave_too = false;
        match self.pending.last().filter(|_| !self.has_begun) {
            Some(mv) => self.table.begin_move(*mv, &mut NoBytes),
            None => self.found.misfits += 1,
        }
        self.has_begun = !self.pending.is_empty();
    }

    fn move_set(&mut self, set: u32) {
        let is_one = self.has_begun && set < self.table.shape().sets_per_segment;
        match self.pending.last().filter(|_| is_one) {
            Some(mv) => self.table.advance_set(*mv, set, &mut NoBytes, &mut Pass::default()),
            None => self.found.misfits += 1,
        }
    }

    fn advance(&mut self, done: bool) {
        self.may_leave_too = false;
        // The sets of the move were moved one by one. Recordings of version 2 have only whole
        // passes.
        if self.has_begun && !done {
            return;
        }
        let Some(mv) = self.pending.last() else {
            self.found.misfits += 1;
            return;
        };
        let pass = self.table.advance(*mv, &mut NoBytes);
        if pass.busy.is_none() {
            self.end_move();
            self.has_begun = false;
        }
        self.found.misfits += u64::from(pass.busy.is_none() != done);
    }

    fn retire(&mut self, segment: SegmentIndex, retired: bool) {
        let Some(at) = self.emptied.iter().position(|emptied| *emptied == segment) else {
            self.found.misfits += 1;
            return;
        };
        // A retirement that was refused in the cache may succeed here: the pin that held the
        // segment was released before the refusal was recorded.
        if retired {
            match self.table.retire(segment) {
                Ok(()) => drop(self.emptied.remove(at)),
                Err(_) => self.found.misfits += 1,
            }
        }
    }
}
