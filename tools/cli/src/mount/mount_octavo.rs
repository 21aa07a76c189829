//! `mount.octavo`: the program under the name that mount(8) looks for, with the command line that
//! mount(8) gives it. It mounts in the background.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser};

use super::{Arguments, Loudness, run};
use crate::environment::Environment;
use crate::error::Error;
use crate::logger::Settings;

/// The name of the program, as a link to `octavo`.
const NAME: &str = "mount.octavo";

/// What mount(8) reports for a wrong command line, and for a mount that failed.
const STATUS_USAGE: u8 = 1;
const STATUS_FAILED: u8 = 32;

/// Mounts a directory with a cache, for mount(8) and fstab: mount -t octavo SOURCE PATH
#[derive(Parser)]
#[command(name = NAME, version, max_term_width = 110, after_help = "\
Options of -o are those of octavo-mount(1).")]
pub struct Helper {
    /// The directory whose files are cached
    source: PathBuf,
    /// The directory where they appear
    path: PathBuf,
    /// Options of the mount
    #[arg(short, value_name = "OPTION,...")]
    options: Vec<String>,
    /// Check only
    #[arg(short)]
    fake: bool,
    /// Has no effect: there is no /etc/mtab
    #[arg(short)]
    no_mtab: bool,
    /// Has no effect: unknown options are refused
    #[arg(short)]
    sloppy: bool,
    /// Say more; twice: everything
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,
    /// The type of the file system, octavo or fuse.octavo
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
}

/// Whether the program was started as `mount.octavo`, by its first word.
pub fn is_helper(program: Option<&OsStr>) -> bool {
    program.is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(NAME)))
}

impl Helper {
    /// How much to log.
    pub fn loudness(&self) -> Loudness {
        // Its users are scripts, which expect silence.
        Loudness { verbose: self.verbose, quiet: self.verbose == 0 }
    }

    /// Mounts in the background.
    pub fn run(self, environment: &Environment, log: Settings) -> Result<(), Error> {
        let loudness = self.loudness();
        let arguments = Arguments {
            source: self.source,
            path: self.path,
            options: self.options,
            memory_max: None,
            writeback: false,
            read_only: false,
            daemon: true,
            in_background: false,
            check: self.fake,
        };
        run(&arguments, environment, loudness, log)
    }

    /// The exit status that mount(8) expects.
    pub fn exit_status(error: &Error) -> u8 {
        match error {
            Error::Usage(_) | Error::Config(_) => STATUS_USAGE,
            _ => STATUS_FAILED,
        }
    }
}
