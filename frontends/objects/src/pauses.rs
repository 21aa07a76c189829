//! [`Pauses`]: how long a failed request waits before its next attempt.

use std::time::{Duration, Instant};

use octavo_random::Random;

use crate::error::Error;

/// The pause after the first attempt. It doubles with each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between attempts that no server asked for.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses between the attempts of one request.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    random: Random,
    begun: Instant,
    /// How long all attempts may take together.
    deadline: Duration,
}

impl Pauses {
    /// Begins a request. `seed` must differ between requests: those that failed together must not
    /// come back together.
    pub fn new(seed: u64, deadline: Duration) -> Pauses {
        Pauses { next: PAUSE, random: Random::new(seed), begun: Instant::now(), deadline }
    }

    /// Returns the pause before the next attempt: from half of the present step to one and a half,
    /// after the time that the server asked for (`Retry-After`).
    ///
    /// # Errors
    /// The error of the last attempt, if the server asks for more time than is left.
    pub fn after(&mut self, error: Error) -> Result<Duration, Error> {
        let drawn = self.next / 2 + self.next.mul_f64(self.random.unit());
        self.next = (self.next * 2).min(PAUSE_MAX);
        let Some(asked) = error.retry_after() else { return Ok(drawn) };
        let left = self.deadline.saturating_sub(self.begun.elapsed());
        if asked >= left {
            let seconds = asked.as_secs();
            return Err(error.and(&format!("; the server asks to wait {seconds} s, which is too long")));
        }
        Ok(asked + drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const MINUTE: Duration = Duration::from_secs(60);

    fn busy() -> Error {
        Error::new(ErrorKind::Unavailable, "a", "is busy")
    }

    #[test]
    fn pauses_double_up_to_their_bound() {
        let mut pauses = Pauses::new(7, MINUTE);
        let mut step = PAUSE;
        for _ in 0..12 {
            let pause = pauses.after(busy()).unwrap();
            assert!((step / 2..=step / 2 * 3).contains(&pause), "{pause:?} at {step:?}");
            step = (step * 2).min(PAUSE_MAX);
        }
    }

    #[test]
    fn a_server_that_asks_for_time_gets_it_unless_the_deadline_comes_first() {
        let mut pauses = Pauses::new(7, MINUTE);
        let asked = Duration::from_secs(20);
        assert!(pauses.after(busy().with_retry_after(asked)).unwrap() > asked);
        let error = pauses.after(busy().with_retry_after(Duration::from_secs(100_000))).unwrap_err();
        assert!(error.to_string().contains("asks to wait 100000 s"), "{error}");
    }
}
