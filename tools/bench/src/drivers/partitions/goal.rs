//! Goals, which stand beside the figures of a row.

use crate::report::Row;

/// The goal of a figure.
#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    Below(f64),
}

/// Adds a figure to a row, and its goal under a name of its own.
pub fn judge(row: &mut Row, (name, goal_name): (&'static str, &'static str), figure: f64, goal: Goal) {
    let (is_met, text) = match goal {
        Goal::AtLeast(least) => (figure >= least, format!("at least {least}")),
        Goal::Below(most) => (figure < most, format!("below {most}")),
    };
    row.add(name, figure);
    row.add(goal_name, format!("{text}: {}", if is_met { "met" } else { "MISSED" }));
}
