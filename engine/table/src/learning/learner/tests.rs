//! Tests of the learner: its memory, the pages it follows, the orders it chooses.

use super::*;
use crate::word::tag::Mixer;

#[test]
fn the_learner_uses_less_than_a_hundredth_of_the_partition() {
    for ways in [8, 16, 32] {
        for capacity in (4..24).flat_map(|shift| [1u64 << shift, 3 << (shift - 1)]) {
            let share = Learner::bytes(capacity, ways) as f64 / (capacity * 4096) as f64;
            assert!(share < 0.01, "{capacity} pages in sets of {ways}: {share}");
        }
    }
}

#[test]
fn the_share_of_followed_pages_equals_the_relative_size_of_the_miniatures() {
    let mixer = Mixer::new(3);
    for capacity in [512u64, 1024, 4096, 1 << 18] {
        let learner = Learner::new(capacity, 16);
        let pages = 1 << 18;
        let followed = (0..pages).filter(|page| learner.follows(mixer.tag(*page))).count() as f64;
        let wanted = pages as f64 * learner.size().slots as f64 / capacity as f64;
        assert!((followed - wanted).abs() < 5.0 * wanted.sqrt(), "{followed} of {wanted} at {capacity}");
    }
}

#[test]
fn a_loop_makes_its_best_order_lead_and_the_lead_ends_with_the_loop() {
    let learner = Learner::new(2048, 16);
    let mixer = Mixer::new(5);
    let show = |page: u64| {
        let tag = mixer.tag(page);
        if learner.follows(tag) {
            learner.show(tag);
        }
    };
    (0..40 * 3000u64).for_each(|access| show(access % 3000));
    let after_the_loop =
        learner.lessons.lock().unwrap().contenders.iter().map(|c| c.misses).collect::<Vec<_>>();
    assert!(matches!(learner.lead.order(), Order::Lfu | Order::Density), "{after_the_loop:?}");
    // Pages that come once, then twice in a row, and never again: frequent use in the past predicts
    // nothing.
    (1000..400_000u64).for_each(|access| show((1 << 32) + access - access % 2 * 600));
    let misses = learner.lessons.lock().unwrap().contenders.iter().map(|c| c.misses).collect::<Vec<_>>();
    let leader = learner.lead.order() as usize;
    assert!(misses.iter().all(|others| misses[leader] <= others * 1.01), "{leader} leads {misses:?}");
}

#[test]
fn the_learner_grows_and_shrinks_with_its_table_and_learns_at_every_size() {
    let (learner, mixer) = (Learner::new(16, 16), Mixer::new(7));
    let shown = |pages: u64| {
        let follow = |tag: &Tag| learner.follows(*tag);
        (0..20 * pages)
            .map(|access| mixer.tag(access % pages))
            .filter(follow)
            .for_each(|tag| learner.show(tag));
        let lessons = learner.lessons.lock().unwrap();
        assert_eq!(lessons.size, learner.size());
        lessons.contenders.first().map_or(0, |contender| contender.miniature.slots() as u64)
    };
    assert_eq!((shown(1000), learner.lead.order()), (0, ONLY_ORDER));
    // Four segments of 2 MiB, and one gibibyte.
    for (capacity, has_densities) in [(160, false), (2048, true), (1 << 18, true), (2400, true), (160, false)]
    {
        learner.set_capacity(capacity);
        assert_eq!(learner.size(), Size::of(capacity, 16), "{capacity}");
        assert_eq!(learner.size().densities, has_densities, "{capacity}");
        assert_eq!(shown(capacity * 5 / 4), learner.size().slots as u64, "{capacity}");
        // The load is a loop larger than the table.
        assert_eq!(learner.lead.order(), Order::Lfu, "{capacity}");
    }
    // A small change of capacity keeps all that was learned.
    learner.set_capacity(2048);
    let size = learner.size();
    learner.set_capacity(2200);
    assert_eq!(learner.size(), size);
    learner.set_capacity(16);
    assert_eq!((learner.size(), learner.lead.order()), (Size::default(), ONLY_ORDER));
    assert!((0..1000).all(|page| !learner.follows(mixer.tag(page))));
}

#[test]
fn a_learner_can_begin_with_what_another_has_learned() {
    let (taught, mixer) = (Learner::new(4096, 16), Mixer::new(9));
    let tags = (0..200_000u64).map(|access| mixer.tag(access % 6000));
    tags.filter(|tag| taught.follows(*tag)).for_each(|tag| taught.show(tag));
    let learned = taught.learned();
    assert_eq!(learned.densities.len(), Learned::DENSITIES_MAX);
    let other = Learner::new(2048, 16);
    assert_ne!(other.learned(), learned);
    other.adopt(&learned);
    let begun = other.learned();
    assert_eq!((begun.leader, &begun.densities), (learned.leader, &learned.densities));
    assert!(learned.misses.iter().all(|(late, all)| *late > 0 && all > late), "{:?}", learned.misses);
    let missed = |learner: &Learner| {
        learner.show(mixer.tag(1 << 30));
        learner.learned().misses.into_iter().map(|(_, all)| f64::from(all)).collect::<Vec<_>>()
    };
    let off = missed(&other).into_iter().zip(missed(&taught)).map(|(here, there)| (here - there).abs());
    assert!(off.fold(0.0, f64::max) <= 100.0, "{:?}", learned.misses);
    // A learner that is too small, and values that no learner can have produced.
    let small = Learner::new(16, 16);
    small.adopt(&learned);
    assert_eq!((small.lead.order(), small.learned().densities), (ONLY_ORDER, Vec::new()));
    other.adopt(&Learned { leader: 5, densities: vec![0; 7], ..learned });
    assert_eq!((other.learned().leader, other.learned().densities), (begun.leader, begun.densities));
    other.adopt(&Learned { leader: 0, densities: Vec::new(), misses: vec![(u32::MAX, u32::MAX); 9] });
    (0..100_000u64).map(|access| mixer.tag(access)).for_each(|tag| other.show(tag));
}
