//! A cache with little memory stays within its limit, whatever its clients request.

use crate::client::*;
use crate::rig::{Plan, Rig, eventually};
use octavo::CacheConfig;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MEMORY_MAX: u64 = 8 << 20;
const LEN: u32 = 32 << 20;

#[test]
fn sixteen_clients_write_and_read_32_mib_at_a_time_within_8_mib() {
    let cache = CacheConfig { memory_max_bytes: MEMORY_MAX, ..CacheConfig::default() };
    let rig = Rig::new(Plan { lens: vec![u64::from(LEN)], cache, ..Plan::default() });
    let charged = || rig.cache.stat().memory_charged_bytes;
    // Relaxed: the scope's end orders everything that counts.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Relaxed) {
                most = most.max(charged());
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            most
        });
        let clients: Vec<_> = (0..16_u64)
            .map(|i| {
                let rig = &rig;
                scope.spawn(move || {
                    let structured = i % 2 == 0;
                    let mut client = rig.attached("disk0", structured);
                    assert_eq!(client.put(0, i, 0, &vec![0x11; LEN as usize]), 0);
                    let data = client.read(structured, if i % 4 == 0 { DF } else { 0 }, 0, LEN);
                    // Others write the same bytes, or have not yet.
                    assert!(data.unwrap().iter().all(|byte| *byte == 0x11));
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        done.store(true, Relaxed);
        let most = watch.join().unwrap();
        assert!(most <= MEMORY_MAX, "{most} bytes were charged");
    });
}

/// A connection keeps buffers for the next requests of a busy client. A silent one needs none.
#[test]
fn a_silent_client_holds_no_more_buffers_than_one_that_has_just_come() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", true);
    let used = || rig.cache.stat().buffers_used_bytes;
    let attached = used();
    for round in 0..3 {
        for cookie in 0..16 {
            client.request(0, READ, cookie, cookie << 16, 64 << 10);
        }
        for _ in 0..16 {
            assert_eq!(client.chunk().payload.len(), 8 + (64 << 10), "round {round}");
        }
        eventually("the buffers come back", || used() == attached);
    }
}
