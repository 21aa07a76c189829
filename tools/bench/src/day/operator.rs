//! The operator: performs the events of a day, and checks that each has its effect.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::load::Tenant;
use super::schedule::{Entry, Event};
use super::server::{Disk, Server, configure, mode};
use super::state::State;
use crate::error::Error;

/// How long an event waits for its effect.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parts of the memory that a partition gets in an event that limits it.
const LIMIT_SHARE: u64 = 6;

/// An event that was performed.
#[derive(Debug, Serialize)]
pub struct Done {
    pub event: &'static str,
    pub at_s: f64,
    pub took_s: f64,
    /// What happened: a sentence.
    pub what: String,
}

/// The operator of a server.
pub struct Operator<'d> {
    pub state: &'d State,
    pub directory: PathBuf,
    pub memory_max_bytes: u64,
    pub server: Server,
    /// The disks in the configuration.
    pub residents: Vec<Disk>,
    /// The largest file that the failing store can write.
    pub failing_bytes: u64,
    pub visitor: Tenant,
    pub done: Vec<Done>,
    /// The most memory that two servers have had in an upgrade.
    pub upgrade_resident_bytes: u64,
    /// The configuration's weight, which reloads change.
    pub weight: u64,
}

impl Operator<'_> {
    /// Performs all entries at their times, or until the user interrupts.
    pub fn work(&mut self) {
        let state = self.state;
        for entry in &state.schedule.entries {
            state.pause_until(entry.at, || false);
            if state.is_interrupted() {
                return;
            }
            let begun = state.begun.elapsed();
            state.set_event(Some(entry.event));
            let result = self.perform(entry);
            let took = state.begun.elapsed() - begun;
            let what = result.unwrap_or_else(|error| {
                state.trouble(format!("{}: {error}", entry.event.name()));
                format!("failed: {error}")
            });
            let (at_s, took_s) = (begun.as_secs_f64(), took.as_secs_f64());
            self.done.push(Done { event: entry.event.name(), at_s, took_s, what });
            // What follows an event, such as reads of a cold cache, counts as a part of it.
            state.pause_until(entry.until, || false);
            state.set_event(None);
        }
    }

    fn perform(&mut self, entry: &Entry) -> Result<String, Error> {
        match entry.event {
            Event::Visit => self.visit(entry.until),
            Event::Limits => self.limits(entry.until),
            Event::Plan => self.plan(entry.until),
            Event::Failure => self.failure(entry.until),
            Event::Reclaim => self.reclaim(),
            Event::Reload => self.reload(),
            Event::Upgrade => self.upgrade(),
            Event::Kill => self.kill(),
        }
    }

    /// A tenant comes, works, and leaves; its file then has every acknowledged write.
    fn visit(&mut self, until: Duration) -> Result<String, Error> {
        let (state, visitor, server) = (self.state, &mut self.visitor, &self.server);
        let (name, socket) = (visitor.disk.name, Server::nbd(&self.directory));
        let path = visitor.disk.path.display().to_string();
        let values = [["cache_mode", mode(visitor.disk.mode)]];
        server.ask(json!({"do": "partition-add", "partition": name, "values": values}))?;
        let values = [["path", &*path], ["partition", name]];
        server.ask(json!({"do": "export-add", "object": name, "values": values}))?;
        let leaves = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| visitor.work(&socket, state, &|| leaves.load(SeqCst)));
            state.pause_until(until, || false);
            leaves.store(true, SeqCst);
        });
        server.ask(json!({"do": "export-remove", "object": name, "disconnect": true}))?;
        visitor.compare(state)?;
        server.ask(json!({"do": "partition-remove", "partition": name}))?;
        Ok(format!("\"{name}\" came and left"))
    }

    fn charged_bytes(&self, name: &str) -> Result<u64, Error> {
        let stat = self.server.ask(json!({"do": "stat"}))?;
        let partitions = stat["partitions"].as_array().into_iter().flatten();
        let found = partitions.into_iter().find(|partition| partition["name"] == name);
        let bytes = found.and_then(|partition| partition["charged_bytes"].as_u64());
        bytes.ok_or_else(|| Error::new(format!("`stat` has no charged_bytes of {name}")))
    }

    fn set(&self, name: &str, key: &str, value: &str) -> Result<Value, Error> {
        self.server.ask(json!({"do": "set", "partition": name, "values": [[key, value]]}))
    }

    /// Limits the first partition, and removes the limit.
    fn limits(&self, until: Duration) -> Result<String, Error> {
        let (name, max_bytes) = (self.residents[0].name, self.memory_max_bytes / LIMIT_SHARE);
        self.set(name, "max", &max_bytes.to_string())?;
        let mut charged = Ok(u64::MAX);
        let patience = self.state.begun.elapsed() + PATIENCE;
        let is_small = self.state.pause_until(patience, || {
            charged = self.charged_bytes(name);
            !matches!(charged, Ok(bytes) if bytes > max_bytes)
        });
        let charged = charged?;
        self.state.pause_until(until, || false);
        self.set(name, "max", "max")?;
        if !is_small && !self.state.is_interrupted() {
            return Err(Error::new(format!("\"{name}\" has {charged} bytes above its max of {max_bytes}")));
        }
        Ok(format!("\"{name}\" shrank to {charged} of at most {max_bytes} bytes"))
    }

    /// Applies the plan as `octavo ctl plan --apply` does, and later removes the limits.
    fn plan(&self, until: Duration) -> Result<String, Error> {
        let plan = self.server.ask(json!({"do": "plan"}))?;
        let proposals = plan["partitions"].as_array().into_iter().flatten();
        let sizes: Vec<[Value; 2]> =
            proposals.map(|one| [one["name"].clone(), one["proposed_bytes"].clone()]).collect();
        self.server.ask(json!({"do": "resize", "sizes": sizes}))?;
        self.state.pause_until(until, || false);
        for disk in &self.residents {
            self.set(disk.name, "max", "max")?;
        }
        Ok(format!("{} sizes were applied", sizes.len()))
    }

    /// A store refuses writes to its upper half until the event ends.
    fn failure(&self, until: Duration) -> Result<String, Error> {
        let (state, server) = (self.state, &self.server);
        state.set_failing(true);
        server.limit_files(Some(self.failing_bytes))?;
        // A sync of dirty pages that cannot be written fails.
        let patience = state.begun.elapsed() + PATIENCE;
        let refuses = || server.ask(json!({"do": "sync"})).is_err();
        let has_failed = state.pause_until(patience, refuses);
        state.pause_until(until, || false);
        server.limit_files(None)?;
        let mut last = Ok(Value::Null);
        let patience = state.begun.elapsed() + PATIENCE;
        let recovers = || {
            last = server.ask(json!({"do": "sync"}));
            last.is_ok()
        };
        // An interruption must not end the wait: what follows needs a store that works.
        let has_recovered = self.wait(patience, recovers);
        state.set_failing(false);
        match (has_failed, has_recovered) {
            (_, false) => last.map(|_| String::new()),
            (false, true) if !state.is_interrupted() => Err(Error::new("the store did not fail")),
            (_, true) => Ok("a store refused a sync, and recovered".into()),
        }
    }

    fn wait(&self, until: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        while !is_so() {
            if self.state.begun.elapsed() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Takes a quarter of the memory back from all partitions together.
    fn reclaim(&self) -> Result<String, Error> {
        let bytes = self.memory_max_bytes / 4 / self.residents.len() as u64;
        let mut reclaimed_bytes = 0;
        for disk in &self.residents {
            let request = json!({"do": "reclaim", "partition": disk.name, "bytes": bytes});
            let answer = self.server.ask(request)?;
            reclaimed_bytes += answer["reclaimed_bytes"].as_u64().unwrap_or(0);
        }
        Ok(format!("{reclaimed_bytes} bytes were given back"))
    }

    /// Changes the weights in the configuration, which is then read again.
    fn reload(&mut self) -> Result<String, Error> {
        self.weight = if self.weight == 100 { 200 } else { 100 };
        configure(&self.directory, self.memory_max_bytes, self.weight, &self.residents)?;
        let answer = self.server.ask(json!({"do": "reload"}))?;
        let count = answer["changes"].as_array().map_or(0, Vec::len);
        let partitions = self.server.ask(json!({"do": "partitions"}))?;
        let found = partitions["partitions"][0]["weight"].as_u64();
        if found != Some(self.weight) {
            return Err(Error::new(format!("the weight is {found:?} after a reload, not {}", self.weight)));
        }
        Ok(format!("{count} changes are in force"))
    }

    fn upgrade(&mut self) -> Result<String, Error> {
        let upgrade = self.server.upgrade(self.state)?;
        self.upgrade_resident_bytes = self.upgrade_resident_bytes.max(upgrade.resident_bytes);
        Ok(format!("the new server took over in {:.2} s", upgrade.took.as_secs_f64()))
    }

    fn kill(&mut self) -> Result<String, Error> {
        let begun = self.state.begun.elapsed();
        self.server.kill_and_restart(self.state)?;
        let took = self.state.begun.elapsed() - begun;
        Ok(format!("the killed server's successor served after {:.2} s", took.as_secs_f64()))
    }
}
