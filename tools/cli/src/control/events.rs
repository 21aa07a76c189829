//! The server's last events, for `octavo ctl events` and other clients of the control socket: what
//! the engine tells, warnings and errors of the log, and what operators changed.
//!
//! - Events come from two sources. A thread takes those of the engine ([`octavo::CacheEvent`]). The
//!   logger passes on each record; a record with the field `event` is an event of that kind, and
//!   any other warning or error is a `message`.
//! - The log keeps the last [`KEPT`] events, with texts of bounded length: about 300 KiB, and 2 MiB
//!   at most. Clients that are slow miss events, and see by the numbers how many. They delay
//!   neither the server nor each other.
//! - A follower sleeps until an event or its client wakes it ([`Follower`]).
//!
//! Not here: how events are sent (`server.rs`) and shown (`ctl/events.rs`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use log::kv::{self, Key, VisitSource};
use log::{Level, Record};
use octavo::{Cache, CacheEvent, Happened};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::lock::lock;
use crate::units::human_bytes;

/// Most events that are kept.
const KEPT: usize = 1024;

/// The longest text and the longest name in bytes; longer ones are cut.
const TEXT_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 255;

/// Most events in one page, so that a page is far below the longest reply.
const PAGE_EVENTS_MAX: usize = 1024;

/// How long the thread that takes the engine's events sleeps at a time. It wakes with each event.
const SLEEP: Duration = Duration::from_secs(3600);

/// An event, as the protocol shows it (docs/octavo-ctl.1.md).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Event {
    /// 1 for the first event after the server's start.
    pub number: u64,
    /// Unix time in milliseconds.
    pub time_ms: u64,
    pub kind: Cow<'static, str>,
    /// `info`, `warn` or `error`.
    pub level: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// A sentence.
    pub text: String,
}

/// Some of the events, and where they stand among all.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// The number of the oldest event that is kept.
    pub first: u64,
    /// The number that the next event will have.
    pub next: u64,
    /// Events in the order of their numbers.
    pub events: Vec<Event>,
}

/// The last events of a server.
#[derive(Default)]
pub struct EventLog(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// How many events there were.
    count: u64,
    events: VecDeque<Event>,
    followers: Vec<Arc<OwnedFd>>,
}

impl EventLog {
    /// Starts the thread that takes the events of a cache. The log lives as long as the process.
    pub fn start(cache: &Cache) -> Result<Arc<EventLog>, Error> {
        let log = Arc::new(EventLog::default());
        let (cache, kept) = (cache.clone(), Arc::clone(&log));
        let take = move || {
            let mut seen = 0;
            loop {
                for event in cache.wait_events(seen, SLEEP) {
                    seen = event.number;
                    kept.add(Event::of_cache(&event));
                }
            }
        };
        let failed = |error| Error::failed(format!("cannot start the thread that takes events: {error}"));
        std::thread::Builder::new().name("events".into()).spawn(take).map_err(failed)?;
        Ok(log)
    }

    /// Adds an event; gives it its number. Never waits for a client.
    pub fn add(&self, mut event: Event) {
        cut(&mut event.text, TEXT_BYTES_MAX);
        for name in [&mut event.partition, &mut event.object].into_iter().flatten() {
            cut(name, NAME_BYTES_MAX);
        }
        let mut kept = lock(&self.0);
        kept.count += 1;
        event.number = kept.count;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(event);
        for follower in &kept.followers {
            // Fails only if the count in the descriptor is full: then it wakes its reader already.
            let _ = rustix::io::write(&**follower, &1u64.to_ne_bytes());
        }
    }

    /// Adds the event that a record of the log is, if it is one.
    pub fn add_record(&self, record: &Record<'_>) {
        if let Some(event) = Event::of_record(record) {
            self.add(event);
        }
    }

    /// The events after a number. A number that was not reached yet is that of an earlier server,
    /// and counts as 0.
    pub fn after(&self, after: u64) -> Page {
        let kept = lock(&self.0);
        let first = kept.count + 1 - kept.events.len() as u64;
        let after = if after > kept.count { 0 } else { after };
        let skipped = (after + 1).saturating_sub(first) as usize;
        let events = kept.events.iter().skip(skipped).take(PAGE_EVENTS_MAX).cloned().collect();
        Page { first, next: kept.count + 1, events }
    }

    /// Begins to wake a follower for each event that is added.
    pub fn follow(self: &Arc<Self>) -> std::io::Result<Follower> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        lock(&self.0).followers.push(Arc::clone(&bell));
        Ok(Follower { log: Arc::clone(self), bell })
    }
}

/// A thread that sends events to a client as they are added.
pub struct Follower {
    log: Arc<EventLog>,
    bell: Arc<OwnedFd>,
}

impl Follower {
    /// Sleeps until an event was added since the last call, or the client has sent something or
    /// closed the connection. Returns whether the client did.
    pub fn wait(&self, client: impl AsFd) -> std::io::Result<bool> {
        let mut sources = [PollFd::new(&*self.bell, PollFlags::IN), PollFd::new(&client, PollFlags::IN)];
        match poll(&mut sources, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let has_spoken = !sources[1].revents().is_empty();
        // Fails if no event was added.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        Ok(has_spoken)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        lock(&self.log.0).followers.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
    }
}

impl Event {
    /// An event that has happened now.
    pub fn new(kind: &'static str, level: &'static str, text: String) -> Event {
        let (kind, level) = (Cow::Borrowed(kind), Cow::Borrowed(level));
        Event { time_ms: unix_ms(SystemTime::now()), kind, level, text, ..Event::default() }
    }

    /// An event of the engine.
    fn of_cache(event: &CacheEvent) -> Event {
        let text = event.what.to_string();
        let told = match event.what.clone() {
            Happened::Resized { partition, from_bytes, to_bytes, reason } => {
                let verb = if to_bytes < from_bytes { "shrank" } else { "grew" };
                let sizes = format!("from {} to {}", human_bytes(from_bytes), human_bytes(to_bytes));
                let reason = reason.name();
                let text = format!("partition {partition} {verb} {sizes} ({reason})");
                Event { reason: Some(reason.into()), ..Event::new("moved", "info", text) }
                    .of(partition, None)
                    .resized(from_bytes, to_bytes)
            }
            Happened::Allowed { from_bytes, to_bytes } => {
                let is_less = to_bytes < from_bytes;
                let (level, why) =
                    if is_less { ("warn", "memory is short") } else { ("info", "there is memory again") };
                let sizes = format!("{}, not {}", human_bytes(to_bytes), human_bytes(from_bytes));
                let text = format!("the cache may hold {sizes}: {why}");
                Event::new("pressure", level, text).resized(from_bytes, to_bytes)
            }
            Happened::HeldUp { partition } => Event::new("held-up", "warn", text).of(partition, None),
            Happened::Released { partition } => Event::new("released", "info", text).of(partition, None),
            Happened::WritebackFailed { partition, object, .. } => {
                Event { reason: Some("write-back".into()), ..Event::new("store-failed", "error", text) }
                    .of(partition, Some(object))
            }
            Happened::SyncFailed { partition, object, .. } => {
                Event { reason: Some("sync".into()), ..Event::new("store-failed", "error", text) }
                    .of(partition, Some(object))
            }
            Happened::WritebackRecovered { partition, object } => {
                Event::new("store-recovered", "info", text).of(partition, Some(object))
            }
            Happened::Dropped { partition, .. } => Event::new("given-up", "error", text).of(partition, None),
            // A later engine may tell more.
            _ => Event::new("message", "info", text),
        };
        Event { time_ms: unix_ms(event.at), ..told }
    }

    /// The event that a record of the log is. The engine's own events come from the engine.
    fn of_record(record: &Record<'_>) -> Option<Event> {
        if record.target() == octavo::EVENTS_TARGET {
            return None;
        }
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warn",
            _ => "info",
        };
        let mut event = Event::new("message", level, record.args().to_string());
        let is_told = record.key_values().visit(&mut Fields(&mut event)).is_ok() && event.kind != "message";
        (is_told || record.level() <= Level::Warn).then_some(event)
    }

    /// The event with the names of what it is about.
    pub fn of(self, partition: String, object: Option<String>) -> Event {
        Event { partition: Some(partition).filter(|name| !name.is_empty()), object, ..self }
    }

    fn resized(self, from_bytes: u64, to_bytes: u64) -> Event {
        Event { from_bytes: Some(from_bytes), to_bytes: Some(to_bytes), ..self }
    }
}

/// Takes the fields of a record.
struct Fields<'e>(&'e mut Event);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        let event = &mut *self.0;
        match key.as_str() {
            "event" => event.kind = value.to_string().into(),
            "partition" => event.partition = Some(value.to_string()),
            "export" | "object" => event.object = Some(value.to_string()),
            _ => {}
        }
        Ok(())
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Cuts a text at this length, and shows that it was cut.
fn cut(text: &mut String, bytes_max: usize) {
    const MARK: &str = "...";
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - MARK.len()));
        text.push_str(MARK);
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn logged(level: Level, target: &str, fields: &[(&str, &str)]) -> Option<Event> {
        let args = format_args!("a sentence");
        let record = Record::builder().level(level).target(target).key_values(&fields).args(args).build();
        Event::of_record(&record)
    }

    #[test]
    fn records_of_the_log_are_events_if_they_say_so_or_warn() {
        let event = logged(Level::Info, "t", &[("event", "changed"), ("partition", "vm1")]).unwrap();
        assert_eq!(
            (&*event.kind, &*event.level, event.partition.as_deref()),
            ("changed", "info", Some("vm1"))
        );
        let event = logged(Level::Warn, "t", &[("export", "disk")]).unwrap();
        assert_eq!((&*event.kind, &*event.level, event.object.as_deref()), ("message", "warn", Some("disk")));
        assert_eq!(event.text, "a sentence");
        assert_eq!(logged(Level::Info, "t", &[("export", "disk")]), None);
        assert_eq!(logged(Level::Error, octavo::EVENTS_TARGET, &[]), None, "the engine tells it itself");
    }

    #[test]
    fn the_log_keeps_the_last_events_and_their_numbers_show_what_is_gone() {
        let log = EventLog::default();
        assert_eq!(log.after(0), Page { first: 1, next: 1, events: Vec::new() });
        for number in 1..=KEPT + 10 {
            log.add(Event::new("message", "warn", number.to_string()));
        }
        let page = log.after(0);
        assert_eq!((page.first, page.next, page.events.len()), (11, KEPT as u64 + 11, KEPT));
        assert!(page.events.iter().all(|event| event.number.to_string() == event.text));
        assert_eq!(log.after(20).events[0].number, 21);
        assert_eq!(log.after(5).events[0].number, 11);
        assert!(log.after(KEPT as u64 + 10).events.is_empty());
        assert_eq!(log.after(1 << 40).events.len(), KEPT, "the number of an earlier server");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let log = EventLog::default();
        let event = Event::new("message", "warn", "\u{e9}".repeat(2000)).of("p".repeat(300), None);
        log.add(event);
        let event = log.after(0).events.remove(0);
        assert!(event.text.len() <= TEXT_BYTES_MAX && event.text.ends_with("\u{e9}..."), "{event:?}");
        assert_eq!(event.partition.unwrap().len(), NAME_BYTES_MAX);
    }

    #[test]
    fn a_follower_wakes_for_an_event_and_for_its_client() {
        let log = Arc::new(EventLog::default());
        let (client, server) = UnixStream::pair().unwrap();
        let follower = log.follow().unwrap();
        log.add(Event::new("start", "info", "it starts".into()));
        assert!(!follower.wait(&server).unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| follower.wait(&server).unwrap());
            log.add(Event::new("drain", "info", "it ends".into()));
            assert!(!waiting.join().unwrap());
        });
        drop(client);
        assert!(follower.wait(&server).unwrap());
        drop(follower);
        assert!(lock(&log.0).followers.is_empty());
    }
}
