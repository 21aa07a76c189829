//! Whether the caches of a run can be made: how large a policy's cache can be, and the memory that
//! all of them take.
//!
//! All caches of a run are in memory at once, and those inside sets take their memory when they are
//! made. So both are checked before the first is made. What is not here: the memory that a
//! reference policy takes as pages come.

use crate::plan::Policy;
use crate::report::{human_bytes, label};
use crate::source::SourceError;

/// A cache that a run is about to make.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its policy.
    pub policy: Policy,
    /// Pages of a set; None for a policy without sets.
    pub ways: Option<u32>,
    /// Its capacity.
    pub pages: u64,
}

impl Wanted {
    fn bytes(&self) -> u64 {
        self.pages.saturating_mul(self.policy.bytes_per_page())
    }

    fn label(&self) -> String {
        label((self.policy.name(), self.ways))
    }
}

/// Refuses caches of which one is too large for its policy, or which take more than `memory_bytes`
/// together.
///
/// # Errors
/// Names the cache, the largest that can be made, and the memory that it takes.
pub fn check(wanted: &[Wanted], page_bytes: u64, memory_bytes: Option<u64>) -> Result<(), SourceError> {
    let size = |pages: u64| format!("{pages} pages ({})", human_bytes(pages.saturating_mul(page_bytes)));
    for one in wanted {
        let most = one.policy.capacity_pages_max(one.ways);
        if one.pages > most {
            let takes = match most * one.policy.bytes_per_page() {
                0 => String::new(),
                bytes => format!(", and takes {} of memory", human_bytes(bytes)),
            };
            let more = match one.ways {
                Some(ways @ (8 | 16)) if !one.policy.is_reference() => {
                    format!("; sets of {} ways hold twice as many", 2 * ways)
                }
                _ => String::new(),
            };
            return Err(SourceError(format!(
                "a cache of {} is too large for {}: the largest has {}{takes}{more}",
                size(one.pages),
                one.label(),
                size(most)
            )));
        }
    }
    let Some(available) = memory_bytes else { return Ok(()) };
    let together = wanted.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes()));
    let Some(largest) = wanted.iter().max_by_key(|one| one.bytes()).filter(|_| together > available) else {
        return Ok(());
    };
    let fits =
        (available / largest.policy.bytes_per_page()).min(largest.policy.capacity_pages_max(largest.ways));
    Err(SourceError(format!(
        "the caches of this run take {} of memory at once, and {} are available: the largest, {} with {}, takes {}; \
        alone, it could have {}. Ask for fewer or smaller caches at a time",
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

    /// A capacity of 512 GiB was accepted, and ended in a panic of the table's layout.
    #[test]
    fn the_largest_table_of_every_number_of_ways_passes_and_one_page_more_is_refused() {
        for ways in WAYS {
            let most = Policy::named("lru").unwrap()[0].capacity_pages_max(Some(ways));
            // What the engine's own layout allows, to the set.
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
    fn caches_that_take_more_memory_together_than_there_is_are_refused_and_those_that_fit_are_not() {
        let caches = [wanted("lru", Some(16), 1 << 20), wanted("fifo", Some(8), 1 << 21)];
        assert_eq!(check(&caches, 4096, Some(96 << 20)), Ok(()));
        let said = check(&caches, 4096, Some((96 << 20) - 1)).unwrap_err().0;
        for part in ["take 96 MiB", "fifo/8 with 2097152 pages (8 GiB), takes 64 MiB", "3145727 pages"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // A reference policy takes memory for the pages that come.
        assert_eq!(check(&[wanted("global-lru", None, 1 << 31)], 4096, Some(0)), Ok(()));
    }
}
