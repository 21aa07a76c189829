//! The sizes that the reaper's plan aims at.

use crate::fixture::PAGE;
use crate::tenants::config;
use octavo::disk::Store;
use octavo::{Cache, CacheConfig, Limits, PartitionConfig, Proposed};

const MIB: u64 = 1 << 20;

#[test]
fn the_proposal_gives_memory_to_the_partition_that_misses_and_changes_nothing() {
    // A monitor is made only for a cache with a reaper; its thread would move memory by itself.
    let cache = Cache::new(CacheConfig { background: false, ..config(32 * MIB) }).unwrap();
    let start = |name: &str, bytes| {
        cache.partition(PartitionConfig { start_bytes: Some(bytes), ..PartitionConfig::new(name) }).unwrap()
    };
    let (idle, busy) = (start("idle", 24 * MIB), start("busy", 4 * MIB));
    idle.set_limits(Limits { min_bytes: 2 * MIB, max_bytes: 24 * MIB, ..idle.limits() }).unwrap();
    let object = busy.open(Store::memory("disk", 12 * MIB), "disk").unwrap();
    let mut page = [0; PAGE as usize];
    let read_all = |page: &mut [u8]| {
        (0..12 * MIB / PAGE).for_each(|number| object.read_at(number * PAGE, page).unwrap())
    };
    for _ in 0..4 {
        read_all(&mut page);
        // Feeds the sampled accesses into the curve.
        busy.miss_curve();
    }
    let of = |name: &str| -> Proposed {
        cache.proposal().partitions.into_iter().find(|one| one.name == name).unwrap()
    };
    let (before, proposal) = (cache.stat().memory_charged_bytes, cache.proposal());
    let names: Vec<&str> = proposal.partitions.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["idle", "busy"]);
    let sum: u64 = proposal.partitions.iter().map(|one| one.proposed_bytes).sum();
    assert!(sum <= proposal.total_bytes && proposal.total_bytes <= 32 * MIB, "{proposal:?}");
    let (first, second) = (of("idle"), of("busy"));
    assert_eq!((first.min_bytes, first.max_bytes, second.max_bytes), (2 * MIB, Some(24 * MIB), None));
    assert_eq!(first.current_bytes, idle.stat().charged_bytes);
    assert_eq!(second.current_bytes, busy.stat().charged_bytes);
    assert!(second.proposed_bytes > 10 * MIB && first.proposed_bytes >= 2 * MIB, "{proposal:?}");
    assert!(second.misses_now > 1000.0 && second.misses_proposed < second.misses_now / 2.0, "{second:?}");
    assert_eq!(cache.stat().memory_charged_bytes, before);
    // The reaper goes there.
    for _ in 0..40 {
        read_all(&mut page);
        cache.balance();
    }
    assert!(busy.stat().charged_bytes > 10 * MIB, "{:?}", busy.stat());
}

#[test]
fn limits_can_be_checked_without_a_change() {
    let cache = Cache::new(config(32 * MIB)).unwrap();
    let partition = cache.partition(PartitionConfig::new("p")).unwrap();
    let before = partition.limits();
    partition.check_limits(&Limits { max_bytes: 8 * MIB, ..before }).unwrap();
    let error = partition.check_limits(&Limits { max_bytes: 1, ..before }).unwrap_err();
    assert!(error.to_string().contains("the smallest partition takes"), "{error}");
    assert!(partition.check_limits(&Limits { min_bytes: 64 * MIB, ..before }).is_err());
    assert_eq!(partition.limits(), before);
}
