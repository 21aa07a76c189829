//! The clients of a running server: `octavo ctl`, `octavo ctl top` and `octavo record`.
//!
//! `connection` finds the server and sends requests; `answer` prints answers; `changes` adds and
//! removes exports and partitions; `files` shows the files of mounts, and `events` events; `plan`
//! shows and sets proposed sizes; `sets` draws how full sets are; `tables` and `numa` format
//! answers for people; `names` lists names for shells.

mod answer;
mod changes;
pub mod connection;
mod events;
mod files;
pub mod names;
mod numa;
mod plan;
pub mod record;
mod sets;
mod tables;
mod top;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::Value;

use crate::control::keys;
use crate::control::protocol::{Request, Verb};
use crate::control::report::Report;
use crate::environment::Environment;
use crate::error::Error;
use crate::units::{human_bytes, size_bytes};
use crate::{output, suggest};
use answer::{Json, tell, tell_with_progress};
use connection::ask;
use tables::number;

/// Show and change what a running server does
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo ctl stat                              what every partition and export holds and has done
  octavo ctl partitions                        sizes and limits
  octavo ctl set vm1 min=64MiB weight=200      change limits, all or none
  octavo ctl export add vm2 --path /var/lib/images/vm2.raw --partition vm1
  octavo ctl reload                            apply what changed in the configuration
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
    /// Show the counters of every partition and export
    Stat {
        /// Only this partition
        partition: Option<String>,
        #[command(flatten)]
        json: Json,
        /// Repeat every two seconds, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Show the server's last events: moves of memory, stores that refuse, changes, warnings
    Events(events::Events),
    /// Show the partitions with their sizes and limits
    Partitions(Json),
    /// Change settings of a partition or a group: all of them, or none if one is refused
    #[command(after_help = keys::help())]
    Set {
        /// A partition; or a group, such as host of host/vm1 and host/vm2
        partition: String,
        /// Sizes such as 64MiB, or max for no limit
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Estimate a partition's recent misses at other sizes
    Mrc {
        partition: String,
        #[command(flatten)]
        json: Json,
    },
    /// Show the sizes that the reaper's plan aims at, and the misses that they would save
    Plan(plan::Plan),
    /// Show how full a partition's sets are, for debugging
    Sets {
        partition: String,
        #[command(flatten)]
        json: Json,
    },
    /// Announce how a range of an export will be used
    Advise {
        partition: String,
        export: String,
        /// normal, sequential, random, willneed, dontneed, noreuse
        advice: String,
        /// Where the range begins [default: 0]
        #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
        offset: Option<u64>,
        /// How long the range is [default: to the end]
        #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
        len: Option<u64>,
    },
    /// Evict the pages of a partition; dirty pages are written back first
    Evict {
        partition: String,
        /// Only the pages of this export
        #[arg(long, value_name = "EXPORT")]
        export: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Give memory of a partition back to the system
    Reclaim {
        partition: String,
        #[arg(value_name = "SIZE", value_parser = size_bytes)]
        bytes: u64,
        #[command(flatten)]
        json: Json,
    },
    /// Watch the partitions side by side, every two seconds: sizes, hits, misses, what more memory
    /// would save
    Top {
        /// Print one table of the figures since the server's start
        #[arg(long)]
        once: bool,
        /// Print these figures as one JSON object
        #[arg(long)]
        json: bool,
        /// Sort by this column
        #[arg(long, value_name = "COLUMN", value_parser = top::column, default_value = "partition")]
        sort: usize,
    },
    /// Add and remove exports
    #[command(subcommand)]
    Export(changes::Export),
    /// Add and remove partitions
    #[command(subcommand)]
    Partition(changes::Partition),
    /// Read the server's configuration file again, and apply what changed: all of it, or nothing
    Reload(changes::Reload),
    /// Show on which NUMA node pages lie, and which node's threads access them
    Numa(Json),
    /// Show which parts of the files of mounts are cached; read files into the cache, or evict them
    Files(files::Files),
    /// Make every acknowledged write durable
    Sync(Json),
    /// Write all dirty pages and sync, with progress; stores that refuse are tried again
    Drain(Json),
}

/// Asks, and prints the answer.
pub fn run(arguments: &Arguments, environment: &Environment) -> Result<(), Error> {
    let path = &connection::socket(arguments.socket.as_deref(), environment)?;
    match &arguments.question {
        Question::Stat { partition, json, watch } => loop {
            let answer = stat(path, partition.as_deref())?;
            match json.json {
                true => output::text(&format!("{answer}\n"))?,
                false => {
                    let report = Report::deserialize(&answer).map_err(connection::unreadable)?;
                    output::text(&tables::report(&report))?;
                }
            }
            if !watch {
                return Ok(());
            }
            std::thread::sleep(WATCH_PERIOD);
            if !json.json {
                output::text("\n")?;
            }
        },
        Question::Top { once, json, sort } => {
            let form = if *json {
                top::Form::Json
            } else if *once {
                top::Form::Table
            } else {
                top::Form::Screen
            };
            top::run(&|request| ask(path, request), form, *sort)
        }
        Question::Sync(json) => tell(json, path, &Request::new(Verb::Sync), |_| String::new()),
        Question::Drain(json) => {
            tell_with_progress(json, path, &Request::new(Verb::Drain), |_| "drained\n".into())
        }
        Question::Partitions(json) => tell(json, path, &Request::new(Verb::Partitions), tables::partitions),
        Question::Set { partition, values, json } => {
            let values = values.iter().map(|given| key_and_value(given)).collect::<Result<_, _>>()?;
            let request = Request { values, ..Request::about(Verb::Set, partition) };
            tell(json, path, &request, |answer| set(partition, answer))
        }
        Question::Export(change) => change.ask(path),
        Question::Partition(change) => change.ask(path),
        Question::Reload(reload) => reload.ask(path),
        Question::Files(files) => files.ask(path),
        Question::Events(events) => events.ask(path),
        Question::Numa(json) => tell(json, path, &Request::new(Verb::Numa), numa::tables),
        Question::Mrc { partition, json } => {
            tell(json, path, &Request::about(Verb::Mrc, partition), tables::curve)
        }
        Question::Plan(plan) => plan.ask(path),
        Question::Sets { partition, json } => {
            tell(json, path, &Request::about(Verb::Sets, partition), |answer| sets::chart(partition, answer))
        }
        Question::Advise { partition, export, advice, offset, len } => {
            let request = Request::about(Verb::Advise, partition);
            let (object, advice) = (Some(export.clone()), Some(advice.to_lowercase()));
            ask(path, &Request { object, advice, offset: *offset, len: *len, ..request }).map(drop)
        }
        Question::Evict { partition, export, json } => {
            let request = Request { object: export.clone(), ..Request::about(Verb::Evict, partition) };
            tell(json, path, &request, |answer| {
                format!("{} evicted\n", human_bytes(number(answer, "evicted_bytes")))
            })
        }
        Question::Reclaim { partition, bytes, json } => {
            let request = Request { bytes: Some(*bytes), ..Request::about(Verb::Reclaim, partition) };
            tell(json, path, &request, |answer| {
                let owed =
                    owed(answer).map_or(String::new(), |owed| format!("; {owed}, repeat the command then"));
                format!("{} reclaimed{owed}\n", human_bytes(number(answer, "reclaimed_bytes")))
            })
        }
    }
}

/// Time between two reports of `stat --watch`.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

fn key_and_value(given: &str) -> Result<(String, String), Error> {
    let (key, value) = given.split_once('=').ok_or_else(|| {
        Error::Usage(format!("\"{given}\": expected a key and its value, such as max=64MiB"))
    })?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The answer to `stat`, reduced to one partition if one is named.
fn stat(path: &Path, partition: Option<&str>) -> Result<Value, Error> {
    let mut answer = ask(path, &Request::new(Verb::Stat))?;
    if let (Some(name), Some(all)) = (partition, answer["partitions"].as_array_mut()) {
        suggest::named("partition", name, all, |one| one["name"].as_str().unwrap_or_default())
            .map_err(Error::failed)?;
        all.retain(|one| one["name"] == name);
    }
    Ok(answer)
}

/// The text to print after settings were changed: empty, unless a store delays one of them.
fn set(partition: &str, answer: &Value) -> String {
    let Some(owed) = owed(answer) else { return String::new() };
    match &answer["max"] {
        Value::Number(_) => {
            format!("\"{partition}\": max is {}; {owed}\n", human_bytes(number(answer, "max")))
        }
        _ => format!("\"{partition}\"; {owed}\n"),
    }
}

/// A sentence about the memory that cannot be given back because a store does not answer.
fn owed(answer: &Value) -> Option<String> {
    answer.get("held_up")?;
    let bytes = human_bytes(number(answer, "owed_bytes"));
    Some(format!("{bytes} are still to be given back (its store does not answer)"))
}
