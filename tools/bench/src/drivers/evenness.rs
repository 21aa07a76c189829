//! How evenly the directory divides pages among segments, at every size.
//!
//! A table without frames grows from one segment to the case's `memory`. There is a row for every
//! size up to 32 segments. Above that, rows become sparser as sizes grow.

use octavo_table::{Mixer, Mover, PolicyKind, Shape, SlotIndex, Table};

use crate::case::Case;
use crate::error::Error;
use crate::report::Row;
use crate::stage::{Driver, Run};

pub const DRIVER: Driver = Driver {
    name: "evenness",
    purpose: "how evenly pages fall on segments",
    contestants: &[],
    scenery: &["memory"],
    check: |_| Ok(()),
    // Metadata without frames.
    memory: |needs| needs.frames / 50,
    set: |_, _| Ok(Box::new(rows)),
};

/// Moves nothing: the table is empty.
struct Nothing;

impl Mover for Nothing {
    fn copy(&mut self, _: SlotIndex, _: SlotIndex) {}
    fn wake(&mut self, _: SlotIndex) {}
}

fn rows(case: &Case, run: &mut Run<'_>) -> Result<Vec<Row>, Error> {
    let segments_max = (case.memory.0 >> 21).clamp(2, 4096) as u32;
    let shape = Shape { segments_max, sets_per_segment: 32 };
    let table: Table<16> = Table::new(shape, PolicyKind::Lru, 1);
    let mut rows = Vec::new();
    for segments in 1..=segments_max {
        if segments > 1 {
            let segment = table.spare_segment().ok_or_else(|| Error::new("the table cannot grow further"))?;
            for mv in table.join(segment).into_iter().rev() {
                table.advance(mv, &mut Nothing);
            }
        }
        if segments > 32 && !segments.is_multiple_of(1 << (segments.ilog2() - 4)) {
            continue;
        }
        let entries = table.entries_per_segment();
        let live: Vec<f64> = entries.iter().filter(|count| **count > 0).map(|count| *count as f64).collect();
        let mean = live.iter().sum::<f64>() / live.len() as f64;
        let (most, least) = (live.iter().copied().fold(0.0, f64::max), live.iter().copied().reduce(f64::min));
        let mut row = Row { case: format!("{}_{segments}", case.name), ..Row::new(run.suite, case) };
        row.add("segments", u64::from(segments));
        row.add("load_max_through_mean", most / mean);
        row.add("load_min_through_mean", least.unwrap_or(f64::INFINITY) / mean);
        rows.push(row);
    }
    debug_assert!(table.find(Mixer::new(1).tag(1)).is_none(), "the table is empty");
    Ok(rows)
}
