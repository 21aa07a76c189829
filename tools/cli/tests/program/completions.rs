//! What the shells offer at the Tab key.

use std::path::Path;

use crate::clients;
use crate::server::{Directory, Server, Setup, program};

/// A bash function that prints what bash offers for these words; the last one is being typed.
const OFFER: &str = "offer() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); COMP_TYPE=9; \
                     \"$function\" octavo \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
                     echo \"$*: ${COMPREPLY[*]}\"; }";

/// The script of a shell.
fn script(shell: &str) -> String {
    let output = program(&[]).env("OCTAVO_COMPLETE", shell).output().unwrap();
    assert!(output.status.success(), "{shell}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_offers_commands_options_and_the_names_of_the_running_server() {
    let directory = Directory::new();
    // A server's sockets are found below XDG_RUNTIME_DIR.
    let runtime = directory.join("octavo");
    std::fs::create_dir(&runtime).unwrap();
    let _server = Server::start(&directory, &Setup::default());
    std::fs::hard_link(directory.join("control.sock"), runtime.join("control.sock")).unwrap();
    std::fs::write(directory.join("script"), script("bash")).unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_octavo")).parent().unwrap();
    let asked = format!(
        "export PATH={}:$PATH XDG_RUNTIME_DIR=$PWD; source ./script; complete -p octavo; \
         function=$(complete -p octavo | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); {OFFER}; \
         offer octavo se; offer octavo ctl par; offer octavo serve --log-l; offer octavo ctl stat ''; \
         offer octavo ctl evict p --export d; offer octavo ctl export remove ''; offer octavo serve --log-level w",
        binaries.display()
    );
    let said =
        clients::shell_succeeds(&directory.join(""), &format!("bash -c '{}'", asked.replace('\'', "'\\''")));
    let mut lines = said.lines();
    assert!(lines.next().unwrap().ends_with("octavo"), "{said}");
    for expected in [
        "octavo se: serve",
        "octavo ctl par: partitions partition",
        "octavo serve --log-l: --log-level",
        "octavo ctl evict p --export d: disk",
        "octavo serve --log-level w: warn",
    ] {
        assert!(said.lines().any(|line| line == expected), "{expected}\n{said}");
    }
    let offered = |words: &str| said.lines().find_map(|line| line.strip_prefix(words)).unwrap().split(' ');
    assert!(offered("octavo ctl stat :").any(|word| word == "p"), "{said}");
    assert!(offered("octavo ctl export remove :").any(|word| word == "disk"), "{said}");
}

#[test]
fn every_supported_shell_has_a_script_that_calls_the_program_by_its_name() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        assert!(
            script.contains("OCTAVO_COMPLETE") && !script.contains(env!("CARGO_BIN_EXE_octavo")),
            "{script}"
        );
    }
}
