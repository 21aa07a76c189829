//! The code of the fuzzers (`fuzz/src/vhost`) with their seeds, and with random changes of them.
//! Unlike the fuzzers, it needs no other compiler, and does not look for new paths.

#[path = "../../../../fuzz/src/vhost/mod.rs"]
mod fuzz;

use octavo_random::Random;
use std::path::Path;

/// The default number of random inputs of each kind; `OCTAVO_FUZZ_RUNS` sets another.
const RUNS: u64 = 2000;
const INPUT_MAX: usize = 600;

/// Prints the input of a test that panics.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the input, in hexadecimal: {}", hex(self.0));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut below = |end: usize| random.below(end as u64) as usize;
    let mut input = seeds[below(seeds.len())].clone();
    for _ in 0..=below(8) {
        let at = below(input.len() + 1);
        match below(6) {
            0 => input.insert(at, below(256) as u8),
            1 if at < input.len() => drop(input.remove(at)),
            2 => {
                let other = &seeds[below(seeds.len())];
                let from = below(other.len() + 1);
                let part = other[from..from + below(other.len() - from + 1)].to_vec();
                input.splice(at..at, part);
            }
            3 => {
                let part = input[at..at + below(input.len() - at + 1)].to_vec();
                input.splice(at..at, part);
            }
            _ if at < input.len() => input[at] = below(256) as u8,
            _ => {}
        }
        input.truncate(INPUT_MAX);
    }
    input
}

fn run(target: &str, one: fn(&[u8])) {
    let seeds = seeds(target);
    for seed in &seeds {
        let _shown = Shown(seed);
        one(seed);
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (runs, seed) = (number("OCTAVO_FUZZ_RUNS").unwrap_or(RUNS), number("OCTAVO_SEED").unwrap_or(1));
    println!("OCTAVO_SEED={seed}");
    let mut random = Random::new(seed);
    let start = std::time::Instant::now();
    for done in 0..runs {
        if done > 0 && done % 100_000 == 0 {
            println!("{target}: {done} inputs, {:.0} s", start.elapsed().as_secs_f32());
        }
        let input = mutate(&mut random, &seeds);
        let _shown = Shown(&input);
        one(&input);
    }
}

#[test]
fn a_device_keeps_its_promises_whatever_a_guest_writes_into_its_rings() {
    run("vhost_chains", fuzz::chains);
}

#[test]
fn a_device_survives_whatever_a_vmm_sends() {
    run("vhost_messages", fuzz::messages);
}
