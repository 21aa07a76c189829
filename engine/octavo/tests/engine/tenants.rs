//! Several partitions in one cache: how memory is shared, which limits hold, and that no partition
//! sees bytes of another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fixture::{PAGE, bytes_at, is_alone, sized, small};
use octavo::disk::Store;
use octavo::pressure::{PressureSource, Sample};
use octavo::{Cache, CacheConfig, Limits, Object, Partition, PartitionConfig, PolicyName};

use octavo_random::Random;

const SEGMENT: u64 = 128 << 10;

/// A cache without background threads: a test calls `balance` when sizes should change.
pub fn config(memory_max_bytes: u64) -> CacheConfig {
    let buffers_max_bytes = Some(1 << 20);
    CacheConfig { memory_max_bytes, segment_bytes: SEGMENT, buffers_max_bytes, ..small(11) }
}

fn tenant(cache: &Cache, config: PartitionConfig, pages: u64) -> (Partition, Object) {
    let name = config.name.clone();
    let partition = cache.partition(config).unwrap();
    let object = partition.open(Store::memory(&name, pages * PAGE), &name).unwrap();
    (partition, object)
}

fn started(name: &str, bytes: u64) -> PartitionConfig {
    PartitionConfig { start_bytes: Some(bytes), ..PartitionConfig::new(name) }
}

fn read(object: &Object, page: u64) {
    object.read_at(page * PAGE, &mut [0; 512]).unwrap();
}

pub fn charged(partition: &Partition) -> u64 {
    partition.stat().charged_bytes
}

fn assert_within_memory_max(cache: &Cache, when: impl std::fmt::Debug) {
    let stat = cache.stat();
    assert!(stat.memory_charged_bytes <= stat.memory_max_bytes, "{when:?}: {stat:?}");
}

/// Asserts that the learned state is at most a hundredth of the partition, and that there is some.
fn assert_learns_little(partition: &Partition) {
    let (learned, charged) = (partition.learned_bytes(), charged(partition));
    assert!(learned > 0 && learned <= charged / 100, "{learned} of {charged} bytes are learned");
}

#[test]
fn memory_goes_to_the_partition_where_it_saves_misses_and_stays_there() {
    let cache = Cache::new(config(66 << 20)).unwrap();
    // The pages of the first partition fit into three quarters of the memory; the second partition
    // scans and gains nothing from memory.
    let (useful, some) = tenant(&cache, started("useful", 31 << 20), 12_000);
    let (scanning, all) = tenant(&cache, started("scanning", 31 << 20), 400_000);
    let mut random = Random::new(1);
    let mut moved_late = 0;
    for period in 0..60u64 {
        for step in 0..6000 {
            read(&some, random.below(12_000));
            read(&all, (period * 6000 + step) % 400_000);
        }
        let before = cache.reaper_stat().moved_bytes;
        cache.balance();
        if period >= 45 {
            moved_late += cache.reaper_stat().moved_bytes - before;
        }
        assert_within_memory_max(&cache, period);
    }
    let sizes = (charged(&useful) >> 20, charged(&scanning) >> 20);
    assert!(sizes.0 >= 46 && sizes.1 <= 16, "{sizes:?} MiB");
    // Once the sizes have settled, they change by less than 2 % a period.
    assert!(moved_late / 15 < (62 << 20) / 50, "{moved_late} bytes moved in 15 periods");
}

/// The scanner makes eight reads for each read of its neighbour, whose pages do not all fit into
/// its `min`.
#[test]
fn a_scanner_changes_the_hit_ratio_of_a_neighbour_with_min_by_less_than_half_a_percentage_point() {
    let hit_ratio = |policy, is_there: bool| {
        let cache = Cache::new(config(34 << 20)).unwrap();
        let promised = PartitionConfig { min_bytes: 24 << 20, policy, ..started("neighbour", 24 << 20) };
        let (neighbour, own) = tenant(&cache, promised, 10_000);
        // Memory above the `min` is the same in both runs: the neighbour gets the first 24 MiB.
        neighbour.set_limits(Limits { max_bytes: 24 << 20, ..neighbour.limits() }).unwrap();
        let scanner = PartitionConfig { policy, weight: 10_000, ..started("scanner", 8 << 20) };
        let (_, scanned) = tenant(&cache, scanner, 400_000);
        let (mut random, mut next, mut before) = (Random::new(13), 0, neighbour.stat());
        for period in 0..40 {
            if period == 20 {
                before = neighbour.stat();
            }
            for _ in 0..2000 {
                // The smaller of two draws: low page numbers are read more often.
                read(&own, random.below(10_000).min(random.below(10_000)));
                for _ in 0..if is_there { 8 } else { 0 } {
                    read(&scanned, next % 400_000);
                    next += 1;
                }
            }
            cache.balance();
            assert!(charged(&neighbour) >= (24 << 20) - 2 * SEGMENT, "{}", charged(&neighbour));
        }
        let after = neighbour.stat();
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        hits as f64 / (hits + misses) as f64
    };
    for policy in [PolicyName::Lru, PolicyName::Octavo] {
        let (alone, beside) = (hit_ratio(policy, false), hit_ratio(policy, true));
        println!("{policy:?}: {alone} alone, {beside} beside a scanner");
        assert!(alone > 0.5 && alone < 0.95, "{policy:?}: {alone}");
        assert!((alone - beside).abs() < 0.005, "{policy:?}: {alone} alone, {beside} beside a scanner");
    }
}

#[test]
fn a_new_partition_gets_a_share_that_idle_partitions_give_first() {
    let cache = Cache::new(CacheConfig { background: true, ..config(40 << 20) }).unwrap();
    let (first, object) = tenant(&cache, PartitionConfig::new("first"), 8000);
    (0..8000).for_each(|page| read(&object, page));
    let before = charged(&first);
    let (second, _) = tenant(&cache, PartitionConfig::new("second"), 8000);
    assert!(charged(&second) >= 15 << 20, "{}", charged(&second));
    assert!(charged(&first) <= before - (15 << 20));
    assert_within_memory_max(&cache, "two partitions");
    // A third partition takes no memory below a `min`; a request that does not fit is refused, and
    // the error names the partition.
    let limits = Limits { min_bytes: charged(&second), ..Limits::default() };
    second.set_limits(limits).unwrap();
    let (third, _) = tenant(&cache, PartitionConfig::new("third"), 100);
    assert!(charged(&second) >= limits.min_bytes);
    assert!(charged(&third) >= 5 << 20, "{}", charged(&third));
    let too_much = PartitionConfig { min_bytes: 30 << 20, ..PartitionConfig::new("fourth") };
    let error = cache.partition(too_much).err().unwrap().to_string();
    assert!(error.contains("min together"), "{error}");
}

#[test]
fn limits_are_kept_and_invalid_limits_are_refused() {
    let cache = Cache::new(config(128 << 20)).unwrap();
    let (partition, object) = tenant(&cache, sized(8 << 20), 4000);
    (0..4000).for_each(|page| read(&object, page));
    let at_first = partition.limits();
    assert_eq!(at_first.max_bytes, 8 << 20);
    // A smaller limit applies at once; a larger one lets the partition grow over time.
    partition.set_limits(Limits { max_bytes: 4 << 20, ..at_first }).unwrap();
    assert!(charged(&partition) <= 4 << 20);
    partition.set_limits(Limits { max_bytes: 16 << 20, min_bytes: 12 << 20, ..at_first }).unwrap();
    assert!((11 << 20..=16 << 20).contains(&charged(&partition)), "{}", charged(&partition));
    for (limits, word) in [
        (Limits { min_bytes: 2, max_bytes: 1, ..at_first }, "min is 2"),
        (Limits { weight: 0, ..at_first }, "weight is 0"),
        (Limits { min_bytes: 60 << 20, max_bytes: 60 << 20, ..at_first }, "can grow to"),
    ] {
        let error = partition.set_limits(limits).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("\"p\""), "{error}");
    }
    for name in ["p/inside", "/", "a//b", "a/"] {
        assert!(cache.partition(started(name, 1 << 20)).is_err(), "{name}");
    }
}

#[test]
fn a_group_limits_the_sum_of_its_partitions() {
    let cache = Cache::new(config(42 << 20)).unwrap();
    let names = ["host/vm1/disk0", "host/vm1/disk1", "host/vm2"];
    let tenants = names.map(|name| tenant(&cache, started(name, 13 << 20), 100_000));
    cache.set_group("host/vm1", Limits { max_bytes: 10 << 20, ..Limits::default() }).unwrap();
    assert!(cache.set_group("host/vm2", Limits::default()).is_err(), "it is a partition");
    let mut random = Random::new(3);
    for _ in 0..40 {
        for _ in 0..1000 {
            tenants.iter().for_each(|(_, object)| read(object, random.below(100_000)));
        }
        cache.balance();
    }
    let sizes: Vec<u64> = tenants.iter().map(|(partition, _)| charged(partition)).collect();
    assert!(sizes[0] + sizes[1] <= (10 << 20) + (1 << 20), "{sizes:?}");
    assert!(sizes[2] >= 24 << 20, "{sizes:?}");
}

/// A single partition used to keep memory beyond the bound of its group, because no other partition
/// wanted it. Without a reaper every partition did.
#[test]
fn single_and_idle_partitions_keep_the_limit_of_their_group_from_the_start_with_and_without_a_reaper() {
    for (background, reaper) in [(false, true), (true, true), (false, false)] {
        let cache = Cache::new(CacheConfig { background, reaper, ..config(42 << 20) }).unwrap();
        let together = || cache.partitions().iter().map(charged).sum::<u64>();
        cache.set_group("host", Limits { max_bytes: 16 << 20, ..Limits::default() }).unwrap();
        let (first, _) = tenant(&cache, started("host/vm1", 20 << 20), 100);
        assert!((13 << 20..=16 << 20).contains(&charged(&first)), "{}", charged(&first));
        let (second, _) = tenant(&cache, started("host/vm2", 20 << 20), 100);
        assert!(together() <= 16 << 20, "{}", together());
        assert!(charged(&first) >= 5 << 20 && charged(&second) >= 5 << 20, "each has its part");
        // A smaller bound holds at once, and one partition gives what the `min` of the other needs.
        cache.set_group("host", Limits { max_bytes: 10 << 20, ..Limits::default() }).unwrap();
        assert!(together() <= 10 << 20, "{}", together());
        first.set_limits(Limits { min_bytes: 6 << 20, ..Limits::default() }).unwrap();
        assert!(charged(&first) >= (6 << 20) - 2 * SEGMENT, "{}", charged(&first));
        assert!(together() <= 10 << 20, "{}", together());
    }
}

#[test]
fn under_memory_pressure_the_cache_shrinks_to_the_sum_of_min_and_grows_again_afterwards() {
    let sample = Arc::new(Mutex::new(Sample::default()));
    let asked = Arc::clone(&sample);
    let pressure = Some(PressureSource::new(move || *asked.lock().unwrap()));
    let cache = Cache::new(CacheConfig { pressure, ..config(50 << 20) }).unwrap();
    let promised = PartitionConfig { min_bytes: 12 << 20, ..started("promised", 24 << 20) };
    let (promised, one) = tenant(&cache, promised, 20_000);
    let (other, two) = tenant(&cache, started("other", 24 << 20), 20_000);
    let mut random = Random::new(5);
    let mut run = |periods: usize| {
        for _ in 0..periods {
            for _ in 0..500 {
                read(&one, random.below(20_000));
                read(&two, random.below(20_000));
            }
            cache.balance();
        }
    };
    run(3);
    let before = cache.stat().memory_charged_bytes;
    *sample.lock().unwrap() =
        Sample { stalled_percent: Some(40.0), available_bytes: Some(0), bound_bytes: Some(64 << 20) };
    run(25);
    assert!((11 << 20..=14 << 20).contains(&charged(&promised)), "{}", charged(&promised));
    assert!(charged(&other) <= 1 << 20, "{}", charged(&other));
    *sample.lock().unwrap() =
        Sample { stalled_percent: Some(0.0), available_bytes: Some(64 << 20), bound_bytes: Some(64 << 20) };
    run(60);
    assert!(cache.stat().memory_charged_bytes >= before - (1 << 20), "{:?}", cache.reaper_stat());
}

#[test]
fn a_policy_change_during_reads_loses_no_page() {
    let cache = Cache::new(config(16 << 20)).unwrap();
    let (partition, object) = tenant(&cache, started("p", 8 << 20), 1500);
    (0..1500).for_each(|page| read(&object, page));
    let there: Vec<u64> = (0..1500).filter(|page| object.is_resident(page * PAGE)).collect();
    assert!(there.len() > 1300);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while stop.load(Ordering::Relaxed) == 0 {
                there.iter().for_each(|page| read(&object, *page));
            }
        });
        for policy in PolicyName::ALL.into_iter().cycle().take(40) {
            partition.set_policy(policy).unwrap();
            assert_eq!(partition.stat().policy, policy.name());
            assert!(there.iter().all(|page| object.is_resident(page * PAGE)), "{policy:?}");
        }
        stop.store(1, Ordering::Relaxed);
    });
    assert_within_memory_max(&cache, "after all policies");
}

/// The bytes of a page: its tenant and its number.
fn stamp(tenant: u64, page: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (word, place) in bytes.chunks_exact_mut(8).zip(0u64..) {
        word.copy_from_slice(&(tenant << 48 | page << 16 | place).to_le_bytes());
    }
    bytes
}

#[test]
fn no_tenant_reads_bytes_of_another_while_partitions_grow_shrink_and_leave() {
    let cache = Cache::new(config(12 << 20)).unwrap();
    let mut random = Random::new(7);
    let mut tenants: Vec<(Partition, Object, u64)> = Vec::new();
    let mut next = 1;
    for step in 0..3000 {
        if tenants.len() < 3 {
            // The others leave room for a new one, whatever they have grown to.
            tenants.iter().for_each(|(partition, ..)| _ = partition.resize(2 << 20));
            let config = started(&format!("t{next}"), (1 + random.below(3)) << 20);
            let config = PartitionConfig { policy: PolicyName::ALL[random.below(8) as usize], ..config };
            let (partition, object) = tenant(&cache, config, 600);
            tenants.push((partition, object, next));
            next += 1;
        }
        let chosen = random.below(tenants.len() as u64) as usize;
        let (partition, object, number) = &tenants[chosen];
        let page = random.below(600);
        match random.below(40) {
            0 => _ = partition.resize((1 + random.below(30)) * SEGMENT),
            1 if step % 5 == 0 => {
                let (partition, ..) = tenants.swap_remove(chosen);
                cache.remove_partition(partition.name()).unwrap();
            }
            2 => cache.balance(),
            3 => partition.evict().unwrap(),
            4 => _ = partition.reclaim(random.below(1 << 20)).unwrap(),
            5..25 => object.write_at(page * PAGE, &stamp(*number, page)).unwrap(),
            _ => {
                let bytes = bytes_at(object, page * PAGE, PAGE);
                let is_right = bytes == [0; 4096] || bytes == stamp(*number, page);
                assert!(is_right, "step {step}: tenant {number}, page {page}");
            }
        }
        assert_within_memory_max(&cache, step);
    }
    assert!(next > 10, "tenants have come and gone");
}

/// Held by tests that use or measure gigabytes of memory.
static MUCH: Mutex<()> = Mutex::new(());

/// KiB mapped, KiB resident, and open files of the process.
fn held() -> [u64; 3] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    [kib("VmSize:"), kib("VmRSS:"), std::fs::read_dir("/proc/self/fd").unwrap().count() as u64]
}

#[test]
fn a_thousand_partitions_of_4_mib_work_and_leave_nothing_behind() {
    // Memory is measured in a process that runs nothing else.
    let one_at_a_time = MUCH.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_alone("tenants::a_thousand_partitions_of_4_mib_work_and_leave_nothing_behind") {
        return;
    }
    drop(one_at_a_time);
    let config = CacheConfig { segment_bytes: 2 << 20, reaper: true, ..config(5 << 30) };
    let cache = Cache::new(config).unwrap();
    let before = cache.stat().memory_charged_bytes;
    let mut after = Vec::new();
    for turn in 0..3 {
        let tenants: Vec<(Partition, Object)> = (0..1000)
            .map(|number| {
                tenant(&cache, PartitionConfig { name: format!("vm/{number}"), ..sized(4 << 20) }, 64)
            })
            .collect();
        for (number, (partition, object)) in tenants.iter().enumerate() {
            object.write_at(0, &stamp(number as u64, 0)).unwrap();
            assert!(bytes_at(object, 0, PAGE) == stamp(number as u64, 0));
            assert_learns_little(partition);
        }
        cache.balance();
        assert_within_memory_max(&cache, turn);
        tenants.iter().for_each(|(partition, _)| cache.remove_partition(partition.name()).unwrap());
        drop(tenants);
        assert!(cache.partitions().is_empty());
        assert_eq!(cache.stat().memory_charged_bytes, before);
        after.push(held());
    }
    println!("mapped KiB, resident KiB, open files after each turn: {after:?}");
    // The allocator keeps freed memory: the second turn shows how much.
    let [second, last] = [after[1], after[2]];
    assert!(last[0] < second[0] + (8 << 10), "{after:?}: mapped");
    assert!(last[1] < second[1] + (8 << 10), "{after:?}: resident");
    assert_eq!(last[2], second[2], "{after:?}: open files");
}

#[test]
fn learned_state_stays_within_a_hundredth_of_a_partition_that_grows_and_shrinks() {
    let cache = Cache::new(config(130 << 20)).unwrap();
    let (partition, object) = tenant(&cache, started("p", 2 << 20), 30_000);
    let mut random = Random::new(9);
    for mib in [2, 100, 30, 3, 60, 2] {
        let limits = Limits { min_bytes: mib << 20, max_bytes: mib << 20, ..partition.limits() };
        partition.set_limits(limits).unwrap();
        for _ in 0..3 {
            (0..2000).for_each(|_| read(&object, random.below(30_000)));
            cache.balance();
        }
        assert_learns_little(&partition);
        let curve = partition.miss_curve().unwrap();
        assert!(curve.references > 1000.0 && curve.points.len() >= 3, "{mib} MiB: {curve:?}");
    }
}

#[test]
fn reclaimed_memory_returns_to_the_system() {
    let _alone = MUCH.lock().unwrap_or_else(PoisonError::into_inner);
    let config = CacheConfig { segment_bytes: 2 << 20, ..config(200 << 20) };
    let cache = Cache::new(config).unwrap();
    let (partition, object) = tenant(&cache, started("p", 160 << 20), 40_000);
    (0..40_000).for_each(|page| read(&object, page));
    let resident = || held()[1] << 10;
    let full = resident();
    let freed = partition.reclaim(120 << 20).unwrap();
    assert!((119 << 20..=124 << 20).contains(&freed), "{freed}");
    let left = full.saturating_sub(resident());
    // Other tests allocate and free memory at the same time, hence the margin.
    assert!(left > 70 << 20, "{left} bytes less of {full}, and {freed} were freed");
    assert!(charged(&partition) < 42 << 20);
}

/// A partition with a `min` of 8 MiB used to start with 6 MiB: the `min` was rounded down to whole
/// segments, and no other partition made room for the rest.
#[test]
fn a_new_partition_has_its_min_at_once() {
    for background in [false, true] {
        let cache =
            Cache::new(CacheConfig { background, segment_bytes: 2 << 20, ..config(49 << 20) }).unwrap();
        let (first, _) = tenant(&cache, PartitionConfig::new("first"), 100);
        if !background {
            // Without background threads no partition shrinks on its own.
            first.resize(20 << 20).unwrap();
        }
        for (name, min) in [("second", 8 << 20), ("third", 5 << 20)] {
            let config = PartitionConfig { min_bytes: min, ..started(name, min) };
            let (made, _) = tenant(&cache, config, 100);
            assert!(charged(&made) >= min, "{name}: {} of {min} bytes", charged(&made));
            let limits = Limits { min_bytes: min + (3 << 20), ..made.limits() };
            made.set_limits(limits).unwrap();
            assert!(charged(&made) >= limits.min_bytes, "{name}: {} of {limits:?}", charged(&made));
        }
        if background {
            // Everything above the `min` of the first partition.
            let config = PartitionConfig { min_bytes: 21 << 20, ..PartitionConfig::new("last") };
            let (last, _) = tenant(&cache, config, 100);
            assert!(charged(&last) >= 21 << 20, "{}", charged(&last));
            assert_within_memory_max(&cache, "the last partition");
        }
    }
}

/// Memory used to go from an idle partition to one that was never read, and none of it to the busy
/// one.
#[test]
fn memory_of_an_idle_partition_goes_to_a_busy_one_and_not_to_one_that_was_never_read() {
    let cache = Cache::new(CacheConfig { segment_bytes: 2 << 20, ..config(49 << 20) }).unwrap();
    let (idle, once) = tenant(&cache, started("idle", 24 << 20), 6000);
    let promised = PartitionConfig { min_bytes: 4 << 20, ..started("unused", 10 << 20) };
    let (unused, _) = tenant(&cache, promised, 6000);
    let (busy, many) = tenant(&cache, started("busy", 13 << 20), 12_000);
    let mut random = Random::new(17);
    let at_first = [&idle, &unused, &busy].map(charged);
    for _ in 0..10 {
        (0..3000).for_each(|_| read(&once, random.below(6000)));
        cache.balance();
    }
    assert!(charged(&unused) <= at_first[1], "{} of {at_first:?}", charged(&unused));
    for period in 0..28 {
        (0..4000).for_each(|_| read(&many, random.below(12_000)));
        cache.balance();
        println!("{period}: {:?} MiB", [&idle, &unused, &busy].map(|partition| charged(partition) >> 20));
    }
    let sizes = [&idle, &unused, &busy].map(charged);
    assert!((4 << 20..(4 << 20) + (3 << 20)).contains(&sizes[1]), "unused: {sizes:?}");
    assert!(sizes[2] >= 34 << 20 && sizes[0] <= 8 << 20, "{sizes:?}");
}
