//! `octavo serve` without a configuration: the demo disk and the commands that it prints.

use crate::clients;
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, program};

fn start(directory: &Directory) -> Server {
    start_in(directory, "run")
}

/// Starts a server whose sockets are below `runtime`.
fn start_in(directory: &Directory, runtime: &str) -> Server {
    let mut command = program(&["serve"]);
    command.env("HOME", directory.join("")).env_remove("XDG_CACHE_HOME");
    let runtime = directory.join(runtime);
    command.env("XDG_RUNTIME_DIR", &runtime);
    let nbd = runtime.join("octavo/nbd.sock");
    let control = runtime.join("octavo/control.sock");
    Server::spawn(command, directory, nbd, control)
}

/// The command beside the control socket was printed without quotes.
#[test]
fn the_printed_command_of_the_control_socket_works_whatever_its_path() {
    let directory = Directory::new();
    let server = start_in(&directory, "it's a $run");
    let line = server.wait_for_line("control socket");
    let (_, command) = line.split_once(": octavo ").unwrap();
    let command = format!("\"{}\" {command}", env!("CARGO_BIN_EXE_octavo"));
    let shown = clients::shell_succeeds(&directory.join(""), &command);
    assert!(shown.contains("demo"), "{command}\n{shown}");
    // The demo shows what users get without a choice of their own.
    assert_eq!(server.ctl_json(&["partitions"])["partitions"][0]["policy"], "octavo");
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
    drop((client, server));

    let server = start(&directory);
    let mut client = Client::connect(&server.nbd, "demo").unwrap();
    assert_eq!(client.read(100 << 20, 4), b"mine");
    drop((client, server));
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
        // The server admits clients before it prints the banner: wait for the line.
        let line = server.wait_for_line(purpose);
        let command = line.strip_prefix(purpose).unwrap();
        // One second of load shows as much as ten.
        let command = command.replace("--runtime=10", "--runtime=1");
        let text = clients::shell_succeeds(&directory.join(""), &command);
        assert!(text.contains(expected), "{command}\n{text}");
    }
}

#[test]
fn qemu_accepts_the_printed_option_as_a_disk() {
    if !clients::present(&["qemu-system-x86_64"]) {
        return;
    }
    let directory = Directory::new();
    let demo = start(&directory);
    let disk = directory.disk("disk", 1 << 20);
    std::fs::write(&disk, "This is the demo").unwrap();
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(1 << 20).unwrap();
    let elsewhere = Directory::new();
    // Characters that would end an option of QEMU, a word of the shell or a value of XML.
    let setup = Setup { exports: &[("a, b='<c>&d", &disk)], ..Setup::default() };
    for (server, directory) in [(demo, &directory), (Server::start(&elsewhere, &setup), &elsewhere)] {
        let option = server.wait_for_line("QEMU's option");
        let option = option.strip_prefix("QEMU's option").unwrap();
        let asked = "info block\\nqemu-io virtio0 \"read -v 0 64\"\\nquit\\n";
        let machine =
            "qemu-system-x86_64 -accel tcg -M q35 -m 16 -nodefaults -display none -S -monitor stdio";
        let command = format!("printf '{asked}' | {machine} {option}");
        let said = clients::shell_succeeds(&directory.join(""), &command);
        assert!(said.contains("virtio0") && said.contains("nbd+unix"), "{command}\n{said}");
        assert!(said.contains("This.is.the.demo"), "{command}\n{said}");
    }
}

#[test]
fn the_printed_libvirt_disk_is_valid_by_its_schema() {
    if !clients::present(&["virt-xml-validate", "xmllint"]) {
        return;
    }
    let directory = Directory::new();
    let disk = directory.disk("disk", 1 << 20);
    let setup = Setup { exports: &[("a, b='<c>&d", &disk)], ..Setup::default() };
    let server = Server::start(&directory, &setup);
    server.wait_for_line("</disk>");
    let said = std::fs::read_to_string(directory.join("stdout")).unwrap();
    let (start, end) = (said.find("  <disk").unwrap(), said.find("</disk>").unwrap() + "</disk>".len());
    let domain = directory.join("domain.xml");
    let text = format!(
        "<domain type='qemu'><name>m</name><memory>16384</memory><os><type>hvm</type></os><devices>{}</devices></domain>",
        &said[start..end]
    );
    std::fs::write(&domain, text).unwrap();
    let domain = domain.to_str().unwrap();
    clients::succeed("virt-xml-validate", &[domain, "domain"]);
    let read = |path: &str| {
        let asked = format!("string({path})");
        clients::text(&clients::succeed("xmllint", &["--xpath", &asked, domain]).stdout).trim_end().to_owned()
    };
    assert_eq!(read("//disk/source/@name"), "a, b='<c>&d");
    assert_eq!(read("//disk/source/host/@socket"), server.nbd.to_str().unwrap());
}
