//! Checks that the caches of a run can be made: that none is too large for its policy, and that all
//! of them fit into memory.
//!
//! All caches of a run are in memory at once, and caches with sets take their memory when they are
//! created. Both checks are therefore done before the first cache is created. What is not here: the
//! memory that policies without sets take as pages are accessed.

use crate::plan::Policy;
use crate::report::human_bytes;
use crate::source::SourceError;

/// A cache that a run is about to make.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The policy.
    pub policy: Policy,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// The capacity in pages.
    pub pages: u64,
}

impl Wanted {
    fn bytes(&self) -> u64 {
        self.pages.saturating_mul(self.policy.bytes_per_page())
    }

    fn pages_max(&self) -> u64 {
        self.policy.capacity_pages_max(self.ways)
    }

    fn label(&self) -> String {
        let name = self.policy.name();
        self.ways.map_or_else(|| name.to_owned(), |ways| format!("{name}/{ways}"))
    }

    /// The error for a cache that is too large for its policy.
    fn too_large(&self, size: impl Fn(u64) -> String) -> String {
        let takes = match self.pages_max() * self.policy.bytes_per_page() {
            0 => String::new(),
            bytes => format!(", and takes {} of memory", human_bytes(bytes)),
        };
        let more = match self.ways {
            Some(ways @ (8 | 16)) if !self.policy.is_reference() => {
                format!("; sets of {} ways hold twice as many", 2 * ways)
            }
            _ => String::new(),
        };
        let (asked, most) = (size(self.pages), size(self.pages_max()));
        format!("a cache of {asked} is too large for {}: the largest has {most}{takes}{more}", self.label())
    }
}

/// Refuses the caches if one of them is too large for its policy, or if together they take more
/// than `memory_bytes`.
///
/// # Errors
/// Names the cache, the largest that can be made, and the memory that it takes.
pub fn check(wanted: &[Wanted], page_bytes: u64, memory_bytes: Option<u64>) -> Result<(), SourceError> {
    let size = |pages: u64| format!("{pages} pages ({})", human_bytes(pages.saturating_mul(page_bytes)));
    if let Some(one) = wanted.iter().find(|one| one.pages > one.pages_max()) {
        return Err(SourceError(one.too_large(size)));
    }
    let Some(available) = memory_bytes else { return Ok(()) };
    let together = wanted.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes()));
    let Some(largest) = wanted.iter().max_by_key(|one| one.bytes()).filter(|_| together > available) else {
        return Ok(());
    };
    let fits = (available / largest.policy.bytes_per_page()).min(largest.pages_max());
    Err(SourceError(format!(
        "the caches of this run take {} of memory at once, and {} are available: the largest, {} \
        with {}, takes {}; alone, it could have {}. Ask for fewer or smaller caches at a time",
        human_bytes(together),
        human_bytes(available),
        largest.label(),
        size(largest.pages),
        human_bytes(largest.bytes()),
        size(fits)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::WAYS;

    fn wanted(policy: &str, ways: Option<u32>, pages: u64) -> Wanted {
        Wanted { policy: Policy::named(policy).unwrap()[0], ways, pages }
    }

    /// Regression: a capacity of 512 GiB was accepted and ended in a panic of the table's layout.
    #[test]
    fn for_any_ways_the_largest_table_passes_and_one_page_more_is_refused() {
        for ways in WAYS {
            let most = Policy::named("lru").unwrap()[0].capacity_pages_max(Some(ways));
            // The largest table is exactly what the engine's own layout allows.
            let shape = |sets| octavo_table::Shape {
                segments_max: octavo_table::SEGMENTS_MAX,
                sets_per_segment: sets,
            };
            assert_eq!(most, u64::from(octavo_table::SEGMENTS_MAX) * 64 * u64::from(ways));
            assert!(shape(64).check(ways).is_ok() && shape(128).check(ways).is_err());
            assert_eq!(Policy::named("lru").unwrap()[0].capacity_pages(Some(ways), most), most);
            for page_bytes in [512, 4096, 1 << 24] {
                for pages in [most - 1, most] {
                    assert_eq!(check(&[wanted("lru", Some(ways), pages)], page_bytes, None), Ok(()));
                }
                let said = check(&[wanted("lru", Some(ways), most + 1)], page_bytes, None).unwrap_err().0;
                assert!(said.contains(&format!("the largest has {most} pages")), "{said}");
                assert_eq!(said.contains("twice as many"), ways < 32, "{said}");
            }
        }
        for policy in ["global-lru", "global-lhd", "set-opt"] {
            let ways = (policy == "set-opt").then_some(16);
            assert_eq!(check(&[wanted(policy, ways, 1 << 31)], 4096, None), Ok(()));
            let said = check(&[wanted(policy, ways, (1 << 31) + 1)], 4096, None).unwrap_err().0;
            assert!(said.contains("the largest has 2147483648 pages (8 TiB)"), "{said}");
        }
    }

    #[test]
    fn caches_are_refused_when_together_they_exceed_the_available_memory() {
        let caches = [wanted("lru", Some(16), 1 << 20), wanted("fifo", Some(8), 1 << 21)];
        assert_eq!(check(&caches, 4096, Some(96 << 20)), Ok(()));
        let said = check(&caches, 4096, Some((96 << 20) - 1)).unwrap_err().0;
        for part in ["take 96 MiB", "fifo/8 with 2097152 pages (8 GiB), takes 64 MiB", "3145727 pages"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // A policy without sets takes memory only when pages are accessed.
        assert_eq!(check(&[wanted("global-lru", None, 1 << 31)], 4096, Some(0)), Ok(()));
    }
}
