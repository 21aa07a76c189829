//! Benchmarks of the engine. Each compares the engine with a bare loop that does the same work
//! without it.
//!
//! A suite is a TOML file with cases and with figures to draw. The contestants of a case take turns
//! in short slices (A B C A B C ...), and the case is reported as ratios of slices of the same
//! round, so that other load on the machine slows all contestants alike. A row contains everything
//! that a reader needs to judge it: the number of slices, their spread, the machine, the commit,
//! and the settings.
//!
//! From the top down; a file imports only files of lower rows:
//!
//! | file | holds |
//! |---|---|
//! | `run.rs`, `page.rs` | running a suite; its HTML page |
//! | `suite.rs`, `suites/` | cases and figures, as data |
//! | `drivers/` | the table of drivers; what contestants do in a case |
//! | `day/` | a day in operation, which is no suite |
//! | `scratch.rs`, `fio.rs` | files to measure on; fio as a contestant |
//! | `stage.rs` | what drivers share: the run, the measured cache, the shape of a driver |
//! | `group.rs` | memory control groups |
//! | `rival.rs` | other authors' caches as contestants |
//! | `progress.rs` | progress for the user |
//! | `report.rs` | rows and their table |
//! | `turns.rs` | taking turns on pinned threads |
//! | `stream.rs` | which pages are accessed |
//! | `clock.rs` | the two clocks |
//! | `nbd.rs` | the handshake of NBD clients |
//! | `case.rs` | the keys of a case |
//! | `reference.rs` | references: bare loops, direct I/O |
//! | `content.rs` | the content of pages, and its check |
//! | `statistics.rs` | medians, percentiles, fits |
//! | `machine.rs`, `error.rs` | facts about the machine; the error of a run |
//!
//! Not here: goals (rows show figures, and people judge them; only rows of `partitions` contain
//! goals), the command line (`tools/cli`), and other authors' caches (`tools/bench-compare`).

mod case;
mod clock;
mod content;
pub mod day;
mod drivers;
mod error;
mod fio;
mod group;
mod machine;
mod nbd;
mod page;
mod progress;
mod reference;
mod report;
pub mod rival;
mod run;
mod scratch;
mod stage;
mod statistics;
mod stream;
mod suite;
mod turns;
mod value;

pub use case::{Case, Value};
pub use content::PAGE_BYTES;
pub use drivers::apps::flows::serve as serve_flow;
pub use drivers::bounded::serve as serve_bounded;
pub use error::Error;
pub use octavo::disk::{AlignedBytes, Store};
pub use page::html;
pub use progress::{Begun, Listener, Progress};
pub use reference::{DirectFile, PrivateIo};
pub use report::{Machine, Row, Standing, table};
pub use run::run;
pub use stage::Options;
pub use suite::{Figure, Suite, matches};
pub use turns::Worker;
