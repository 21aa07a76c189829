//! Completion in shells: the words that a shell offers at the Tab key.
//!
//! With OCTAVO_COMPLETE=SHELL in its environment, the program prints the script that a shell loads
//! (bash, zsh, fish), or answers the script's question. The script holds no list of its own: it
//! asks the program each time, so that it offers what the program has. Partitions and exports are
//! those of the running server.

use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::CompleteEnv;

use crate::ctl::names;
use crate::environment::Environment;

/// The variable that a script sets.
const VARIABLE: &str = "OCTAVO_COMPLETE";

/// Answers a shell, and ends the process, if the variable is set.
pub fn answer(environment: &Environment, command: impl Fn() -> Command) {
    let named = || with_names(command(), "", environment);
    CompleteEnv::with_factory(named).var(VARIABLE).completer("octavo").complete();
}

/// Offers the server's names for each argument that takes one. `of` is the command above.
fn with_names(command: Command, of: &str, environment: &Environment) -> Command {
    let name = command.get_name().to_owned();
    let below: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    let command = below
        .into_iter()
        .fold(command, |command, one| command.mut_subcommand(one, |one| with_names(one, &name, environment)));
    command.mut_args(|argument| {
        let list = match (of, &*name, argument.get_id().as_str()) {
            (_, _, "partition") | ("partition", "remove", "name") => names::partitions,
            (_, _, "export") | ("export", "remove", "name") => names::exports,
            _ => return argument,
        };
        let environment = environment.clone();
        argument.add(ArgValueCandidates::new(move || {
            list(&environment).into_iter().map(CompletionCandidate::new).collect()
        }))
    })
}
