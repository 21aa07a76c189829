//! The replay of a sample, in a table smaller by the sample's rate.

use octavo_recording::{Event, Header, Step};
use octavo_table::{Mixer, NoBytes, Shape, Table};

use super::{SAMPLE_SEED, Twin};

impl<const W: usize> Twin<W> {
    /// Makes a table that is smaller by the sample's rate: its segments have fewer sets and, if one
    /// set per segment is still too many, there are fewer segments.
    pub fn scaled(header: &Header) -> Self {
        let sets = f64::from(header.shape.sets_per_segment) * header.sample();
        let sets_per_segment = if sets >= 1.0 { 1 << sets.log2() as u32 } else { 1 };
        let segments_in_one = f64::from(sets_per_segment) / sets;
        let scaled = |segments: u32| ((f64::from(segments) / segments_in_one).round() as u32).max(1);
        let segments_max = scaled(header.shape.segments_max).min(octavo_table::SEGMENTS_MAX);
        let shape = Shape { segments_max, sets_per_segment };
        let table = Table::new(shape, header.policy, scaled(header.segments).min(segments_max));
        Self::new(table, Mixer::new(SAMPLE_SEED), header, segments_in_one)
    }

    /// Takes an event of a sample.
    pub fn sampled_event(&mut self, event: &Event) {
        match event {
            Event::Access { key, hit, .. } => {
                let tag = self.mixer.tag(*key);
                let found = self.table.find(tag);
                let is_there = found.is_some();
                match found {
                    Some(found) => self.touch(&found),
                    None => self.bring(tag, false, |guard| guard.claim(tag)),
                }
                self.count(*hit, is_there);
            }
            Event::Step { key, step: Step::ClaimAhead(_) } => {
                let tag = self.mixer.tag(*key);
                self.bring(tag, false, |guard| guard.claim_ahead(tag));
            }
            Event::Resident { key, bits, .. } => {
                let tag = self.mixer.tag(*key);
                self.bring(tag, false, |guard| guard.claim_known(tag, *bits));
            }
            Event::Policy { policy } => self.set_policy(*policy),
            Event::Live { first, count } => self.name_segments(*first, *count),
            Event::Learned(learned) => self.table.adopt_learned(learned),
            Event::Join { segment } if *segment < self.segments_max => {
                self.segments.insert(*segment);
                self.scale();
            }
            Event::Leave { segment } => {
                self.segments.remove(segment);
                self.scale();
            }
            _ => {}
        }
    }

    /// Grows or shrinks the table in proportion to the partition.
    fn scale(&mut self) {
        let wanted = (self.segments.len() as f64 / self.segments_in_one).round() as u32;
        let wanted = wanted.clamp(1, self.table.shape().segments_max);
        while self.table.live_segments() < wanted
            && let Some(segment) = self.table.spare_segment()
        {
            self.pending = self.table.join(segment);
            self.advance_all();
        }
        while self.table.live_segments() > wanted {
            let segment = self.table.segments().last().expect("at least one segment is live");
            self.pending = self.table.leave(segment);
            self.advance_all();
            let retired = self.table.retire(segment);
            debug_assert!(retired.is_ok(), "every page is clean and unpinned");
            if retired.is_err() {
                return;
            }
        }
    }

    fn advance_all(&mut self) {
        for mv in std::mem::take(&mut self.pending) {
            let pass = self.table.advance(mv, &mut NoBytes);
            debug_assert!(pass.busy.is_none(), "every page is clean and unpinned");
        }
    }
}
