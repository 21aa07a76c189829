//! Shows that every step of the protocols is needed: with the step broken, a model fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::{SWITCH, away, explore, slot, table, twin};
use crate::broken::{Step, set};

/// Returns whether the model fails with `step` broken. No other model may run, because the switch
/// is global.
fn fails_without(step: Step, model: fn()) -> bool {
    let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
    set(Some(step));
    let result = catch_unwind(AssertUnwindSafe(|| explore(None, model)));
    set(None);
    result.is_err()
}

/// The steps, as `broken` explains them, each with the models that must notice its absence.
const MODELS: [(Step, fn()); 28] = [
    (Step::NoRecheck, slot::glance_against_evict),
    (Step::NoRecheck, slot::write_against_glance),
    (Step::NoRecheck, slot::word_against_evict),
    (Step::NoRecheck, slot::write_against_word),
    (Step::NoRecheck, twin::twin_against_refresh),
    (Step::NoReleaseFence, slot::glance_against_evict),
    (Step::NoReleaseFence, slot::write_against_glance),
    (Step::NoReleaseFence, slot::word_against_evict),
    (Step::NoReleaseFence, slot::write_against_word),
    (Step::NoVersionBump, slot::write_against_word),
    (Step::HideKeepsVersion, slot::glance_against_evict),
    (Step::HideKeepsVersion, slot::write_against_glance),
    (Step::WriteIgnoresPins, slot::write_against_pin),
    (Step::WritebackIgnoresVersion, slot::writeback_against_write),
    (Step::ForgetArrival, table::walk_against_move),
    (Step::ForgetArrival, table::walk_against_write),
    (Step::WaitWithoutSwap, slot::wait_against_publish),
    (Step::GiveBackSnapshots, table::pin_held_while_its_segment_leaves),
    (Step::GiveWithPages, table::bring_against_give),
    (Step::NoLink, twin::copy_against_write),
    (Step::LinkOnce, twin::copy_where_a_bit_is_set_against_write),
    (Step::PublishOvertaken, twin::copy_against_write),
    (Step::NoOvertake, twin::twin_against_write),
    (Step::NoOvertake, twin::copy_against_write),
    (Step::ForgetOrphans, twin::orphan_against_write),
    (Step::LockHomeOnly, away::write_that_finds_its_page_away),
    (Step::SwitchWithoutBits, away::switch_and_write_against_read_of_a_third_node),
    (Step::ForgetAwayOrphans, away::orphan_of_a_page_that_was_away),
];

#[test]
fn every_step_that_is_left_out_is_noticed_by_each_of_its_models() {
    let unnoticed = |(_, (step, model)): &(usize, (Step, fn()))| !fails_without(*step, *model);
    let unnoticed: Vec<_> = MODELS.into_iter().enumerate().filter(unnoticed).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}
