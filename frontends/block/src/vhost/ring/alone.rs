//! [`Alone`]: a ring without a thread, for fuzzers. They see the end of each turn.

use super::super::chain::Broken;
use super::{Ring, Start};
use octavo::Queue;
use std::io;

/// The most turns of one call: a guest can make the device write into the available ring, and so
/// keep it busy.
const TURNS_MAX: usize = 64;

/// A ring that takes requests only in [`Alone::serve`].
pub(in crate::vhost) struct Alone(Ring);

impl Alone {
    /// Repeats what a predecessor has left unfinished, if there is a record.
    pub fn new(start: Start) -> io::Result<(Alone, Result<(), Broken>)> {
        let mut alone = Alone(Ring::new(start)?);
        let resumed = alone.0.resume();
        alone.settle();
        Ok((alone, resumed))
    }

    /// Serves the available requests until all have completed.
    pub fn serve(&mut self) -> Result<(), Broken> {
        let served = self.turns();
        self.settle();
        served
    }

    fn turns(&mut self) -> Result<(), Broken> {
        for _ in 0..TURNS_MAX {
            let any = self.0.take()? | self.0.collect(0)?;
            self.0.tell()?;
            self.0.check_memory()?;
            match (any, self.0.in_flight) {
                (true, _) => {}
                (false, 0) => break,
                (false, _) => drop(self.0.collect(1)?),
            }
        }
        Ok(())
    }

    /// Waits for the operations of a ring that has broken.
    fn settle(&mut self) {
        while self.0.queue.pending() > 0 {
            self.0.queue.wait(1, drop);
        }
    }

    #[cfg(test)]
    pub fn orders(&self) -> std::sync::Arc<super::Orders> {
        self.0.orders.clone()
    }

    /// Returns the queue, for the next ring.
    pub fn into_queue(self) -> Queue {
        self.0.queue
    }
}
