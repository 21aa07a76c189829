//! Four of Filebench's workloads (`flows.rs`), in a process of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, files_bytes, hindrance, succeed};
use super::flows::{Flow, NAMES};
use super::side::Side;
use crate::case::Case;
use crate::error::Error;
use crate::stage::Driver;

pub const DRIVER: Driver = Driver {
    name: "app-filebench",
    purpose: "Filebench's mixes on a mounted directory, beside the kernel's page cache",
    contestants: CONTESTANTS,
    scenery: &["memory", "files_percent", "job"],
    check: |case| check(case, &NAMES),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let files = match hindrance(&[]) {
            None => Ok(Files::new(case, run, |directory| {
                let flow = Flow { directory: directory.into(), ..flow(case) };
                flow.fill(files_bytes(case)).map_err(Error::at("the files"))
            })?),
            Some(why) => Err(why),
        };
        Ok(Box::new(move |case, run| {
            let program = run.options.program.clone().unwrap_or_default();
            let mix = Mix { flow: flow(case), program, slices: AtomicU64::new(0) };
            contest(case, run, files.as_ref().map_err(String::clone), &mix)
        }))
    },
};

fn flow(case: &Case) -> Flow {
    Flow {
        name: case.job.0.clone(),
        threads: case.threads.0,
        directory: Default::default(),
        names: Flow::names_of(&case.job.0, files_bytes(case)),
        seed: 1,
    }
}

struct Mix {
    flow: Flow,
    program: std::path::PathBuf,
    /// Slices so far, for their seeds.
    slices: AtomicU64,
}

impl Job for Mix {
    fn files(&self) -> u64 {
        self.flow.names
    }

    fn run(&self, side: &Side, time: Duration) -> Result<Vec<Done>, Error> {
        // Relaxed: only for a new seed.
        let seed = 2 + self.slices.fetch_add(1, Ordering::Relaxed);
        let flow = Flow { directory: side.path.clone(), seed, ..self.flow.clone() };
        let mut command = side.command(&self.program);
        let text = succeed(command.args(["bench", "--flow", &flow.line(time)]))?;
        let figures: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        match figures[..] {
            [operations, seconds] => Ok(vec![Done { operations, seconds }]),
            _ => Err(Error::new(format!("a flow answers \"{}\"", text.trim()))),
        }
    }
}
