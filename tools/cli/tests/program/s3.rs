//! Objects of S3 as disks and as directories, from a server that counts its requests.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use octavo_s3_stub::{Lie, Lies, Operation, Stub};

use crate::mount::{can_mount, directories, is_mounted, path};
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, octavo, wait_until};

const KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY";
const EIO: i32 = 5;
const EACCES: i32 = 13;
const UNIT: usize = 512 << 10;

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 + at) as u8).collect()
}

/// A shell's words that give the program credentials.
fn credentials() -> String {
    format!("export AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET} HOME=/nowhere")
}

/// A server with one more partition, `remote`, and these sections. Ends without loss.
fn serve(directory: &Directory, stub: &Stub, sections: &str) -> Server {
    let before = credentials();
    let sections = format!(
        "[[partition]]\nname = \"remote\"\npage_bytes = \"16KiB\"\n[s3]\nendpoint = \"{}\"\n{sections}",
        stub.endpoint()
    );
    Server::start(
        directory,
        &Setup { memory_max: "64MiB", listen: &sections, before: &before, ..Setup::default() },
    )
}

fn export(name: &str, path: &str) -> String {
    format!("[[export]]\nname = \"{name}\"\npath = \"{path}\"\npartition = \"remote\"\nread_only = true\n")
}

#[test]
fn an_object_is_a_disk_that_is_fetched_once_and_in_units() {
    let stub = Stub::start(Lies::none());
    let content = content(3 * UNIT + 1024);
    stub.put("images/debian/vm.raw", content.clone());
    let directory = Directory::new();
    let mut server = serve(&directory, &stub, &export("vm", "s3://images/debian/vm.raw"));
    let mut client = Client::connect(&server.nbd, "vm").unwrap();
    // One sector brings its unit.
    assert_eq!(client.read(UNIT as u64 + 4096, 512), content[UNIT + 4096..UNIT + 4608]);
    assert_eq!(stub.counts().gets(), 1);
    assert_eq!(client.read(UNIT as u64, UNIT), content[UNIT..2 * UNIT]);
    assert_eq!(stub.counts().gets(), 1);
    for at in (0..content.len()).step_by(1 << 16) {
        let len = (1 << 16).min(content.len() - at);
        assert_eq!(client.read(at as u64, len), content[at..at + len], "at {at}");
    }
    assert_eq!(stub.counts().gets(), 4);
    // A second client, and an export of the same object that `octavo ctl` adds.
    let mut other = Client::connect(&server.nbd, "vm").unwrap();
    assert_eq!(other.read(0, 4096), content[..4096]);
    assert_eq!(stub.counts().gets(), 4);
    let add = |path| ["export", "add", "again", "--path", path, "--partition", "remote"];
    let said = server.ctl_fail(1, &add("s3://images/other"));
    assert!(said.contains("read_only = true is missing"), "{said}");
    server.ctl_succeed(&[&add("s3://images/debian/vm.raw")[..], &["--read-only"]].concat());
    let stat = server.stat();
    assert_eq!((&stat["s3"]["gets"], &stat["s3"]["retries"]), (&4.into(), &0.into()), "{stat}");
    assert!(server.ctl_succeed(&["stat"]).contains("\nS3: 4 GETs and "));
    server.end("TERM", 0);
}

#[test]
fn an_object_that_changes_ends_its_disk_with_errors_and_not_with_a_mix() {
    let stub = Stub::start(Lies::none());
    stub.put("images/vm.raw", vec![1; 2 * UNIT]);
    let directory = Directory::new();
    let server = serve(&directory, &stub, &export("vm", "s3://images/vm.raw"));
    let mut client = Client::connect(&server.nbd, "vm").unwrap();
    assert_eq!(client.read(0, 4096), [1; 4096]);
    stub.put("images/vm.raw", vec![2; 2 * UNIT]);
    assert_eq!(client.read(8192, 4096), [1; 4096], "what is cached stays readable");
    client.send_read(7, UNIT as u64, 4096).unwrap();
    let (cookie, error) = client.reply().unwrap();
    assert_eq!((cookie, error != 0), (7, true));
    server.wait_for_log("has changed: the server no longer has this version");
}

#[test]
fn a_server_that_fails_for_a_while_is_asked_again() {
    let stub = Stub::start(Lies::none());
    let content = content(UNIT);
    stub.put("images/vm.raw", content.clone());
    let directory = Directory::new();
    let server = serve(&directory, &stub, &export("vm", "s3://images/vm.raw"));
    stub.set_lies(Lies::first(2, Lie::Status { code: 503, retry_after_s: Some(1) }));
    let mut client = Client::connect(&server.nbd, "vm").unwrap();
    assert_eq!(client.read(0, 4096), content[..4096]);
    assert_eq!(stub.counts().gets(), 3);
}

/// Such an export mixed versions, or each of its reads failed.
#[test]
fn an_object_without_a_version_is_refused_before_anything_is_served() {
    let stub = Stub::start(Lies::none());
    stub.put("images/vm.raw", vec![1; 4096]);
    let directory = Directory::new();
    let server = serve(&directory, &stub, "");
    stub.set_lies(Lies::with(|asked| {
        let neither = Lie::Headers(vec![("etag", None), ("last-modified", None)]);
        (asked.operation == Operation::Head).then_some(neither)
    }));
    let add = ["export", "add", "vm", "--path", "s3://images/vm.raw", "--partition", "remote", "--read-only"];
    let said = server.ctl_fail(1, &add);
    assert!(said.contains("no entity tag (ETag), no version and no date (Last-Modified)"), "{said}");
}

#[test]
fn mistakes_about_objects_are_told_before_anything_is_served() {
    let stub = Stub::start(Lies::none());
    stub.put("images/vm.raw", vec![1; 4096]);
    let directory = Directory::new();
    let config = directory.join("octavo.toml");
    let check = |more: &str| {
        let text = format!(
            "[cache]\nmemory_max = \"32MiB\"\n[[partition]]\nname = \"remote\"\n[listen]\nnbd = \"unix:/tmp/x.sock\"\n{more}"
        );
        fs::write(&config, text).unwrap();
        let mut command = crate::server::program(&["serve", "--check", "--config", path(&config)]);
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).env("HOME", "/nowhere");
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let s3 = format!("[s3]\nendpoint = \"{}\"\n", stub.endpoint());
    let (well, said) = check(&(export("vm", "s3://images/vm.raw") + &s3));
    assert!(well, "{said}");
    let writable = export("vm", "s3://images/vm.raw").replace("read_only = true", "");
    for (sections, why) in [
        (export("vm", "s3://images/other.raw") + &s3, "octavo.toml:9:8: export.path: s3://images/other.raw"),
        (export("vm", "s3://images") + &s3, "names no object"),
        (export("vm", "s3:///vm.raw") + &s3, "names no bucket"),
        (writable + &s3, "objects of S3 can only be read; read_only = true is missing"),
        (export("vm", "s3://images/vm.raw") + "[s3]\nendpoint = \"minio:9000\"\n", "is no URL"),
        (export("vm", "s3://images/vm.raw") + &s3 + "fill_bytes = \"300KiB\"\n", "a power of two"),
        (export("vm", "s3://images/vm.raw") + &s3 + "tier = \"/var/cache/octavo\"\n", "tier_max"),
        (export("vm", "s3://images/vm.raw") + &s3 + "secret = \"x\"\n", "no such key"),
        (
            export("vm", "s3://images/vm.raw") + &s3 + "redirect_hosts = [\"http://a/\"]\n",
            "\"http://a/\" is no host; expected",
        ),
        (export("vm", "s3://images/vm.raw") + &s3 + "profile = \"none\"\n", "there is no profile \"none\""),
    ] {
        let (well, said) = check(&sections);
        assert!(!well && said.contains(why), "{why:?} is not in {said}");
        assert!(!said.contains(SECRET), "{said}");
    }
}

#[test]
fn credentials_are_in_no_log_and_no_report() {
    let stub = Stub::start(Lies::none());
    stub.put("images/vm.raw", content(2 * UNIT));
    let directory = Directory::new();
    let metrics = "[log]\nlevel = \"debug\"\n";
    let mut server = serve(&directory, &stub, &(export("vm", "s3://images/vm.raw") + metrics));
    stub.set_lies(Lies::first(1, Lie::Status { code: 403, retry_after_s: None }));
    let mut client = Client::connect(&server.nbd, "vm").unwrap();
    client.send_read(7, 0, 4096).unwrap();
    assert_ne!(client.reply().unwrap().1, 0);
    let stat = server.ctl_succeed(&["stat", "--json"]);
    server.end("TERM", 0);
    let said = server.log() + &stat;
    assert!(said.contains("images/vm.raw"), "{said}");
    for hidden in [KEY, SECRET, "Signature=", "Credential="] {
        assert!(!said.contains(hidden), "{hidden} is in {said}");
    }
}

/// Where a prefix is mounted. A server whose test fails is killed, and must leave no dead mount
/// behind.
struct Target(PathBuf);

impl std::ops::Deref for Target {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.0).output();
        }
    }
}

/// A mounted prefix with three files, and the server of its objects.
fn mounted() -> Option<(Directory, Stub, Target)> {
    if !can_mount() {
        return None;
    }
    let (directory, _, target) = directories();
    let stub = Stub::start(Lies::none());
    stub.put("lake/data/a.bin", content(UNIT + 5000));
    stub.put("lake/data/sub/b.txt", "deep");
    stub.put("lake/data/empty", "");
    stub.put("lake/other", "not below the prefix");
    Some((directory, stub, Target(target)))
}

fn mount_section(target: &Path, more: &str) -> String {
    format!(
        "[[mount]]\nsource = \"s3://lake/data\"\npath = \"{}\"\npartition = \"remote\"\nread_only = true\n{more}",
        path(target)
    )
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_prefix_is_a_directory_that_programs_read() {
    let Some((directory, stub, target)) = mounted() else { return };
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1h\"\n"));
    assert_eq!(names(&target), ["a.bin", "empty", "sub"]);
    assert_eq!(names(&target.join("sub")), ["b.txt"]);
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), content(UNIT + 5000));
    assert_eq!(fs::read(target.join("sub/b.txt")).unwrap(), b"deep");
    assert_eq!(fs::read(target.join("empty")).unwrap(), b"");
    assert_eq!(fs::metadata(target.join("a.bin")).unwrap().len(), UNIT as u64 + 5000);
    assert!(fs::metadata(target.join("other")).is_err());
    assert_eq!(
        fs::write(target.join("new"), "x").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    assert_eq!(
        fs::remove_file(target.join("empty")).unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    // Two units of a.bin, together if they were read ahead, and one of b.txt.
    let asked = stub.counts();
    assert!((2..=3).contains(&asked.gets()), "{asked:?}");
    // A second reader asks for nothing.
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), content(UNIT + 5000));
    assert_eq!(stub.counts(), asked);
    let files = server.ctl_json(&["files"]);
    assert_eq!(
        (&files["count"], &files["resident_bytes"]),
        (&2.into(), &(UNIT as u64 + 5004).into()),
        "{files}"
    );
    let stat = server.stat();
    assert_eq!(
        (&stat["mounts"][0]["source"], &stat["mounts"][0]["files"]),
        (&"s3://lake/data".into(), &3.into())
    );
    server.end("TERM", 0);
    assert!(!is_mounted(&target));
}

#[test]
fn an_open_file_keeps_its_version_and_a_later_one_has_the_new() {
    let Some((directory, stub, target)) = mounted() else { return };
    let _server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1ms\"\n"));
    let mut open = fs::File::open(target.join("a.bin")).unwrap();
    let mut first = vec![0; 4096];
    open.read_exact(&mut first).unwrap();
    stub.put("lake/data/a.bin", vec![9; 2 * UNIT]);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), vec![9; 2 * UNIT]);
    let rest = open.read_to_end(&mut Vec::new());
    const ESTALE: i32 = 116;
    assert_eq!(rest.unwrap_err().raw_os_error(), Some(ESTALE), "the rest of the old version is gone");
    assert_eq!(first, content(4096));
}

/// One key that is no name made its directory fail; the marker of a folder was a file in it.
#[test]
fn odd_keys_are_left_out_and_markers_are_directories() {
    let Some((directory, stub, target)) = mounted() else { return };
    for key in ["/x", "./here", "ctl\u{1}", "", "sub/", "made/"] {
        stub.put(&format!("lake/data/{key}"), "");
    }
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1h\"\n"));
    assert_eq!(names(&target), ["a.bin", "empty", "made", "sub"]);
    assert_eq!(names(&target.join("sub")), ["b.txt"]);
    assert_eq!(names(&target.join("made")), [""; 0]);
    assert!(fs::metadata(target.join("made")).unwrap().is_dir());
    assert_eq!(fs::read(target.join("sub/b.txt")).unwrap(), b"deep");
    assert_eq!(server.stat()["s3"]["keys_left_out"], 3);
    server.wait_for_log("left out 3 keys that cannot be names of files");
    server.end("TERM", 0);
}

/// A directory whose listing was answered with 404 looked empty, with success.
#[test]
fn a_directory_that_the_server_does_not_list_is_an_error_and_not_empty() {
    let Some((directory, stub, target)) = mounted() else { return };
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1ms\"\n"));
    let all = |folder: &Path| fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>();
    assert_eq!(all(&target).unwrap().len(), 3);
    for (code, errno) in [(404, EIO), (500, EIO), (403, EACCES)] {
        stub.set_lies(Lies::with(move |_| Some(Lie::Status { code, retry_after_s: None })));
        // The last right listing is believed for a moment.
        let told = || all(&target).err().and_then(|error| error.raw_os_error());
        wait_until(|| format!("{code}: {:?}", told()), || told() == Some(errno));
        assert_eq!(fs::metadata(target.join("b")).unwrap_err().raw_os_error(), Some(errno), "{code}");
    }
    server.end("TERM", 0);
}

/// Each of them wrote 16 KiB.
#[test]
fn reads_that_fail_do_not_fill_the_log() {
    let Some((directory, stub, target)) = mounted() else { return };
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1h\"\n"));
    let file = fs::File::open(target.join("a.bin")).unwrap();
    stub.set_lies(Lies::always(Lie::Answer(403, "m".repeat(100_000))));
    for _ in 0..300 {
        let error = file.read_at(&mut [0; 100], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EACCES));
    }
    drop(file);
    server.end("TERM", 0);
    let log = server.log();
    let warnings = log.lines().filter(|line| line.contains("a.bin")).count();
    assert!((1..100).contains(&warnings), "{warnings}");
    assert!(log.lines().all(|line| line.len() < 2000), "{log}");
}

/// A listing that took longer than `attr_timeout` was asked for again by each getdents.
#[test]
fn one_listing_serves_a_program_that_reads_a_large_directory() {
    let Some((directory, stub, target)) = mounted() else { return };
    stub.set_lies(Lies::with(|_| Some(Lie::Keys(5000))));
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1ms\"\n"));
    let before = stub.counts().of(Operation::List);
    assert_eq!(names(&target).len(), 5000);
    let asked = stub.counts().of(Operation::List) - before;
    assert!(asked == 0 || asked == 5, "{asked}");
    server.end("TERM", 0);
}

/// One wrong entity tag made the file fail until the mount ended.
#[test]
fn a_file_is_right_again_at_the_next_open_when_the_server_is() {
    let Some((directory, stub, target)) = mounted() else { return };
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1h\"\n"));
    stub.set_lies(Lies::always(Lie::OtherTag));
    const ESTALE: i32 = 116;
    assert_eq!(fs::read(target.join("a.bin")).unwrap_err().raw_os_error(), Some(ESTALE));
    stub.set_lies(Lies::none());
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), content(UNIT + 5000));
    server.end("TERM", 0);
}

/// A program that reads a file of a server that says nothing.
fn reader(file: &Path) -> Child {
    Command::new("cat").arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Gives no answer to GETs of objects whose names begin with `hung`.
fn hang(stub: &Stub) {
    stub.set_lies(Lies::with(|asked| {
        let hangs = asked.operation == Operation::Get && asked.path.contains("/hung");
        hangs.then_some(Lie::StallBefore(Duration::from_secs(3600)))
    }));
}

/// Sixteen reads that hung kept all others waiting, and nothing could kill them.
#[test]
fn a_silent_server_keeps_only_those_waiting_that_need_it_and_they_can_be_killed() {
    let Some((directory, stub, target)) = mounted() else { return };
    const READERS: u64 = 40;
    (0..READERS).for_each(|number| _ = stub.put(&format!("lake/data/hung{number}"), content(5000)));
    hang(&stub);
    let mut server = serve(&directory, &stub, &mount_section(&target, "attr_timeout = \"1h\"\n"));
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), content(UNIT + 5000));
    let before = stub.counts().gets();
    let mut readers: Vec<_> =
        (0..READERS).map(|number| reader(&target.join(format!("hung{number}")))).collect();
    wait_until(|| "the readers do not ask".into(), || stub.counts().gets() - before >= READERS);
    // A hit, attributes, a listing, and an object that the server has.
    assert_eq!(fs::read(target.join("a.bin")).unwrap(), content(UNIT + 5000));
    assert_eq!(fs::metadata(target.join("hung1")).unwrap().len(), 5000);
    assert_eq!(names(&target.join("sub")), ["b.txt"]);
    assert_eq!(fs::read(target.join("sub/b.txt")).unwrap(), b"deep");
    assert!(readers.iter_mut().all(|reader| reader.try_wait().unwrap().is_none()), "they wait");
    readers.iter_mut().for_each(|reader| reader.kill().unwrap());
    for reader in &mut readers {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(reader.wait().unwrap().signal(), Some(9), "it ended when the server answered");
    }
    server.end("TERM", 0);
    assert!(!is_mounted(&target));
}

/// The unmount failed with EBUSY, and left a dead mount behind.
#[test]
fn a_prefix_that_programs_use_is_unmounted_all_the_same() {
    let Some((directory, stub, target)) = mounted() else { return };
    stub.put("lake/data/hung", content(5000));
    hang(&stub);
    let mut server = serve(&directory, &stub, &mount_section(&target, ""));
    let open = fs::File::open(target.join("a.bin")).unwrap();
    let mut inside = Command::new("sleep").arg("1000").current_dir(target.join("sub")).spawn().unwrap();
    let before = stub.counts().gets();
    let mut waiting = reader(&target.join("hung"));
    wait_until(|| "the reader does not ask".into(), || stub.counts().gets() > before);
    server.end("TERM", 0);
    let left = is_mounted(&target);
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert!(!waiting.wait().unwrap().success());
    drop(open);
    assert!(!left, "it is still mounted");
}

#[test]
fn octavo_mount_takes_a_prefix() {
    let Some((_directory, stub, target)) = mounted() else { return };
    let endpoint = stub.endpoint();
    let run = |words: &[&str]| {
        let mut command = crate::server::program(words);
        command.env("AWS_ENDPOINT_URL", &endpoint).env("HOME", "/nowhere");
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).output().unwrap()
    };
    let output = run(&["mount", "--daemon", "s3://lake/data", path(&target)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = fs::read(target.join("a.bin"));
    crate::mount::unmount(&target);
    assert_eq!(read.unwrap(), content(UNIT + 5000));
    wait_until(|| "still mounted".into(), || !is_mounted(&target));
    let output = octavo(&["mount", "s3://", path(&target)]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("names no bucket"));
}
