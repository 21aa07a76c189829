//! Repeats the steps of a whole recording on the table.
//!
//! Every function that makes a step returns None if the page is not in the state in which the step
//! was recorded.

use octavo_recording::{Place, Step};
use octavo_table::{Claim, Found, SetGuard, State, Tag};

use super::Twin;
use super::words::place_in_words;

const AT_REST: [State; 2] = [State::Clean, State::Dirty];

impl<const W: usize> Twin<W> {
    /// Makes a step.
    pub fn step(&mut self, key: u64, step: Step) -> Option<()> {
        let tag = self.mixer.tag(key);
        if !self.is_from_the_first {
            if self.end_from_before(tag, step) {
                return Some(());
            }
            if !self.pending.is_empty() {
                self.follow();
            }
        }
        match step {
            Step::Claim(place) => self.claim(key, place, |guard| guard.claim(tag)),
            Step::ClaimAhead(place) => self.claim(key, place, |guard| guard.claim_ahead(tag)),
            Step::ClaimOnce(place) => self.claim(key, place, |guard| guard.claim_once(tag)),
            Step::Supersede(place) => self.supersede(key, place),
            Step::SupersedeRefused(place) => {
                let mut guard = self.table.lock(tag);
                guard.find(tag)?;
                let claim = guard.claim_beside(tag);
                give_back(&mut guard, claim);
                drop(guard);
                self.compare(key, place, &claim);
                Some(())
            }
            _ => self.change(key, step),
        }
    }

    /// Makes a step that leaves the page in its slot, or removes it.
    fn change(&mut self, key: u64, step: Step) -> Option<()> {
        let tag = self.mixer.tag(key);
        let mut guard = self.table.lock(tag);
        let found = guard.find(tag)?;
        let is_in = |states: &[State]| states.contains(&found.word.state()).then_some(());
        let is_readable = || found.word.readable().then_some(());
        match step {
            Step::Publish { dirty } => {
                is_in(&[State::Filling])?;
                let _no_waiter = self.table.publish(found.index, dirty);
            }
            Step::Release => {
                is_in(&[State::Filling, State::Storing, State::Writing])?;
                let _no_waiter = guard.remove(found.index);
            }
            Step::Touch => {
                is_readable()?;
                self.touch(&found);
            }
            Step::Overwrite => {
                is_in(&AT_REST)?;
                let before = found.slot().begin_write(found.word).ok()?;
                self.touch(&found);
                let _no_waiter = self.table.end_write(&found, before, true);
            }
            Step::BeginStore => {
                is_in(&[State::Clean])?;
                found.slot().begin_store(found.word).ok()?;
                self.touch(&found);
            }
            Step::EndStore => {
                is_in(&[State::Storing])?;
                found.slot().store_to_write()?;
                let _no_waiter = found.slot().end_write(false);
            }
            Step::BeginWriteback => {
                is_in(&[State::Dirty])?;
                found.slot().begin_writeback(found.word).ok()?;
                self.writebacks.insert(key, found.word.version());
            }
            Step::EndWriteback { written } => {
                found.word.writeback().then_some(())?;
                let version = self.writebacks.remove(&key)?;
                let _no_waiter = self.table.end_writeback(found.index, version, written);
            }
            Step::Drop { even_dirty } => drop(guard.remove_quiet(&found, even_dirty).ok()?),
            Step::Pin { slot } => {
                is_readable()?;
                found.slot().pin(found.word).ok()?;
                self.pins.entry(slot).or_default().push(found.index);
            }
            Step::Held { slot, pins } => {
                is_readable()?;
                let held = self.pins.entry(slot).or_default();
                while held.len() < pins as usize {
                    found.slot().pin(found.word).ok()?;
                    held.push(found.index);
                }
            }
            _ => unreachable!("`step` makes the steps that claim a slot"),
        }
        Some(())
    }

    fn claim(
        &mut self,
        key: u64,
        place: Place,
        claim: impl FnOnce(&mut SetGuard<'_, W>) -> Claim,
    ) -> Option<()> {
        let tag = self.mixer.tag(key);
        let mut guard = self.table.lock(tag);
        if guard.find(tag).is_some() {
            return None;
        }
        let claim = claim(&mut guard);
        // The cache had no slot for the page, so the recording has no fill of it.
        if place == Place::Full {
            give_back(&mut guard, claim);
        }
        drop(guard);
        self.compare(key, place, &claim);
        Some(())
    }

    fn supersede(&mut self, key: u64, place: Place) -> Option<()> {
        let tag = self.mixer.tag(key);
        let mut guard = self.table.lock(tag);
        let at_rest = |found: &Found<'_>| AT_REST.contains(&found.word.state()) && !found.word.writeback();
        let found = guard.find(tag).filter(at_rest)?;
        let claim = guard.claim_beside(tag);
        if let Claim::Claimed { slot, .. } = claim {
            // A page that was pinned in the cache but is not pinned in the replay may be the
            // claim's own victim.
            let Ok(taken) = found.slot().begin_move(found.word) else {
                give_back(&mut guard, claim);
                return None;
            };
            let _no_waiter = self.table.publish(slot, true);
            let _no_waiter = guard.remove_moved(found.index, taken);
        }
        drop(guard);
        self.compare(key, place, &claim);
        Some(())
    }

    /// Ends a step that had begun before the recording did: a fill or a write of a page that could
    /// not be listed, or the write-back of a dirty page. Otherwise the page would never be evicted.
    /// Returns whether the step is done.
    fn end_from_before(&mut self, tag: Tag, step: Step) -> bool {
        let found = self.table.lock(tag).find(tag);
        match (step, found) {
            (Step::Publish { dirty }, None) => self.bring(tag, dirty, |guard| guard.claim(tag)),
            (Step::EndStore, None) => self.bring(tag, false, |guard| guard.claim(tag)),
            (Step::Release, None) => {}
            (Step::EndWriteback { written: true }, Some(found))
                if found.word.state() == State::Dirty && !found.word.writeback() =>
            {
                if found.slot().begin_writeback(found.word).is_ok() {
                    let _no_waiter = self.table.end_writeback(found.index, found.word.version(), true);
                }
            }
            _ => return false,
        }
        true
    }

    /// Compares the place of a claim with the recorded one.
    fn compare(&mut self, key: u64, recorded: Place, claim: &Claim) {
        let made = match claim {
            Claim::Full => Place::Full,
            Claim::Claimed { slot, evicted } => {
                Place::Way { way: (slot.0 as usize % W) as u8, evicted: evicted.is_some() }
            }
        };
        if made != recorded {
            let [cache, replay] = [recorded, made].map(place_in_words);
            self.differ(key, || format!("the cache put the page into {cache}, the replay into {replay}"));
        }
    }
}

/// Removes a page that was claimed and will not be filled.
fn give_back<const W: usize>(guard: &mut SetGuard<'_, W>, claim: Claim) {
    if let Claim::Claimed { slot, .. } = claim {
        let _no_waiter = guard.remove(slot);
    }
}
