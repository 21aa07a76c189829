//! Standard output that cannot be written to: closed, full, or a pipe that nobody reads any more.

use std::process::{Output, Stdio};

use crate::clients::text;
use crate::server::{Setup, program, served};

/// Runs a shell's line in which `octavo` is the program.
fn shell(line: &str) -> Output {
    let mut shell = std::process::Command::new("/bin/sh");
    let line = line.replace("octavo", "\"$0\"");
    shell.args(["-c", &line, env!("CARGO_BIN_EXE_octavo")]).output().unwrap()
}

/// The output was lost, and the status was that of success.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    for command in ["octavo trace info gen:loop:pages=9,requests=9", "octavo bench --list"] {
        for (redirection, why) in [(">&-", "it is closed"), ("> /dev/full", "No space left on device")] {
            let output = shell(&format!("{command} {redirection}"));
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command} {redirection}: {said}");
            let expected = format!("octavo: cannot write to standard output: {why}");
            assert!(said.contains(&expected), "{command} {redirection}: {said}");
        }
    }
    let output = shell("octavo trace generate loop:pages=9,requests=9 - >&-");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_has_gone_ends_the_program_quietly_with_the_status_of_sigpipe() {
    for words in [
        &["trace", "info", "--format", "lirs", "-"][..],
        &["trace", "convert", "--format", "lirs", "-", "-", "--to", "lirs"],
    ] {
        let mut command = program(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The reader is gone before there is anything to write: the program waits for its input.
        drop(child.stdout.take());
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"1\n2\n3\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{words:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{words:?}");
    }
}

/// A small limit on stacks ended every command with an overflow.
#[test]
fn a_small_limit_on_stacks_changes_nothing() {
    for (command, status) in [("octavo --version", 0), ("octavo serve --help", 0), ("octavo ctl nonsense", 2)]
    {
        let output = shell(&format!("ulimit -s 64 && {command}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{command}: {said}");
    }
    let (_directory, server) = served(&Setup { before: "ulimit -s 64", ..Setup::default() });
    server.stat();
}

/// A file in the place where other programs take one: the message says where this one does.
#[test]
fn a_stray_configuration_gets_a_hint() {
    let output = shell("octavo serve '/etc/my disks.toml'");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("octavo serve --config '/etc/my disks.toml'"), "{said}");
}

#[test]
fn a_server_starts_with_a_closed_standard_output() {
    let (_directory, server) = served(&Setup { before: "exec >&-", ..Setup::default() });
    server.stat();
}
