//! Encoded events are decoded unchanged, and other bytes are refused.

use octavo_table::{Learned, PolicyKind};

use super::*;

/// Returns events of all kinds, at near and far pages of a few objects.
fn events() -> Vec<Event> {
    let place = Place::Way { way: 13, evicted: true };
    let steps = [
        Step::Claim(Place::Full),
        Step::Claim(place),
        Step::Claim(Place::Way { way: 31, evicted: false }),
        Step::ClaimAhead(place),
        Step::ClaimOnce(place),
        Step::Publish { dirty: false },
        Step::Publish { dirty: true },
        Step::Release,
        Step::Touch,
        Step::Overwrite,
        Step::BeginStore,
        Step::EndStore,
        Step::BeginWriteback,
        Step::EndWriteback { written: true },
        Step::EndWriteback { written: false },
        Step::Drop { even_dirty: false },
        Step::Drop { even_dirty: true },
        Step::Supersede(place),
        Step::Supersede(Place::Full),
        Step::SupersedeRefused(place),
        Step::Pin { slot: u32::MAX },
        Step::Held { slot: 0, pins: 2047 },
    ];
    let pages = [0, 1, 2, 2, 0, 9, 1 << 20, (1 << 40) - 1, 0, 77];
    let objects = [1, 1, 2, 1, 17, 33, (1 << 24) - 1, 0];
    let mut events = Vec::new();
    for (number, page) in pages.into_iter().cycle().take(400).enumerate() {
        let key = objects[number / 7 % objects.len()] << PAGE_BITS | page;
        events.push(match number % 5 {
            0 => Event::Access { key, write: number % 2 == 0, hit: number % 3 == 0 },
            1 => Event::Resident { key, dirty: number % 2 == 0, bits: (number * 1021) as u16 },
            _ => Event::Step { key, step: steps[number % steps.len()] },
        });
    }
    events.extend([
        Event::Unpin { slot: 3 },
        Event::Join { segment: 65_535 },
        Event::Leave { segment: 0 },
        Event::Settled,
        Event::MoveBegun,
        Event::SetMoved { set: 63 },
        Event::Advance { done: false },
        Event::Advance { done: true },
        Event::Retire { segment: 128, retired: false },
        Event::Retire { segment: 127, retired: true },
        Event::Totals(Totals { hits: u64::MAX, misses: 0 }),
        Event::Policy { policy: PolicyKind::Mq },
        Event::Live { first: 0, count: 65_536 },
        Event::Learned(Learned { leader: 0, misses: Vec::new(), densities: Vec::new() }),
        Event::Learned(Learned {
            leader: 4,
            misses: vec![(u32::MAX, 0); Learned::ORDERS],
            densities: vec![60_000; Learned::DENSITIES_MAX],
        }),
        Event::Opened { object: 5, name: "disk \u{e9}".into() },
        Event::Opened { object: 6, name: String::new() },
        Event::Closed { object: 5 },
        Event::Closed { object: (1 << 24) - 1 },
    ]);
    events
}

fn read(block: &[u8]) -> Vec<Event> {
    Decoder::new(block).map(|event| event.expect("the encoder wrote it")).collect()
}

#[test]
fn encoded_events_are_decoded_in_one_block_and_in_many() {
    let events = events();
    let mut encoder = Encoder::new(Vec::new());
    events.iter().for_each(|event| encoder.push(event));
    assert_eq!(read(&encoder.take(Vec::new())), events);
    let mut blocks = Vec::new();
    for event in &events {
        encoder.push(event);
        if encoder.len() > 40 {
            blocks.push(encoder.take(Vec::new()));
        }
    }
    blocks.push(encoder.take(Vec::new()));
    // Each block is decoded alone: in any order.
    let mut parts: Vec<Vec<Event>> = blocks.iter().rev().map(|block| read(block)).collect();
    parts.reverse();
    assert_eq!(parts.concat(), events);
}

#[test]
fn a_sequential_hit_takes_a_byte_and_a_random_one_among_a_million_pages_four() {
    let mut encoder = Encoder::new(Vec::new());
    (0..1000).for_each(|page| encoder.access(7 << PAGE_BITS | page, false, true));
    assert!(encoder.len() < 1010, "{}", encoder.len());
    let mut random = octavo_random::Random::new(1);
    encoder.take(Vec::new());
    for _ in 0..1000 {
        encoder.access(7 << PAGE_BITS | random.below(1 << 20), false, true);
    }
    assert!((3000..=4010).contains(&encoder.len()), "{}", encoder.len());
}

#[test]
fn a_block_that_is_cut_off_is_an_error_or_ends_between_events() {
    let events = events();
    let mut encoder = Encoder::new(Vec::new());
    events.iter().for_each(|event| encoder.push(event));
    let block = encoder.take(Vec::new());
    let mut whole = 0;
    for end in 0..block.len() {
        let read: Vec<_> = Decoder::new(&block[..end]).collect();
        let good = read.iter().take_while(|event| event.is_ok()).count();
        assert!(read.len() - good <= 1, "nothing follows an error");
        assert!(read.iter().flatten().eq(&events[..good]));
        whole += usize::from(read.len() == good);
    }
    assert_eq!(whole, events.len());
}

#[test]
fn malformed_bytes_are_refused_with_what_is_wrong() {
    let what = |block: &[u8]| Decoder::new(block).find_map(Result::err).expect("the block is malformed").what;
    assert_eq!(what(&[0x14]), "the first event of a block names no object");
    assert_eq!(what(&[0x1f, 0xff, 0xff, 0xff, 0x7f, 0]), "the number of an object has more than 24 bits");
    assert_eq!(what(&[0x1f, 1, 1]), "the number of a page has more than 40 bits");
    assert_eq!(what(&[0xff, 99]), "no event has this code");
    assert_eq!(what(&[0x4f, 1, 0, 0x60]), "a claim has no such outcome");
    assert_eq!(what(&[0xef, 1, 0, 99]), "no event of a page has this code");
    assert_eq!(what(&[0xf0, 0xff, 0xff, 0xff, 0xff, 0x7f]), "a number has more than 32 bits");
    assert_eq!(what(&[0xf7; 20]), "a number has more than 64 bits");
    assert_eq!(what(&[0xf8, 1, 2, 0xc3, 0x28]), "a name is not UTF-8");
}
