//! A control server whose answers a test chooses.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A line in answer to a request; an empty one closes the connection.
type Answer = Box<dyn FnMut(&Value) -> String + Send>;

/// A control server.
pub struct Control {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Mutex<Answer>,
    is_stopped: AtomicBool,
    connections: AtomicUsize,
    streams: Mutex<Vec<UnixStream>>,
}

impl Control {
    /// Listens in a folder.
    pub fn start(folder: &Path, answer: impl FnMut(&Value) -> String + Send + 'static) -> Control {
        let path = folder.join("control.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let shared = Arc::new(Shared {
            answer: Mutex::new(Box::new(answer)),
            is_stopped: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.unwrap();
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                accepting.streams.lock().unwrap().push(stream.try_clone().unwrap());
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.talk(&stream));
            }
        });
        Control { path, shared }
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Answers differently from now on.
    pub fn answer(&self, answer: impl FnMut(&Value) -> String + Send + 'static) {
        *self.shared.answer.lock().unwrap() = Box::new(answer);
    }
}

impl Drop for Control {
    /// Dies as a server that is killed: its socket file stays, and nobody listens.
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.path);
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    fn talk(&self, stream: &UnixStream) {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(request["v"], 1, "{request}");
            let answer = self.answer.lock().unwrap()(&request);
            if answer.is_empty() {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            if (&*stream).write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The line of a success.
pub fn ok(answer: Value) -> String {
    json!({"v": 1, "ok": answer}).to_string()
}

/// The line of a failure.
pub fn error(message: &str) -> String {
    json!({"v": 1, "error": {"message": message}}).to_string()
}

/// Answers as a server of the first version, whose process is `pid`: each `stat` has 10 more hits
/// and one more miss in each of `partitions` partitions.
pub fn server(pid: u64, partitions: usize) -> impl FnMut(&Value) -> String + Send + 'static {
    let mut stats = 0;
    move |request| match request["do"].as_str().unwrap() {
        "stat" => {
            stats += 1;
            let partition = |number: usize| {
                json!({"name": format!("p{number}"), "hits": 10 * stats, "misses": stats,
                       "charged_bytes": 4096, "max_bytes": 8192,
                       "objects": [{"name": "disk", "latency": {"hit": {"requests": stats, "sum_ns": 900 * stats,
                                    "buckets": [[1000, stats]]}}}]})
            };
            ok(json!({"pid": pid, "uptime_s": stats, "version": "test", "resident_bytes": 1 << 20,
                      "cache": {"memory_max_bytes": 1 << 20, "memory_charged_bytes": 4096},
                      "partitions": (0..partitions).map(partition).collect::<Vec<Value>>()}))
        }
        "partitions" => {
            ok(json!({"partitions": [{"name": "p0", "min": 1, "low": 2, "high": null, "max": 7}],
                                  "reaper": {"moved_bytes": 2_097_152 * stats}}))
        }
        "mrc" => ok(json!({"partition": request["partition"], "current_bytes": 8192, "points": []})),
        verb => error(&format!("there is no verb \"{verb}\"; known: stat, partitions, mrc")),
    }
}
