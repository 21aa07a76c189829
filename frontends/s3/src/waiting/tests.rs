//! Requests that wait for a server, and what ends them.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a program is told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Answer(usize),
    Refused(i32),
}

impl Reply for Sender<Told> {
    fn refuse(self, errno: Errno) {
        let _ = self.send(Told::Refused(errno.code()));
    }
}

/// Adds a request that waits for the end of a channel, and then answers with a number.
fn add(waiting: &Arc<Waiting>, caller: u32, answer: usize) -> (Receiver<Told>, Sender<()>) {
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    let perform = move || {
        let _ = ended.recv();
        answer
    };
    waiting.add(caller, tell, perform, |answer, tell: Sender<Told>| {
        let _ = tell.send(Told::Answer(answer));
    });
    (told, end)
}

fn waiting(deadline: Duration) -> Arc<Waiting> {
    Waiting::new("test".into(), deadline)
}

#[test]
fn requests_have_a_thread_each_and_the_rest_waits_in_order() {
    let waiting = waiting(10 * PATIENCE);
    let mut requests: Vec<_> = (0..THREADS_MAX + 2).map(|number| add(&waiting, 0, number)).collect();
    {
        let state = lock(&waiting.state);
        assert_eq!(state.threads, THREADS_MAX);
        assert!(state.queue.len() >= 2);
    }
    // The last of those that have a thread is answered while all others hang.
    let (told, end) = requests.remove(THREADS_MAX - 1);
    drop(end);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Told::Answer(THREADS_MAX - 1)));
    let (told, end) = requests.remove(THREADS_MAX - 1);
    drop(end);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Told::Answer(THREADS_MAX)));
}

#[test]
fn too_many_requests_are_refused_and_errands_are_not() {
    let waiting = waiting(10 * PATIENCE);
    let mut requests = Vec::new();
    let refusal = loop {
        let (told, end) = add(&waiting, 0, 0);
        if let Ok(told) = told.try_recv() {
            break told;
        }
        requests.push((told, end));
    };
    assert_eq!(refusal, Told::Refused(Errno::ENOMEM.code()));
    assert!((WAITING_MAX..=WAITING_MAX + THREADS_MAX).contains(&requests.len()));
    let (tell, told) = channel();
    waiting.add_errand(move || tell.send(()).unwrap());
    drop(requests);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()));
}

#[test]
fn killed_programs_are_answered_while_the_server_is_silent() {
    let waiting = waiting(10 * PATIENCE);
    // No thread has this number.
    let killed = u32::MAX >> 1;
    let mine = add(&waiting, std::process::id(), 1);
    let (told, end) = add(&waiting, killed, 2);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Told::Refused(Errno::EINTR.code())));
    // The late answer goes nowhere, and the others wait on.
    drop(end);
    assert!(told.recv_timeout(PATIENCE).is_err());
    assert!(mine.0.try_recv().is_err());
    drop(mine.1);
    assert_eq!(mine.0.recv_timeout(PATIENCE), Ok(Told::Answer(1)));
}

#[test]
fn the_deadline_counts_from_the_arrival_with_or_without_a_thread() {
    let waiting = waiting(Duration::ZERO);
    let requests: Vec<_> = (0..THREADS_MAX + 5).map(|number| add(&waiting, 0, number)).collect();
    for (told, _) in &requests {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Told::Refused(Errno::EIO.code())));
    }
}

#[test]
fn a_panic_costs_no_thread_and_leaves_no_program_waiting() {
    let waiting = waiting(10 * PATIENCE);
    for _ in 0..2 * THREADS_MAX {
        let (tell, told) = channel::<Told>();
        waiting.add(0, tell, || panic!("this request panics"), |(), _| ());
        assert!(told.recv_timeout(PATIENCE).is_err());
    }
    let (told, end) = add(&waiting, 0, 7);
    drop(end);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Told::Answer(7)));
}
