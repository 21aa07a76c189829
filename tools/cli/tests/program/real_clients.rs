//! Common NBD clients, run unchanged against the server.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::clients::{self, succeed, text};
use crate::random;
use crate::server::{Directory, Server, Setup, assert_has, served, wait_until};

const IMAGE_BYTES: u64 = 256 << 20;

#[test]
fn nbdinfo_describes_and_lists_the_exports() {
    if !clients::present(&["nbdinfo"]) {
        return;
    }
    let directory = Directory::new();
    let (one, two) = (directory.disk("one", 1 << 20), directory.disk("two", 3_000_000));
    let server =
        Server::start(&directory, &Setup { exports: &[("one", &one), ("two", &two)], ..Setup::default() });
    let info = text(&succeed("nbdinfo", &["--json", &server.uri("two")]).stdout);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    let expected = json!({
        "export-size": 3_000_000, "can_flush": true, "can_fua": true, "can_trim": true, "can_zero": true,
        "can_multi_conn": true,
    });
    assert_has(&info["exports"][0], expected);
    let list = text(&succeed("nbdinfo", &["--list", "--json", &server.uri("")]).stdout);
    let list: Value = serde_json::from_str(&list).unwrap();
    let names: Vec<&str> =
        list["exports"].as_array().unwrap().iter().map(|e| e["export-name"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
    let missing = clients::run("nbdinfo", &[&server.uri("three")]);
    assert!(!missing.status.success());
}

#[test]
fn qemu_img_copies_an_image_in_and_out_through_write_back() {
    if !clients::present(&["qemu-img"]) {
        return;
    }
    let (directory, server) = served(&Setup { disk_bytes: IMAGE_BYTES, ..Setup::default() });
    let disk = directory.join("disk");
    let mut random = random::seeded("qemu-img");
    let image = directory.join("image");
    std::fs::write(&image, random.bytes(IMAGE_BYTES as usize)).unwrap();
    let uri = server.uri("disk");
    succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &path(&image), &uri]);
    server.ctl_succeed(&["sync"]);
    assert_same(&image, &disk);
    let out = directory.join("out");
    succeed("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &path(&out)]);
    assert_same(&image, &out);
}

#[test]
fn qemu_io_agrees_with_a_plain_file_at_odd_offsets() {
    if !clients::present(&["qemu-io"]) {
        return;
    }
    const COMMANDS: usize = 150;
    const ROUNDS: usize = 6;
    let mut random = random::seeded("qemu-io");
    // A multiple of a sector and not of a page: qemu rounds raw files to sectors.
    let len_bytes = (8 << 20) + 1536;
    let (directory, server) =
        served(&Setup { memory_max: "8MiB", disk_bytes: len_bytes, ..Setup::default() });
    let (disk, twin) = (directory.join("disk"), directory.disk("twin", len_bytes));
    for round in 0..ROUNDS {
        let mut ours: Vec<String> = ["-f", "raw", "-d", "unmap"].map(String::from).to_vec();
        let mut plain = ours.clone();
        for _ in 0..COMMANDS {
            let longest = if random.below(4) == 0 { 300_000 } else { 9_000 };
            let len = 1 + random.below(longest);
            let offset = random.below(len_bytes - len + 1);
            let pattern = random.below(256);
            let (ask_ours, ask_plain) = match random.below(8) {
                0 => same(format!("write -z {offset} {len}")),
                1 => same(format!("write -z -u {offset} {len}")),
                // What a discarded range reads as is the server's choice, and ours is zeros.
                2 => (format!("discard {offset} {len}"), format!("write -z {offset} {len}")),
                3 | 4 => same(format!("read -v {offset} {}", len.min(9_000))),
                5 => same(format!("write -f -P {pattern} {offset} {len}")),
                6 if random.below(4) == 0 => same("flush".into()),
                _ => same(format!("write -P {pattern} {offset} {len}")),
            };
            ours.extend(["-c".into(), ask_ours]);
            plain.extend(["-c".into(), ask_plain]);
        }
        ours.push(server.uri("disk"));
        plain.push(path(&twin));
        let (ours, plain) = (qemu_io(&ours), qemu_io(&plain));
        for (number, (ours, plain)) in ours.iter().zip(&plain).enumerate() {
            assert_eq!(ours, plain, "round {round}, line {number}");
        }
        assert_eq!(ours.len(), plain.len());
        server.ctl_succeed(&["sync"]);
        assert_same(&twin, &disk);
    }
}

fn same(command: String) -> (String, String) {
    (command.clone(), command)
}

/// What qemu-io read: its hexadecimal lines.
fn qemu_io(arguments: &[String]) -> Vec<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = succeed("qemu-io", &arguments);
    let said = text(&output.stdout);
    assert!(!said.contains("failed"), "{said}");
    let hexadecimal = |line: &&str| line.len() > 9 && line.as_bytes()[8] == b':';
    said.lines().filter(hexadecimal).map(str::to_owned).collect()
}

#[test]
fn fio_verifies_mixed_sizes_over_four_connections_through_a_small_cache() {
    if !clients::present(&["fio"]) {
        return;
    }
    let mut random = random::seeded("fio");
    let (_directory, server) =
        served(&Setup { memory_max: "16MiB", disk_bytes: 160 << 20, ..Setup::default() });
    let uri = format!("--uri={}", server.uri("disk"));
    for (pattern, sizes) in
        [("randwrite", "4k-64k"), ("randrw", "4k/50:16k/30:128k/20"), ("write", "512-32k")]
    {
        let seed = format!("--randseed={}", random.next_u64() >> 1);
        let sizes =
            if sizes.contains('/') { format!("--bssplit={sizes}") } else { format!("--bsrange={sizes}") };
        let rw = format!("--rw={pattern}");
        let fixed = "--name=verify --ioengine=nbd --iodepth=32 --numjobs=4 --size=40m --offset_increment=40m \
             --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --thread=1 --group_reporting";
        let mut arguments: Vec<&str> = fixed.split_whitespace().collect();
        arguments.extend([&*uri, &rw, &sizes, &seed]);
        let said = text(&succeed("fio", &arguments).stdout);
        assert!(said.contains("err= 0"), "{said}");
    }
    let stat = server.stat();
    let partition = &stat["partitions"][0];
    assert_has(partition, json!({"read_errors": 0, "write_errors": 0, "sync_errors": 0}));
    let charged = stat["cache"]["memory_charged_bytes"].as_u64().unwrap();
    assert!(charged <= 16 << 20, "{charged} bytes are charged");
}

#[test]
fn a_file_system_made_through_nbdfuse_is_clean() {
    if !clients::present(&["nbdfuse", "mkfs.ext4", "e2fsck", "debugfs", "fusermount3"]) {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        clients::skip("there is no /dev/fuse: this kernel has no FUSE");
        return;
    }
    let mut random = random::seeded("nbdfuse");
    let (directory, server) =
        served(&Setup { memory_max: "16MiB", disk_bytes: 128 << 20, ..Setup::default() });
    let mount = Mount::new(&directory, &server.uri("disk"));
    let device = path(&mount.file);
    succeed("mkfs.ext4", &["-q", "-F", &device]);
    let files: Vec<(String, Vec<u8>)> = (0..40)
        .map(|number| {
            let len = random.below(1 << 20) as usize;
            (format!("file-{number}"), random.bytes(len))
        })
        .collect();
    for (name, content) in &files {
        let source = directory.join(name);
        std::fs::write(&source, content).unwrap();
        succeed("debugfs", &["-w", "-R", &format!("write {} {name}", path(&source)), &device]);
    }
    succeed("e2fsck", &["-f", "-n", &device]);
    for (name, content) in &files {
        let back = directory.join(&format!("{name}.back"));
        succeed("debugfs", &["-R", &format!("dump {name} {}", path(&back)), &device]);
        assert!(std::fs::read(&back).unwrap() == *content, "{name} came back different");
    }
    mount.unmount();
    server.ctl_succeed(&["sync"]);
    succeed("e2fsck", &["-f", "-n", &path(&directory.join("disk"))]);
}

/// An export as a file, by FUSE.
struct Mount {
    file: std::path::PathBuf,
    directory: std::path::PathBuf,
    process: std::process::Child,
}

impl Mount {
    fn new(directory: &Directory, uri: &str) -> Mount {
        let mountpoint = directory.join("mount");
        std::fs::create_dir(&mountpoint).unwrap();
        let file = mountpoint.join("disk");
        let mut command = Command::new(clients::find("nbdfuse").unwrap());
        let process = command.arg(&file).arg(uri).stdout(Stdio::null()).spawn().unwrap();
        let mount = Mount { file, directory: mountpoint, process };
        wait_until(|| "nbdfuse shows no file".into(), || mount.file.exists());
        mount
    }

    fn unmount(mut self) {
        succeed("fusermount3", &["-u", &path(&self.directory)]);
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // After `unmount` both fail, as they should.
        let _ = clients::run("fusermount3", &["-u", "-z", &path(&self.directory)]);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Compares two files by pieces, and names the first byte that differs.
fn assert_same(expected: &Path, found: &Path) {
    let open = |path: &Path| File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut left, mut right) = (open(expected), open(found));
    assert_eq!(left.metadata().unwrap().len(), right.metadata().unwrap().len(), "{}", found.display());
    let mut at = 0;
    loop {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        (&mut left).take(1 << 20).read_to_end(&mut a).unwrap();
        (&mut right).take(1 << 20).read_to_end(&mut b).unwrap();
        if let Some(differs) = a.iter().zip(&b).position(|(a, b)| a != b) {
            panic!("{} differs from {} at byte {}", found.display(), expected.display(), at + differs);
        }
        if a.is_empty() {
            return;
        }
        at += a.len();
    }
}
