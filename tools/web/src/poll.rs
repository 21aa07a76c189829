//! The one task that asks the server: at every interval for its figures, at a slower pace for its
//! curves, and on demand what pages ask for. However many pages are open, it uses one connection.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use crate::board::Topic;
use crate::client::{Client, Fault};
use crate::interval::Interval;
use crate::stat::Stat;

/// The shortest time for which an answer is awaited. A server that has died is noticed at once.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

/// Pace of curves and plans, which the server computes from samples of the last minutes.
const CURVES_EVERY: Duration = Duration::from_secs(10);

/// Pace of the list of exports.
const OBJECTS_EVERY: Duration = Duration::from_secs(2);

/// Pace of the files of mounts, which only recordings get unasked.
const FILES_EVERY: Duration = Duration::from_secs(60);

/// The most files that are recorded; a page lists no more.
const FILES_MAX: usize = 200;

/// The most partitions whose curves and sets are asked for.
const CURVES_MAX: usize = 64;

/// The most exports that are listed.
const OBJECTS_MAX: usize = 500;

/// The events that a page gets: the latest.
const EVENTS_MAX: usize = 200;

/// Questions that may wait. Further ones are refused.
pub const QUESTIONS_MAX: usize = 16;

/// A request of a page.
pub struct Question {
    /// The request, without its version.
    pub request: Value,
    /// Gets the answer.
    pub reply: oneshot::Sender<Result<Value, Fault>>,
}

/// Where the poller puts what it learns.
pub trait News {
    /// News for pages and recordings.
    fn post(&mut self, topic: Topic, json: String);
    /// News for pages alone.
    fn show(&mut self, topic: Topic, json: String);
    /// News for recordings alone.
    fn keep(&mut self, topic: Topic, json: String);
    /// An interval, for pages and recordings.
    fn interval(&mut self, interval: Interval);
    /// Whether there is a recording.
    fn is_recording(&self) -> bool;
}

/// Asks a server, and posts its news.
pub struct Poller<N> {
    client: Client,
    news: N,
    interval: Duration,
    may_change: bool,
    /// The last report, and when it was made; `None` after the server was unreachable.
    before: Option<(Stat, Instant)>,
    /// The process of the last report.
    server: Option<Stat>,
    restarts: u64,
    number: u64,
    /// Since when the server answers, or does not, in milliseconds since 1970.
    state: Option<(bool, u64)>,
    /// Verbs that this server does not know.
    missing: BTreeSet<&'static str>,
    after_event: u64,
    events: VecDeque<Value>,
    curves_at: Option<Instant>,
    objects_at: Option<Instant>,
    files_at: Option<Instant>,
}

impl<N: News> Poller<N> {
    /// A poller of the server at this path.
    pub fn new(socket: PathBuf, interval: Duration, may_change: bool, news: N) -> Poller<N> {
        Poller {
            client: Client::new(socket, PATIENCE_MIN.max(2 * interval)),
            news,
            interval,
            may_change,
            before: None,
            server: None,
            restarts: 0,
            number: 0,
            state: None,
            missing: BTreeSet::new(),
            after_event: 0,
            events: VecDeque::new(),
            curves_at: None,
            objects_at: None,
            files_at: None,
        }
    }

    /// Asks at every interval until `goes_on` says no, and returns the news. Questions end when
    /// their channel is closed.
    pub async fn run(mut self, mut questions: mpsc::Receiver<Question>, goes_on: impl Fn() -> bool) -> N {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while goes_on() {
            tokio::select! {
                // Questions must not delay the figures.
                biased;
                _ = ticks.tick() => self.round().await,
                Some(question) = questions.recv() => self.answer(question).await,
            }
        }
        self.news
    }

    async fn answer(&mut self, question: Question) {
        let answer = self.client.ask(&question.request).await;
        if question.request["do"] == "resize" && answer.is_ok() {
            (self.curves_at, self.objects_at) = (None, None);
        }
        // The page may have gone.
        let _ = question.reply.send(answer);
    }

    /// One round of requests.
    async fn round(&mut self) {
        match self.figures().await {
            Ok(stat) => {
                self.post_state(None);
                self.slower(&stat).await;
            }
            Err(fault) => {
                self.before = None;
                self.post_state(Some(fault.message()));
            }
        }
    }

    /// Asks for the figures, and posts the interval.
    async fn figures(&mut self) -> Result<Stat, Fault> {
        let answer = self.client.ask(&json!({"do": "stat"})).await?;
        let at = Instant::now();
        let mut stat = Stat::read(answer).map_err(Fault::Unreachable)?;
        if self.server.as_ref().is_some_and(|before| stat.is_of_another_server(before)) {
            // Its counters began again, its events too, and it may know other verbs.
            (self.before, self.after_event, self.curves_at) = (None, 0, None);
            self.missing.clear();
            self.restarts += 1;
        }
        if let Some(answer) = self.offered("partitions", json!({})).await? {
            stat.add_limits(&answer);
        }
        if let Some(answer) = self.offered("latency", json!({})).await? {
            stat.add_latency(&answer);
        }
        if let Some((before, then)) = &self.before {
            self.number += 1;
            self.news.interval(Interval {
                number: self.number,
                time_ms: now_ms(),
                length_ms: (at - *then).as_millis() as u64,
                ..Interval::between(before, &stat)
            });
        }
        self.before = Some((stat.clone(), at));
        self.server = Some(stat.clone());
        Ok(stat)
    }

    /// Asks something that older servers do not know; `None` if this one does not, or refuses.
    async fn offered(&mut self, verb: &'static str, parameters: Value) -> Result<Option<Value>, Fault> {
        if self.missing.contains(verb) {
            return Ok(None);
        }
        let mut request = parameters;
        request["do"] = verb.into();
        match self.client.ask(&request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(Fault::Unknown(_)) => {
                self.missing.insert(verb);
                Ok(None)
            }
            Err(Fault::Refused(why)) => {
                log::debug!("{verb}: {why}");
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    fn post_state(&mut self, why: Option<&str>) {
        let (is_up, now_ms) = (why.is_none(), now_ms());
        let since_ms = match self.state {
            Some((before, since_ms)) if before == is_up => since_ms,
            _ => now_ms,
        };
        if self.state.is_none_or(|(before, _)| before != is_up) {
            match why {
                Some(why) => log::warn!("{why}"),
                None => log::info!("the server answers"),
            }
        }
        self.state = Some((is_up, since_ms));
        let server = self.server.as_ref().map(|stat| {
            let partitions = stat.partitions.iter().map(|partition| {
                json!({"name": partition.name, "policy": partition.policy, "cache_mode": partition.cache_mode})
            });
            json!({"version": stat.version, "pid": stat.pid, "uptime_s": stat.uptime_s,
                   "partitions": partitions.collect::<Vec<Value>>()})
        });
        let state = json!({
            "up": is_up, "why": why, "since_ms": since_ms, "time_ms": now_ms, "server": server,
            "interval_ms": self.interval.as_millis() as u64, "missing": self.missing,
            "may_change": self.may_change, "restarts": self.restarts,
        });
        self.news.post(Topic::State, state.to_string());
    }

    /// Asks for what changes slowly. A fault here is noticed by the next round.
    async fn slower(&mut self, stat: &Stat) {
        let _ = self.events().await;
        if is_due(&mut self.objects_at, OBJECTS_EVERY) {
            self.news.post(Topic::Objects, objects(stat).to_string());
        }
        if is_due(&mut self.curves_at, CURVES_EVERY) {
            let _ = self.curves(stat).await;
            if self.news.is_recording() {
                let _ = self.sets(stat).await;
            }
        }
        if self.news.is_recording() && is_due(&mut self.files_at, FILES_EVERY) {
            let _ = self.files().await;
        }
    }

    async fn events(&mut self) -> Result<(), Fault> {
        let parameters = json!({"after": self.after_event, "follow": false});
        let Some(answer) = self.offered("events", parameters).await? else { return Ok(()) };
        let fresh = answer["events"].as_array().map_or(&[][..], Vec::as_slice);
        // A server keeps a bounded number of events; the bound here holds for any other.
        let fresh = &fresh[fresh.len().saturating_sub(EVENTS_MAX)..];
        let Some(last) = fresh.last() else { return Ok(()) };
        self.after_event = last["number"].as_u64().unwrap_or(self.after_event);
        self.news.keep(Topic::Events, json!({"events": fresh}).to_string());
        self.events.extend(fresh.iter().cloned());
        let surplus = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..surplus);
        self.news.show(Topic::Events, json!({"events": self.events}).to_string());
        Ok(())
    }

    async fn curves(&mut self, stat: &Stat) -> Result<(), Fault> {
        let mut curves = Vec::new();
        for partition in stat.partitions.iter().take(CURVES_MAX) {
            match self.client.ask(&json!({"do": "mrc", "partition": partition.name})).await {
                Ok(curve) => curves.push(curve),
                Err(Fault::Unreachable(why)) => return Err(Fault::Unreachable(why)),
                Err(fault) => curves.push(json!({"partition": partition.name, "why": fault.message()})),
            }
        }
        self.news.post(Topic::Curves, json!({"time_ms": now_ms(), "partitions": curves}).to_string());
        if let Some(plan) = self.offered("plan", json!({})).await? {
            self.news.post(Topic::Plan, plan.to_string());
        }
        Ok(())
    }

    /// Records the sets, which pages ask for on demand.
    async fn sets(&mut self, stat: &Stat) -> Result<(), Fault> {
        for partition in stat.partitions.iter().take(CURVES_MAX) {
            if let Some(mut sets) = self.offered("sets", json!({"partition": partition.name})).await? {
                sets["partition"] = partition.name.as_str().into();
                self.news.keep(Topic::Sets, sets.to_string());
            }
        }
        Ok(())
    }

    /// Records the files of mounts, which pages ask for on demand.
    async fn files(&mut self) -> Result<(), Fault> {
        if let Some(mut files) = self.offered("files", json!({})).await? {
            if let Some(list) = files["files"].as_array_mut() {
                list.truncate(FILES_MAX);
            }
            self.news.keep(Topic::Files, files.to_string());
        }
        Ok(())
    }
}

/// Whether something that is done at this pace is due; then it is next due one period later.
fn is_due(at: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = at.is_none_or(|at| at <= now);
    if due {
        *at = Some(now + every);
    }
    due
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// An export, as pages list it.
#[derive(Serialize)]
struct Listed<'s> {
    partition: &'s str,
    name: &'s str,
    path: &'s str,
    read_only: bool,
    len_bytes: u64,
    resident_bytes: Option<u64>,
    dirty_bytes: u64,
    connections: u64,
    in_flight: u64,
    errors: u64,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// What an operator must look at.
    trouble: Option<&'s str>,
}

/// The exports of all partitions.
fn objects(stat: &Stat) -> Value {
    let all: Vec<Listed<'_>> = stat
        .partitions
        .iter()
        .flat_map(|partition| partition.objects.iter().map(move |object| (partition, object)))
        .map(|(partition, object)| {
            // The pages of a partition with one object are those of the object.
            let only = (partition.objects.len() == 1).then_some(partition.resident_bytes);
            let failed = object.failed.then_some("a sync failed: restart the server to open it again");
            Listed {
                partition: &partition.name,
                name: &object.name,
                path: &object.path,
                read_only: object.read_only,
                len_bytes: object.len_bytes,
                resident_bytes: object.resident_bytes.or(only),
                dirty_bytes: object.dirty_bytes,
                connections: object.connections,
                in_flight: object.in_flight,
                errors: object.errors,
                requests: object.requests_read + object.requests_write,
                read_bytes: object.read_bytes,
                written_bytes: object.written_bytes,
                trouble: failed.or(object.writeback_error.as_deref()).or(object.store_change.as_deref()),
            }
        })
        .collect();
    let shown = &all[..all.len().min(OBJECTS_MAX)];
    json!({"time_ms": now_ms(), "objects": shown, "left_out": all.len() - shown.len()})
}
