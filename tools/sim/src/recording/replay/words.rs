//! Steps and places in words, for the list of differences.

use octavo_recording::{Place, Step};

/// Returns a step as a noun phrase, for differences.
pub fn in_words(step: Step) -> &'static str {
    match step {
        Step::Claim(_) | Step::ClaimAhead(_) | Step::ClaimOnce(_) => "the beginning of its fill",
        Step::Publish { .. } => "the end of its fill",
        Step::Release => "the end of its stay",
        Step::Touch => "a hit",
        Step::Overwrite => "a write into it",
        Step::BeginStore => "the beginning of a write through it",
        Step::EndStore => "the end of a write through it",
        Step::BeginWriteback => "the beginning of its write-back",
        Step::EndWriteback { .. } => "the end of its write-back",
        Step::Drop { .. } => "its drop",
        Step::Supersede(_) | Step::SupersedeRefused(_) => "a write beside its pinned bytes",
        Step::Pin { .. } | Step::Held { .. } => "a pin",
    }
}

/// Returns where a claim led, as a noun phrase.
pub fn place_in_words(place: Place) -> String {
    match place {
        Place::Full => "no place, because its set was full of busy pages".into(),
        Place::Way { way, evicted: true } => format!("way {way} of its set, in place of another page"),
        Place::Way { way, evicted: false } => format!("way {way} of its set, which was free"),
    }
}
