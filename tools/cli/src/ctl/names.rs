//! The names of a running server's partitions and exports, for shells that complete them.

use std::io::BufReader;
use std::time::Duration;

use serde::Deserialize;

use super::connection::{self, Connection};
use crate::control::protocol::{Body, Request, Verb};
use crate::control::report::Report;
use crate::environment::Environment;

/// How long a shell waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The partitions; none if no server answers.
pub fn partitions(environment: &Environment) -> Vec<String> {
    let report = report(environment).unwrap_or_default();
    report.partitions.into_iter().map(|partition| partition.name).collect()
}

/// The exports; none if no server answers.
pub fn exports(environment: &Environment) -> Vec<String> {
    let report = report(environment).unwrap_or_default();
    report.partitions.into_iter().flat_map(|partition| partition.objects).map(|object| object.name).collect()
}

fn report(environment: &Environment) -> Option<Report> {
    let connection = Connection::open(&connection::socket(None, environment).ok()?).ok()?;
    connection.stream.set_read_timeout(Some(PATIENCE)).ok()?;
    connection.send(&Request::new(Verb::Stat)).ok()?;
    match connection.reply(&mut BufReader::new(&connection.stream)).ok()? {
        Body::Ok(answer) => Report::deserialize(&answer).ok(),
        _ => None,
    }
}
