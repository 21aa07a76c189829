//! The two clocks of the suites.

use std::time::Duration;

/// What a slice's time is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Processor time of this thread: for loops that never wait. Other programs that run meanwhile
    /// do not count.
    Thread,
    /// The time of the wall: for everything that waits.
    Wall,
}

impl Clock {
    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Thread => "thread_cpu",
            Clock::Wall => "wall",
        }
    }

    /// The time since a moment that is the same for all readings.
    pub fn now(self) -> Duration {
        let clock = match self {
            Clock::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
            Clock::Wall => libc::CLOCK_MONOTONIC,
        };
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a structure of ours is filled.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(result, 0, "both clocks are part of Linux");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_takes_time_of_the_wall_and_none_of_the_thread() {
        let (thread, wall) = (Clock::Thread.now(), Clock::Wall.now());
        std::thread::sleep(Duration::from_millis(30));
        assert!(Clock::Wall.now() - wall >= Duration::from_millis(30));
        assert!(Clock::Thread.now() - thread < Duration::from_millis(30));
    }
}
