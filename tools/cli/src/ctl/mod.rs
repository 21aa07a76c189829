//! `octavo ctl`: asks a running server.

pub mod record;
mod top;

use std::io::{BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::control::keys;
use crate::control::numa;
use crate::control::protocol::{self, Body, REPLY_BYTES_MAX, Reply, Request, VERSION, Verb};
use crate::control::report::Report;
use crate::environment::Environment;
use crate::error::Error;
use crate::output;
use crate::suggest;
use crate::units::{aligned, human_bytes, human_count, size_bytes};

/// Ask a running server
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo ctl stat
  octavo ctl partitions
  octavo ctl set vm1 min=64MiB weight=200
  octavo ctl stat --json | jq '.partitions[] | {name, hits, misses}'
  octavo ctl --socket /run/octavo/control.sock sync && cp /var/lib/images/vm1.raw /backup/")]
pub struct Arguments {
    /// The server's control socket, listen.control of its configuration [default: that of `octavo
    /// serve` without one, else /run/octavo/control.sock]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand)]
enum Question {
    /// What every partition and export holds and has done
    Stat {
        /// This partition alone
        partition: Option<String>,
        /// The exact counters, as one JSON object
        #[arg(long)]
        json: bool,
        /// Again every two seconds, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// The partitions, with their sizes and limits
    Partitions {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Change settings of a partition
    #[command(after_help = keys::help())]
    Set {
        partition: String,
        /// Sizes such as 64MiB, or max for no bound
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<String>,
        /// The settings that it has then, as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// How much a partition would have missed of late at other sizes
    Mrc {
        partition: String,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say what will happen to a range of an export
    Advise {
        partition: String,
        export: String,
        /// normal, sequential, random, willneed, dontneed, noreuse
        advice: String,
        /// Where the range begins
        #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
        offset: Option<u64>,
        /// How long it is [default: to the end]
        #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
        len: Option<u64>,
    },
    /// Let the pages of a partition go, dirty ones after they were written
    Evict {
        partition: String,
        /// Those of this export alone
        #[arg(long, value_name = "EXPORT")]
        export: Option<String>,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Give memory of a partition back to the system
    Reclaim {
        partition: String,
        #[arg(value_name = "SIZE", value_parser = size_bytes)]
        bytes: u64,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The partitions side by side, every two seconds: sizes, hits, misses, what more memory would
    /// bring
    Top {
        /// Print one table of what was since the start
        #[arg(long)]
        once: bool,
        /// By which column
        #[arg(long, value_name = "COLUMN", value_parser = top::column, default_value = "partition")]
        sort: usize,
    },
    /// Which node of the machine pages lie on, and who reads whose
    Numa {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make every write that was acknowledged before durable
    Sync {
        /// An empty JSON object when it is done
        #[arg(long)]
        json: bool,
    },
    /// Write all dirty pages and sync, with progress; try stores that refuse again
    Drain {
        /// An empty JSON object when it is done, and no progress
        #[arg(long)]
        json: bool,
    },
}

/// Asks, and prints the answer.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<(), Error> {
    let path = socket(arguments.socket.as_deref(), environment)?;
    match &arguments.question {
        Question::Stat { partition, json, watch } => loop {
            output::text(&stat(&path, partition.as_deref(), *json)?)?;
            if !watch {
                return Ok(());
            }
            std::thread::sleep(WATCH_PERIOD);
            if !json {
                output::text("\n")?;
            }
        },
        Question::Top { once, sort } => top::run(&|request| ask(&path, request), *once, *sort),
        Question::Sync { json } => {
            let answer = ask(&path, &Request::new(Verb::Sync))?;
            output::text(&if *json { format!("{answer}\n") } else { String::new() })
        }
        Question::Drain { json } => {
            let progress = |text: &str| if *json { Ok(()) } else { output::text(text) };
            let answer = ask_with(&path, &Request::new(Verb::Drain), progress)?;
            output::text(&if *json { format!("{answer}\n") } else { "drained\n".into() })
        }
        Question::Partitions { json } => {
            let answer = ask(&path, &Request::new(Verb::Partitions))?;
            output::text(&if *json { format!("{answer}\n") } else { partitions(&answer) })
        }
        Question::Set { partition, values, json } => {
            let values = values.iter().map(|given| {
                given.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(
                    || {
                        Error::Usage(format!(
                            "\"{given}\": a key and its value are expected, such as max=64MiB"
                        ))
                    },
                )
            });
            let values = values.collect::<Result<_, _>>()?;
            let answer = ask(&path, &Request { values, ..about(Verb::Set, partition) })?;
            let max = || match &answer["max"] {
                Value::Number(_) => {
                    format!("\"{partition}\": max is {}", human_bytes(number(&answer, "max")))
                }
                _ => format!("\"{partition}\""),
            };
            let told = match owed(&answer) {
                Some(owed) => format!("{}; {owed}\n", max()),
                None => String::new(),
            };
            output::text(&if *json { format!("{answer}\n") } else { told })
        }
        Question::Numa { json } => {
            let answer = ask(&path, &Request::new(Verb::Numa))?;
            output::text(&if *json { format!("{answer}\n") } else { numa::table(&answer) })
        }
        Question::Mrc { partition, json } => {
            let answer = ask(&path, &about(Verb::Mrc, partition))?;
            output::text(&if *json { format!("{answer}\n") } else { curve(&answer) })
        }
        Question::Advise { partition, export, advice, offset, len } => {
            let request = about(Verb::Advise, partition);
            let (object, advice) = (Some(export.clone()), Some(advice.to_lowercase()));
            ask(&path, &Request { object, advice, offset: *offset, len: *len, ..request }).map(drop)
        }
        Question::Evict { partition, export, json } => {
            let answer = ask(&path, &Request { object: export.clone(), ..about(Verb::Evict, partition) })?;
            let evicted = || format!("{} evicted\n", human_bytes(number(&answer, "evicted_bytes")));
            output::text(&if *json { format!("{answer}\n") } else { evicted() })
        }
        Question::Reclaim { partition, bytes, json } => {
            let answer = ask(&path, &Request { bytes: Some(*bytes), ..about(Verb::Reclaim, partition) })?;
            let owed = owed(&answer).map_or(String::new(), |owed| format!("; {owed}, ask again then"));
            let reclaimed =
                || format!("{} reclaimed{owed}\n", human_bytes(number(&answer, "reclaimed_bytes")));
            output::text(&if *json { format!("{answer}\n") } else { reclaimed() })
        }
    }
}

/// What a store holds up, for people.
fn owed(answer: &Value) -> Option<String> {
    answer.get("held_up")?;
    let bytes = human_bytes(number(answer, "owed_bytes"));
    Some(format!("{bytes} are still to be given back (its store does not answer)"))
}

/// Between two looks of `stat --watch`.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

fn about(verb: Verb, partition: &str) -> Request {
    Request { partition: Some(partition.to_owned()), ..Request::new(verb) }
}

fn number(answer: &Value, key: &str) -> u64 {
    answer[key].as_f64().map_or(0, |number| number as u64)
}

/// The server's report, of one partition if it is named.
fn stat(path: &Path, partition: Option<&str>, json: bool) -> Result<String, Error> {
    let mut answer = ask(path, &Request::new(Verb::Stat))?;
    if let (Some(name), Some(all)) = (partition, answer["partitions"].as_array_mut()) {
        let names: Vec<String> =
            all.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect();
        all.retain(|one| one["name"] == name);
        if all.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(Error::failed(format!(
                "no partition is called \"{name}\"; {}",
                suggest::of(name, &names)
            )));
        }
    }
    if json {
        return Ok(format!("{answer}\n"));
    }
    let report: Report = serde_json::from_value(answer)
        .map_err(|error| Error::failed(format!("the server's report cannot be read: {error}")))?;
    Ok(report.table())
}

/// The partitions and their limits, for people.
fn partitions(answer: &Value) -> String {
    let cell = |one: &Value, key: &str| match &one[key] {
        Value::Number(_) if key == "weight" => number(one, key).to_string(),
        Value::Null if ["high", "max"].contains(&key) => keys::NO_BOUND.into(),
        Value::Number(_) => human_bytes(number(one, key)),
        Value::String(word) => word.clone(),
        _ => "-".into(),
    };
    let keys = ["name", "policy", "current", "min", "low", "high", "max", "weight", "dirty_max"];
    let mut rows =
        vec![keys.map(|key| if key == "name" { "PARTITION".into() } else { key.to_uppercase() }).to_vec()];
    for kind in ["groups", "partitions"] {
        for one in answer[kind].as_array().into_iter().flatten() {
            rows.push(keys.iter().map(|key| cell(one, key)).collect());
        }
    }
    let reaper = &answer["reaper"];
    let held_up = match number(reaper, "held_up") {
        0 => String::new(),
        partitions => format!("; {partitions} held up by their stores"),
    };
    aligned(&rows, 2)
        + &format!(
            "\nall together up to {}; {} moved in {} periods{held_up}\n",
            human_bytes(number(reaper, "allowed_bytes")),
            human_bytes(number(reaper, "moved_bytes")),
            number(reaper, "periods")
        )
}

/// A miss curve for people, with a bar a size.
fn curve(answer: &Value) -> String {
    let mut rows = vec![["SIZE", "MISSES", "MISS RATIO", ""].map(String::from).to_vec()];
    for point in answer["points"].as_array().into_iter().flatten() {
        let miss_ratio = point["miss_ratio"].as_f64().unwrap_or(0.0).clamp(0.0, 1.0);
        rows.push(vec![
            human_bytes(number(point, "bytes")),
            human_count(point["misses"].as_f64().unwrap_or(0.0)),
            format!("{miss_ratio:.3}"),
            format!("{:<40}", "#".repeat((miss_ratio * 40.0).round() as usize)),
        ]);
    }
    if answer["references"].as_f64().unwrap_or(0.0) < 1.0 {
        return format!(
            "\"{}\", {}, now {}: no access was sampled yet; ask again when there has been traffic (about one page in {} \
             is followed)\n",
            answer["partition"].as_str().unwrap_or_default(),
            answer["policy"].as_str().unwrap_or_default(),
            human_bytes(number(answer, "current_bytes")),
            (1.0 / answer["rate"].as_f64().unwrap_or(1.0).clamp(1e-6, 1.0)).round()
        );
    }
    format!(
        "\"{}\", {}, now {}; {} references of late, about\n",
        answer["partition"].as_str().unwrap_or_default(),
        answer["policy"].as_str().unwrap_or_default(),
        human_bytes(number(answer, "current_bytes")),
        human_count(answer["references"].as_f64().unwrap_or(0.0)),
    ) + &aligned(&rows, 0)
}

/// Where the examples of the manual have the control socket.
const SYSTEM_SOCKET: &str = "/run/octavo/control.sock";

/// The server's control socket: where somebody names it, where a server without a configuration
/// makes it, or where the manual has it.
pub fn socket(named: Option<&Path>, environment: &Environment) -> Result<PathBuf, Error> {
    if let Some(path) = named {
        // The form of the configuration is welcome, too.
        let bare = path.to_str().and_then(|path| path.strip_prefix("unix:"));
        return Ok(bare.map_or(path.to_owned(), PathBuf::from));
    }
    let (own, system) = (environment.control_socket(), PathBuf::from(SYSTEM_SOCKET));
    let is_missing =
        |path: &Path| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match (is_missing(&own), is_missing(&system)) {
        (true, true) if own != system => Err(Error::failed(format!(
            "no server listens at {} or at {SYSTEM_SOCKET}; {HOW_TO_REACH_ONE}",
            own.display()
        ))),
        (true, false) => Ok(system),
        _ => Ok(own),
    }
}

/// What helps where there is no socket.
const HOW_TO_REACH_ONE: &str = "start `octavo serve`, or name its control socket with --socket";

/// A connection to a server.
pub struct Connection {
    path: PathBuf,
    /// For whoever reads replies, and to end it.
    pub stream: UnixStream,
}

impl Connection {
    /// Connects.
    pub fn open(path: &Path) -> Result<Connection, Error> {
        let stream = UnixStream::connect(path).map_err(|error| {
            let what = match error.kind() {
                ErrorKind::NotFound => format!("no server listens here; {HOW_TO_REACH_ONE}"),
                ErrorKind::ConnectionRefused => {
                    "no server listens here any more: the one that made this socket was killed".into()
                }
                _ => error.to_string(),
            };
            Error::failed(format!("{}: {what}", path.display()))
        })?;
        Ok(Connection { path: path.to_owned(), stream })
    }

    fn failed(&self, what: String) -> Error {
        Error::failed(format!("{}: {what}", self.path.display()))
    }

    fn broken(&self, error: std::io::Error) -> Error {
        self.failed(format!("the connection broke: {error}"))
    }

    /// Sends a request.
    pub fn send(&self, request: &Request) -> Result<(), Error> {
        protocol::send(&mut &self.stream, request).map_err(|error| self.broken(error))
    }

    /// Reads a reply.
    pub fn reply(&self, reader: &mut BufReader<&UnixStream>) -> Result<Body, Error> {
        let line = protocol::receive(reader, REPLY_BYTES_MAX).map_err(|error| self.broken(error))?;
        let line = line.ok_or_else(|| self.failed("the server went away before it had answered".into()))?;
        let reply: Reply = serde_json::from_slice(&line).map_err(|error| {
            self.failed(if error.is_eof() {
                "the server went away in the middle of its answer".into()
            } else {
                format!("this is no answer of an octavo server: {error}")
            })
        })?;
        match reply.v {
            VERSION => Ok(reply.body),
            other => Err(self.failed(format!("the server speaks version {other}, this program {VERSION}"))),
        }
    }
}

/// Sends a request and reads replies up to the last.
fn ask(path: &Path, request: &Request) -> Result<Value, Error> {
    ask_with(path, request, output::text)
}

/// The same; what is told meanwhile goes to `told`.
fn ask_with(
    path: &Path,
    request: &Request,
    told: impl Fn(&str) -> Result<(), Error>,
) -> Result<Value, Error> {
    let connection = Connection::open(path)?;
    connection.send(request)?;
    let mut reader = BufReader::new(&connection.stream);
    loop {
        match connection.reply(&mut reader)? {
            Body::Ok(answer) => return Ok(answer),
            Body::Progress(progress) => {
                told(&format!("draining: {} dirty left\n", human_bytes(progress.dirty_bytes)))?;
            }
            // Nobody asked for one here.
            Body::Recording(_) => {}
            Body::Error(fault) => {
                let mut lines = vec![fault.message];
                lines.extend(fault.objects.iter().map(|object| {
                    let dirty_bytes = object.dirty_bytes;
                    format!(
                        "\"{}\": {}; {dirty_bytes} dirty bytes ({}) are not in its store",
                        object.name,
                        object.reason,
                        human_bytes(dirty_bytes)
                    )
                }));
                return Err(Error::Failed(lines));
            }
        }
    }
}
