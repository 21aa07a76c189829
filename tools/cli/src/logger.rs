//! Log lines on standard error. Time stamps are the journal's business.

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::output;

struct Stderr;

/// Starts logging: warnings and news by default, more with `-v`, only what is wrong with `-q`.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::Warn,
        (false, 0) => LevelFilter::Info,
        (false, 1) => LevelFilter::Debug,
        (false, _) => LevelFilter::Trace,
    };
    // Fails only when a logger was set already, and `main` calls this once.
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // What the library of the control file system says in passing is for its authors.
        if record.target().starts_with("fuser") && record.level() > Level::Error {
            return;
        }
        let label = match record.level() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            Level::Info => "",
            Level::Debug => "debug: ",
            Level::Trace => "trace: ",
        };
        output::error_line(&format!("octavo: {label}{}", record.args()));
    }

    fn flush(&self) {}
}
