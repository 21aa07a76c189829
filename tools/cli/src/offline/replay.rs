//! `octavo simulate` of a recording without other options: replays it, and compares the result with
//! the cache's own counts.

use std::path::Path;

use octavo_sim::recording::{Ending, Reader, Replayed, replay};
use octavo_sim::report;
use octavo_sim::simulate::{Progress, Step};
use serde::Serialize;

use super::inputs::{Named, Run, Traces};
use crate::error::Error;

/// The result of a replay.
#[derive(Serialize)]
struct Row {
    /// `replay`.
    kind: &'static str,
    trace: String,
    partition: String,
    policy: &'static str,
    ways: u32,
    /// The partition's size when the recording began.
    capacity_pages: u64,
    /// The share of the pages that was recorded.
    sample: f64,
    /// Accesses in the recording, and the simulation's hits and misses.
    requests: u64,
    hits: u64,
    misses: u64,
    /// The simulation's estimate for all accesses.
    miss_ratio: f64,
    /// The same estimate from the sample's size alone, without correcting for the sample's luck.
    miss_ratio_by_size: f64,
    /// The cache's own counts.
    counted_hits: u64,
    counted_misses: u64,
    counted_miss_ratio: f64,
    /// The number of the first part that was read; earlier parts are missing.
    part: u32,
    /// Whether the recording is complete: with one thread, the replay then repeats every access
    /// exactly. Else `inexact_because` says why not.
    exact: bool,
    inexact_because: Option<String>,
    /// Whether every access had the same result as in the cache.
    agrees: bool,
    /// Accesses with another result, and steps that could not be repeated.
    differences: u64,
    misfits: u64,
    first_difference: Option<String>,
    ending: &'static str,
    complete: bool,
}

/// Replays all traces, and writes results as they end.
pub fn run(traces: &Traces, named: &[Named], json: Option<&Path>, quiet: bool) -> Result<(), Error> {
    let mut run = Run::start(json, quiet, named.len())?;
    for Named { files, trace } in named {
        let (reader, replayed) = run.next(|stop, progress| {
            let mut reader = Reader::open(files, traces.skip_bad())?;
            let replayed = replay(&mut reader, stop, &mut |requests, share| {
                progress(Progress { trace: &trace.name, step: Step::Run, requests, share });
            })?;
            Ok((reader, replayed))
        })?;
        let header = &reader.about().header;
        let row = Row {
            kind: "replay",
            trace: trace.name.clone(),
            partition: header.partition.clone(),
            policy: header.policy.name(),
            ways: header.ways,
            capacity_pages: header.slots(),
            sample: replayed.sample,
            requests: replayed.accesses,
            hits: replayed.hits,
            misses: replayed.misses(),
            miss_ratio: replayed.miss_ratio(),
            miss_ratio_by_size: replayed.miss_ratio_by_size(),
            counted_hits: replayed.counted.hits,
            counted_misses: replayed.counted.misses,
            counted_miss_ratio: replayed.miss_ratio_counted(),
            part: reader.first_part(),
            exact: replayed.is_exact,
            inexact_because: replayed.inexact_because.clone(),
            agrees: replayed.agrees(),
            differences: replayed.differences,
            misfits: replayed.misfits,
            first_difference: replayed.difference.as_ref().map(ToString::to_string),
            ending: replayed.ending.map_or("interrupted", Ending::words),
            complete: replayed.ending == Some(Ending::Stopped),
        };
        run.json.lines_or(std::slice::from_ref(&row), || row.text(&replayed))?;
        run.unless_interrupted()?;
    }
    Ok(())
}

impl Row {
    fn text(&self, replayed: &Replayed) -> String {
        let Row { trace, partition, policy, ways, capacity_pages, .. } = self;
        let mut text = format!(
            "{trace}: partition \"{partition}\", {policy}, {ways} ways, {capacity_pages} pages{}\n",
            if self.sample < 1.0 {
                format!(", {:.3} % of the pages", 100.0 * self.sample)
            } else {
                String::new()
            }
        );
        let counted = replayed.counted;
        let line = |name: &str, accesses: u64, hits: u64, ratio: f64| {
            let misses = accesses - hits.min(accesses);
            vec![
                name.to_owned(),
                accesses.to_string(),
                hits.to_string(),
                misses.to_string(),
                format!("{ratio:.4}"),
            ]
        };
        let mut lines = vec![["", "accesses", "hits", "misses", "miss ratio"].map(String::from).to_vec()];
        let all = counted.hits.saturating_add(counted.misses);
        lines.push(line("cache", all, counted.hits, self.counted_miss_ratio));
        let name = if self.sample < 1.0 { "simulated, of the sample" } else { "simulated" };
        lines.push(line(name, self.requests, self.hits, self.miss_ratio));
        text += &report::aligned(&lines, 1);
        if self.ending != Ending::Stopped.words() {
            text += &format!("The recording ends early: {}.\n", self.ending);
        }
        text += &match (&self.first_difference, self.sample < 1.0) {
            (_, true) => format!("Off by {:.4}.\n", (self.miss_ratio - self.counted_miss_ratio).abs()),
            (None, _) if self.agrees => "Every access had the same result as in the cache.\n".to_owned(),
            (None, _) => {
                "Every recorded access had the same result as in the cache. The cache also counted accesses that the recording lacks.\n"
                    .to_owned()
            }
            // Pages may have other ways in their sets, and be evicted at other times, without
            // effect on a result.
            (Some(_), _) if self.differences == 0 => {
                "Every access had the same result as in the cache.\n".to_owned()
            }
            (Some(first), _) => {
                let why = match self.exact {
                    true => {
                        "Several threads that use the partition at once can cause this: the recording may have concurrent accesses in \
                         another order.\n"
                    }
                    false => "",
                };
                format!(
                    "{} of {} accesses had another result than in the cache. The first difference: {first}.\n{why}",
                    self.differences, self.requests
                )
            }
        };
        if let (Some(why), true) = (&self.inexact_because, self.sample == 1.0 || self.part > 1) {
            text += &format!("The replay need not repeat every access exactly: {why}.\n");
        }
        text
    }
}
