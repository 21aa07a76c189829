//! The program `octavo`: reads the arguments and the environment, and runs one subcommand.
//!
//! | folder | what it holds | may import |
//! |---|---|---|
//! | `serve/` | `octavo serve`: the life of a server | `config`, `control` |
//! | `mount/` | `octavo mount`, also as `mount.octavo` | `config`, `control` |
//! | `config/` | the configuration of a server | `control` |
//! | `ctl/` | `octavo ctl` and `octavo record`, the clients of a server | `control` |
//! | `web/` | `octavo web` and `octavo report`, which show a server's figures | `ctl`, `control` |
//! | `control/` | protocol, verbs, metrics, recordings and drain of a server | |
//! | `offline/` | `simulate`, `mrc`, `plan`, `trace` and `bench`, which need no server | |
//!
//! The files beside this one are leaves, which every folder may import. Imports never point up.
//!
//! Nothing below this file reads the environment or ends the process (except for signals, see
//! `control/stop.rs`). Errors reach `main` as an [`error::Error`], which decides the exit status.

#![deny(unsafe_code)]

mod closed;
mod completions;
mod config;
mod control;
mod ctl;
mod descriptors;
mod environment;
mod error;
// `heap` calls one C function, `mallopt`.
#[allow(unsafe_code)]
mod heap;
mod interruption;
mod limits;
mod lock;
mod logger;
mod mount;
mod mounts;
mod offline;
mod order;
mod output;
mod own;
mod process;
mod progress;
mod remotes;
mod serve;
// `signals` calls C functions that change the mask of a thread and wait for a signal.
#[allow(unsafe_code)]
mod signals;
mod suggest;
mod supervisor;
mod units;
mod web;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};

use control::stop::Stop;
use environment::Environment;
use offline::{bench, mrc, plan, simulate, trace};

const EXAMPLE: &str = "\
Examples:
  octavo serve                          serve a demo disk, and show how to attach to it
  octavo serve --config octavo.toml     serve the disks that a file names
  octavo serve --config octavo.toml --check
                                        only check the file
  octavo mount /srv/data /mnt           a directory with a cache, for unmodified programs
  octavo ctl stat                       show the counters of the running server
  octavo ctl sync                       make every acknowledged write durable
  octavo record vm1 --output vm1.octr   record the accesses of a partition
  octavo web                            show the running server in a browser
  octavo bench hits                     measure the engine on this machine

The smallest useful octavo.toml:
  [cache]
  memory_max = \"32MiB\"
  [[partition]]
  name = \"vm1\"
  cache_mode = \"writeback\"
  [[export]]
  name = \"vm1\"
  path = \"/var/lib/images/vm1.raw\"
  partition = \"vm1\"
  [listen]
  nbd = \"unix:/run/octavo/nbd.sock\"
  control = \"unix:/run/octavo/control.sock\"

Exit status:
  0        success
  1        failure, or bytes were lost
  2        the command line or the configuration is wrong
  141      nobody reads standard output any more
  128 + N  ended by signal N: a run that was interrupted, or a server with dirty bytes left";

/// A page cache in user space, in front of disk images and devices.
#[derive(Parser)]
#[command(name = "octavo", version, after_help = EXAMPLE, max_term_width = 110)]
struct Arguments {
    /// Log more; twice: everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Log only warnings and errors, and print no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Mount(mount::Arguments),
    Ctl(ctl::Arguments),
    Record(ctl::record::Arguments),
    Bench(bench::Arguments),
    Simulate(simulate::Arguments),
    Mrc(mrc::Arguments),
    Plan(plan::Arguments),
    Trace(trace::Arguments),
    Web(web::Arguments),
    Report(web::report::Arguments),
}

fn main() -> ExitCode {
    if may_become_server(std::env::args_os()) {
        Stop::prepare();
    }
    process::with_enough_stack(run)
}

/// Whether a command line starts a server or a mount, as far as this is known without reading it
/// all.
fn may_become_server(mut words: impl Iterator<Item = OsString>) -> bool {
    let program = words.next();
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let command = words.find(|word| !is_option(word));
    mount::is_helper(program.as_deref()) || command.is_some_and(|word| word == "serve" || word == "mount")
}

fn run() -> ExitCode {
    let environment = Environment::read();
    if mount::is_helper(std::env::args_os().next().as_deref()) {
        return main_of_helper(&environment);
    }
    completions::answer(&environment, Arguments::command);
    let arguments = Arguments::parse();
    let (verbose, quiet) = (arguments.verbose, arguments.quiet);
    let log = logger::Settings::new(verbose, quiet, environment.has_journal());
    logger::start(log);
    let result = match arguments.command {
        Command::Serve(serve) => serve::run(&serve, &environment, quiet, log),
        Command::Mount(mount) => mount::run(&mount, &environment, mount::Loudness { verbose, quiet }, log),
        Command::Ctl(ctl) => ctl::run(&ctl, &environment),
        Command::Record(record) => ctl::record::run(&record, &environment, quiet),
        Command::Bench(bench) => bench::run(&bench, &environment, quiet),
        Command::Simulate(simulate) => simulate::run(&simulate, &environment, quiet),
        Command::Mrc(mrc) => mrc::run(&mrc, quiet),
        Command::Plan(plan) => plan::run(&plan, quiet),
        Command::Trace(trace) => trace::run(&trace, quiet),
        Command::Web(web) => web::run(&web, &environment),
        Command::Report(report) => web::report::run(&report, &environment, quiet),
    };
    ended(result, error::Error::exit_status)
}

/// `mount.octavo`, which mount(8) runs.
fn main_of_helper(environment: &Environment) -> ExitCode {
    let helper = match mount::Helper::try_parse() {
        Ok(helper) => helper,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    let loudness = helper.loudness();
    let log = logger::Settings::new(loudness.verbose, loudness.quiet, environment.has_journal());
    logger::start(log);
    ended(helper.run(environment, log), mount::Helper::exit_status)
}

fn ended(result: Result<(), error::Error>, status: fn(&error::Error) -> u8) -> ExitCode {
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logger::failure(&error);
            // A start that fails must not leave a mount that nobody serves.
            own::detach_all();
            ExitCode::from(status(&error))
        }
    };
    logger::flush();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_server_is_known_by_its_subcommand_alone() {
        let of = |line: &str| may_become_server(line.split(' ').map(OsString::from));
        let servers = ["octavo serve", "octavo -vv --quiet mount /a /b", "/sbin/mount.octavo /a /b -o ro"];
        assert!(servers.into_iter().all(of));
        let others = ["octavo", "octavo ctl stat mount", "octavo --version", "octavo web -- serve"];
        assert!(!others.into_iter().any(of));
    }
}
