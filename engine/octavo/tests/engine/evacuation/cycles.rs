//! A cache that is restarted again and again, under random operations and resizes, has the bytes of
//! its naive twin, a vector. `OCTAVO_CYCLES` sets the number of restarts, `OCTAVO_SEED` one seed.

use octavo::{CacheMode, PartitionConfig, PolicyName};
use octavo_random::Random;

use super::{Served, image, memfd};
use crate::fixture::{PAGE, Scratch, bytes_at, small};

const PAGES: u64 = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// One or two files and what they must contain.
struct World {
    random: Random,
    files: Vec<Scratch>,
    twins: Vec<Vec<u8>>,
}

impl World {
    fn partition(&mut self) -> PartitionConfig {
        let mut config = PartitionConfig::new("p");
        config.max_bytes = Some((1 + self.random.below(3)) << 20);
        config.cache_mode = self.random.pick(&[CacheMode::Writethrough, CacheMode::Writeback]);
        config.policy = self.random.pick(&PolicyName::ALL);
        config
    }

    fn step(&mut self, served: &Served) {
        let random = &mut self.random;
        let object = random.below(self.files.len() as u64) as usize;
        let twin = &mut self.twins[object];
        let offset = random.below(PAGES * PAGE - 3 * PAGE);
        let len = 1 + random.below(3 * PAGE);
        let range = offset as usize..(offset + len) as usize;
        match random.below(20) {
            0..10 => assert!(bytes_at(&served.objects[object], offset, len) == twin[range], "read"),
            10..16 => {
                let bytes = random.bytes(len as usize);
                served.objects[object].write_at(offset, &bytes).unwrap();
                twin[range].copy_from_slice(&bytes);
            }
            16 => served.objects[object].sync().unwrap(),
            17 => _ = served.partition.resize((1 + random.below(3)) << 20).unwrap(),
            18 => served.cache.clean().unwrap(),
            _ => {
                let pin = served.objects[object].pin_owned(offset / PAGE * PAGE).unwrap();
                let at = (offset / PAGE * PAGE) as usize;
                pin.iter().for_each(|pin| assert!(pin[..] == twin[at..at + PAGE as usize], "pin"));
            }
        }
    }
}

fn run(seed: u64, cycles: u64) -> u64 {
    let (first, second) =
        (image(&format!("cycle-a-{seed}"), PAGES), image(&format!("cycle-b-{seed}"), PAGES));
    let (files, twins) = ([first.0, second.0].into(), [first.1, second.1].into());
    let mut world = World { random: Random::new(seed), files, twins };
    let mut warm = None;
    let mut restored_pages = 0;
    for cycle in 0..cycles {
        let config = small(world.random.below(1 << 20));
        let partition = world.partition();
        let files: Vec<&Scratch> = world.files.iter().collect();
        let served = match warm.take() {
            None => Served::new(config, partition, &files),
            Some(pages) => {
                let (served, restored) = Served::warm(config, partition, &files, pages);
                assert_eq!(restored.cold, [], "cycle {cycle}");
                restored_pages += restored.pages;
                served
            }
        };
        for _ in 0..200 {
            world.step(&served);
        }
        let pages = memfd();
        let evacuated = served.cache.evacuate(&pages).unwrap();
        assert!(evacuated.refused.is_empty());
        drop(served);
        for (file, twin) in world.files.iter().zip(&world.twins) {
            assert!(std::fs::read(&file.0).unwrap() == *twin, "cycle {cycle}: a store lacks a write");
        }
        warm = Some(pages);
    }
    restored_pages
}

#[test]
fn a_cache_that_restarts_again_and_again_agrees_with_its_twin() {
    let cycles = number("OCTAVO_CYCLES").unwrap_or(24);
    let seeds = number("OCTAVO_SEED").map_or(1..5, |seed| seed..seed + 1);
    octavo_random::for_seeds(seeds, |seed| {
        let pages = run(seed, cycles / 4 + 2);
        assert!(pages > 0, "no page came back");
    });
}
