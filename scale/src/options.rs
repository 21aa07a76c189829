//! [`Options`]: what the command line asks for.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::room::Room;
use crate::tpch;

pub const USAGE: &str =
    "usage: scale demo [--data FOLDER] [--queries 1,6,14] [--workers 1,2,4] [--parts single,\
    routing,room,leave,ballista] [--delay-ms 30] [--page BYTES] [--json FILE] [--out FILE]
       scale report [--json FILE]
       scale serve --data FOLDER [--delay-ms 0]
       scale single --port PORT --kind direct|octavo|octavo-tier|foyer [--memory BYTES] [--disk BYTES]
             [--directory FOLDER] [--passes cold,warm] [--queries 1,6,14]
       scale worker --port PORT --name NAME [--kind KIND] [--memory BYTES]
       scale ballista-scheduler --port PORT [--routing affinity|random|'as shipped']
       scale ballista-executor --port PORT --scheduler PORT --name NAME --directory FOLDER
             [--kind KIND] [--memory BYTES]
What has to do with Ballista needs a build with --features ballista. --page is for its executors.";

/// The options of a command, such as `--port 80`.
#[derive(Debug)]
pub struct Options(Vec<(String, String)>);

impl Options {
    pub fn parse(words: &[String]) -> Result<Options> {
        let pairs = words.chunks(2).map(|pair| match pair {
            [name, value] if name.starts_with("--") => Ok((name[2..].to_owned(), value.clone())),
            _ => Err(Error::from(USAGE)),
        });
        Ok(Options(pairs.collect::<Result<_>>()?))
    }

    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// An option's value, or else `default`.
    pub fn get<T: FromStr<Err: Into<Error>>>(&self, name: &str, default: &str) -> Result<T> {
        self.find(name).unwrap_or(default).parse().map_err(Into::into)
    }

    /// The values of an option that is a list.
    pub fn list<T: FromStr<Err: Into<Error>>>(&self, name: &str, default: &str) -> Result<Vec<T>> {
        let values = self.find(name).unwrap_or(default).split(',').filter(|value| !value.is_empty());
        values.map(|value| value.parse().map_err(Into::into)).collect()
    }

    /// The queries to run, in their order.
    pub fn queries(&self) -> Result<Vec<u32>> {
        match self.find("queries") {
            None => Ok(tpch::QUERIES.collect()),
            Some(_) => {
                let queries: Vec<u32> = self.list("queries", "")?;
                match queries.iter().all(|query| tpch::QUERIES.contains(query)) {
                    true => Ok(queries),
                    false => Err("--queries: numbers from 1 to 22 are needed".into()),
                }
            }
        }
    }

    pub fn delay(&self, default: &str) -> Result<Duration> {
        Ok(Duration::from_millis(self.get("delay-ms", default)?))
    }

    pub fn room(&self) -> Result<Room> {
        Ok(Room {
            memory_bytes: self.get("memory", "536870912")?,
            disk_bytes: self.get("disk", "1073741824")?,
            directory: PathBuf::from(self.get::<String>("directory", "cache")?),
            page_bytes: self.get("page", "65536")?,
        })
    }
}
