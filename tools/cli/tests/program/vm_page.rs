//! docs/VM.md: what a new operator pastes works as it is printed. Only the folders /run/octavo and
//! /var/lib/octavo are replaced by the test's own. `packaging/check.sh` pastes the whole page.

use std::process::{Child, Command, Stdio};

use crate::clients;
use crate::server::{Directory, Server, program, wait_until};

const PAGE: &str = include_str!("../../../../docs/VM.md");

/// The only code block of a language that contains a text, with the test's folders.
fn block(directory: &Directory, language: &str, text: &str) -> String {
    let begin = format!("```{language}");
    let mut lines = PAGE.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.by_ref().find(|line| line.trim_start() == begin) {
        let indent = line.len() - begin.len();
        let body = lines.by_ref().take_while(|line| line.trim_start() != "```");
        let body: String =
            body.map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n").collect();
        found.extend(body.contains(text).then_some(body));
    }
    assert_eq!(found.len(), 1, "blocks of {language} with {text}: {found:?}");
    let own = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    found.remove(0).replace("/run/octavo", &own("run")).replace("/var/lib/octavo", &own("images"))
}

/// A server with the page's configuration.
fn serve(directory: &Directory) -> Server {
    std::fs::create_dir(directory.join("images")).unwrap();
    directory.disk("images/vm1.raw", 1 << 20);
    let config = directory.join("octavo.toml");
    std::fs::write(&config, block(directory, "toml", "[cache]")).unwrap();
    let mut command = program(&["serve", "--config"]);
    command.arg(config);
    let (nbd, control) = (directory.join("run/nbd.sock"), directory.join("run/control.sock"));
    let server = Server::spawn(command, directory, nbd, control);
    server.wait_for_line("Ctrl-C");
    server
}

/// A virtual machine, which is switched off at the end.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only if the machine has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_printed_qemu_line_attaches_the_configured_disk_and_a_reload_leaves_it_attached() {
    if !clients::present(&["qemu-system-x86_64"]) {
        return;
    }
    let directory = Directory::new();
    let server = serve(&directory);
    let line = block(&directory, "sh", "vhost-user-blk-pci");
    // A build machine has no KVM, or one that is slower than none.
    let line = line.replace("-accel kvm ", "");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("exec {} -display none", line.trim_end())]);
    let machine = Machine(shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let export = || server.stat()["partitions"][0]["objects"][0].clone();
    // The machine's firmware looks for a boot sector.
    wait_until(|| format!("{}\n{}", export(), server.log()), || export()["read_bytes"].as_u64() > Some(0));
    assert_eq!(export()["connections"], 1);
    let config = directory.join("octavo.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("[[export]]", "max = \"64MiB\"\n[[export]]")).unwrap();
    assert!(server.ctl_succeed(&["reload"]).contains("max"), "{}", server.log());
    assert_eq!(export()["connections"], 1);
    drop(machine);
    wait_until(|| server.log(), || export()["connections"] == 0);
}

#[test]
fn the_page_and_the_server_print_the_same_options_of_qemu_and_the_same_disk_of_libvirt() {
    let directory = Directory::new();
    let _server = serve(&directory);
    let said = std::fs::read_to_string(directory.join("stdout")).unwrap();
    let line = block(&directory, "sh", "vhost-user-blk-pci");
    let words = |text: &str| -> Vec<String> {
        text.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect()
    };
    let after = |label: &str| said[said.find(label).unwrap() + label.len()..].to_owned();
    let (memory, disk) = (after("\n  shared memory "), after("\n  the disk "));
    let disk: String = disk.lines().take(2).collect::<Vec<_>>().join(" ");
    let printed = [words(memory.lines().next().unwrap()), words(&disk)].concat();
    assert!(words(&line).ends_with(&printed), "{printed:?}\n{line}");

    let element = |text: &str| {
        let begin = text.find("<disk type='vhostuser'").unwrap();
        words(&text[begin..begin + text[begin..].find("</disk>").unwrap()])
    };
    assert_eq!(element(&block(&directory, "xml", "<domain")), element(&said));
}

#[test]
fn the_printed_libvirt_domain_is_valid_by_its_schema() {
    if !clients::present(&["virt-xml-validate"]) {
        return;
    }
    let directory = Directory::new();
    let domain = directory.join("vm1.xml");
    std::fs::write(&domain, block(&directory, "xml", "<domain")).unwrap();
    clients::succeed("virt-xml-validate", &[domain.to_str().unwrap(), "domain"]);
}
