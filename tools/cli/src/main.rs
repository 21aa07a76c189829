//! The program `octavo`: reads its arguments and environment, and hands them to one file per
//! subcommand.
//!
//! Nothing below this file reads the environment or ends the process (but for the second signal,
//! see [`signals`]). Errors come up to here as an [`error::Error`], which decides the exit status.

#![deny(unsafe_code)]

mod config;
mod control;
mod ctl;
mod environment;
mod error;
// The one call of C.
#[allow(unsafe_code)]
mod heap;
mod interruption;
mod logger;
mod offline;
mod order;
mod output;
mod process;
mod serve;
mod suggest;
mod units;

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use environment::Environment;
use offline::{bench, mrc, plan, simulate, trace};

const EXAMPLE: &str = "\
Examples:
  octavo serve                          serve a demo disk, and say how to attach to it
  octavo serve --config octavo.toml     serve the disks that a file names
  octavo serve --config octavo.toml --check
                                        only say what is wrong with the file
  octavo ctl stat                       what the running server does
  octavo ctl sync                       make every acknowledged write durable
  octavo record vm1 --output vm1.octr   record what a partition is asked for
  octavo bench hits                     how fast it is on this machine

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

Exit status: 0 done; 1 it failed, or bytes were lost; 2 the command line or the configuration is wrong;
128 + N ended at once by a second signal N, with dirty bytes left.";

/// A page cache in user space, in front of disk images and devices.
#[derive(Parser)]
#[command(name = "octavo", version, after_help = EXAMPLE, max_term_width = 110)]
struct Arguments {
    /// Say more; twice: everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Say only what is wrong
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Ctl(ctl::Arguments),
    Record(ctl::record::Arguments),
    Bench(bench::Arguments),
    Simulate(simulate::Arguments),
    Mrc(mrc::Arguments),
    Plan(plan::Arguments),
    Trace(trace::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let environment = Environment::read();
    let log = logger::Settings::new(arguments.verbose, arguments.quiet, environment.has_journal());
    logger::start(log);
    let result = match arguments.command {
        Command::Serve(serve) => serve::run(&serve, &environment, arguments.quiet, log),
        Command::Ctl(ctl) => ctl::run(&ctl, &environment),
        Command::Record(record) => ctl::record::run(&record, &environment, arguments.quiet),
        Command::Bench(bench) => bench::run(&bench, &environment, arguments.quiet),
        Command::Simulate(simulate) => simulate::run(&simulate, &environment, arguments.quiet),
        Command::Mrc(mrc) => mrc::run(&mrc, arguments.quiet),
        Command::Plan(plan) => plan::run(&plan, arguments.quiet),
        Command::Trace(trace) => trace::run(&trace, arguments.quiet),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logger::failure(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
