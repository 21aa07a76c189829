//! Messages between nodes: for each ordered pair of nodes a bounded queue, and for each node a bell
//! for those who sleep there.
//!
//! Who sends is any thread of a node, and who receives any thread of another. A message is an owned
//! value (the engine's is a box of requests that goes there and comes back), so that whoever has it
//! is alone with it. The protocol:
//!
//! - **M1** A message belongs to one at a time: the sender, a cell of a queue, a receiver. What one
//!   wrote the next one sees.
//! - **M2** Sending takes the place behind the last by compare-and-swap, if the place's turn says
//!   that it is free in this round; it writes the message and publishes it by the turn, with
//!   release. A queue that is full *refuses*: the sender has its message back, and nobody waits for
//!   room.
//! - **M3** Receiving takes the first place by compare-and-swap, if its turn says (acquire) that a
//!   message is there; it takes the message and frees the place for the next round by the turn,
//!   with release.
//! - **M4** A receiver that has nothing to do *announces* itself by a bit of its node's bell, then
//!   looks at all queues to its node once more, and only then sleeps. A sender that has published
//!   looks at the bell, takes one bit down, and wakes that receiver. Between announcing and
//!   looking, and between publishing and looking, lies a fence of sequential consistency: one of
//!   the two sees the other.
//! - **M5** *Closing* sets a flag. A receiver goes when it has seen the flag and *then*, behind a
//!   fence, found the queues empty. A sender looks at the flag after it has published, behind the
//!   fence of M4: either a receiver still comes by, or the sender sees the flag, and empties the
//!   queue itself.
//!
//! So no message is lost and no thread waits for room: two nodes that send to each other with full
//! queues both get their messages back and do for themselves what they had asked for. What is not
//! here: what messages mean, how a thread sleeps and is woken, threads.

mod bell;
pub mod broken;
mod ring;
mod sync;

use std::fmt;

use bell::Bell;
use ring::Ring;
use sync::atomic::{AtomicBool, Ordering, fence};

pub use bell::RECEIVERS_MAX;

/// The queues between some nodes.
pub struct Exchange<T> {
    nodes: usize,
    /// From node `from` to node `to` at `from * nodes + to`.
    rings: Vec<Ring<T>>,
    bells: Vec<Bell>,
    closed: AtomicBool,
}

/// What there is for a receiver.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// None now.
    Nothing,
    /// None, and none will come that its sender does not see to itself.
    Closed,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent<T> {
    /// It is in its queue; the receiver of that number sleeps, and is to be woken.
    Delivered(Option<u32>),
    /// The queue is full, or the exchange is closed.
    Refused(T),
    /// It is in its queue, and perhaps nobody comes for it: receive what is there (M5).
    Orphaned,
}

impl<T> fmt::Debug for Exchange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange of {} nodes", self.nodes)
    }
}

impl<T> Exchange<T> {
    /// Queues of `capacity` messages, a power of two from 2, between so many nodes.
    pub fn new(nodes: usize, capacity: usize) -> Exchange<T> {
        Exchange {
            nodes,
            rings: (0..nodes * nodes).map(|_| Ring::new(capacity)).collect(),
            bells: (0..nodes).map(|_| Bell::new()).collect(),
            closed: AtomicBool::new(false),
        }
    }

    /// Sends a message from one node to another.
    pub fn send(&self, from: usize, to: usize, message: T) -> Sent<T> {
        // Relaxed: a hint. What decides is the look below.
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

    /// A message to a node, if there is one: from each other node's queue in turn, so that none is
    /// passed over. `turn` is the caller's own number of its looks.
    pub fn receive(&self, to: usize, turn: usize) -> Option<T> {
        (0..self.nodes).find_map(|at| self.rings[(turn + at) % self.nodes * self.nodes + to].pop())
    }

    /// `receive` for those who stay until the end (M5).
    pub fn take(&self, to: usize, turn: usize) -> Received<T> {
        let closed = self.is_closed() && !broken::is(broken::Step::LookBeforeClosing);
        // Pairs with the fence in `send`: a sender that has not seen the flag has published what is looked
        // for here.
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

    /// Whether nothing seems to wait for the node's receivers.
    pub fn is_empty(&self, to: usize) -> bool {
        (0..self.nodes).all(|from| self.rings[from * self.nodes + to].is_empty())
    }

    /// M4 for a receiver of a node: true if it may sleep until it is woken, and then calls
    /// `wake_up`. False: there is something to do.
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

    /// A receiver that slept is up.
    pub fn wake_up(&self, to: usize, receiver: u32) {
        self.bells[to].withdraw(receiver);
    }

    /// Somebody of the node who sleeps, and is to be woken now: for work that did not come through
    /// a queue.
    pub fn rouse(&self, to: usize) -> Option<u32> {
        fence(Ordering::SeqCst);
        self.bells[to].take()
    }

    /// M5. Whoever sleeps is to be woken by the caller.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Pairs with the fence in `send`.
        fence(Ordering::SeqCst);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        // Acquire: what the closing thread did before is seen.
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
    fn a_sleeper_is_woken_once_and_none_sleeps_where_there_is_work() {
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
    fn a_closed_exchange_refuses_lets_nobody_sleep_and_keeps_what_it_has() {
        let exchange = Exchange::new(3, 2);
        exchange.send(0, 2, "last");
        exchange.close();
        assert_eq!(exchange.send(0, 2, "later"), Sent::Refused("later"));
        assert!(!exchange.drowse(1, 0));
        assert_eq!(exchange.take(2, 1), Received::Message("last"));
        assert_eq!(exchange.take(2, 1), Received::Closed);
    }

    #[test]
    fn what_was_sent_and_not_received_is_dropped_with_the_exchange() {
        let message = std::sync::Arc::new(());
        let exchange = Exchange::new(1, 8);
        (0..5).for_each(|_| assert!(matches!(exchange.send(0, 0, message.clone()), Sent::Delivered(_))));
        drop(exchange.receive(0, 0));
        assert_eq!(std::sync::Arc::strong_count(&message), 5);
        drop(exchange);
        assert_eq!(std::sync::Arc::strong_count(&message), 1);
    }

    #[test]
    fn threads_that_send_to_each_other_lose_no_message_and_double_none() {
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
