//! The answer to `latency`: how long requests and I/Os took, by partition and kind, since the
//! server's start. Readers subtract two answers to see an interval.
//!
//! Not here: how times are measured (`octavo_block` for requests, the engine for I/Os).

use std::collections::HashMap;

use octavo::{Cache, Times};
use octavo_block::{Class, ExportStat, Histogram};
use serde_json::{Value, json};

use super::report::Clients;

/// The times of all partitions. A partition has those of its exports that are served now.
pub fn answer(cache: &Cache, clients: &Clients) -> Value {
    let by_name: HashMap<&str, &ExportStat> =
        clients.exports.iter().map(|stat| (stat.name.as_str(), stat)).collect();
    let images: HashMap<_, _> =
        clients.images.iter().map(|image| (std::ptr::from_ref(image.object.store()), image)).collect();
    let partitions = cache.partitions().into_iter().map(|partition| {
        let mut kinds = serde_json::Map::new();
        let objects = partition.objects();
        let names = objects.iter().flat_map(|object| {
            // Stores of objects do not move while their objects are open.
            match images.get(&std::ptr::from_ref(object.store())) {
                Some(image) => image.exports.iter().map(String::as_str).collect(),
                None => vec![object.name()],
            }
        });
        let exports: Vec<&ExportStat> = names.filter_map(|name| by_name.get(name).copied()).collect();
        for class in Class::ALL {
            let mut times = Times::default();
            exports.iter().for_each(|stat| add(&mut times, stat.latency(class)));
            kinds.insert(class.name().into(), shown(&times));
        }
        let own = partition.latency();
        kinds.insert("store".into(), shown(&own.store));
        kinds.insert("bypass".into(), shown(&own.bypass));
        json!({"name": partition.name(), "kinds": kinds})
    });
    let partitions: Vec<Value> = partitions.collect();
    let bounds = (0..Times::BUCKETS).map(|bucket| Times::bound(bucket).as_micros() as u64);
    json!({"bounds_us": bounds.collect::<Vec<u64>>(), "partitions": partitions})
}

/// Adds the requests of an export.
fn add(times: &mut Times, requests: &Histogram) {
    if requests.count() == 0 {
        return;
    }
    let mut before = 0;
    for (bucket, count) in times.counts.iter_mut().enumerate() {
        let below = requests.below(Times::bound(bucket));
        *count += below - std::mem::replace(&mut before, below);
    }
    times.sum_ns = times.sum_ns.saturating_add(requests.sum().as_nanos() as u64);
    times.max_ns = times.max_ns.max(requests.max().as_nanos() as u64);
}

fn shown(times: &Times) -> Value {
    json!({
        "counts": times.counts.to_vec(),
        "count": times.count(),
        "sum_us": times.sum_ns / 1000,
        "max_us": times.max_ns / 1000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_of_several_exports_are_added_by_bucket() {
        let requests = |us: &[u64]| -> Histogram { us.iter().copied().map(Duration::from_micros).collect() };
        let mut times = Times::default();
        add(&mut times, &requests(&[]));
        add(&mut times, &requests(&[0, 1, 3, 3]));
        add(&mut times, &requests(&[3, 1_000_000, 900_000_000]));
        assert_eq!(times.counts[..3], [1, 1, 3]);
        // 1 s, in a bucket that ends at 1.05 s, and 900 s in the last one, which has no end.
        assert_eq!((times.counts[20], times.counts[Times::BUCKETS - 1], times.count()), (1, 1, 7));
        let shown = shown(&times);
        assert_eq!((&shown["max_us"], &shown["sum_us"]), (&json!(900_000_000), &json!(901_000_010)));
    }
}
