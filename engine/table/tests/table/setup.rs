//! Set-up that the tests share: tables of one set, and pages that come in.

use octavo_table::{Claim, PolicyKind, Shape, SlotIndex, Table, Tag};

/// A table of one set.
pub fn one_set<const W: usize>(policy: PolicyKind) -> Table<W> {
    Table::new(Shape { segments_max: 1, sets_per_segment: 1 }, policy, 1)
}

/// Brings a page in, clean or dirty. Returns its slot; `None` if no way is available.
pub fn bring<const W: usize>(table: &Table<W>, tag: Tag, dirty: bool) -> Option<SlotIndex> {
    let Claim::Claimed { slot, .. } = table.lock(tag).claim(tag) else { return None };
    assert!(!table.publish(slot, dirty));
    Some(slot)
}

/// Publishes the clean page of a claim. Returns the page that was evicted for it.
pub fn publish<const W: usize>(table: &Table<W>, claim: Claim) -> Option<Tag> {
    let Claim::Claimed { slot, evicted } = claim else { panic!("every way is clean") };
    assert!(!table.publish(slot, false));
    evicted
}

/// Brings a clean page in. Returns the page that was evicted for it.
pub fn replace<const W: usize>(table: &Table<W>, tag: Tag) -> Option<Tag> {
    publish(table, table.lock(tag).claim(tag))
}
