//! Runs programs concurrently, and keeps the output of each together.
//!
//! The output of a program is printed when the program has ended, so lines of two programs never
//! mix. If a program fails, those that run continue, but no further program is started.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::step::Outcome;

/// A program to run, and its name in the output.
pub struct Job {
    pub name: String,
    pub command: Command,
}

/// A job that has ended.
pub struct Ended {
    pub name: String,
    /// Everything that it wrote to standard output and standard error, in the order of the writes.
    pub output: Vec<u8>,
    pub status: io::Result<ExitStatus>,
    pub time: Duration,
}

/// Returns the number of jobs that run at once: one per processor, but at least two, because tests
/// spend much time waiting.
pub fn lanes() -> usize {
    thread::available_parallelism().map_or(2, |count| count.get().max(2))
}

/// Runs all jobs, at most `lanes` at once, in their order. Calls `end` for each job when that job
/// ends, one call at a time. Once `end` returns false, no further job is started.
pub fn run(jobs: Vec<Job>, lanes: usize, end: impl FnMut(Ended) -> bool + Send) {
    let jobs = Mutex::new(VecDeque::from(jobs));
    let end = Mutex::new(end);
    let next = || jobs.lock().expect("no job panics").pop_front();
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let ended = run_one(job);
                    if !(end.lock().expect("no end panics"))(ended) {
                        jobs.lock().expect("no job panics").clear();
                    }
                }
            });
        }
    });
}

fn run_one(Job { name, mut command }: Job) -> Ended {
    let begun = Instant::now();
    let mut output = Vec::new();
    let status = collect(&mut command, &mut output);
    Ended { name, output, status, time: begun.elapsed() }
}

fn collect(command: &mut Command, output: &mut Vec<u8>) -> io::Result<ExitStatus> {
    let (mut reader, writer) = io::pipe()?;
    command.stdin(std::process::Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command still holds the pipe's writing ends. Until it drops them, the pipe has no end.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    reader.read_to_end(output)?;
    child.wait()
}

/// Runs all jobs and prints their output. The outcome is `Passed` if all of them succeed.
pub fn run_all(jobs: Vec<Job>, lanes: usize) -> Outcome {
    let mut wrong = Vec::new();
    run(jobs, lanes, |ended| {
        println!("--- {} ({:.1} s)", ended.name, ended.time.as_secs_f64());
        print(&ended.output);
        match ended.status {
            Ok(status) if status.success() => return true,
            Ok(status) => wrong.push(format!("{}: {status}", ended.name)),
            Err(error) => wrong.push(format!("cannot run {}: {error}", ended.name)),
        }
        false
    });
    if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong.join("\n")) }
}

/// Prints the output of a job. Errors are ignored: the reader of this output may have closed it.
pub fn print(output: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(output).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command }
    }

    #[test]
    fn jobs_run_side_by_side_and_their_outputs_do_not_mix() {
        let folder = std::env::temp_dir().join(format!("octavo-jobs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // Each job waits for the other's mark: if the jobs ran one after the other, the first would
        // wait for ever.
        let both = |own: &str, other: &str| {
            let at = folder.display();
            let script = format!(
                "echo {own} 1; touch {at}/{own}; while ! test -e {at}/{other}; do sleep 0.01; done; echo {own} 2 >&2"
            );
            shell(own, &script)
        };
        let mut outputs = Vec::new();
        run(vec![both("a", "b"), both("b", "a")], 2, |ended| {
            assert!(ended.status.unwrap().success());
            outputs.push(String::from_utf8(ended.output).unwrap());
            true
        });
        outputs.sort();
        assert_eq!(outputs, ["a 1\na 2\n", "b 1\nb 2\n"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn after_a_failure_no_other_job_is_started() {
        let mut names = Vec::new();
        let jobs = vec![shell("good", "true"), shell("bad", "exit 3"), shell("never", "true")];
        run(jobs, 1, |ended| {
            names.push(ended.name);
            ended.status.unwrap().success()
        });
        assert_eq!(names, ["good", "bad"]);
        let missing = Job { name: "missing".into(), command: Command::new("/no/such/program") };
        let Outcome::Failed(what) = run_all(vec![missing], 1) else { panic!("it passed") };
        assert!(what.contains("cannot run missing"), "{what}");
        assert_eq!(run_all(vec![shell("good", "true")], 2), Outcome::Passed);
    }
}
