//! fio as a contestant: a process for each slice. <https://fio.readthedocs.io>

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::machine;
use crate::turns::Team;

/// The shortest run of fio: a shorter one would mostly measure fio's start.
const SLICE_MIN: Duration = Duration::from_secs(1);

/// A job that fio runs.
pub struct Job {
    /// The options of the job, separated by spaces, without the time.
    pub options: String,
    /// One more option with a path, which may contain spaces.
    pub path: String,
    /// Whether slices may be shorter than one second, which gives less reliable figures.
    pub quick: bool,
}

/// Returns the path of fio, if it is installed.
pub fn installed() -> Option<PathBuf> {
    machine::program("fio")
}

/// Returns the option that names the socket of an NBD server.
pub fn nbd_uri(socket: &Path) -> String {
    format!("--uri=nbd+unix:///?socket={}", socket.display())
}

impl Job {
    /// Returns the job as a contestant called `name`.
    pub fn team(self, name: &str) -> Team<'_> {
        Team::program(name, move |time| self.run(time))
    }

    /// Runs the job. Returns operations per second.
    pub fn run(&self, time: Duration) -> Result<f64, Error> {
        let fio = installed().ok_or_else(|| Error::new("fio is not installed"))?;
        self.run_as(Command::new(fio), time)
    }

    /// Runs the job by a command that starts fio. Returns operations per second.
    pub fn run_as(&self, mut command: Command, time: Duration) -> Result<f64, Error> {
        let time = if self.quick { time } else { time.max(SLICE_MIN) };
        command.args(["--name=bench", "--output-format=terse", "--terse-version=3", "--time_based"]);
        command.arg(format!("--runtime={}ms", time.as_millis().max(50)));
        let output =
            command.args(self.options.split(' ')).arg(&self.path).output().map_err(Error::at("fio"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let complaints = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!("fio: {}: {}", output.status, complaints.trim())));
        }
        iops(&text).ok_or_else(|| Error::new(format!("fio's report has no rates: {}", text.trim())))
    }
}

/// Returns the reads and writes per second in a terse report, version 3: fields 8 and 49, counted
/// from 1.
fn iops(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1)?.parse::<f64>().ok();
    (field(5)? == 0.0).then_some(())?;
    Some(field(8)? + field(49)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_a_report_unless_its_job_failed() {
        let mut fields = vec!["3".to_owned(), "fio-3.33".into(), "bench".into(), "0".into(), "0".into()];
        fields.extend((6..=130).map(|number| (number * 10).to_string()));
        assert_eq!(iops(&format!("note\n{}\n", fields.join(";"))), Some(80.0 + 490.0));
        fields[4] = "5".into();
        assert_eq!(iops(&fields.join(";")), None);
        assert_eq!(iops("3;fio"), None);
        assert_eq!(iops(""), None);
    }
}
