//! Every step of the protocols is needed: with the step broken, a model fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::{SWITCH, away, explore, slot, twin};
use crate::broken::{Step, set};

/// Asserts that the model fails with `step` broken. No other model may run, because the switch is
/// global.
fn fails_without(step: Step, model: fn()) {
    let _alone = SWITCH.write().unwrap_or_else(PoisonError::into_inner);
    set(Some(step));
    let result = catch_unwind(AssertUnwindSafe(|| explore(None, model)));
    set(None);
    assert!(result.is_err(), "the model does not notice that {step:?}");
}

#[test]
fn a_read_without_its_re_check_is_noticed_p3_p13() {
    fails_without(Step::NoRecheck, slot::hit_against_evict);
    fails_without(Step::NoRecheck, slot::write_against_read);
    fails_without(Step::NoRecheck, slot::hit_by_word_against_evict);
    fails_without(Step::NoRecheck, slot::write_against_read_by_word);
}

#[test]
fn bytes_that_may_become_visible_before_their_announcement_are_noticed_p1_p6() {
    fails_without(Step::NoReleaseFence, slot::hit_against_evict);
    fails_without(Step::NoReleaseFence, slot::write_against_read);
    fails_without(Step::NoReleaseFence, slot::hit_by_word_against_evict);
    fails_without(Step::NoReleaseFence, slot::write_against_read_by_word);
}

#[test]
fn a_write_that_does_not_change_the_version_is_noticed_p7() {
    fails_without(Step::NoVersionBump, slot::write_against_read_by_word);
}

#[test]
fn a_page_that_is_hidden_and_shown_again_in_the_same_version_is_noticed_p13() {
    fails_without(Step::HideKeepsVersion, slot::hit_against_evict);
    fails_without(Step::HideKeepsVersion, slot::write_against_read);
}

#[test]
fn a_write_under_a_pin_is_noticed_p6() {
    fails_without(Step::WriteIgnoresPins, slot::write_against_pin);
}

#[test]
fn a_write_back_that_cleans_newer_bytes_is_noticed_p11() {
    fails_without(Step::WritebackIgnoresVersion, slot::writeback_against_write);
}

#[test]
fn a_wait_that_does_not_confirm_the_busy_state_is_noticed_p12() {
    fails_without(Step::WaitWithoutSwap, slot::wait_against_publish);
}

#[test]
fn a_copy_without_a_bit_at_its_main_is_noticed_t2() {
    fails_without(Step::NoLink, twin::copy_against_write);
}

#[test]
fn a_bit_that_is_trusted_and_not_set_again_is_noticed_t2() {
    fails_without(Step::LinkOnce, twin::copy_where_a_bit_is_set_against_write);
}

#[test]
fn a_copy_that_is_published_although_it_was_overtaken_is_noticed_t4() {
    fails_without(Step::PublishOvertaken, twin::copy_against_write);
}

#[test]
fn a_write_that_does_not_overtake_its_twins_is_noticed_t5() {
    fails_without(Step::NoOvertake, twin::twin_against_write);
    fails_without(Step::NoOvertake, twin::copy_against_write);
}

#[test]
fn a_read_of_a_twin_without_its_re_check_is_noticed_t6() {
    fails_without(Step::NoRecheck, twin::twin_against_refresh);
}

#[test]
fn an_orphan_that_is_forgotten_is_noticed_t7() {
    fails_without(Step::ForgetOrphans, twin::orphan_against_write);
}

#[test]
fn a_lock_that_skips_the_places_away_from_home_is_noticed_t9() {
    fails_without(Step::LockHomeOnly, away::write_that_finds_its_page_away);
}

#[test]
fn a_main_that_leaves_its_bits_behind_is_noticed_t10() {
    fails_without(Step::SwitchWithoutBits, away::switch_and_write_against_read_of_a_third_node);
}

#[test]
fn a_forgotten_orphan_of_a_main_evicted_away_from_home_is_noticed_t11() {
    fails_without(Step::ForgetAwayOrphans, away::orphan_of_a_page_that_was_away);
}
