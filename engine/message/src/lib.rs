//! [`Exchange`]: bounded message queues between NUMA nodes. Each ordered pair of nodes has a queue,
//! and each node has a bell, which records its sleeping receivers.
//!
//! Any thread of one node may send to another node, and any thread of that node may receive. A
//! message is an owned value, so its owner has exclusive access. (The engine's messages are boxes
//! of requests that travel to another node and back.) The protocol:
//!
//! - **M1** A message has one owner at a time: the sender, a place of a queue, or a receiver. Each
//!   owner sees the writes of the previous owner.
//! - **M2** A sender takes the next place to write by compare-and-swap, if the place's *turn* (its
//!   sequence number) says that it is free in this round. The sender writes the message and
//!   publishes it by changing the turn, with release. A full queue *refuses* a message: the sender
//!   gets it back, and no thread waits for space.
//! - **M3** A receiver takes the next place to read by compare-and-swap, if the place's turn,
//!   loaded with acquire, says that it holds a message. The receiver takes the message and frees
//!   the place for the next round by changing the turn, with release.
//! - **M4** An idle receiver *announces* itself by a bit of its node's bell, then looks at all
//!   queues to its node once more, and sleeps only if they are empty. A sender that has published a
//!   message looks at the bell, clears one bit, and wakes that bit's receiver. Both threads have a
//!   sequentially consistent fence: the receiver between announcing and looking, the sender between
//!   publishing and looking. So at least one of the two sees what the other has written.
//! - **M5** *Closing* sets a flag. A receiver ends when it has seen the flag and *then*, after a
//!   fence, found the queues empty. A sender looks at the flag after it has published, and after
//!   the fence of M4. Either a receiver still takes the message, or the sender sees the flag and
//!   empties the queue itself.
//!
//! So no message is lost, and no thread waits for space. If two nodes send to each other while both
//! queues are full, both get their messages back and execute those requests themselves. Not here:
//! the meaning of messages, threads, and how a thread sleeps and is woken.
//!
//! # Examples
//! ```
//! use octavo_message::{Exchange, Sent};
//! let exchange = Exchange::new(2, 8);
//! assert_eq!(exchange.send(0, 1, "request"), Sent::Delivered(None));
//! assert_eq!(exchange.receive(1, 0), Some("request"));
//! ```

mod bell;
pub mod broken;
mod ring;
mod sync;

use std::fmt;

use bell::Bell;
use ring::Ring;
use sync::atomic::{AtomicBool, Ordering, fence};

pub use bell::RECEIVERS_MAX;

/// The queues between all pairs of nodes, and the nodes' bells.
pub struct Exchange<T> {
    nodes: usize,
    /// The queue from node `from` to node `to` has index `from * nodes + to`.
    rings: Vec<Ring<T>>,
    bells: Vec<Bell>,
    closed: AtomicBool,
}

/// The result of [`Exchange::take`].
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// No message is available now.
    Nothing,
    /// No message is available, and the exchange is closed. Senders handle any later message
    /// themselves (M5).
    Closed,
}

/// The result of [`Exchange::send`].
#[derive(Debug, PartialEq, Eq)]
pub enum Sent<T> {
    /// The message is in its queue. If the value is `Some`, the receiver with that number sleeps,
    /// and the caller must wake it.
    Delivered(Option<u32>),
    /// The queue is full or the exchange is closed. The message is returned.
    Refused(T),
    /// The message is in its queue, but the exchange is closed. Perhaps no receiver will take the
    /// message, so the caller must receive from the queue until it is empty (M5).
    Orphaned,
}

impl<T> fmt::Debug for Exchange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange of {} nodes", self.nodes)
    }
}

impl<T> Exchange<T> {
    /// Creates the queues between `nodes` nodes, each for `capacity` messages.
    ///
    /// # Panics
    /// If `capacity` is not a power of two, or is less than 2.
    pub fn new(nodes: usize, capacity: usize) -> Exchange<T> {
        Exchange {
            nodes,
            rings: (0..nodes * nodes).map(|_| Ring::new(capacity)).collect(),
            bells: (0..nodes).map(|_| Bell::new()).collect(),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends a message from one node to another (M2, M4, M5). Never blocks.
    pub fn send(&self, from: usize, to: usize, message: T) -> Sent<T> {
        // Relaxed: a hint. The second load, after the fence, decides.
        if self.closed.load(Ordering::Relaxed) {
            return Sent::Refused(message);
        }
        if let Err(message) = self.rings[from * self.nodes + to].push(message) {
            return Sent::Refused(message);
        }
        // M4, M5. Pairs with the fences in `drowse` and `close`.
        if !broken::is(broken::Step::SendWithoutFence) {
            fence(Ordering::SeqCst);
        }
        if self.closed.load(Ordering::Relaxed) && !broken::is(broken::Step::SendIgnoresClosing) {
            return Sent::Orphaned;
        }
        Sent::Delivered(self.bells[to].take())
    }

    /// Returns a message to node `to`, if there is one. The search begins at the queue from node
    /// `turn` modulo the number of nodes. Callers add 1 to `turn` with each call, so that no queue
    /// is neglected.
    pub fn receive(&self, to: usize, turn: usize) -> Option<T> {
        (0..self.nodes).find_map(|at| self.rings[(turn + at) % self.nodes * self.nodes + to].pop())
    }

    /// Receives a message like `receive`, and also reports when the exchange is closed and empty,
    /// for receivers that run until then (M5).
    pub fn take(&self, to: usize, turn: usize) -> Received<T> {
        let closed = self.is_closed() && !broken::is(broken::Step::LookBeforeClosing);
        // Pairs with the fence in `send`: if a sender has not seen the flag, `receive` below sees
        // its message.
        if closed {
            fence(Ordering::SeqCst);
        }
        match self.receive(to, turn) {
            Some(message) => Received::Message(message),
            None if closed || broken::is(broken::Step::LookBeforeClosing) && self.is_closed() => {
                Received::Closed
            }
            None => Received::Nothing,
        }
    }

    /// Returns whether the queues to node `to` seem empty. The answer is a hint, unless a fence
    /// orders it (M4).
    pub fn is_empty(&self, to: usize) -> bool {
        (0..self.nodes).all(|from| self.rings[from * self.nodes + to].is_empty())
    }

    /// M4: announces a receiver of node `to` and looks at its queues once more. Returns true if the
    /// receiver may sleep; it calls `wake_up` after its sleep. Returns false if there is a message
    /// or the exchange is closed.
    ///
    /// # Panics
    /// If `receiver` is not below [`RECEIVERS_MAX`].
    pub fn drowse(&self, to: usize, receiver: u32) -> bool {
        self.bells[to].announce(receiver);
        // Pairs with the fence in `send`.
        fence(Ordering::SeqCst);
        let looks_again = !broken::is(broken::Step::SleepWithoutLook);
        let may_sleep = !looks_again || self.is_empty(to) && !self.closed.load(Ordering::Relaxed);
        if !may_sleep {
            self.bells[to].withdraw(receiver);
        }
        may_sleep
    }

    /// Clears the announcement of a receiver that has woken up.
    pub fn wake_up(&self, to: usize, receiver: u32) {
        self.bells[to].withdraw(receiver);
    }

    /// Returns a sleeping receiver of node `to`, if there is one. The caller must wake it. For work
    /// that does not come through a queue.
    pub fn rouse(&self, to: usize) -> Option<u32> {
        fence(Ordering::SeqCst);
        self.bells[to].take()
    }

    /// Closes the exchange (M5). The caller must wake all sleeping receivers.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Pairs with the fence in `send`.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the exchange is closed.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with `close`, so that the caller sees the closing thread's earlier writes.
        self.closed.load(Ordering::Acquire)
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_a_full_queue_refuses() {
        let exchange = Exchange::new(2, 4);
        for message in 0..4 {
            assert_eq!(exchange.send(0, 1, message), Sent::Delivered(None));
        }
        assert_eq!(exchange.send(0, 1, 4), Sent::Refused(4));
        assert_eq!(exchange.send(1, 0, 9), Sent::Delivered(None));
        for message in 0..4 {
            assert_eq!(exchange.receive(1, message), Some(message));
        }
        assert!(exchange.receive(1, 0).is_none() && exchange.is_empty(1) && !exchange.is_empty(0));
        assert_eq!(exchange.receive(0, 7), Some(9));
    }

    #[test]
    fn a_sleeping_receiver_is_woken_once_and_none_sleeps_while_a_message_waits() {
        let exchange = Exchange::new(2, 2);
        assert!(exchange.drowse(1, 5) && exchange.drowse(1, 63));
        assert_eq!(exchange.send(0, 1, 'a'), Sent::Delivered(Some(5)));
        assert_eq!(exchange.send(0, 1, 'b'), Sent::Delivered(Some(63)));
        assert!(!exchange.drowse(1, 5));
        assert_eq!(exchange.rouse(1), None);
        exchange.receive(1, 0).unwrap();
        exchange.receive(1, 0).unwrap();
        assert!(exchange.drowse(1, 5));
        exchange.wake_up(1, 5);
        assert_eq!(exchange.rouse(1), None);
    }

    #[test]
    fn a_closed_exchange_refuses_messages_and_sleep_and_keeps_its_messages() {
        let exchange = Exchange::new(3, 2);
        exchange.send(0, 2, "last");
        exchange.close();
        assert_eq!(exchange.send(0, 2, "later"), Sent::Refused("later"));
        assert!(!exchange.drowse(1, 0));
        assert_eq!(exchange.take(2, 1), Received::Message("last"));
        assert_eq!(exchange.take(2, 1), Received::Closed);
    }

    #[test]
    fn messages_that_were_not_received_are_dropped_with_the_exchange() {
        let message = std::sync::Arc::new(());
        let exchange = Exchange::new(1, 8);
        (0..5).for_each(|_| assert!(matches!(exchange.send(0, 0, message.clone()), Sent::Delivered(_))));
        drop(exchange.receive(0, 0));
        assert_eq!(std::sync::Arc::strong_count(&message), 5);
        drop(exchange);
        assert_eq!(std::sync::Arc::strong_count(&message), 1);
    }

    #[test]
    fn threads_that_send_to_each_other_lose_and_duplicate_no_message() {
        const EACH: u64 = if cfg!(miri) { 40 } else { 20_000 };
        let exchange = Exchange::new(2, 4);
        let (done, sum) = (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
        let count = |message: u64| {
            sum.fetch_add(message, std::sync::atomic::Ordering::Relaxed);
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (exchange, done, count) = (&exchange, &done, &count);
                scope.spawn(move || {
                    let node = thread % 2;
                    for message in 0..EACH {
                        if let Sent::Refused(message) = exchange.send(node, 1 - node, message) {
                            count(message);
                        }
                        exchange.receive(node, thread).into_iter().for_each(count);
                    }
                    while done.load(std::sync::atomic::Ordering::Relaxed) < 4 * EACH {
                        exchange.receive(node, thread).into_iter().for_each(count);
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * EACH * (EACH - 1) / 2);
    }
}
