//! What to simulate: policies, capacities and ways, as people write them.
//!
//! What is not here: the lists of policies, which are `octavo_table`'s and [`crate::reference`]'s.

use std::fmt;
use std::str::FromStr;

use octavo_table::PolicyKind;

use crate::cache::{Cache, engine_cache, engine_capacity, engine_capacity_max};
use crate::reference::{Reference, opt};
use crate::size;

/// A policy under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// One of the engine's own, inside sets.
    Engine(PolicyKind),
    /// A policy of other authors, for comparison.
    Reference(Reference),
}

impl Policy {
    /// Returns all policies, the engine's first.
    pub fn all() -> Vec<Policy> {
        let engine = PolicyKind::ALL.into_iter().map(Policy::Engine);
        engine.chain(Reference::ALL.into_iter().map(Policy::Reference)).collect()
    }

    /// Returns the policies that a word names: a policy, or the group `engine`, `reference` or
    /// `all`.
    ///
    /// # Errors
    /// The word names no policy; the message lists all names.
    pub fn named(word: &str) -> Result<Vec<Policy>, String> {
        let all = Self::all();
        let chosen: Vec<Policy> = match word {
            "all" => all,
            "engine" => all.into_iter().filter(|policy| !policy.is_reference()).collect(),
            "reference" => all.into_iter().filter(|policy| policy.is_reference()).collect(),
            name => all.into_iter().filter(|policy| policy.name() == name).collect(),
        };
        if chosen.is_empty() {
            let names: Vec<&str> = Self::all().iter().map(|policy| policy.name()).collect();
            return Err(format!(
                "unknown policy \"{word}\"; known: {}; and the groups engine, reference, all",
                names.join(", ")
            ));
        }
        Ok(chosen)
    }

    /// Returns the policy's name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Engine(kind) => kind.name(),
            Policy::Reference(reference) => reference.name(),
        }
    }

    /// Creates a cache that follows the policy; `ways` are the pages of a set, for a policy inside
    /// sets. Returns None for a policy that needs the future.
    ///
    /// # Panics
    /// If one of the engine's policies gets no ways, or a number that is not compiled in.
    pub fn cache(self, ways: Option<u32>, capacity_pages: u64, seed: u64) -> Option<Box<dyn Cache>> {
        match self {
            Policy::Engine(kind) => {
                let ways = ways.expect("a policy inside sets has ways");
                Some(engine_cache(kind, ways, capacity_pages, seed))
            }
            Policy::Reference(reference) => reference.cache(capacity_pages, seed),
        }
    }

    /// Returns whether the policy must know the whole trace before it begins.
    pub fn needs_future(self) -> bool {
        matches!(self, Policy::Reference(reference) if reference.needs_future())
    }

    /// Returns the real capacity, in pages, of a cache when `asked_pages` are requested: whole
    /// sets, and at least one.
    pub fn capacity_pages(self, ways: Option<u32>, asked_pages: u64) -> u64 {
        match (self, ways) {
            (Policy::Engine(_), Some(ways)) => engine_capacity(ways, asked_pages),
            _ => opt::rounded(asked_pages, ways),
        }
    }

    /// Returns the largest capacity, in pages, that a cache of the policy can have.
    pub fn capacity_pages_max(self, ways: Option<u32>) -> u64 {
        match (self, ways) {
            (Policy::Engine(_), Some(ways)) => engine_capacity_max(ways),
            _ => PAGES_MAX,
        }
    }

    /// Returns the bytes of memory that each page of capacity takes when a cache is made. 0: a page
    /// takes memory only when it is accessed.
    pub fn bytes_per_page(self) -> u64 {
        match self {
            Policy::Engine(_) => octavo_table::METADATA_BYTES_PER_PAGE_MAX as u64,
            Policy::Reference(Reference::SetOpt) => size_of::<u64>() as u64,
            Policy::Reference(_) => 0,
        }
    }

    /// Returns the ways to run the policy with: all of `ways`, or only None for a policy without
    /// sets.
    pub fn ways_among(self, ways: &[u32]) -> Vec<Option<u32>> {
        if self.has_ways() { ways.iter().copied().map(Some).collect() } else { vec![None] }
    }

    /// Returns each of `policies` with each number of ways that it is run with.
    pub fn with_ways(policies: &[Policy], ways: &[u32]) -> impl Iterator<Item = (Policy, Option<u32>)> {
        policies.iter().flat_map(|policy| policy.ways_among(ways).into_iter().map(|ways| (*policy, ways)))
    }

    /// Returns whether the policy is there for comparison only.
    pub fn is_reference(self) -> bool {
        !matches!(self, Policy::Engine(_))
    }

    /// Returns whether the policy works inside sets, so that the number of ways matters.
    pub fn has_ways(self) -> bool {
        matches!(self, Policy::Engine(_) | Policy::Reference(Reference::SetOpt))
    }
}

/// The size of a cache, as a person wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    text: String,
    amount: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    /// The share `parts / of` of the trace's pages: an exact decimal.
    Share {
        parts: u64,
        of: u64,
    },
    Pages(u64),
    Bytes(u64),
}

/// The forms of a capacity, for messages.
const SHAPE: &str = "a share of the trace's pages such as 0.1%, pages such as 65536p, or bytes such as 1GiB";

impl Capacity {
    /// Returns the capacity in pages, for a trace with `footprint_pages` different pages. A share
    /// is rounded to the nearest page, bytes are rounded down, and the result is at least one page.
    pub fn pages(&self, footprint_pages: u64, page_bytes: u64) -> u64 {
        let pages = match self.amount {
            Amount::Share { parts, of } => {
                let (parts, of) = (u128::from(parts), u128::from(of));
                ((u128::from(footprint_pages) * parts + of / 2) / of) as u64
            }
            Amount::Pages(pages) => pages,
            Amount::Bytes(bytes) => bytes / page_bytes,
        };
        pages.max(1)
    }

    /// Returns whether both are the same size, even if they are written differently.
    pub fn is_same_as(&self, other: &Capacity) -> bool {
        match (self.amount, other.amount) {
            (Amount::Share { parts, of }, Amount::Share { parts: others, of: of_others }) => {
                u128::from(parts) * u128::from(of_others) == u128::from(others) * u128::from(of)
            }
            (one, other) => one == other,
        }
    }

    /// Returns whether the capacity is a share of the trace's pages, which must be counted first.
    pub fn is_share(&self) -> bool {
        matches!(self.amount, Amount::Share { .. })
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = |why: &str| format!("\"{text}\": {why}; a capacity is {SHAPE}");
        let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_ends);
        let unit = unit.trim().to_ascii_lowercase();
        let amount = if unit == "%" {
            let (parts, of) = decimal(number).ok_or_else(|| wrong("there is no number before the %"))?;
            if parts > 100 * of {
                return Err(wrong("this is more than all pages of the trace"));
            }
            Amount::Share { parts, of: 100 * of }
        } else {
            let count: u64 = number.parse().map_err(|_| wrong("it does not begin with a whole number"))?;
            match &*unit {
                "p" => Amount::Pages(count),
                "" => return Err(wrong("the unit is missing")),
                _ => {
                    let scale = size::scale(&unit).ok_or_else(|| wrong("the unit is not known"))?;
                    let bytes = count.checked_mul(scale);
                    Amount::Bytes(bytes.ok_or_else(|| wrong("this is more than 2^64 bytes"))?)
                }
            }
        };
        let (Amount::Share { parts: count, .. } | Amount::Pages(count) | Amount::Bytes(count)) = amount;
        if count == 0 {
            return Err(wrong("a cache has at least one page"));
        }
        Ok(Capacity { text: text.to_owned(), amount })
    }
}

/// The most pages of a reference policy: nodes have numbers of 32 bits, and some policies remember
/// as many ghosts as pages.
const PAGES_MAX: u64 = 1 << 31;

/// Parses an exact decimal and returns its digits and the power of ten that divides them.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 9 || whole.len() > 9 {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    let of = 10u64.pow(fraction.len() as u32);
    Some((digits(whole)? * of + digits(fraction)?, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(text: &str) -> Result<u64, String> {
        text.parse::<Capacity>().map(|capacity| capacity.pages(186_880, 4096))
    }

    #[test]
    fn a_capacity_is_exact_to_the_page() {
        assert_eq!(pages("0.1%"), Ok(187));
        assert_eq!(pages("10%"), Ok(18_688));
        assert_eq!(pages("12.345 %"), Ok(23_070));
        assert_eq!(pages("100%"), Ok(186_880));
        assert_eq!(pages("0.000001%"), Ok(1));
        assert_eq!(pages("65536p"), Ok(65_536));
        assert_eq!(pages("1GiB"), Ok(262_144));
        assert_eq!(pages("8mib"), Ok(2048));
    }

    #[test]
    fn one_size_in_two_spellings_is_the_same() {
        let same = |a: &str, b: &str| a.parse::<Capacity>().unwrap().is_same_as(&b.parse().unwrap());
        assert!(same("1%", "1.00%") && same("1GiB", "1024MiB") && same("7p", "07p"));
        assert!(!same("1%", "10%") && !same("1MiB", "256p"));
    }

    #[test]
    fn a_malformed_capacity_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "a whole number"),
            ("%", "no number"),
            ("101%", "more than all"),
            ("0%", "at least one"),
            ("0p", "at least one"),
            ("100", "unit is missing"),
            ("1.5GiB", "a whole number"),
            ("7XB", "not known"),
            ("-1p", "a whole number"),
            ("1.2.3%", "no number"),
            ("99999999999999999999p", "a whole number"),
            ("99999999TiB", "2^64"),
        ] {
            let error = pages(text).expect_err(text);
            assert!(error.contains(why) && error.contains("65536p"), "{text}: {error}");
        }
    }

    #[test]
    fn every_name_finds_its_policy_and_a_group_all_of_its_kind() {
        for policy in Policy::all() {
            assert_eq!(Policy::named(policy.name()), Ok(vec![policy]));
        }
        assert_eq!(Policy::named("all").unwrap().len(), Policy::all().len());
        assert_eq!(Policy::named("engine").unwrap().len(), PolicyKind::ALL.len());
        assert!(Policy::named("lrru").unwrap_err().contains("lru"));
    }
}
