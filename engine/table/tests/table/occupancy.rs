//! How full sets are.

use octavo_table::{Mixer, PolicyKind, Shape, Table};

use crate::setup::bring;

#[test]
fn the_occupancy_counts_the_ways_in_use_and_the_dirty_ones_of_each_sampled_set() {
    let shape = Shape { segments_max: 4, sets_per_segment: 32 };
    let table = Table::<16>::new(shape, PolicyKind::Lru, 2);
    let empty = table.occupancy(u64::MAX);
    assert_eq!((empty.sets, empty.sampled, empty.occupied[0], empty.dirty[0]), (64, 64, 64, 64));
    let mixer = Mixer::new(1);
    for page in 0..300 {
        bring(&table, mixer.tag(page), page % 3 == 0).unwrap();
    }
    let pages = |sets: &[u64]| (0..).zip(sets).map(|(ways, sets): (u64, &u64)| ways * sets).sum::<u64>();
    let all = table.occupancy(4096);
    assert_eq!((all.sets, all.sampled, all.occupied.len()), (64, 64, 17));
    assert_eq!((pages(&all.occupied), pages(&all.dirty)), (300, 100));
    // A fifth of the sets, of both segments.
    let some = table.occupancy(13);
    assert_eq!((some.sets, some.sampled), (64, 13));
    assert_eq!(some.occupied.iter().sum::<u64>(), 13);
    assert!((13..150).contains(&pages(&some.occupied)), "{some:?}");
    assert_eq!(table.occupancy(0).sampled, 1);
}
