//! The work of tenants: endless streams of accesses to pages, the same in every run.

use octavo_random::{Random, mix};

use crate::case::Pattern;
use crate::error::Error;
use crate::stream;

/// An access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(u64),
    Write(u64),
}

/// An endless stream of accesses.
pub type Work = Box<dyn Iterator<Item = Access> + Send>;

/// Reads pages below `pages` by a pattern.
pub fn pattern(pattern: &Pattern, pages: u64, seed: u64) -> Result<Work, Error> {
    Ok(Box::new(stream::pages(pattern, pages, seed)?.map(Access::Read)))
}

/// Reads all pages in order, again and again.
pub fn sequential(pages: u64) -> Work {
    Box::new((0..).map(move |number| Access::Read(number % pages)))
}

/// A build: compiles one source after the other, and after every 32 compilations links a program of
/// 32 objects. A compilation reads headers, popular ones more often, and the source, and writes the
/// object. Files have one to eight pages, and are scattered over the store, as on a disk that has
/// been in use.
pub fn build(pages: u64, seed: u64) -> Work {
    // A quarter of the files are headers, a quarter are objects, and the rest are sources.
    let files = pages / 8;
    let (headers, objects) = (files / 4, files / 4);
    let sources = files - headers - objects;
    // Multiplication by an odd number is a bijection of the numbers below a power of two. Numbers
    // without a file are skipped.
    let round = files.next_power_of_two();
    let place = move |file: u64| {
        let mut at = file;
        loop {
            at = at.wrapping_mul(0x9E37_79B9) % round;
            if at < files {
                return at * 8;
            }
        }
    };
    let length = |file: u64| 1 + mix(file) % 8;
    let file = move |file: u64| (place(file)..place(file) + length(file)).map(Access::Read);
    let mut random = Random::new(seed);
    let mut step = 0u64;
    let compilations = std::iter::from_fn(move || {
        let mut accesses: Vec<Access> = Vec::new();
        let mut draw = || random.next_u64();
        // The smallest of three draws: few headers are included everywhere.
        for _ in 0..24 {
            let header = (0..3).map(|_| draw() % headers.max(1)).min().unwrap_or(0);
            accesses.extend(file(header));
        }
        // Each source once, in the order of their numbers.
        accesses.extend(file(headers + step % sources.max(1)));
        let object = headers + sources + step % objects.max(1);
        accesses.extend((place(object)..place(object) + length(object)).map(Access::Write));
        step += 1;
        if step.is_multiple_of(32) {
            let linked = (0..32).map(|back| headers + sources + (step - 1 - back) % objects.max(1));
            accesses.extend(linked.flat_map(file));
        }
        Some(accesses)
    });
    Box::new(compilations.flatten())
}
