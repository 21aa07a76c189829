//! Where news go: to pages, the history and a recording, or into a sample for a report.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::board::{Board, Topic};
use crate::history::History;
use crate::interval::Interval;
use crate::poll::News;
use crate::recording::{Reading, Recorder};

/// The news of `octavo web`.
pub struct Live {
    /// For pages that are open.
    pub board: watch::Sender<Board>,
    /// For pages that are opened.
    pub history: Arc<Mutex<History>>,
    /// `None`: nothing is recorded, or the recording has failed.
    pub recorder: Option<Recorder>,
}

impl News for Live {
    fn post(&mut self, topic: Topic, json: String) {
        self.show(topic, json.clone());
        self.keep(topic, json);
    }

    fn show(&mut self, topic: Topic, json: String) {
        self.board.send_modify(|board| board.post(topic, &json));
    }

    fn keep(&mut self, topic: Topic, json: String) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Err(why) = recorder.append(topic, &json) {
            log::error!("the recording has ended: {why}");
            self.recorder = None;
        }
    }

    fn interval(&mut self, interval: Interval) {
        if let Ok(json) = serde_json::to_string(&interval) {
            self.post(Topic::Interval, json);
        }
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(interval);
    }

    fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }
}

/// The news of `octavo report` without a recording.
#[derive(Default)]
pub struct Sampled {
    reading: Reading,
    /// Why the server did not answer last time.
    why: Option<String>,
}

impl Sampled {
    /// What was sampled. The error is a sentence.
    pub fn into_reading(self) -> Result<Reading, String> {
        match (self.reading.history.last(), self.why) {
            (Some(_), _) => Ok(self.reading),
            (None, Some(why)) => Err(why),
            (None, None) => Err("there were less than two samples; sample for longer".into()),
        }
    }
}

impl News for Sampled {
    fn post(&mut self, topic: Topic, json: String) {
        self.keep(topic, json);
    }

    fn show(&mut self, _: Topic, _: String) {}

    fn keep(&mut self, topic: Topic, json: String) {
        if topic == Topic::State {
            let state: Option<Value> = serde_json::from_str(&json).ok();
            self.why = state.and_then(|state| Some(state["why"].as_str()?.to_owned()));
        }
        self.reading.add(topic, &json);
    }

    fn interval(&mut self, interval: Interval) {
        self.reading.history.push(interval);
    }

    fn is_recording(&self) -> bool {
        true
    }
}
