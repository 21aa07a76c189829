//! The workers of nodes (mode `message`): on each core one thread, which serves bundles from other
//! nodes (`messages.rs`).

use octavo_message::{RECEIVERS_MAX, Received};

use super::crew::Crew;
use super::lane::Lane;
use super::messages::Post;
use crate::error::Error;
use crate::numa::{Numa, sys};
use crate::sync::{Arc, JoinHandle, lock, spawn};

/// Most bundles of a worker that wait for pages. At this number the worker takes no more.
const SERVED_MAX: usize = 32;

/// Number of times that an idle worker polls before it sleeps. This takes some microseconds.
const LOOKS: usize = 200;

/// The worker threads of a cache.
pub(crate) struct Workers(Vec<JoinHandle>);

impl Workers {
    /// Starts the workers, if the cache's mode sends messages.
    pub fn start(crew: &Arc<Crew>) -> Result<Workers, Error> {
        let numa = &crew.shared.numa;
        if !numa.sends_messages() {
            return Ok(Workers(Vec::new()));
        }
        let lanes = |node: &crate::numa::Node| {
            let count = node.cpus.len().clamp(1, RECEIVERS_MAX as usize);
            (0..count)
                .map(|_| Lane::new(crew, "an I/O ring for a node's worker"))
                .collect::<Result<Vec<_>, Error>>()
        };
        let lanes = numa.topology.nodes.iter().map(lanes).collect::<Result<Vec<_>, Error>>()?;
        assert!(crew.post.set(Post::new(&lanes)).is_ok(), "workers are started once");
        let mut threads = Vec::new();
        for (node, lanes) in lanes.into_iter().enumerate() {
            for (number, lane) in lanes.into_iter().enumerate() {
                let cpu = numa.topology.nodes[node].cpus.get(number).copied();
                let thread = spawn(&format!("octavo-node-{node}"), move || {
                    pin_to_cpu(&lane.shared.numa, cpu);
                    work(&lane, node, number as u32);
                });
                threads
                    .push(thread.map_err(|e| Error::Config(format!("cannot start a node's worker: {e}")))?);
            }
        }
        Ok(Workers(threads))
    }

    /// Forgets the threads in a child of `fork`, where they do not exist.
    pub fn leave_to_the_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.0));
    }

    /// Ends the workers. From then on senders serve their requests themselves.
    pub fn stop(&mut self, crew: &Crew) {
        if let Some(post) = crew.post.get() {
            post.close();
        }
        for thread in self.0.drain(..) {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}

fn pin_to_cpu(numa: &Numa, cpu: Option<u32>) {
    let Some(cpu) = cpu else { return };
    if numa.topology.is_emulated {
        crate::numa::sit(cpu);
    } else if let Err(error) = sys::pin(&[cpu]) {
        log::warn!("cannot pin a node's worker to processor {cpu}, so it may run on others: {error}");
    }
}

/// The main loop of a worker.
fn work(lane: &Arc<Lane>, node: usize, number: u32) {
    let post = lane.crew.post.get().expect("it was made before its workers");
    lane.mailbox.set_attended(true);
    loop {
        let mut busy = lane.take_ready() | (lane.reap() > 0);
        let mut closed = false;
        while lane.work().mail.served.len() < SERVED_MAX {
            let turn = lane.next_turn();
            let bundle = match post.left_over(node) {
                Some(bundle) => bundle,
                None => match post.exchange.take(node, turn) {
                    Received::Message(bundle) => bundle,
                    Received::Nothing => break,
                    Received::Closed => {
                        closed = true;
                        break;
                    }
                },
            };
            let mut work = lane.work();
            lane.serve(&mut work, bundle);
            lane.flush(&mut work);
            busy = true;
        }
        if busy {
            continue;
        }
        if closed && lane.work().tasks.is_empty() && lock(&post.leftovers[node]).is_empty() {
            return lane.leave();
        }
        // There is nothing to do, except perhaps to wait for pages.
        let is_full = lane.work().mail.served.len() >= SERVED_MAX;
        let has_news = || !is_full && (!post.exchange.is_empty(node) || post.exchange.is_closed());
        if !cfg!(shuttle)
            && (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                has_news()
            })
            && lane.work().tasks.is_empty()
        {
            continue;
        }
        if is_full || !lane.work().tasks.is_empty() && post.exchange.is_closed() {
            lane.park(None, None);
        } else if post.exchange.drowse(node, number) {
            // Check the leftovers once more after the announcement (M4).
            if lock(&post.leftovers[node]).is_empty() {
                lane.park(None, None);
            }
            post.exchange.wake_up(node, number);
        }
    }
}
