//! The report of a day: figures, and a text with tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use octavo_draw::Table;
use serde::Serialize;

use super::operator::Done;
use super::samples::{Minute, Samples};
use super::schedule::{Event, Phase};
use super::state::{Settings, State};
use crate::statistics::Histogram;

/// The memory of the day's servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// `memory_max` of the configuration.
    pub max_bytes: u64,
    /// The most that two servers and the pages between them had in an upgrade.
    pub upgrade_bytes: u64,
}

/// The times of the requests in one phase, or during one kind of event.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    pub name: &'static str,
    pub requests: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// `p99_us` in relation to that of all requests without an event.
    pub p99_ratio: f64,
    pub max_us: f64,
}

/// What a day has shown.
#[derive(Debug, Serialize)]
pub struct Report {
    pub(super) seed: u64,
    pub(super) planned_s: f64,
    pub(super) elapsed_s: f64,
    pub(super) is_interrupted: bool,
    pub(super) blocks_checked: u64,
    pub(super) blocks_written: u64,
    pub(super) flushes: u64,
    /// Requests that a failing store refused, as it should.
    pub(super) refused: u64,
    /// How often a block was not what it must be.
    pub lost_count: u64,
    /// The first of them.
    pub(super) lost: Vec<String>,
    /// The number of steps and requests that failed.
    pub troubles_count: u64,
    /// The first of them.
    pub(super) troubles: Vec<String>,
    pub(super) memory: Memory,
    /// The most memory that the sampled processes had together.
    pub(super) resident_max_bytes: u64,
    /// The same without the pages of the program's file.
    pub(super) anonymous_max_bytes: u64,
    pub(super) descriptors_max: u64,
    pub(super) dirty_max_bytes: u64,
    /// The longest request during and after an upgrade: the pause that clients noticed.
    pub(super) upgrade_pause_us: f64,
    pub(super) phases: Vec<Load>,
    pub(super) events: Vec<Load>,
    pub(super) done: Vec<Done>,
    pub(super) server_events: BTreeMap<String, u64>,
    pub(super) server_warnings_count: u64,
    pub(super) server_warnings: Vec<String>,
    pub(super) samples: u64,
    pub(super) samples_missed: u64,
    pub(super) minutes: Vec<Minute>,
}

impl Report {
    pub(super) fn new(
        settings: &Settings,
        elapsed: Duration,
        memory: Memory,
        done: Vec<Done>,
        samples: Samples,
        state: &State,
    ) -> Report {
        let (times, lost, troubles) = (state.times(), state.lost(), state.troubles());
        let mut quiet = Histogram::new();
        times.phases.iter().for_each(|phase| quiet.merge(phase));
        let quiet_ns = quiet.percentile_ns(0.99).max(1.0);
        let load = |(name, times): (&'static str, &Histogram)| Load {
            name,
            requests: times.count(),
            p50_us: times.percentile_ns(0.5) / 1e3,
            p99_us: times.percentile_ns(0.99) / 1e3,
            p99_ratio: times.percentile_ns(0.99) / quiet_ns,
            max_us: times.percentile_ns(1.0) / 1e3,
        };
        let phases = Phase::ALL.map(Phase::name).into_iter().zip(&times.phases).map(load).collect();
        let events: Vec<Load> =
            Event::ALL.map(Event::name).into_iter().zip(&times.events).map(load).collect();
        let upgrade = events.iter().find(|load| load.name == Event::Upgrade.name());
        let most = |of: fn(&Minute) -> u64| samples.minutes.iter().map(of).max().unwrap_or(0);
        Report {
            seed: settings.seed,
            planned_s: settings.length.as_secs_f64(),
            elapsed_s: elapsed.as_secs_f64(),
            is_interrupted: state.is_interrupted(),
            blocks_checked: times.blocks_checked,
            blocks_written: times.blocks_written,
            flushes: times.flushes,
            refused: times.refused,
            lost_count: lost.count,
            lost: lost.kept.clone(),
            troubles_count: troubles.count,
            troubles: troubles.kept.clone(),
            memory,
            resident_max_bytes: most(|minute| minute.resident_max_bytes),
            anonymous_max_bytes: most(|minute| minute.anonymous_max_bytes),
            descriptors_max: most(|minute| minute.descriptors_max),
            dirty_max_bytes: most(|minute| minute.dirty_max_bytes),
            upgrade_pause_us: upgrade.map_or(0.0, |load| load.max_us),
            phases,
            events,
            done,
            server_events: samples.events,
            server_warnings_count: samples.warnings.count,
            server_warnings: samples.warnings.kept,
            samples: samples.count,
            samples_missed: samples.missed,
            minutes: samples.minutes,
        }
    }

    /// Whether nothing was lost and no step failed.
    pub fn is_good(&self) -> bool {
        self.lost_count == 0 && self.troubles_count == 0
    }

    /// The sentences about the day as a whole.
    pub(super) fn facts(&self) -> Vec<String> {
        let bytes = octavo_draw::bytes;
        let mut facts = vec![
            format!("seed {}, {:.0} of {:.0} s", self.seed, self.elapsed_s, self.planned_s),
            format!(
                "{} blocks checked, {} written, {} flushes; a failing store refused {} requests",
                self.blocks_checked, self.blocks_written, self.flushes, self.refused
            ),
            format!(
                "wrong blocks were found {} times, {} steps failed",
                self.lost_count, self.troubles_count
            ),
            format!(
                "memory_max {}; resident at most {} ({} without the program's own file)",
                bytes(self.memory.max_bytes),
                bytes(self.resident_max_bytes),
                bytes(self.anonymous_max_bytes)
            ),
            format!(
                "at most {} descriptors, {} dirty; {} samples, {} without an answer",
                self.descriptors_max,
                bytes(self.dirty_max_bytes),
                self.samples,
                self.samples_missed
            ),
        ];
        let kinds: Vec<String> =
            self.server_events.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        facts.push(format!("the server's events: {}", kinds.join(", ")));
        if self.memory.upgrade_bytes > 0 {
            facts.push(format!(
                "in an upgrade: two servers with at most {}; the longest request then and soon after {:.1} ms",
                bytes(self.memory.upgrade_bytes),
                self.upgrade_pause_us / 1e3
            ));
        }
        if self.is_interrupted {
            facts.push("the day was interrupted".into());
        }
        facts
    }

    /// The times by phase and by event.
    pub(super) fn times(&self) -> Table {
        let mut table = Table::new(1, ["load", "requests", "p50 us", "p99 us", "p99 ratio", "max us"]);
        let named = |kind: &'static str| move |load: &'_ Load| (kind, load.clone());
        let phases = self.phases.iter().map(named("phase"));
        for (kind, load) in phases.chain(self.events.iter().map(named("event"))) {
            table.row([
                format!("{kind} {}", load.name),
                load.requests.to_string(),
                format!("{:.0}", load.p50_us),
                format!("{:.0}", load.p99_us),
                format!("{:.2}", load.p99_ratio),
                format!("{:.0}", load.max_us),
            ]);
        }
        table
    }

    /// What the operator did.
    pub(super) fn deeds(&self) -> Table {
        let mut table = Table::new(2, ["event", "result", "at s", "took s"]);
        for done in &self.done {
            table.row([
                done.event.into(),
                done.what.clone(),
                format!("{:.1}", done.at_s),
                format!("{:.1}", done.took_s),
            ]);
        }
        table
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = self.facts().join("\n") + "\n\n" + &self.times().text() + "\n" + &self.deeds().text();
        for (title, sentences, count) in [
            ("wrong blocks", &self.lost, self.lost_count),
            ("failed steps", &self.troubles, self.troubles_count),
            ("the server's warnings", &self.server_warnings, self.server_warnings_count),
        ] {
            if count > 0 {
                let _ = writeln!(text, "\n{title} ({count}):");
                sentences.iter().for_each(|sentence| text += &format!("  {sentence}\n"));
            }
        }
        text
    }
}
