//! Liveness and readiness, for supervisors such as Kubernetes and for load balancers.
//!
//! - *Alive*: the main thread runs its loop, so a restart would not help.
//! - *Ready*: the server can take clients.
//!
//! A server that is starting or draining is alive but not ready. Killing a draining server would
//! lose the pages that it is writing back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use octavo::ObjectStat;

use crate::control::drain::without_name;
use crate::lock::lock;

/// How long the main thread of a live server may go without a report. It reports at least every
/// five seconds, so six reports are missing by then.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The phase of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Stores and sockets are being opened.
    Starting,
    /// Clients can connect.
    Serving,
    /// No more clients are admitted; dirty pages are being written back.
    Draining,
}

/// The phase of a server, and the time of the last report from its main thread.
pub struct Health(Mutex<State>);

struct State {
    phase: Phase,
    seen: Instant,
}

impl Health {
    /// The state of a server that is starting.
    pub fn new(now: Instant) -> Health {
        Health(Mutex::new(State { phase: Phase::Starting, seen: now }))
    }

    /// Sets the phase; counts as a report from the main thread.
    pub fn enter(&self, phase: Phase, now: Instant) {
        *lock(&self.0) = State { phase, seen: now };
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        lock(&self.0).phase
    }

    /// Records a report from the main thread.
    pub fn seen(&self, now: Instant) {
        lock(&self.0).seen = now;
    }

    /// Why the server needs a restart; `None` while it is alive. Only a serving server can be dead:
    /// opening and draining stores may take any time.
    pub fn dead(&self, now: Instant) -> Option<String> {
        let state = lock(&self.0);
        let silence = now.saturating_duration_since(state.seen);
        let is_dead = state.phase == Phase::Serving && silence > SILENCE_MAX;
        is_dead.then(|| format!("the main thread has not reported for {} s", silence.as_secs()))
    }

    /// Why the server is not ready, one line per reason; empty if it is ready.
    pub fn unready(&self, objects: &[ObjectStat]) -> Vec<String> {
        let mut reasons = match lock(&self.0).phase {
            Phase::Starting => vec!["starting: stores and sockets are being opened".to_owned()],
            Phase::Serving => Vec::new(),
            Phase::Draining => vec!["draining: no more clients are admitted".to_owned()],
        };
        for object in objects {
            let name = &object.name;
            let error = object.writeback_error.as_deref().map(|error| without_name(name, error));
            match (object.failed, error) {
                (true, error) => {
                    let why = error.map(|error| format!(" ({error})")).unwrap_or_default();
                    reasons.push(format!(
                        "export \"{name}\": a sync of its store failed{why}; start the server again to open it anew"
                    ));
                }
                (false, Some(error)) => {
                    reasons.push(format!("export \"{name}\": the last write-back failed: {error}"));
                }
                (false, None) => {}
            }
        }
        // One reason is one line, even if a store's error has several.
        reasons.iter().map(|reason| reason.replace(char::is_control, " ")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_main_thread_does_not_report_is_dead_only_while_it_serves() {
        let start = Instant::now();
        let health = Health::new(start);
        let late = start + SILENCE_MAX + Duration::from_secs(1);
        assert_eq!(health.dead(late), None, "stores may take long to be opened");
        health.enter(Phase::Serving, start);
        assert_eq!(health.dead(start + SILENCE_MAX), None);
        assert_eq!(health.dead(late).unwrap(), "the main thread has not reported for 31 s");
        health.seen(late);
        assert_eq!(health.dead(late), None);
        health.enter(Phase::Draining, start);
        assert_eq!(health.dead(late), None, "stores may take long to be drained");
    }

    #[test]
    fn a_server_is_ready_when_it_serves_and_no_store_refuses_writes() {
        let health = Health::new(Instant::now());
        assert_eq!(health.unready(&[]), ["starting: stores and sockets are being opened"]);
        health.enter(Phase::Serving, Instant::now());
        let object = |name: &str, failed, error: Option<&str>| ObjectStat {
            name: name.into(),
            failed,
            writeback_error: error.map(str::to_owned),
            ..ObjectStat::default()
        };
        assert!(health.unready(&[object("a", false, None)]).is_empty());
        let objects =
            [object("a", false, None), object("b", true, None), object("c", false, Some("c: no\nspace"))];
        let told = health.unready(&objects);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("export \"b\": a sync of its store failed;"), "{told:?}");
        assert_eq!(told[1], "export \"c\": the last write-back failed: no space");
        health.enter(Phase::Draining, Instant::now());
        assert_eq!(health.unready(&objects).len(), 3);
    }
}
