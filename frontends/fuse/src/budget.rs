//! [`Budget`]: what the users of mounts may have open at a time, counted in descriptors of the
//! process, or in files whose pages a mount keeps. A user who opens too much is refused alone: what
//! others have open stays usable, and others can open more.
//!
//! Rules:
//! - **D1** The process's limit on descriptors, less a reserve, is for what stays open. The reserve
//!   is for the server itself, its connections, and requests that open a file for a moment (fsync,
//!   setting a length, copying). So no request about an open file fails for want of a descriptor.
//! - **D2** A file is charged when it is opened, with the descriptors that it may need at worst: a
//!   direct and a buffered one, one more where pages are kept under leases, and there one more for
//!   each handle that writes. An open directory takes one, and a known file that has one, too.
//! - **D3** The user that opens a file first pays for it. When that user closes its last handle,
//!   another user that has the file open pays. No user pays for a file without handles, or for a
//!   known file.
//! - **D4** What nobody pays for is given back when an open finds no room: the longest idle files,
//!   then descriptors of known files. Files with unwritten bytes stay (E3, `told.rs`).
//! - **D5** A user may have files for half of what the other users leave, and directories for five
//!   eighths. Beyond, `open` fails with ENFILE. So the next user always finds something, and a
//!   program that has too many files open does not keep its user from listing directories.
//! - **D6** A known file that cannot be opened by its handle keeps its descriptor until the kernel
//!   forgets it. Such files may have half of all. The kernel is asked to forget some before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;
use rustix::process::{RawUid, Resource, getrlimit};

use crate::lock::lock;

/// D1: the reserve is an eighth of all descriptors, within these bounds, and at most half of all.
const RESERVE_LEAST: usize = 256;
const RESERVE_MOST: usize = 4096;

/// The limit that stands for none.
const UNLIMITED: u64 = 1 << 20;

/// How many times an open makes room: other threads may take it.
const ROUNDS: usize = 64;

/// Closes something that nobody pays for (D4). Returns whether there was something; `None` if that
/// will never be so again.
pub type Keeper = dyn Fn() -> Option<bool> + Send + Sync;

/// What something is opened as (D5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
}

impl Kind {
    /// The most that a user may have, of what the others leave.
    fn share(self, left: usize) -> usize {
        match self {
            Kind::File => left / 2,
            Kind::Directory => left / 8 * 5,
        }
    }
}

/// A number of descriptors or files that users share.
pub struct Budget {
    state: Mutex<State>,
    refused: AtomicU64,
    keepers: Mutex<Vec<Arc<Keeper>>>,
}

#[derive(Default)]
struct State {
    max: usize,
    used: usize,
    /// Those of D6.
    stuck: usize,
    /// What users pay for, without users that pay for nothing.
    users: HashMap<RawUid, usize>,
}

/// What became of an attempt.
#[derive(PartialEq, Eq)]
enum Taken {
    Yes,
    /// D5, or D6.
    TooMuch,
    NoRoom,
}

impl State {
    fn may_pay(&self, user: RawUid, count: usize, kind: Kind) -> bool {
        let own = self.users.get(&user).copied().unwrap_or(0);
        let others = self.users.values().sum::<usize>() - own;
        own + count <= kind.share(self.max.saturating_sub(others))
    }

    fn take(&mut self, payer: Option<(RawUid, Kind)>, count: usize) -> Taken {
        if payer.is_some_and(|(user, kind)| !self.may_pay(user, count, kind)) {
            return Taken::TooMuch;
        }
        if self.used + count > self.max {
            return Taken::NoRoom;
        }
        self.used += count;
        self.pays(payer.map(|(user, _)| user), count);
        Taken::Yes
    }

    fn pays(&mut self, payer: Option<RawUid>, count: usize) {
        if let Some(user) = payer {
            *self.users.entry(user).or_default() += count;
        }
    }

    fn pays_no_more(&mut self, payer: Option<RawUid>, count: usize) {
        let Some(user) = payer else { return };
        let Some(own) = self.users.get_mut(&user) else { return };
        *own -= count;
        if *own == 0 {
            self.users.remove(&user);
        }
    }
}

impl Budget {
    /// A budget of this many.
    pub fn new(max: usize) -> Arc<Budget> {
        let state = Mutex::new(State { max, ..State::default() });
        Arc::new(Budget { state, refused: AtomicU64::new(0), keepers: Mutex::default() })
    }

    /// The descriptors of this process (D1), for all its mounts.
    pub fn of_process() -> Arc<Budget> {
        static PROCESS: OnceLock<Arc<Budget>> = OnceLock::new();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED) as usize;
        let reserve = (limit / 8).clamp(RESERVE_LEAST, RESERVE_MOST).min(limit / 2);
        let budget = PROCESS.get_or_init(|| Budget::new(0));
        // The limit may have been raised since.
        lock(&budget.state).max = limit - reserve;
        budget.clone()
    }

    /// Adds one that gives back (D4).
    pub fn add_keeper(&self, keeper: impl Fn() -> Option<bool> + Send + Sync + 'static) {
        lock(&self.keepers).push(Arc::new(keeper));
    }

    /// Takes a number for a user, and makes room if need be (D4).
    ///
    /// # Errors
    /// ENFILE (D5).
    pub fn take(self: &Arc<Self>, user: RawUid, count: usize, kind: Kind) -> Result<Paid, Errno> {
        self.make_room(|state| state.take(Some((user, kind)), count))?;
        Ok(Paid { budget: self.clone(), count, payer: Some(user) })
    }

    /// Takes a descriptor for a known file, if there is one now.
    pub fn take_for_known(self: &Arc<Self>) -> Option<Paid> {
        let taken = lock(&self.state).take(None, 1);
        (taken == Taken::Yes).then(|| Paid { budget: self.clone(), count: 1, payer: None })
    }

    /// Takes a descriptor for a known file that keeps it (D6), and makes room if need be.
    ///
    /// # Errors
    /// ENFILE.
    pub fn take_for_stuck(self: &Arc<Self>) -> Result<Stuck, Errno> {
        self.make_room(|state| {
            if state.stuck >= state.max / 2 {
                return Taken::TooMuch;
            }
            let taken = state.take(None, 1);
            state.stuck += usize::from(taken == Taken::Yes);
            taken
        })?;
        Ok(Stuck(Paid { budget: self.clone(), count: 1, payer: None }))
    }

    fn make_room(&self, mut take: impl FnMut(&mut State) -> Taken) -> Result<(), Errno> {
        for _ in 0..ROUNDS {
            let taken = take(&mut lock(&self.state));
            if taken == Taken::Yes {
                return Ok(());
            }
            if taken == Taken::TooMuch || !self.give_back() {
                break;
            }
        }
        self.refuse()
    }

    fn refuse(&self) -> Result<(), Errno> {
        // Relaxed: a figure.
        self.refused.fetch_add(1, Relaxed);
        Err(Errno::NFILE)
    }

    /// D4, without the lock of the state: a close may take long.
    fn give_back(&self) -> bool {
        let keepers = lock(&self.keepers).clone();
        keepers.iter().any(|keeper| {
            let given = keeper();
            if given.is_none() {
                lock(&self.keepers).retain(|other| !Arc::ptr_eq(other, keeper));
            }
            given == Some(true)
        })
    }

    /// How many there are, and how many are taken.
    pub fn max_and_used(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.max, state.used)
    }

    /// How many opens were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// A number taken from a budget, which gets it back when this is dropped.
pub struct Paid {
    budget: Arc<Budget>,
    count: usize,
    payer: Option<RawUid>,
}

impl Paid {
    /// Has another pay.
    fn pass_to(&mut self, payer: Option<RawUid>) {
        let mut state = lock(&self.budget.state);
        state.pays_no_more(self.payer, self.count);
        state.pays(payer, self.count);
        self.payer = payer;
    }

    /// Has a user pay for a file for which nobody pays (D5).
    fn charge(&mut self, user: RawUid) -> Result<(), Errno> {
        // One lock, so that two opens of a user cannot both find room for one.
        let mut state = lock(&self.budget.state);
        if !state.may_pay(user, self.count, Kind::File) {
            return self.budget.refuse();
        }
        state.pays_no_more(self.payer, self.count);
        state.pays(Some(user), self.count);
        self.payer = Some(user);
        Ok(())
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        let mut state = lock(&self.budget.state);
        state.used -= self.count;
        state.pays_no_more(self.payer, self.count);
    }
}

/// The descriptor of a known file that keeps it (D6).
pub struct Stuck(Paid);

impl Drop for Stuck {
    fn drop(&mut self) {
        lock(&self.0.budget.state).stuck -= 1;
    }
}

/// The descriptors that a file takes, and the users that have it open (D3).
pub struct Shared(Mutex<Users>);

struct Users {
    paid: [Paid; 2],
    /// Users with handles, and how many.
    handles: Vec<(RawUid, usize)>,
}

impl Shared {
    /// What a user has taken for a file that it opens.
    pub fn new(paid: [Paid; 2]) -> Shared {
        Shared(Mutex::new(Users { paid, handles: Vec::new() }))
    }

    /// Counts a handle of a user.
    ///
    /// # Errors
    /// ENFILE, if the user would have to pay and has too much (D5).
    pub fn open(&self, user: RawUid) -> Result<(), Errno> {
        let Users { paid: [first, second], handles } = &mut *lock(&self.0);
        if handles.is_empty() && first.payer != Some(user) {
            first.charge(user)?;
            if let Err(errno) = second.charge(user) {
                first.pass_to(None);
                return Err(errno);
            }
        }
        match handles.iter_mut().find(|(other, _)| *other == user) {
            Some((_, count)) => *count += 1,
            None => handles.push((user, 1)),
        }
        Ok(())
    }

    /// Takes a handle of a user back.
    pub fn close(&self, user: RawUid) {
        let Users { paid, handles } = &mut *lock(&self.0);
        let Some(at) = handles.iter().position(|(other, _)| *other == user) else { return };
        handles[at].1 -= 1;
        if handles[at].1 > 0 {
            return;
        }
        handles.swap_remove(at);
        let next = handles.first().map(|(other, _)| *other);
        if next.is_none() {
            // There may be many files without handles.
            *handles = Vec::new();
        }
        paid.iter_mut().filter(|paid| paid.payer == Some(user)).for_each(|paid| paid.pass_to(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used_by(budget: &Budget, user: RawUid) -> usize {
        lock(&budget.state).users.get(&user).copied().unwrap_or(0)
    }

    /// Files of two descriptors, until one is refused.
    fn greedy(budget: &Arc<Budget>, user: RawUid) -> Vec<Paid> {
        let open = |_: usize| budget.take(user, 2, Kind::File).ok();
        (0..10_000).map_while(open).collect()
    }

    #[test]
    fn a_greedy_user_is_refused_and_others_are_not() {
        let budget = Budget::new(1000);
        let first = greedy(&budget, 1);
        assert_eq!((first.len(), budget.refused()), (250, 1));
        // For its own listings, too, there is something left.
        assert!(budget.take(1, 1, Kind::Directory).is_ok());
        for user in 2..6 {
            let others = greedy(&budget, user);
            assert!(others.len() >= 120, "{}", others.len());
            drop(others);
        }
        let all: Vec<_> = (2..6).map(|user| greedy(&budget, user)).collect();
        assert!(all.iter().all(|files| !files.is_empty()));
        assert!(budget.take(7, 2, Kind::File).is_ok(), "the next user finds something");
        drop(all);
        drop(first);
        let state = lock(&budget.state);
        assert!(state.used == 0 && state.users.is_empty());
    }

    #[test]
    fn one_who_has_a_file_open_pays_for_it() {
        let (budget, files) = (Budget::new(16), Budget::new(100));
        let take =
            |user| Ok::<_, Errno>([budget.take(user, 2, Kind::File)?, files.take(user, 1, Kind::File)?]);
        let shared = Shared::new(take(1).unwrap());
        [1, 2, 2].into_iter().for_each(|user| shared.open(user).unwrap());
        assert_eq!((used_by(&budget, 1), used_by(&files, 1), used_by(&budget, 2)), (2, 1, 0));
        shared.close(1);
        assert_eq!((used_by(&budget, 1), used_by(&files, 1), used_by(&budget, 2)), (0, 0, 2));
        shared.close(2);
        shared.close(2);
        assert_eq!((used_by(&budget, 2), budget.max_and_used()), (0, (16, 2)));
        // A user that has its share may not take over an idle file either.
        let own: Vec<_> = (0..4).map(|_| take(3).unwrap()).collect();
        assert!(take(3).is_err() && shared.open(3) == Err(Errno::NFILE));
        shared.open(1).unwrap();
        shared.open(3).unwrap();
        assert_eq!((used_by(&budget, 1), used_by(&budget, 3)), (2, 8));
        drop((own, shared));
        assert!(budget.max_and_used() == (16, 0) && files.max_and_used() == (100, 0));
    }

    #[test]
    fn idle_files_are_given_back_before_an_open_is_refused() {
        let budget = Budget::new(100);
        let idle: Arc<Mutex<Vec<Paid>>> = Arc::default();
        let keeper = idle.clone();
        budget.add_keeper(|| None);
        budget.add_keeper(move || Some(lock(&keeper).pop().is_some()));
        while let Some(paid) = budget.take_for_known() {
            lock(&idle).push(paid);
        }
        assert_eq!(budget.max_and_used(), (100, 100));
        let files = greedy(&budget, 1);
        assert_eq!(files.len(), 25);
        assert!(lock(&idle).len() == 50, "not more than needed");
        // D6.
        let stuck: Vec<_> = (0..100).map_while(|_| budget.take_for_stuck().ok()).collect();
        assert!(stuck.len() == 50 && lock(&idle).is_empty());
    }
}
