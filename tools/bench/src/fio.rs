//! fio as a contestant: a program of its own, run for each slice. <https://fio.readthedocs.io>

use std::process::Command;
use std::time::Duration;

use crate::turns::{Team, Worker};
use crate::{Error, machine};

/// fio runs shorter than this are mostly its start.
const SLICE_MIN: Duration = Duration::from_secs(1);

/// A job that is run for each slice.
pub struct Fio {
    /// What rows call it.
    pub name: String,
    /// Its options, without the time.
    pub options: Vec<String>,
    /// Slices may be shorter than is sensible.
    pub quick: bool,
}

impl Fio {
    /// Whether fio is here.
    pub fn is_here() -> bool {
        machine::program("fio").is_some()
    }

    /// Runs it; operations per second.
    pub fn run(&self, time: Duration) -> Result<f64, Error> {
        let fio = machine::program("fio").ok_or_else(|| Error::new("fio is not installed"))?;
        let time = if self.quick { time } else { time.max(SLICE_MIN) };
        let mut command = Command::new(fio);
        command.args(["--name=bench", "--output-format=terse", "--terse-version=3", "--time_based"]);
        command.arg(format!("--runtime={}ms", time.as_millis().max(50))).args(&self.options);
        let output = command.output().map_err(Error::at("fio"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let complaints = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!("fio: {}: {}", output.status, complaints.trim())));
        }
        iops(&text).ok_or_else(|| Error::new(format!("fio said nothing of use: {}", text.trim())))
    }
}

/// Reads and writes per second of a terse report, version 3: fields 8 and 49, counted from 1.
fn iops(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1)?.parse::<f64>().ok();
    (field(5)? == 0.0).then_some(())?;
    Some(field(8)? + field(49)?)
}

impl Team for Fio {
    fn name(&self) -> &str {
        &self.name
    }

    fn worker<'t>(&'t self, _: usize) -> Result<Box<dyn Worker + 't>, Error> {
        Ok(Box::new(Outside))
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn run_whole(&self, time: Duration) -> Result<f64, Error> {
        self.run(time)
    }
}

/// Does nothing: the work is done outside.
pub struct Outside;

impl Worker for Outside {
    fn turn(&mut self, _: Option<&mut crate::statistics::Histogram>) -> Result<u64, Error> {
        unreachable!("who runs as a whole has no turns")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_report_are_found_and_those_of_a_failed_job_are_not() {
        let mut fields = vec!["3".to_owned(), "fio-3.33".into(), "bench".into(), "0".into(), "0".into()];
        fields.extend((6..=130).map(|number| (number * 10).to_string()));
        assert_eq!(iops(&format!("note\n{}\n", fields.join(";"))), Some(80.0 + 490.0));
        fields[4] = "5".into();
        assert_eq!(iops(&fields.join(";")), None);
        assert_eq!(iops("3;fio"), None);
        assert_eq!(iops(""), None);
    }
}
