//! Taking turns: contestants run in short slices, one after the other, round after round; figures are medians.
//!
//! A ratio is that of two slices of the same round. What disturbs the machine for longer than a round disturbs both.

use std::time::Duration;

use crate::Error;
use crate::clock::Clock;

/// Rounds of a run that is meant seriously; odd, so that the median is a measured value.
pub const ROUNDS_MIN: usize = 9;

/// One contestant: runs for about the time it is given, and returns operations per second.
pub type Contestant<'c> = &'c mut dyn FnMut(Duration) -> Result<f64, Error>;

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds that count.
    pub rounds: usize,
    /// Time of one slice.
    pub slice: Duration,
}

impl Plan {
    /// Slices of about `slice` that fill `time`, for `contestants`.
    pub fn new(quick: bool, time: Duration, slice: Duration, contestants: usize) -> Plan {
        if quick {
            return Plan { rounds: 3, slice: Duration::from_millis(30) };
        }
        let rounds = (time.as_secs_f64() / slice.as_secs_f64() / contestants as f64) as usize;
        let rounds = rounds.max(ROUNDS_MIN) | 1;
        Plan { rounds, slice: time.div_f64((rounds * contestants) as f64) }
    }
}

/// What all slices of all contestants did, in operations per second: `[contestant][round]`.
pub fn take_turns(
    plan: Plan,
    contestants: &mut [Contestant<'_>],
    mut progress: impl FnMut(usize),
) -> Result<Vec<Vec<f64>>, Error> {
    let mut slices = vec![Vec::with_capacity(plan.rounds); contestants.len()];
    // The first round warms caches and branch predictors, and does not count.
    for contestant in contestants.iter_mut() {
        contestant(plan.slice / 4)?;
    }
    for round in 0..plan.rounds {
        progress(round);
        for (contestant, slices) in contestants.iter_mut().zip(&mut slices) {
            slices.push(contestant(plan.slice)?);
        }
    }
    Ok(slices)
}

/// Runs `turn`, which does some operations and says how many, until the time is over; operations per second.
pub fn rate(
    clock: Clock,
    time: Duration,
    mut turn: impl FnMut() -> Result<u64, Error>,
) -> Result<f64, Error> {
    let start = clock.now();
    let mut operations = 0;
    loop {
        operations += turn()?;
        let passed = clock.now().saturating_sub(start);
        if passed >= time {
            return Ok(operations as f64 / passed.as_secs_f64());
        }
    }
}

/// The middle of some numbers; of an even count, the lower of the two in the middle.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

/// One slice through the other, round by round.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_run_in_turn_and_the_first_round_does_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let contestant = |name: char, rate: f64| {
            let order = &order;
            move |_: Duration| {
                order.borrow_mut().push(name);
                Ok(rate)
            }
        };
        let (mut a, mut b) = (contestant('a', 1.0), contestant('b', 2.0));
        let plan = Plan { rounds: 2, slice: Duration::from_millis(1) };
        let slices = take_turns(plan, &mut [&mut a, &mut b], |_| {}).unwrap();
        assert_eq!(slices, [[1.0, 1.0], [2.0, 2.0]]);
        assert_eq!(*order.borrow(), ['a', 'b', 'a', 'b', 'a', 'b']);
        assert_eq!(ratios(&slices[1], &slices[0]), [2.0, 2.0]);
    }

    #[test]
    fn a_plan_has_an_odd_number_of_rounds_and_fills_its_time() {
        let plan = Plan::new(false, Duration::from_secs(9), Duration::from_millis(150), 3);
        assert_eq!(plan.rounds % 2, 1);
        assert!((plan.slice.as_secs_f64() * 3.0 * plan.rounds as f64 - 9.0).abs() < 1e-6);
        assert_eq!(
            Plan::new(false, Duration::from_millis(1), Duration::from_millis(150), 3).rounds,
            ROUNDS_MIN
        );
    }

    #[test]
    fn a_median_is_one_of_the_numbers() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.0);
    }
}
