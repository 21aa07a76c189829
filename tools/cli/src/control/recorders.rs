//! The server's side of recordings: one thread per recording takes blocks from the engine, packs
//! them and writes files.
//!
//! If a file cannot be written, the recording ends, and the error is logged and counted. Clients
//! are not affected: the engine never waits for these threads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use octavo::{Partition, Recording, RecordingEnd, Taken};
use octavo_sim::recording::{About, Ending, Writer};

use crate::control::report::RecordingReport;
use crate::lock::lock;
use crate::order::{Order, sample_text};
use crate::own;

/// A block that is not full is written one second after its first event, so `kill -9` loses at most
/// the events of one second.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a partition's removal waits for its recording's file.
const STOP_MAX: Duration = Duration::from_secs(10);

/// All recordings of a server.
#[derive(Default)]
pub struct Recorders {
    running: Mutex<HashMap<String, Arc<Recorder>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many recordings ended before they were stopped, by partition.
    broken_off: Mutex<HashMap<String, u64>>,
}

/// A recording and its figures.
pub struct Recorder {
    partition: Partition,
    began: Instant,
    report: Mutex<RecordingReport>,
    ended: Condvar,
}

impl Recorders {
    /// Starts to record a partition. The error is a sentence.
    pub fn start(self: &Arc<Self>, partition: &Partition, order: &Order) -> Result<Arc<Recorder>, String> {
        order.check()?;
        own::check(&order.file).map_err(|why| format!("{} {why}", order.file.display()))?;
        let mut running = lock(&self.running);
        if let Some(recorder) = running.get(&order.partition) {
            return Err(format!(
                "partition \"{}\" is being recorded already, to {}",
                order.partition,
                lock(&recorder.report).file
            ));
        }
        let recording = partition.record(order.sample_below).map_err(|error| error.to_string())?;
        let began_unix = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let about = About {
            // Unique among the files that are likely to be read together.
            id: began_unix.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40),
            part: 1,
            began_unix_ms: began_unix.as_millis() as u64,
            header: recording.header().clone(),
        };
        let writer = Writer::create(&order.file, order.rotation(), about).map_err(|error| {
            let what = match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    "the file exists; move it away, or use another name".into()
                }
                _ => error.to_string(),
            };
            format!("{}: {what}", order.file.display())
        })?;
        let recorder = Arc::new(Recorder {
            partition: partition.clone(),
            began: Instant::now(),
            report: Mutex::new(RecordingReport {
                file: writer.path().display().to_string(),
                sample: sample_text(order.sample_below),
                is_exact: recording.header().is_exact(),
                ..RecordingReport::default()
            }),
            ended: Condvar::new(),
        });
        let thread = {
            let (recorders, recorder, name) =
                (Arc::clone(self), Arc::clone(&recorder), order.partition.clone());
            std::thread::Builder::new().name("recorder".into()).spawn(move || {
                let ending = recorder.write(recording, writer);
                recorders.ended(&name, &recorder, ending);
            })
        };
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        log::info!("partition \"{}\" is being recorded to {}", order.partition, order.file.display());
        running.insert(order.partition.clone(), recorder.clone());
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(recorder)
    }

    fn ended(&self, name: &str, recorder: &Recorder, ending: Result<Ending, String>) {
        let why = match ending {
            Ok(Ending::Stopped) => None,
            Ok(ending) => Some(ending.words().to_owned()),
            Err(error) => Some(error),
        };
        let mut report = recorder.report();
        match &why {
            None => log::info!("partition \"{name}\": recorded to {}", report.file),
            Some(why) => {
                log::error!("partition \"{name}\": the recording to {} has ended early: {why}", report.file);
                *lock(&self.broken_off).entry(name.to_owned()).or_default() += 1;
            }
        }
        report.ended = Some(why.unwrap_or_else(|| Ending::Stopped.words().to_owned()));
        lock(&self.running).remove(name);
        *lock(&recorder.report) = report;
        recorder.ended.notify_all();
    }

    /// The figures of a partition's recording, if there is one, and how many ended early.
    pub fn report(&self, partition: &str) -> (Option<RecordingReport>, u64) {
        let recorder = lock(&self.running).get(partition).cloned();
        let broken_off = lock(&self.broken_off).get(partition).copied().unwrap_or(0);
        (recorder.map(|recorder| recorder.report()), broken_off)
    }

    /// Stops the recording of a partition, if there is one, and waits until its file is complete.
    pub fn stop(&self, partition: &str) {
        let recorder = lock(&self.running).get(partition).cloned();
        if let Some(recorder) = recorder {
            recorder.stop();
            recorder.wait(STOP_MAX);
        }
    }

    /// Stops all recordings, and waits until their files are complete.
    pub fn stop_all(&self) {
        let running: Vec<Arc<Recorder>> = lock(&self.running).values().cloned().collect();
        running.iter().for_each(|recorder| recorder.stop());
        for thread in lock(&self.threads).drain(..) {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}

impl Recorder {
    /// Stops the recording.
    pub fn stop(&self) {
        self.partition.stop_recording();
    }

    /// Its figures now.
    pub fn report(&self) -> RecordingReport {
        let stat = self.partition.recording_stat();
        let mut report = lock(&self.report);
        if report.ended.is_none() {
            report.seconds = self.began.elapsed().as_secs();
            if let Some(stat) = stat {
                (report.accesses, report.event_bytes) = (stat.accesses, stat.event_bytes);
            }
        }
        report.clone()
    }

    /// Waits for its end, for `time` at most.
    pub fn wait(&self, time: Duration) -> RecordingReport {
        let report = lock(&self.report);
        let waited = self.ended.wait_timeout_while(report, time, |report| report.ended.is_none());
        drop(waited);
        self.report()
    }

    /// Writes until the recording ends or a file cannot be written.
    fn write(&self, mut recording: Recording, mut writer: Writer) -> Result<Ending, String> {
        let mut part_begins = false;
        let result = loop {
            // If the engine cannot begin a part now, the file becomes a little longer.
            part_begins = part_begins || (writer.is_full() && recording.begin_part());
            let taken = recording.take(PATIENCE);
            let time_ms = self.began.elapsed().as_millis() as u64;
            let written = match taken {
                Taken::Block(block) => {
                    let written = writer.write(time_ms, &block);
                    recording.give_back(block);
                    written.map(|()| None)
                }
                Taken::Part(header) => {
                    part_begins = false;
                    writer.begin_part(time_ms, header).map(|()| None)
                }
                Taken::Ended(end) => {
                    let ending = match end {
                        RecordingEnd::Stopped => Ending::Stopped,
                        RecordingEnd::FellBehind => Ending::FellBehind,
                    };
                    writer.finish(time_ms, ending).map(|()| Some(ending))
                }
            };
            let mut report = lock(&self.report);
            (report.file, report.file_bytes) = (writer.path().display().to_string(), writer.bytes());
            drop(report);
            match written {
                Ok(None) => {}
                Ok(Some(ending)) => break Ok(ending),
                Err(error) => break Err(format!("it cannot be written: {error}")),
            }
        };
        // Take the final figures while the recording still exists.
        self.stop();
        self.report();
        result
    }
}

/// Makes room for a recording that starts with the server: renames a file that an earlier server
/// left to `NAME.old.octr`, replacing an older one. Rotated files continue with higher numbers.
pub fn make_way(order: &Order) -> Result<(), String> {
    if order.rotate_bytes.is_some() || !order.file.exists() {
        return Ok(());
    }
    let old = old(&order.file);
    std::fs::rename(&order.file, &old)
        .map_err(|error| format!("{} cannot be moved to {}: {error}", order.file.display(), old.display()))
}

fn old(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}.old{}", octavo_sim::recording::ENDING))
}
