//! Draws reports: charts and tables as one HTML page that needs no other file, no script and no
//! network. The page follows the reader's light or dark theme.
//!
//! | file | holds |
//! |---|---|
//! | `page.rs` | [`Page`], [`Html`], [`Table`]: the page, its blocks and its series |
//! | `chart.rs` | [`Chart`] and [`Bars`]: curves over two axes, and horizontal bars, as SVG |
//! | `axis.rs` | [`Axis`]: the scale of an axis, and which round values get a tick |
//! | `number.rs` | numbers, bytes, rates and times in a few characters |
//!
//! Not here: which figures a report shows (`tools/bench`, `tools/sim`).
#![forbid(unsafe_code)]

mod axis;
mod chart;
mod number;
mod page;

pub use axis::Axis;
pub use chart::{Bar, Bars, Chart, Point, Series, Style, assert_well_formed};
pub use number::{bytes, fraction, nanoseconds, rate, short};
pub use page::{Html, Page, Table, aligned, escaped};
