//! Rows: what a case measured and all that is needed to judge it; and the table for people.

use serde::Serialize;

use crate::clock::Clock;
use crate::content::PAGE_BYTES;
use crate::machine;
use crate::slices::{median, ratios};

/// A case's figures. Serialised, it is one flat object.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `hits` or `misses`.
    pub suite: &'static str,
    /// The case.
    pub case: &'static str,
    /// Operations per second of the engine: the median of its slices.
    pub ops_per_s: f64,
    /// Operations per second of the reference: the median of its slices.
    pub reference_ops_per_s: f64,
    /// The engine through the reference: the median over the rounds.
    pub ratio: f64,
    /// The least ratio of a round.
    pub ratio_min: f64,
    /// The greatest ratio of a round.
    pub ratio_max: f64,
    /// Rounds.
    pub n: usize,
    /// What time is measured with.
    pub clock: &'static str,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// The partition's policy.
    pub policy: &'static str,
    /// What the program was built from.
    pub commit: &'static str,
    /// The processor.
    pub cpu: String,
    /// How many of them this process may use.
    pub cpus: usize,
    /// The kernel.
    pub kernel: String,
    /// What the suite adds.
    #[serde(flatten)]
    pub detail: Detail,
}

/// What is special to a suite.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Detail {
    /// Of `hits`.
    Hits {
        /// Bytes of a read.
        read_bytes: usize,
        /// Reads of a call.
        batch: usize,
        /// Bytes of the pages that are read, all of them cached; as many in the reference's array.
        memory_bytes: u64,
        /// Bytes of huge pages that the cache's frames really have.
        huge_pages_bytes: u64,
        /// Bytes of huge pages that the reference's array really has.
        reference_huge_pages_bytes: u64,
        /// The walk that is the reference: the faster one.
        reference_walk: &'static str,
        /// Operations per second of the plain walk.
        reference_plain_ops_per_s: f64,
        /// Operations per second of the prefetching walk.
        reference_prefetching_ops_per_s: f64,
        /// Pages that were there, over the run.
        hits: u64,
        /// Pages that were not: none, or the row is worth nothing.
        misses: u64,
    },
    /// Of `misses`.
    Misses {
        /// Where the file lies: `disk` or `memory`.
        store: &'static str,
        /// Reads in flight.
        queue_depth: usize,
        /// Bytes of the file.
        file_bytes: u64,
        /// Bytes of the cache's frames.
        cache_bytes: u64,
        /// How I/O reaches the kernel.
        io_engine: &'static str,
        /// What the store says of itself: the kernel's page cache is bypassed.
        is_direct: bool,
        /// What the kernel says: a descriptor of this process has the file open with O_DIRECT.
        o_direct: bool,
        /// What the reference does.
        reference: &'static str,
        /// Direct reads into private pages per second, without a copy.
        direct_ops_per_s: f64,
        /// The engine through them.
        direct_ratio: f64,
        /// Pages that were there.
        hits: u64,
        /// Pages that were not.
        misses: u64,
        /// Misses that were read into a frame.
        fills: u64,
        /// Misses that were read around the cache.
        bypasses: u64,
    },
}

impl Row {
    /// A row of the slices of the engine and of its reference.
    pub(crate) fn new(
        (suite, case): (&'static str, &'static str),
        clock: Clock,
        policy: &'static str,
        (engine, reference): (&[f64], &[f64]),
        detail: Detail,
    ) -> Row {
        let ratios = ratios(engine, reference);
        Row {
            suite,
            case,
            ops_per_s: median(engine),
            reference_ops_per_s: median(reference),
            ratio: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            n: ratios.len(),
            clock: clock.name(),
            page_bytes: PAGE_BYTES,
            policy,
            commit: machine::COMMIT,
            cpu: machine::cpu(),
            cpus: machine::cpus(),
            kernel: machine::kernel(),
            detail,
        }
    }
}

/// Rows as people read them.
pub fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!(
        "{} (commit {}, {} x {}, Linux {}, {})\n\n",
        first.suite, first.commit, first.cpus, first.cpu, first.kernel, first.policy
    );
    text += "case             ops/s   reference   ratio  (min .. max)      n\n";
    for row in rows {
        text += &format!(
            "{:12} {:>9}   {:>9}   {:5.3}  ({:.3} .. {:.3})  {:>3}   {}\n",
            row.case,
            rate(row.ops_per_s),
            rate(row.reference_ops_per_s),
            row.ratio,
            row.ratio_min,
            row.ratio_max,
            row.n,
            row.detail.words(),
        );
    }
    text
}

impl Detail {
    fn words(&self) -> String {
        match self {
            Detail::Hits { memory_bytes, huge_pages_bytes, reference_walk, misses, .. } => format!(
                "{} MiB cached, {} MiB huge pages, {reference_walk} walk, {misses} misses",
                memory_bytes >> 20,
                huge_pages_bytes >> 20
            ),
            Detail::Misses { direct_ratio, fills, misses, o_direct, io_engine, .. } => format!(
                "{direct_ratio:.3} of direct, {:.2} % of misses filled, O_DIRECT {}, {io_engine}",
                *fills as f64 * 100.0 / (*misses).max(1) as f64,
                if *o_direct { "in force" } else { "NOT in force" },
            ),
        }
    }
}

/// Operations per second for people: `12.34 M`.
fn rate(ops_per_s: f64) -> String {
    match ops_per_s {
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e3 => format!("{:.1} k", r / 1e3),
        r => format!("{r:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rows_ratio_is_the_median_of_the_rounds_and_not_a_ratio_of_medians() {
        let detail = Detail::Hits {
            read_bytes: 128,
            batch: 1,
            memory_bytes: 1 << 30,
            huge_pages_bytes: 1 << 30,
            reference_huge_pages_bytes: 1 << 30,
            reference_walk: "plain",
            reference_plain_ops_per_s: 1.0,
            reference_prefetching_ops_per_s: 1.0,
            hits: 1,
            misses: 0,
        };
        let row = Row::new(
            ("hits", "single_128"),
            Clock::Thread,
            "lru",
            (&[1.0, 4.0, 2.0], &[4.0, 4.0, 4.0]),
            detail,
        );
        assert_eq!((row.ratio, row.ratio_min, row.ratio_max, row.n), (0.5, 0.25, 1.0, 3));
        let text = table(&[row]);
        assert!(text.contains("single_128") && text.contains("0.500  (0.250 .. 1.000)"), "{text}");
        assert_eq!(table(&[]), "");
    }
}
