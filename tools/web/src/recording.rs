//! Recordings of a server's figures: what a page gets, as JSON lines in a file of bounded size.
//!
//! Each line is `{"topic":"interval","data":{..}}`. The first line of a file is its header. When a
//! file has reached half of the bound, it is renamed to `FILE.1`, which replaces an older one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::board::Topic;
use crate::history::History;
use crate::interval::Interval;

/// The first line of a file.
const HEADER: &str = r#"{"topic":"octavo web","data":{"version":1}}"#;

/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Events that a reading keeps: the latest.
const EVENTS_MAX: usize = 1000;

/// The smallest bound of a recording in bytes.
pub const BYTES_MIN: u64 = 1 << 20;

/// Appends to a recording.
pub struct Recorder {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    /// The bound of both files together.
    bytes_max: u64,
}

impl Recorder {
    /// Opens a recording, or makes one of mode 0600. The error is a sentence.
    pub fn open(path: &Path, bytes_max: u64) -> Result<Recorder, String> {
        let bytes_max = bytes_max.max(BYTES_MIN);
        let file = append_to(path)?;
        let file_bytes = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?.len();
        let mut recorder = Recorder { path: path.to_owned(), file, file_bytes, bytes_max };
        if file_bytes == 0 {
            recorder.line(HEADER)?;
        } else if first_line(path)? != HEADER {
            return Err(format!(
                "{}: this file is no recording of octavo web; name another one",
                path.display()
            ));
        }
        Ok(recorder)
    }

    /// Appends news. The error is a sentence.
    pub fn append(&mut self, topic: Topic, json: &str) -> Result<(), String> {
        let line = format!(r#"{{"topic":"{}","data":{json}}}"#, topic.name());
        if line.len() as u64 > self.bytes_max / 4 {
            log::warn!(
                "{}: {} bytes of {} are too much for it",
                self.path.display(),
                line.len(),
                topic.name()
            );
            return Ok(());
        }
        if self.file_bytes + line.len() as u64 > self.bytes_max / 2 {
            self.rotate()?;
        }
        self.line(&line)
    }

    fn rotate(&mut self) -> Result<(), String> {
        let former = former(&self.path);
        std::fs::rename(&self.path, &former).map_err(|error| format!("{}: {error}", former.display()))?;
        self.file = append_to(&self.path)?;
        self.file_bytes = 0;
        self.line(HEADER)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        // One write for each line: a reader finds a part of a line only after a crash.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.file_bytes += line.len() as u64 + 1;
        Ok(())
    }
}

/// Opens a file to append to it, or makes it. A link that leads nowhere is refused: a new file must
/// be where its name says, not where somebody else has pointed.
fn append_to(path: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => return opened.map_err(failed),
    }
    let made = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path);
    made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("{}: this is a link that leads nowhere", path.display()),
        _ => failed(error),
    })
}

fn former(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

fn first_line(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut line = String::new();
    let file = File::open(path).map_err(failed)?;
    match BufReader::new(file.take(HEADER.len() as u64 + 1)).read_line(&mut line) {
        Ok(_) => Ok(line.trim_end().to_owned()),
        // Any other file.
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(String::new()),
        Err(error) => Err(failed(error)),
    }
}

/// What a report shows: the history, and the latest news of the other topics.
#[derive(Default)]
pub struct Reading {
    /// The intervals of the last hour.
    pub history: History,
    /// The latest of each other topic, by its name.
    pub latest: BTreeMap<&'static str, Value>,
    events: Vec<Value>,
    /// Lines that could not be read.
    pub broken_lines: u64,
}

impl Reading {
    /// Reads a recording, the older file first. The error is a sentence.
    pub fn of_file(path: &Path) -> Result<Reading, String> {
        let mut reading = Reading::default();
        let former = former(path);
        if former.exists() {
            reading.read(&former)?;
        }
        reading.read(path)?;
        Ok(reading)
    }

    fn read(&mut self, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let first = first_line(path)?;
        if first != HEADER {
            return Err(format!(
                "{}: this file is no recording; `octavo web --record FILE` makes one",
                path.display()
            ));
        }
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        loop {
            let mut line = Vec::new();
            (&mut file).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
            if line.is_empty() {
                return Ok(());
            }
            let Ok(mut line) = serde_json::from_slice::<Value>(&line) else {
                // The line that a crash has cut off.
                self.broken_lines += 1;
                continue;
            };
            // Other topics are those of a later version, and the header.
            if let Some(topic) = Topic::ALL.into_iter().find(|topic| line["topic"] == topic.name()) {
                self.take(topic, line["data"].take());
            }
        }
    }

    /// Adds news of a topic, as in a line of a recording.
    pub fn add(&mut self, topic: Topic, json: &str) {
        match serde_json::from_str(json) {
            Ok(data) => self.take(topic, data),
            Err(_) => self.broken_lines += 1,
        }
    }

    fn take(&mut self, topic: Topic, data: Value) {
        match topic {
            Topic::Interval => match serde_json::from_value::<Interval>(data) {
                Ok(interval) => self.history.push(interval),
                Err(_) => self.broken_lines += 1,
            },
            Topic::Events => {
                self.events.extend(data["events"].as_array().into_iter().flatten().cloned());
                let surplus = self.events.len().saturating_sub(EVENTS_MAX);
                self.events.drain(..surplus);
            }
            Topic::Sets => {
                // Each line has the sets of one partition.
                let name = data["partition"].as_str().unwrap_or_default().to_owned();
                self.latest.entry(topic.name()).or_insert_with(|| json!({}))[name] = data;
            }
            Topic::Objects => {
                // Their rates are differences.
                if let Some(former) = self.latest.insert(topic.name(), data) {
                    self.latest.insert("formerObjects", former);
                }
            }
            _ => {
                self.latest.insert(topic.name(), data);
            }
        }
    }

    /// Everything, as one JSON object for the page.
    pub fn to_json(&self) -> Value {
        json!({"history": self.history, "latest": self.latest, "events": self.events})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_not_made_through_a_link_that_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(at("elsewhere"), at("link")).unwrap();
        let said = Recorder::open(&at("link"), 1 << 20).err().unwrap();
        assert!(said.contains("link that leads nowhere") && !at("elsewhere").exists(), "{said}");
        // A link to a recording is followed, and a name without a file becomes one.
        Recorder::open(&at("elsewhere"), 1 << 20).unwrap();
        Recorder::open(&at("link"), 1 << 20).unwrap();
        assert!(at("link").is_symlink());
    }
}
