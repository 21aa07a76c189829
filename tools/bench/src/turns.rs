//! Taking turns: contestants run in short slices, one after the other, round after round; figures
//! are medians.
//!
//! A ratio is that of two slices of the same round. What disturbs the machine for longer than a
//! round disturbs both. A contestant is a [`Team`]: so many threads, each with a [`Worker`] of its
//! own. The threads stay for all rounds, pinned to processors in turn (but where threads of the
//! kernel do a part of the work and want a processor too), and serve all contestants, so that these
//! differ in nothing but what they do.
//!
//! What is not here: what anybody does in a turn (`drivers/`).

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::clock::Clock;
use crate::statistics::Histogram;
use crate::{Error, machine};

/// Rounds of a run that is meant seriously; odd, so that the median is a measured value.
pub const ROUNDS_MIN: usize = 9;

/// A contestant.
pub trait Team: Sync {
    /// What rows call it.
    fn name(&self) -> &str;

    /// Its share of thread `thread`, made there.
    fn worker<'t>(&'t self, thread: usize) -> Result<Box<dyn Worker + 't>, Error>;

    /// Is called before each of its slices, outside of its time.
    fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Is called after each of its slices, outside of its time.
    fn finish(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether it is a program of its own, which is run for each slice instead of workers.
    fn is_whole(&self) -> bool {
        false
    }

    /// Runs that; operations per second.
    fn run_whole(&self, _time: Duration) -> Result<f64, Error> {
        Err(Error::new("this contestant is no program of its own"))
    }
}

/// One thread's share of a contestant.
pub trait Worker {
    /// Does some operations, for about 0.1 ms, and says how many. Where `times` are asked for,
    /// every one is timed.
    fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error>;

    /// The slice is over: ends what is still under way. That takes part of the slice's time.
    fn settle(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds that count.
    pub rounds: usize,
    /// Time of one slice.
    pub slice: Duration,
    /// Threads of each contestant.
    pub threads: usize,
    /// What time is measured with.
    pub clock: Clock,
    /// Whether operations are timed one by one.
    pub timed: bool,
    /// Whether each thread stays on a processor.
    pub pinned: bool,
}

impl Plan {
    /// Slices of about `slice` that fill `time`, for `contestants`; where only the working is
    /// tried, three short ones.
    pub fn new(quick: bool, time: Duration, slice: Duration, contestants: usize) -> Plan {
        let plan = |rounds, slice| Plan {
            rounds,
            slice,
            threads: 1,
            clock: Clock::Wall,
            timed: false,
            pinned: true,
        };
        if quick {
            return plan(3, slice / 10);
        }
        let rounds = (time.as_secs_f64() / slice.as_secs_f64() / contestants as f64) as usize;
        let rounds = rounds.max(ROUNDS_MIN) | 1;
        plan(rounds, time.div_f64((rounds * contestants) as f64))
    }
}

/// What a contestant did in all rounds.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Operations per second, of each round.
    pub rates: Vec<f64>,
    /// The times of single operations, of all rounds.
    pub times: Option<Histogram>,
}

/// What a thread is asked for, and what it answers.
struct Order {
    team: usize,
    time: Duration,
}

type Answer = Result<(f64, Option<Histogram>), Error>;

/// What all contestants did, in their order.
pub fn take_turns(
    plan: Plan,
    teams: &[&dyn Team],
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
        // Workers are made, each on its thread; a thread that cannot make its own has an error for
        // everybody.
        collect(plan.threads, &answers)?;
        let run = |team: usize, time: Duration| -> Answer {
            teams[team].prepare()?;
            let answer = match teams[team].is_whole() {
                true => teams[team].run_whole(time).map(|rate| (rate, None)),
                false => {
                    orders.iter().for_each(|order| drop(order.send(Order { team, time })));
                    collect(plan.threads, &answers)
                }
            };
            teams[team].finish()?;
            answer
        };
        // The first round warms caches and branch predictors, and does not count.
        for (number, team) in teams.iter().enumerate() {
            if !team.is_whole() {
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

/// The sum of what all threads answer.
fn collect(threads: usize, answers: &Receiver<Answer>) -> Answer {
    let mut sum = Ok((0.0, None::<Histogram>));
    for _ in 0..threads {
        let answer = answers.recv().unwrap_or_else(|_| Err(Error::new("a thread of a contestant has ended")));
        sum = match (sum, answer) {
            (Ok((sum, None)), Ok((rate, times))) => Ok((sum + rate, times)),
            (Ok((sum, Some(mut all))), Ok((rate, times))) => {
                times.iter().for_each(|times| all.merge(times));
                Ok((sum + rate, Some(all)))
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    }
    sum
}

/// A thread's life: workers for all contestants, then slices until nobody asks for more.
fn serve(
    plan: Plan,
    teams: &[&dyn Team],
    thread: usize,
    barrier: &Barrier,
    orders: &Receiver<Order>,
    answer: &Sender<Answer>,
) {
    let _fallen = Fallen(answer);
    if plan.pinned {
        machine::pin(thread);
    }
    let workers: Result<Vec<_>, Error> = teams.iter().map(|team| team.worker(thread)).collect();
    let mut workers = match workers {
        Ok(workers) => workers,
        Err(error) => return drop(answer.send(Err(error))),
    };
    // Whoever has gone has an error to tell; there is nobody to answer to.
    let _ = answer.send(Ok((0.0, None)));
    while let Ok(order) = orders.recv() {
        barrier.wait();
        let mut times = plan.timed.then(Histogram::new);
        let rate = slice(plan.clock, order.time, &mut *workers[order.team], times.as_mut());
        let _ = answer.send(rate.map(|rate| (rate, times)));
    }
}

/// Answers for a thread that panics, so that nobody waits for it.
struct Fallen<'a>(&'a Sender<Answer>);

impl Drop for Fallen<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Err(Error::new("a thread of a contestant has panicked")));
        }
    }
}

/// Takes turns until the time is over; operations per second.
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
    // Also after an error: what is under way uses memory of the worker's.
    let settled = worker.settle();
    let passed = clock.now().saturating_sub(start).as_secs_f64();
    ended.and(settled).map(|()| operations as f64 / passed)
}

/// Times one operation for a histogram.
#[inline]
pub fn timed<T>(times: &mut Histogram, operation: impl FnOnce() -> T) -> T {
    let start = std::time::Instant::now();
    let result = operation();
    times.add(start.elapsed().as_nanos() as u64);
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Says its letter at each turn, and does so many operations.
    struct Speaker<'s> {
        name: &'s str,
        said: &'s Mutex<String>,
        fails: bool,
    }

    impl Team for Speaker<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn worker<'t>(&'t self, _: usize) -> Result<Box<dyn Worker + 't>, Error> {
            Ok(Box::new(Turns(self)))
        }
    }

    struct Turns<'t>(&'t Speaker<'t>);

    impl Worker for Turns<'_> {
        fn turn(&mut self, times: Option<&mut Histogram>) -> Result<u64, Error> {
            if self.0.fails {
                return Err(Error::new("no more"));
            }
            let mut said = self.0.said.lock().unwrap();
            if !said.ends_with(self.0.name) {
                said.push_str(self.0.name);
            }
            drop(said);
            let rest = || std::thread::sleep(Duration::from_micros(200));
            times.map_or_else(rest, |times| timed(times, rest));
            Ok(1)
        }
    }

    #[test]
    fn contestants_run_in_turn_on_all_threads_and_the_first_round_does_not_count() {
        let said = Mutex::new(String::new());
        let team = |name| Speaker { name, said: &said, fails: false };
        let (a, b) = (team("a"), team("b"));
        let plan =
            Plan { threads: 2, timed: true, ..Plan::new(true, Duration::ZERO, Duration::from_millis(40), 2) };
        let slices = take_turns(Plan { rounds: 2, ..plan }, &[&a, &b], |_| Ok(())).unwrap();
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
        let said = Mutex::new(String::new());
        let broken = Speaker { name: "a", said: &said, fails: true };
        let plan = Plan { threads: 3, ..Plan::new(true, Duration::ZERO, Duration::from_millis(10), 1) };
        assert!(take_turns(plan, &[&broken], |_| Ok(())).unwrap_err().to_string().contains("no more"));
    }

    #[test]
    fn a_plan_has_an_odd_number_of_rounds_and_fills_its_time() {
        let plan = Plan::new(false, Duration::from_secs(9), Duration::from_millis(150), 3);
        assert_eq!(plan.rounds % 2, 1);
        assert!((plan.slice.as_secs_f64() * 3.0 * plan.rounds as f64 - 9.0).abs() < 1e-6);
        let least = Plan::new(false, Duration::from_millis(1), Duration::from_millis(150), 3);
        assert_eq!(least.rounds, ROUNDS_MIN);
    }
}
