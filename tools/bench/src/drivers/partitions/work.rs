//! What tenants do: endless streams of accesses to pages, the same in every run.

use crate::Error;
use crate::case::Pattern;
use crate::content;
use crate::stream;

/// An access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(u64),
    Write(u64),
}

/// An endless stream of them.
pub type Work = Box<dyn Iterator<Item = Access> + Send>;

/// Reads by a pattern over so many pages.
pub fn pattern(pattern: &Pattern, pages: u64, seed: u64) -> Result<Work, Error> {
    Ok(Box::new(stream::pages(pattern, pages, seed)?.map(Access::Read)))
}

/// Reads pages in their order, and again.
pub fn sequential(pages: u64) -> Work {
    Box::new((0..).map(move |number| Access::Read(number % pages)))
}

/// Compilations, a source after the other: headers, the popular ones more often; the source; the
/// object is written. Now and then a program is linked of objects that lie together. Files are of
/// one to eight pages, and lie anywhere, as files of a disk do that has been in use.
pub fn build(pages: u64, seed: u64) -> Work {
    // A quarter of the pages each for headers and objects, the rest for sources.
    let files = pages / 8;
    let (headers, objects) = (files / 4, files / 4);
    let sources = files - headers - objects;
    // An odd multiplier is a bijection of numbers below a power of two; others are skipped.
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
    let length = |file: u64| 1 + content::mix(file) % 8;
    let file = move |file: u64| (place(file)..place(file) + length(file)).map(Access::Read);
    let mut random = content::random(seed);
    let mut step = 0u64;
    let compilations = std::iter::from_fn(move || {
        let mut accesses: Vec<Access> = Vec::new();
        let mut draw = || random.next().expect("it has no end");
        // The smaller of three draws: few headers are included everywhere.
        for _ in 0..24 {
            let header = (0..3).map(|_| draw() % headers.max(1)).min().unwrap_or(0);
            accesses.extend(file(header));
        }
        // Sources are compiled in an order of their own, each once a build.
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
