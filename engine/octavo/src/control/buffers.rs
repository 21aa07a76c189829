//! Takes memory back from pages for buffers (L3 of `memory/reserve.rs`).
//!
//! Not here: how much of the buffer share is lent (`memory/reserve.rs`), how a partition is resized
//! (`resize.rs`).

use super::core::Core;
use super::plan::Picture;
use super::turn::Turn;
use crate::sync::{Arc, lock};

/// Makes room in the buffer share for a charge of `bytes`: evicts pages if they have the memory.
/// Waits about a second at most, for `planning` and for stores that must take dirty pages. Returns
/// whether there was room; another thread may have taken it since.
pub(crate) fn make_room_for_buffers(core: &Arc<Core>, bytes: u64) -> bool {
    let shared = &core.shared;
    if shared.is_forked() || shared.reserve.lacking(bytes).is_none() {
        return false;
    }
    let planning = lock(&core.ledger.planning);
    take_from_pages(core, planning.turn(core.crew()), bytes)
}

/// As [`make_room_for_buffers`]. The caller holds `planning`.
pub(crate) fn take_from_pages(core: &Arc<Core>, turn: Option<Turn<'_>>, bytes: u64) -> bool {
    let shared = &core.shared;
    // A store that does not answer holds one partition up: the second round takes the memory from
    // the others.
    for _ in 0..2 {
        if shared.reserve.take_back(bytes) {
            return true;
        }
        let Some(lacking) = shared.reserve.lacking(bytes) else { return false };
        let short = lacking.saturating_sub(shared.budget.left_bytes());
        Picture::of(core, 1.0).spare_held_up().shrink_all(short, turn);
    }
    let has_room = shared.reserve.take_back(bytes);
    if !has_room {
        shared.reserve.set_stuck();
    }
    has_room
}

/// Makes room for what calls wanted that could not wait.
pub(super) fn serve_wanted(core: &Arc<Core>) {
    let wanted = core.shared.reserve.take_wanted();
    if wanted > 0 {
        make_room_for_buffers(core, wanted);
    }
}
