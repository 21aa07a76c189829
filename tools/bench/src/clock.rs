//! The two clocks that slices are timed with.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::case::Clock;

impl Clock {
    /// Returns the time since a fixed moment.
    pub fn now(self) -> Duration {
        let time = clock_gettime(match self {
            Clock::Thread => ClockId::ThreadCPUTime,
            Clock::Wall => ClockId::Monotonic,
        });
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_takes_wall_time_and_no_thread_time() {
        let (thread, wall) = (Clock::Thread.now(), Clock::Wall.now());
        std::thread::sleep(Duration::from_millis(30));
        assert!(Clock::Wall.now() - wall >= Duration::from_millis(30));
        assert!(Clock::Thread.now() - thread < Duration::from_millis(30));
    }
}
