//! Takes memory back from pages for buffers (L3 of `memory/reserve.rs`).
//!
//! Not here: how much of the buffer share is lent (`memory/reserve.rs`), how a partition is resized
//! (`resize.rs`).

use super::core::Core;
use super::plan::Picture;
use super::turn::Turn;
use crate::memory::Room;
use crate::state::events::MoveReason;
use crate::sync::{Arc, lock};

/// How often a call makes room, if other calls take what it has made. Each of these was served.
const ROUNDS: usize = 16;

/// Calls `attempt`, which charges `bytes` to the buffer share, and makes room for it as long as it
/// fails and pages have the memory. Returns what `attempt` returned last.
pub(crate) fn with_room<T, E>(
    core: &Arc<Core>,
    bytes: u64,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut tried = attempt();
    for _ in 0..ROUNDS {
        if tried.is_ok() || !make_room_for_buffers(core, bytes) {
            break;
        }
        tried = attempt();
    }
    tried
}

/// Makes room in the buffer share for a charge of `bytes`: evicts pages if they have the memory.
/// Waits about a second at most, for `planning` and for stores that must take dirty pages. Returns
/// whether a charge may succeed now: there was room, but another thread may have taken it since.
fn make_room_for_buffers(core: &Arc<Core>, bytes: u64) -> bool {
    if core.shared.is_forked() {
        return false;
    }
    match core.shared.reserve.room(bytes) {
        // Others have returned memory since a charge was refused.
        Room::Enough => true,
        Room::None => false,
        Room::Lent(_) => {
            let planning = lock(&core.ledger.planning);
            take_from_pages(core, planning.turn(core.crew(), MoveReason::Buffers), bytes)
        }
    }
}

/// As [`make_room_for_buffers`]. The caller holds `planning`.
pub(crate) fn take_from_pages(core: &Arc<Core>, turn: Option<Turn<'_>>, bytes: u64) -> bool {
    let shared = &core.shared;
    let mut made_room = false;
    // A store that does not answer holds one partition up: the second round takes the memory from
    // the others.
    for _ in 0..2 {
        if shared.reserve.take_back(bytes) {
            return true;
        }
        let lacking = match shared.reserve.room(bytes) {
            Room::Enough => return true,
            Room::None => return made_room,
            Room::Lent(lacking) => lacking,
        };
        let short = lacking.saturating_sub(shared.budget.left_bytes());
        let moved = Picture::of(core, 1.0).spare_held_up().shrink_all(short, turn);
        made_room |= moved >= short;
    }
    let has_room = shared.reserve.take_back(bytes);
    // Where pages did make room, other charges took it.
    if !has_room && !made_room {
        shared.reserve.set_stuck();
    }
    has_room || made_room
}

/// Makes room for what calls wanted that could not wait.
pub(super) fn serve_wanted(core: &Arc<Core>) {
    let wanted = core.shared.reserve.take_wanted();
    if wanted > 0 {
        make_room_for_buffers(core, wanted);
    }
}
