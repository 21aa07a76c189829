//! Contestants take turns: each runs for a short slice, one after the other, round after round.
//!
//! A ratio compares two slices of the same round, so a disturbance of the machine that lasts longer
//! than a round slows both. A contestant is a [`Team`] with a [`Worker`] on each of the plan's
//! threads. The threads live for all rounds and serve all contestants, each pinned to a processor
//! (unless the contestants use threads of the kernel that need a processor too). Contestants
//! therefore differ only in what their workers do.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use octavo_disk::AlignedBytes;

use crate::case::Clock;
use crate::content::{self, PAGE_BYTES};
use crate::error::Error;
use crate::machine;
use crate::statistics::Histogram;

/// The fewest rounds of a run that is not quick. Odd, so that the median is a measured value.
pub const ROUNDS_MIN: usize = 9;

type Hook<'t> = Box<dyn Fn() -> Result<(), Error> + Sync + 't>;
type Hire<'t> = Box<dyn Fn(usize) -> Result<Box<dyn Worker + 't>, Error> + Sync + 't>;
type RunWhole<'t> = Box<dyn Fn(Duration) -> Result<f64, Error> + Sync + 't>;

/// A contestant.
pub struct Team<'t> {
    /// The name in rows.
    pub name: &'t str,
    kind: Kind<'t>,
    before: Hook<'t>,
    after: Hook<'t>,
}

enum Kind<'t> {
    Workers(Hire<'t>),
    Program(RunWhole<'t>),
}

impl<'t> Team<'t> {
    /// Creates a team of workers. `hire` runs on thread `thread`, from 0, and makes its worker.
    pub fn new<W: Worker + 't>(
        name: &'t str,
        hire: impl Fn(usize) -> Result<W, Error> + Sync + 't,
    ) -> Team<'t> {
        Team::boxed(name, move |thread| Ok(Box::new(hire(thread)?)))
    }

    /// Creates a team of workers of different types.
    pub fn boxed(
        name: &'t str,
        hire: impl Fn(usize) -> Result<Box<dyn Worker + 't>, Error> + Sync + 't,
    ) -> Team<'t> {
        Team::of_kind(name, Kind::Workers(Box::new(hire)))
    }

    /// Creates a contestant that is a program of its own. `run` runs the program for a given time
    /// and returns its operations per second.
    pub fn program(name: &'t str, run: impl Fn(Duration) -> Result<f64, Error> + Sync + 't) -> Team<'t> {
        Team::of_kind(name, Kind::Program(Box::new(run)))
    }

    fn of_kind(name: &'t str, kind: Kind<'t>) -> Team<'t> {
        Team { name, kind, before: Box::new(|| Ok(())), after: Box::new(|| Ok(())) }
    }

    /// Runs `before` before each slice, outside its time.
    pub fn before(self, before: impl Fn() -> Result<(), Error> + Sync + 't) -> Team<'t> {
        Team { before: Box::new(before), ..self }
    }

    /// Runs `after` after each slice, outside its time.
    pub fn after(self, after: impl Fn() -> Result<(), Error> + Sync + 't) -> Team<'t> {
        Team { after: Box::new(after), ..self }
    }
}

/// One thread's share of a contestant. A closure is a worker with no operations in flight at the
/// end of a slice.
pub trait Worker {
    /// Does some operations, for about 0.1 ms, and returns their number. Times each one if `times`
    /// is given.
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error>;

    /// Ends the slice: waits for operations in flight. The time of this call counts as a part of
    /// the slice.
    fn settle(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl<F: FnMut(Option<&mut Histogram>) -> Result<u64, Error>> Worker for F {
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error> {
        self(times)
    }
}

/// A driver's usual way of running its contestants. A case or the user may override parts of it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time of all slices of a case.
    pub seconds: f64,
    /// The approximate time of one slice.
    pub slice_ms: u64,
    /// The clock that slices are timed with. Default: wall time.
    pub clock: Clock,
    /// Whether each operation is timed. Default: no.
    pub timed: bool,
    /// Whether each thread is pinned to a processor. Default: yes.
    pub pinned: bool,
}

impl Pace {
    /// Creates a pace with wall time, untimed operations and pinned threads.
    pub const fn new(seconds: f64, slice_ms: u64) -> Pace {
        Pace { seconds, slice_ms, clock: Clock::Wall, timed: false, pinned: true }
    }

    /// Returns the same pace, with each operation timed.
    pub const fn timed(self) -> Pace {
        Pace { timed: true, ..self }
    }
}

/// The duration and number of contestants' slices, and the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of rounds that count.
    pub rounds: usize,
    /// Time of one slice.
    pub slice: Duration,
    /// Threads of each contestant.
    pub threads: usize,
    /// How the contestants run. Its time and slice are those that the driver asked for.
    pub pace: Pace,
}

impl Plan {
    /// Creates a plan for one thread: rounds with slices of about `pace.slice_ms` that fill `time`
    /// or, for a quick run, three rounds with slices of a tenth of that length.
    pub fn new(quick: bool, time: Duration, pace: Pace, contestants: usize) -> Plan {
        let slice = Duration::from_millis(pace.slice_ms);
        let rounds = (time.as_secs_f64() / slice.as_secs_f64() / contestants.max(1) as f64) as usize;
        let rounds = rounds.max(ROUNDS_MIN) | 1;
        let (rounds, slice) = match quick {
            true => (3, slice / 10),
            false => (rounds, time.div_f64((rounds * contestants.max(1)) as f64)),
        };
        Plan { rounds, slice, threads: 1, pace }
    }
}

/// What a contestant did in all rounds.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Operations per second of each round.
    pub rates: Vec<f64>,
    /// The times of single operations in all rounds, if they were timed.
    pub times: Option<Histogram>,
}

/// A slice that a thread is to run: the number of the team, and the time.
type Order = (usize, Duration);

type Answer = Result<(f64, Option<Histogram>), Error>;

/// Runs all contestants and returns their slices, in their order. Calls `progress` with the number
/// of each round before it; an error of `progress` ends the run.
pub fn take_turns(
    plan: Plan,
    teams: &[Team<'_>],
    mut progress: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Vec<Slices>, Error> {
    let barrier = Barrier::new(plan.threads);
    std::thread::scope(|scope| {
        let mut orders: Vec<Sender<Order>> = Vec::new();
        let (answer, answers) = channel();
        for thread in 0..plan.threads {
            let (order, mine) = channel();
            orders.push(order);
            let (answer, barrier) = (answer.clone(), &barrier);
            scope.spawn(move || serve(plan, teams, thread, barrier, &mine, &answer));
        }
        drop(answer);
        // Each thread has made its workers, or has failed.
        collect(plan.threads, &answers)?;
        let run = |number: usize, time: Duration| -> Answer {
            let team = &teams[number];
            (team.before)()?;
            let answer = match &team.kind {
                Kind::Program(run) => run(time).map(|rate| (rate, None)),
                Kind::Workers(_) => {
                    orders.iter().for_each(|order| _ = order.send((number, time)));
                    collect(plan.threads, &answers)
                }
            };
            (team.after)()?;
            answer
        };
        // A first round warms caches and branch predictors, and does not count.
        for (number, team) in teams.iter().enumerate() {
            if matches!(team.kind, Kind::Workers(_)) {
                run(number, plan.slice / 4)?;
            }
        }
        let mut slices = vec![Slices::default(); teams.len()];
        for round in 0..plan.rounds {
            progress(round)?;
            for (team, slices) in slices.iter_mut().enumerate() {
                let (rate, times) = run(team, plan.slice)?;
                slices.rates.push(rate);
                if let Some(times) = times {
                    slices.times.get_or_insert_with(Histogram::new).merge(&times);
                }
            }
        }
        Ok(slices)
    })
}

/// Adds up the answers of all threads. If a thread returned an error, returns the first error.
fn collect(threads: usize, answers: &Receiver<Answer>) -> Answer {
    let (mut sum, mut all, mut failed) = (0.0, None::<Histogram>, Ok(()));
    for _ in 0..threads {
        match answers.recv().unwrap_or_else(|_| Err(Error::new("a thread of a contestant has ended"))) {
            Err(error) => failed = failed.and(Err(error)),
            Ok((rate, times)) => {
                sum += rate;
                times.iter().for_each(|times| all.get_or_insert_with(Histogram::new).merge(times));
            }
        }
    }
    failed.map(|()| (sum, all))
}

/// The main function of a thread: creates a worker for each contestant, then runs slices until the
/// channel of orders closes.
fn serve(
    plan: Plan,
    teams: &[Team<'_>],
    thread: usize,
    barrier: &Barrier,
    orders: &Receiver<Order>,
    answer: &Sender<Answer>,
) {
    let _panicking = AnswerOnPanic(answer);
    if plan.pace.pinned {
        machine::pin(thread);
    }
    let hire = |team: &_| match team {
        Team { kind: Kind::Workers(hire), .. } => hire(thread).map(Some),
        _ => Ok(None),
    };
    let mut workers: Vec<Option<Box<dyn Worker + '_>>> = match teams.iter().map(hire).collect() {
        Ok(workers) => workers,
        Err(error) => return drop(answer.send(Err(error))),
    };
    // Sending fails only if the run has already ended with an error.
    let _ = answer.send(Ok((0.0, None)));
    while let Ok((team, time)) = orders.recv() {
        let Some(worker) = &mut workers[team] else { continue };
        barrier.wait();
        let mut times = plan.pace.timed.then(Histogram::new);
        let rate = slice(plan.pace.clock, time, &mut **worker, times.as_mut());
        let _ = answer.send(rate.map(|rate| (rate, times)));
    }
}

/// Sends an answer for a thread that panics, so that the run does not wait for it.
struct AnswerOnPanic<'a>(&'a Sender<Answer>);

impl Drop for AnswerOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Err(Error::new("a thread of a contestant has panicked")));
        }
    }
}

/// Runs turns until `time` has passed. Returns operations per second.
fn slice(
    clock: Clock,
    time: Duration,
    worker: &mut dyn Worker,
    mut times: Option<&mut Histogram>,
) -> Result<f64, Error> {
    let start = clock.now();
    let mut operations = 0;
    let mut ended = Ok(());
    while ended.is_ok() && clock.now().saturating_sub(start) < time {
        match worker.turn(times.as_deref_mut()) {
            Ok(count) => operations += count,
            Err(error) => ended = Err(error),
        }
    }
    // Needed after an error too, because operations in flight use the worker's memory.
    let settled = worker.settle();
    let passed = clock.now().saturating_sub(start).as_secs_f64();
    ended.and(settled).map(|()| operations as f64 / passed)
}

/// Runs one operation, and times it if `times` is given.
#[inline]
pub fn timed<T>(times: &mut Option<&mut Histogram>, operation: impl FnOnce() -> T) -> T {
    let Some(times) = times else { return operation() };
    let start = std::time::Instant::now();
    let result = operation();
    times.add(start.elapsed().as_nanos() as u64);
    result
}

/// The turns of [`page_reads`] that read whole pages.
pub const WHOLE_PAGES: (usize, usize) = (16, PAGE_BYTES);

/// Returns a worker that reads the first `len` bytes of pages with blocking calls, `turn` pages per
/// turn, and checks every byte. `read` reads a page into the buffer; `reader` is named in errors.
pub fn page_reads<'t>(
    (turn, len): (usize, usize),
    mut pages: impl Iterator<Item = u64> + 't,
    reader: &'t str,
    mut read: impl FnMut(u64, &mut AlignedBytes) -> Result<(), Error> + 't,
) -> impl Worker + 't {
    let mut buffer = AlignedBytes::new(len);
    move |mut times: Option<&mut Histogram>| {
        for number in pages.by_ref().take(turn) {
            timed(&mut times, || read(number, &mut buffer))?;
            content::check(number, 0, &buffer, reader)?;
        }
        Ok(turn as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Creates a team that appends its letter to `said` at each turn.
    fn speaker<'s>(name: &'s str, said: &'s Mutex<String>) -> Team<'s> {
        let speak = move |mut times: Option<&mut Histogram>| {
            let mut said = said.lock().unwrap();
            if !said.ends_with(name) {
                said.push_str(name);
            }
            drop(said);
            timed(&mut times, || std::thread::sleep(Duration::from_micros(200)));
            Ok(1)
        };
        Team::new(name, move |_| Ok(speak))
    }

    #[test]
    fn contestants_run_in_turn_on_all_threads_and_the_first_round_does_not_count() {
        let said = Mutex::new(String::new());
        let plan = Plan::new(true, Duration::ZERO, Pace::new(0.0, 40).timed(), 2);
        let plan = Plan { threads: 2, rounds: 2, ..plan };
        let teams = [speaker("a", &said), speaker("b", &said)];
        let slices = take_turns(plan, &teams, |_| Ok(())).unwrap();
        assert_eq!(*said.lock().unwrap(), "ababab");
        for slices in slices {
            assert_eq!(slices.rates.len(), 2);
            assert!(slices.rates.iter().all(|rate| *rate > 0.0 && *rate <= 10_000.0), "{slices:?}");
            let times = slices.times.unwrap();
            assert!(times.count() >= 4 && times.percentile_ns(0.0) >= 190_000.0);
        }
    }

    #[test]
    fn an_error_of_one_thread_ends_the_run() {
        let plan = Plan { threads: 3, ..Plan::new(true, Duration::ZERO, Pace::new(0.0, 10), 1) };
        let fail = |_: Option<&mut Histogram>| Err(Error::new("no more"));
        let error = take_turns(plan, &[Team::new("a", |_| Ok(fail))], |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("no more"));
    }

    #[test]
    fn a_plan_has_an_odd_number_of_rounds_and_fills_its_time() {
        let plan = Plan::new(false, Duration::from_secs(9), Pace::new(9.0, 150), 3);
        assert_eq!(plan.rounds % 2, 1);
        assert!((plan.slice.as_secs_f64() * 3.0 * plan.rounds as f64 - 9.0).abs() < 1e-6);
        let least = Plan::new(false, Duration::from_millis(1), Pace::new(9.0, 150), 3);
        assert_eq!(least.rounds, ROUNDS_MIN);
    }
}
