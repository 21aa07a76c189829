//! `octavo serve` without a configuration: the first thing that people try.

use std::process::Command;

use crate::clients;
use crate::nbd_client::Client;
use crate::server::{Directory, Server};

fn start(directory: &Directory) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.arg("serve").env("HOME", directory.join("")).env_remove("XDG_CACHE_HOME");
    command.env("XDG_RUNTIME_DIR", directory.join("run"));
    let (nbd, control) = (directory.join("run/octavo/nbd.sock"), directory.join("run/octavo/control.sock"));
    Server::spawn(command, directory, nbd, control)
}

#[test]
fn the_demo_disk_has_known_content_and_keeps_what_is_written() {
    let directory = Directory::new();
    let server = start(&directory);
    let mut client = Client::connect(&server.nbd, "demo").unwrap();
    assert!(client.read(0, 64).starts_with(b"This is the demo disk of Octavo"));
    for page in [1, 4095, 131_072, 262_143_u64] {
        let line = format!("octavo demo: page {page:010}, line 00, byte {:#018x}.\n", page * 4096);
        assert_eq!(client.read(page * 4096, 64), line.as_bytes());
    }
    assert_eq!(client.read(100 << 20, 4096), [0; 4096]);
    client.write(100 << 20, b"mine");
    drop(client);
    server.stop();

    let server = start(&directory);
    let mut client = Client::connect(&server.nbd, "demo").unwrap();
    assert_eq!(client.read(100 << 20, 4), b"mine");
    drop(client);
    server.stop();
    assert!(!directory.join("run/octavo/nbd.sock").exists());
    assert!(!directory.join("run/octavo/control.sock").exists());
}

#[test]
fn the_printed_commands_work_when_pasted() {
    if !clients::present(&["nbdinfo", "qemu-img", "qemu-io", "fio"]) {
        return;
    }
    let directory = Directory::new();
    let server = start(&directory);
    for (purpose, expected) in [
        ("what it is", "export-size: 1073741824"),
        ("its first bytes", "This.is.the.demo"),
        ("copy it", "100.00"),
        ("load it", "err= 0"),
    ] {
        // A server lets clients in before it says so: who finds its socket waits for the words.
        let line = server.wait_for_line(purpose);
        let command = line.strip_prefix(purpose).unwrap();
        // Ten seconds of load show nothing that one does not.
        let command = command.replace("--runtime=10", "--runtime=1");
        let output = Command::new("/bin/sh").args(["-c", &command]).current_dir(directory.join("")).output();
        let output = output.unwrap();
        let text = clients::text(&output.stdout);
        assert!(output.status.success(), "{command}\n{text}\n{}", clients::text(&output.stderr));
        assert!(text.contains(expected), "{command}\n{text}");
    }
    server.stop();
}
