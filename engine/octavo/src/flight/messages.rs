//! Mode `message`: requests of a batch for pages of another node are sent to that node, where its
//! workers serve them.
//!
//! A message is a *bundle* of up to [`LETTERS_MAX`] requests (*letters*) against one object. Each
//! letter names the caller's own memory, so a hit is copied straight to its destination. The sender
//! puts the bundle into the queue between the two nodes (`octavo_message`: M1 to M5); a worker of
//! the other node serves it and sends the same bundle back as the reply. In addition:
//!
//! - **M6** A bundle returns to a list of its lane (`Lane::returned`), which grows as needed. A
//!   worker that returns a bundle therefore never waits, and full queues cannot block each other in
//!   a cycle. The lane's owner takes the bundle from the list and continues its tasks.
//! - **M7** The sender serves a bundle itself if the queue refuses it, or if the cache is closing
//!   and no worker may receive it: any thread may access any page.
//! - **M8** Before it sleeps, a waiting caller serves bundles for its own node, but only their
//!   hits: a miss would wait until this caller attends to its lane again. The rest of such a bundle
//!   goes to the node's workers.
//!
//! Each core of a node has one worker. The worker serves hits in one pass (`read_many_counted`,
//! which overlaps their lookups), and misses as tasks on its own lane, so pages come in through a
//! ring of their node. An idle worker polls for some microseconds, then sleeps (M4).
//!
//! Not here: single blocking calls, syncs, discards and pins, which go directly to the pages in
//! all modes; the workers' threads (`workers.rs`).

use std::collections::VecDeque;
use std::sync::Weak;

use octavo_message::{Exchange, Sent};
use octavo_table::NodeId;
use slab::Slab;

use super::lane::{Lane, Work};
use super::task::{Job, Task};
use crate::error::Error;
use crate::memory::Lent;
use crate::numa::LETTERS_MAX;
use crate::position::{ByteOffset, PageIndex};
use crate::request::ReadOfBatch;
use crate::state::counters::Count;
use crate::state::partition::ObjectInner;
use crate::sync::{Arc, Mutex, lock};
use crate::wait::TaskId;

/// Most bundles that one queue holds.
const QUEUE_BUNDLES: usize = 64;

/// A message: requests that are sent to another node and come back as the reply.
pub(crate) struct Bundle {
    /// The lane to return to, and the object of the requests. None while the bundle is empty and
    /// unused.
    from: Option<(Arc<Lane>, Arc<ObjectInner>)>,
    letters: Vec<Letter>,
    /// Number of letters that are not done.
    left: usize,
}

/// A bundle in its allocation, which is reused.
pub(crate) type Parcel = Box<Bundle>;

/// One request, inside one page.
struct Letter {
    /// The sender's task that waits for the letter.
    task: TaskId,
    offset: ByteOffset,
    memory: *mut u8,
    len: usize,
    write: bool,
    done: bool,
    error: Option<Error>,
}

// SAFETY: the caller lends the memory for as long as the sender's task exists, and the task waits
// for the letter.
unsafe impl Send for Letter {}

/// The messages that one lane sends and serves.
#[derive(Default)]
pub(crate) struct Mail {
    /// Bundles being filled, by node.
    open: Vec<Option<Parcel>>,
    /// Bundles of other lanes whose misses this lane is serving.
    pub(super) served: Slab<Parcel>,
    /// Unused bundles.
    unused: Vec<Parcel>,
    /// Number of times that the lane has looked for bundles. Determines which node's queue it looks
    /// at first, so that each gets its turn.
    turn: usize,
}

/// The queues between the nodes of a cache, and their workers.
pub(crate) struct Post {
    pub(super) exchange: Exchange<Parcel>,
    /// By node: bundles whose hits are done, and whose misses wait for a worker (M8).
    pub(super) leftovers: Vec<Mutex<VecDeque<Parcel>>>,
    /// The lanes of the workers, by node.
    workers: Vec<Vec<Weak<Lane>>>,
}

impl Post {
    pub(super) fn new(lanes: &[Vec<Arc<Lane>>]) -> Post {
        Post {
            exchange: Exchange::new(lanes.len(), QUEUE_BUNDLES),
            leftovers: lanes.iter().map(|_| Mutex::new(VecDeque::new())).collect(),
            workers: lanes.iter().map(|lanes| lanes.iter().map(Arc::downgrade).collect()).collect(),
        }
    }

    fn wake(&self, node: usize, worker: u32) {
        // A worker that has ended emptied the queues before.
        if let Some(lane) = self.workers[node].get(worker as usize).and_then(Weak::upgrade) {
            lane.ring.wake();
        }
    }

    pub(super) fn close(&self) {
        self.exchange.close();
        self.workers.iter().flatten().filter_map(Weak::upgrade).for_each(|lane| lane.ring.wake());
    }

    fn leave_over(&self, node: usize, bundle: Parcel) {
        lock(&self.leftovers[node]).push_back(bundle);
        if let Some(worker) = self.exchange.rouse(node) {
            self.wake(node, worker);
        }
    }

    pub(super) fn left_over(&self, node: usize) -> Option<Parcel> {
        lock(&self.leftovers[node]).pop_front()
    }
}

impl Lane {
    pub(super) fn next_turn(&self) -> usize {
        let turn = &mut self.work().mail.turn;
        *turn = turn.wrapping_add(1);
        *turn
    }

    // ---- Sending

    /// Puts a task's part of a page into the bundle for the page's node. Returns false if the page
    /// belongs to this thread's node, or if a message would cost more than direct access.
    pub fn post_page(self: &Arc<Self>, work: &mut Work, id: TaskId, page: PageIndex) -> bool {
        let task = &work.tasks[id];
        let object = task.object.clone();
        let tag = object.tag(page);
        let Some(to) = object.partition.other_node(tag) else { return false };
        let (span, start) = (task.span(page), object.partition.page_size.start_of(page));
        let write = match task.job {
            Job::Read => false,
            Job::Write { .. } => true,
            // A `Populate` has no bytes to send or receive.
            _ => return false,
        };
        // A letter names one address. Bytes in several pieces are accessed directly.
        let Some(memory) = span.memory.one() else { return false };
        if !object.partition.sends(tag, task.batch, span.len, write) {
            return false;
        }
        self.post_letter(work, to, &object, (id, start + span.skip as u64, memory, span.len, write));
        true
    }

    /// Puts a request into the bundle for a node; the task waits for it.
    pub fn post_letter(
        self: &Arc<Self>,
        work: &mut Work,
        to: NodeId,
        object: &Arc<ObjectInner>,
        (task, offset, memory, len, write): (TaskId, ByteOffset, *mut u8, usize, bool),
    ) {
        work.tasks[task].outstanding += 1;
        let (at, mail) = (to.0 as usize, &mut work.mail);
        mail.open.resize_with(mail.open.len().max(at + 1), || None);
        let is_full = |bundle: &Bundle| {
            let other = bundle.from.as_ref().is_some_and(|(_, about)| !Arc::ptr_eq(about, object));
            other || bundle.letters.len() == LETTERS_MAX
        };
        if let Some(full) = mail.open[at].take_if(|bundle| is_full(bundle)) {
            self.send(work, at, full);
        }
        let mail = &mut work.mail;
        let bundle = mail.open[at].get_or_insert_with(|| {
            let new = || Box::new(Bundle { from: None, letters: Vec::with_capacity(LETTERS_MAX), left: 0 });
            let mut bundle = mail.unused.pop().unwrap_or_else(new);
            bundle.from = Some((self.clone(), object.clone()));
            bundle
        });
        bundle.letters.push(Letter { task, offset, memory, len, write, done: false, error: None });
        bundle.left += 1;
    }

    /// Sends all bundles that have letters.
    pub fn post_all(&self, work: &mut Work) {
        for to in 0..work.mail.open.len() {
            if let Some(bundle) = work.mail.open[to].take() {
                self.send(work, to, bundle);
            }
        }
    }

    fn send(&self, work: &mut Work, to: usize, bundle: Parcel) {
        let post = self.crew.post.get().expect("only lanes of such a cache post");
        let (lane, object) = bundle.from.clone().expect("a bundle that is sent has a sender");
        let counters = &object.partition.counters;
        let letters = bundle.letters.len() as u64;
        match post.exchange.send(self.shared.numa.here().0 as usize, to, bundle) {
            Sent::Delivered(sleeper) => {
                counters.add(Count::Bundles, 1);
                counters.add(Count::Messages, letters);
                object.partition.charge_bundle(letters, 0);
                if let Some(worker) = sleeper {
                    post.wake(to, worker);
                }
            }
            // M7.
            Sent::Refused(bundle) => {
                counters.add(Count::MessagesRefused, letters);
                lane.serve(work, bundle);
            }
            Sent::Orphaned => {
                while let Some(bundle) = post.exchange.receive(to, 0) {
                    lane.serve(work, bundle);
                }
            }
        }
    }

    /// Takes bundles that have come back and continues their tasks. Owner only.
    pub fn take_returned(&self, work: &mut Work, returned: Vec<Parcel>) {
        for mut bundle in returned {
            for letter in bundle.letters.drain(..) {
                if let Some(error) = letter.error {
                    work.tasks[letter.task].fail(error);
                }
                self.step(work, letter.task);
            }
            work.mail.unused.push(bundle);
        }
    }

    // ---- Serving

    /// Serves a bundle: hits immediately, the other letters as tasks of this lane. The next `flush`
    /// submits their I/O.
    pub(super) fn serve(self: &Arc<Self>, work: &mut Work, mut bundle: Parcel) {
        serve_hits(&mut bundle);
        if bundle.left == 0 {
            return give_back(bundle);
        }
        let (_, object) = bundle.from.clone().expect("a bundle that is served has a sender");
        let rest: Vec<(usize, Task)> = bundle
            .letters
            .iter()
            .enumerate()
            .filter(|(_, letter)| !letter.done)
            .map(|(at, letter)| {
                let job = if letter.write { Job::Write { durable: false } } else { Job::Read };
                (
                    at,
                    Task::new(job, object.clone(), letter.offset, Lent::one_piece(letter.memory), letter.len),
                )
            })
            .collect();
        let key = work.mail.served.insert(bundle);
        for (at, mut task) in rest {
            task.served = Some((key, at));
            self.start(work, task);
        }
    }

    /// Ends the letter that a task has served.
    pub fn letter_done(&self, work: &mut Work, (key, at): (usize, usize), error: Option<Error>) {
        let bundle = &mut work.mail.served[key];
        bundle.letters[at].error = error;
        bundle.left -= 1;
        if bundle.left == 0 {
            give_back(work.mail.served.remove(key));
        }
    }

    /// M8: serves a bundle for this thread's node. Returns whether there was one.
    pub fn help(self: &Arc<Self>) -> bool {
        let Some(post) = self.crew.post.get() else { return false };
        let node = self.shared.numa.here().0 as usize;
        let turn = self.next_turn();
        let Some(mut bundle) = post.exchange.receive(node, turn) else { return false };
        serve_hits(&mut bundle);
        match bundle.left {
            0 => give_back(bundle),
            _ => post.leave_over(node, bundle),
        }
        // The workers may have ended, because a worker ends once it has seen the flag and found
        // nothing left over. Then this thread serves the rest.
        if post.exchange.is_closed() {
            while let Some(bundle) = post.left_over(node) {
                let mut work = self.work();
                self.serve(&mut work, bundle);
                self.flush(&mut work);
            }
        }
        true
    }
}

/// A read that a letter requests. Its memory is the sender's, lent until the letter is back, and
/// may be foreign, so this is not a `Read`.
struct LetterRead {
    offset: ByteOffset,
    memory: *mut u8,
    len: usize,
}

// SAFETY: the sender lends `len` bytes at `memory` until its letter is back, and no other thread
// has the letter.
unsafe impl ReadOfBatch for LetterRead {
    #[inline(always)]
    fn start(&self) -> ByteOffset {
        self.offset
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn memory(&mut self) -> *mut u8 {
        self.memory
    }
}

/// Serves the hits of a bundle in one pass.
fn serve_hits(bundle: &mut Bundle) {
    let (_, object) = bundle.from.as_ref().expect("a bundle that is served has a sender");
    if object.partition.places.charged {
        // The bytes move between this node and the sender's.
        let bytes: usize = bundle.letters.iter().map(|letter| letter.len).sum();
        object.partition.charge_bundle(bundle.letters.len() as u64, bytes as u64);
    }
    let mut places = [0; LETTERS_MAX];
    let mut reads: Vec<LetterRead> = Vec::with_capacity(LETTERS_MAX);
    for (at, letter) in bundle.letters.iter().enumerate().filter(|(_, letter)| !letter.write && !letter.done)
    {
        // Skip letters past the end of an object that was cut in the meantime; their tasks will
        // report the error.
        if object.check(letter.offset, letter.len as u64).is_ok() {
            places[reads.len()] = at;
            reads.push(LetterRead { offset: letter.offset, memory: letter.memory, len: letter.len });
        }
    }
    let missing = object.read_many_counted(&mut reads);
    let (count, mut missing) = (reads.len(), missing.into_iter().peekable());
    drop(reads);
    for (number, at) in places[..count].iter().enumerate() {
        if missing.next_if_eq(&number).is_none() {
            bundle.letters[*at].done = true;
            bundle.left -= 1;
        }
    }
}

/// M6: returns a served bundle.
fn give_back(mut bundle: Parcel) {
    let (lane, _) = bundle.from.take().expect("a bundle that is served has a sender");
    lane.returned(bundle);
}
