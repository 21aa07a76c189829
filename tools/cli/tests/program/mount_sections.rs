//! `[[mount]]`: directories that a server mounts beside its exports, under one limit on memory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::clients::shell_succeeds;
use crate::metrics;
use crate::mount::{can_mount, directories, is_mounted, path, unmount};
use crate::nbd_client::Client;
use crate::server::{Directory, Server, Setup, octavo_fails, octavo_succeeds, wait_until};

const MIB: u64 = 1 << 20;

/// A directory for two tenants and others, and where it is mounted.
struct Place {
    directory: Directory,
    source: PathBuf,
    target: PathBuf,
}

impl Place {
    fn new() -> Place {
        let (directory, source, target) = directories();
        shell_succeeds(&source, "mkdir -p home/ann home/bob db");
        Place { directory, source, target }
    }

    /// The sections of the mount, with these tenants.
    fn sections(&self, tenants: &[(&str, &str)]) -> String {
        let mut text = String::new();
        for name in ["homes", "tables", "files"] {
            text += &format!("[[partition]]\nname = \"{name}\"\ncache_mode = \"writeback\"\n");
        }
        text += &format!(
            "[[mount]]\nsource = \"{}\"\npath = \"{}\"\npartition = \"files\"\n",
            path(&self.source),
            path(&self.target)
        );
        for (pattern, partition) in tenants {
            text += &format!("[[mount.tenant]]\nmatch = \"{pattern}\"\npartition = \"{partition}\"\n");
        }
        text
    }

    fn serve(&self, sections: &str) -> Server {
        Server::start(&self.directory, &Setup { memory_max: "64MiB", listen: sections, ..Setup::default() })
    }

    /// Replaces a text in the configuration.
    fn edit(&self, from: &str, to: &str) {
        let config = self.directory.join("octavo.toml");
        let before = fs::read_to_string(&config).unwrap();
        assert!(before.contains(from), "{before}");
        fs::write(config, before.replacen(from, to, 1)).unwrap();
    }
}

/// A server whose test fails is killed, and must leave no dead mount behind.
impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.target).output();
        }
    }
}

const TENANTS: &[(&str, &str)] = &[("/home/*/", "homes"), ("*.sst", "tables")];

/// Resident bytes of a partition.
fn resident(server: &Server, partition: &str) -> u64 {
    let stat = server.stat();
    let partitions = stat["partitions"].as_array().unwrap();
    let found = partitions.iter().find(|other| other["name"] == partition).unwrap();
    found["resident_bytes"].as_u64().unwrap()
}

fn write(path: PathBuf, len: u64) {
    fs::File::create(path).unwrap().write_all_at(&vec![5; len as usize], 0).unwrap();
}

#[test]
fn the_bytes_of_each_tenant_are_counted_in_its_partition() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut server = place.serve(&place.sections(TENANTS));
    server.wait_for_line(&format!("{} is mounted at {}", path(&place.source), path(&place.target)));
    write(place.target.join("home/ann/a"), MIB);
    // The first pattern that matches wins.
    write(place.target.join("home/bob/1.sst"), MIB);
    write(place.target.join("db/2.sst"), 3 * MIB);
    write(place.target.join("home/other"), 4 * MIB);
    let of = ["homes", "tables", "files"].map(|name| resident(&server, name));
    assert_eq!(of, [2 * MIB, 3 * MIB, 4 * MIB]);

    let stat = server.stat();
    let mount = &stat["mounts"][0];
    assert_eq!(
        (&mount["path"], &mount["source"]),
        (&path(&place.target).into(), &path(&place.source).into())
    );
    assert_eq!(mount["partitions"], serde_json::json!(["files", "homes", "tables"]));
    assert_eq!((&mount["files"], &mount["is_mounted"]), (&4.into(), &true.into()));
    assert!(mount["nodes"].as_u64().unwrap() >= 5, "{mount}");
    // The files of a mount may be many: they are not listed.
    let objects = |name: &str| -> Vec<Value> {
        let partitions = stat["partitions"].as_array().unwrap();
        let found = partitions.iter().find(|other| other["name"] == name).unwrap();
        found["objects"].as_array().unwrap().clone()
    };
    assert_eq!((objects("p").len(), objects("files").len()), (1, 0));
    let table = server.ctl_succeed(&["stat"]);
    assert!(table.contains("files,homes,tables  ok"), "{table}");

    server.end("TERM", 0);
    assert!(!is_mounted(&place.target));
    assert_eq!(fs::read(place.source.join("db/2.sst")).unwrap(), vec![5; 3 * MIB as usize]);
}

#[test]
fn files_that_no_pattern_matches_ask_for_a_partition_and_advise() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let named = "[[mount.tenant]]\npartition = \"tables\"\n";
    let mut server = place.serve(&(place.sections(&[("/home/*/", "homes")]) + named));
    server.wait_for_line(&format!("{} is mounted at {}", path(&place.source), path(&place.target)));
    let label = |directory: &str, name: &str, value: &str| {
        let (path, none) = (place.target.join(directory), rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(path, name, value.as_bytes(), none).unwrap();
    };
    label("db", "user.octavo.partition", "tables");
    label("home", "user.octavo.partition", "nobody's");
    // A pattern wins.
    label("home/ann", "user.octavo.partition", "tables");
    write(place.target.join("db/a"), MIB);
    write(place.target.join("home/ann/b"), 2 * MIB);
    write(place.target.join("home/c"), 4 * MIB);
    let of = ["homes", "tables", "files"].map(|name| resident(&server, name));
    assert_eq!(of, [2 * MIB, MIB, 4 * MIB]);

    // Opened once, read whole.
    label("db", "user.octavo.advice", "willneed");
    write(place.source.join("db/d"), MIB);
    drop(fs::File::open(place.target.join("db/d")).unwrap());
    assert_eq!(resident(&server, "tables"), 2 * MIB);
    server.end("TERM", 0);
}

#[test]
fn the_resident_parts_of_files_are_shown_and_files_are_touched_and_evicted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    write(place.source.join("db/1.sst"), 4 * MIB);
    let server = place.serve(&place.sections(TENANTS));
    let file = place.target.join("db/1.sst");
    let opened = fs::File::open(&file).unwrap();
    // Random reads, so that nothing is read ahead.
    opened.read_exact_at(&mut [0; 4096], 0).unwrap();
    let listed = |below: &std::path::Path| server.ctl_json(&["files", path(below)]);
    let shown = listed(&place.target);
    let first = &shown["files"][0];
    assert_eq!((&first["path"], &first["partition"]), (&path(&file).into(), &"tables".into()));
    assert!(first["parts"].as_str().unwrap().starts_with(['o', 'O']), "{first}");
    assert!(first["parts"].as_str().unwrap().ends_with('.'), "{first}");

    assert_eq!(server.ctl_succeed(&["files", "touch", path(&file)]), "4 MiB read\n");
    assert_eq!(listed(&file)["files"][0]["parts"], "O".repeat(40));
    let table = server.ctl_succeed(&["files"]);
    assert!(table.contains("1 files, 4 MiB resident"), "{table}");
    assert_eq!(listed(&place.target.join("home"))["count"], 0);
    assert_eq!(server.ctl_succeed(&["files", "evict", path(&place.target.join("db"))]), "4 MiB evicted\n");
    assert_eq!(resident(&server, "tables"), 0);
    let said = server.ctl_fail(1, &["files", "/usr"]);
    assert!(said.contains("/usr is in no mount of this server; mounts: "), "{said}");
}

/// Names that JSON or the engine cannot hold as they are: `ctl files` lists each byte for byte, and
/// evicts it by that name alone.
#[test]
fn files_of_any_name_are_listed_exactly_and_evicted_by_that_name() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let odd = [
        &b"plain"[..],
        b" leading",
        b"trailing ",
        b"two  blanks",
        b"tab\there",
        b"new\nline",
        b"caf\xe9",
        "\u{202e}RTL".as_bytes(),
        "zero\u{200b}width".as_bytes(),
    ];
    let odd = odd.map(OsStr::from_bytes);
    for name in odd {
        write(place.source.join(name), 4096);
    }
    let server = place.serve(&place.sections(TENANTS));
    for name in odd {
        let file = place.target.join(name);
        assert_eq!(fs::read(&file).unwrap().len(), 4096, "{name:?}");
        let listed = server.ctl_json(&["files"]);
        let files = listed["files"].as_array().unwrap();
        let resident: Vec<_> = files.iter().filter(|file| file["resident_bytes"] == 4096).collect();
        assert_eq!(resident.len(), 1, "{name:?}: {listed}");
        match file.to_str() {
            Some(text) => {
                let shown = (&resident[0]["path"], &resident[0]["path_hex"]);
                assert_eq!(shown, (&text.into(), &serde_json::Value::Null));
            }
            None => {
                let hex: String =
                    file.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(resident[0]["path_hex"], hex);
            }
        }
        let evict =
            || server.ctl_of(&[OsStr::new("files"), OsStr::new("evict"), OsStr::new("--"), file.as_os_str()]);
        assert_eq!(String::from_utf8_lossy(&evict().stdout), "4 KiB evicted\n", "{name:?}");
    }
    let table = server.ctl_succeed(&["files"]);
    assert!(table.contains("/new?line") && table.contains("/zero?width"), "{table}");

    // A file that was never opened, and a directory without cached files.
    write(place.source.join("never"), 4096);
    fs::create_dir(place.source.join("empty")).unwrap();
    for name in ["never", "empty"] {
        let said = server.ctl_fail(1, &["files", "evict", path(&place.target.join(name))]);
        assert!(said.contains("no cached file is here"), "{said}");
    }
}

#[test]
fn a_reload_mounts_and_unmounts_and_says_what_cannot_change() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let server = place.serve("");
    let config = place.directory.join("octavo.toml");
    let without = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{without}\n{}", place.sections(&[]))).unwrap();
    assert!(server.ctl_succeed(&["reload"]).contains("mounted"));
    write(place.target.join("db/1.sst"), MIB);
    assert_eq!((resident(&server, "files"), resident(&server, "tables")), (MIB, 0));

    // Other tenants, for files that are opened from now on.
    place.edit(
        "partition = \"files\"\n",
        "partition = \"files\"\ntenant = [{match = \"*.sst\", partition = \"tables\"}]\n",
    );
    assert!(server.ctl_succeed(&["reload"]).contains("other partitions, for files that are opened"));
    write(place.target.join("db/2.sst"), MIB);
    assert_eq!((resident(&server, "files"), resident(&server, "tables")), (MIB, MIB));

    place.edit("[[mount]]\n", "[[mount]]\nread_only = true\n");
    let said = server.ctl_fail(1, &["reload"]);
    assert!(
        said.contains("mount.path: read_only has changed, which cannot change while it is mounted"),
        "{said}"
    );
    let said = server.ctl_fail(1, &["partition", "remove", "tables"]);
    assert!(said.contains("is used by the mount"), "{said}");

    fs::write(&config, &without).unwrap();
    assert!(server.ctl_succeed(&["reload"]).contains("unmounted"));
    assert!(!is_mounted(&place.target) && server.stat().get("mounts").is_none());
    assert_eq!(fs::read(place.source.join("db/2.sst")).unwrap(), vec![5; MIB as usize]);
}

#[test]
fn a_reload_mounts_again_what_someone_has_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let server = place.serve(&place.sections(TENANTS));
    write(place.target.join("db/late"), MIB);
    unmount(&place.target);
    server.wait_for_log("was unmounted; a reload mounts it again");
    assert_eq!(server.stat()["mounts"][0]["is_mounted"], false);
    wait_until(
        || "its bytes are not written".into(),
        || fs::read(place.source.join("db/late")).is_ok_and(|bytes| bytes == vec![5; MIB as usize]),
    );
    server.ctl_succeed(&["reload"]);
    assert!(is_mounted(&place.target));
    assert_eq!(server.stat()["mounts"][0]["is_mounted"], true);
}

#[test]
fn a_check_reports_what_is_wrong_with_mounts() {
    let place = Place::new();
    let config = place.directory.join("octavo.toml");
    let file = path(&config).to_owned();
    let check = |text: &str| {
        fs::write(&config, format!("[cache]\nmemory_max = \"32MiB\"\n{text}")).unwrap();
        ["serve", "--config", &file, "--check"].map(str::to_owned)
    };
    fn words(owned: &[String; 4]) -> [&str; 4] {
        std::array::from_fn(|at| owned[at].as_str())
    }
    let control = format!("[listen]\ncontrol = \"unix:{}\"\n[[mount]]\n", path(&place.target.join("c.sock")));
    let db = place.source.join("db");
    let inside =
        format!("[[mount]]\nsource = \"/usr\"\npath = \"{}\"\npartition = \"files\"\n[[mount]]\n", path(&db));
    // Without exports, nothing needs to listen.
    let good = place.sections(TENANTS);
    assert!(octavo_succeeds(&words(&check(&good))).contains("no problems"));
    for (from, to, why) in [
        ("\"/home/*/\"", "\"/home/[\"", "mount.tenant.match: \"/home/[\" is no pattern"),
        ("partition = \"tables\"", "partition = \"table\"", "did you mean \"tables\"?"),
        ("match = \"*.sst\"", "mach = \"*.sst\"", "mount.tenant.mach: no such key"),
        ("[[mount]]\n", "[[mount]]\nthreads = 0\n", "mount.threads: "),
        ("[[mount]]\n", "[[mount]]\nsourse = 1\n", "mount.sourse: no such key; did you mean \"source\"?"),
        (path(&place.source), "/no/such", "mount.source: there is no directory /no/such to mount"),
        (path(&place.target), "relative", "mount.path: \"relative\" is not absolute"),
        (path(&place.target), path(&place.source.join("db")), "mount.path: cannot mount at"),
        ("[[mount]]\n", &control, "listen.control: "),
        ("[[mount]]\n", &inside, "mount.path: "),
        ("[[mount]]\n", &inside, "which is mounted itself, on line "),
        ("[[mount]]\n", &control, "which this server mounts itself, on line "),
        (
            "\"homes\"\ncache_mode = \"writeback\"\n",
            &format!("\"homes\"\nrecord = \"{}\"\n", path(&place.target.join("db/x.octr"))),
            "partition.record: ",
        ),
    ] {
        let said = octavo_fails(&words(&check(&good.replacen(from, to, 1))), 2);
        assert!(said.contains(why), "{why}: {said}");
    }
}

/// A server whose export lay on its own mount lost what it had acknowledged when it ended.
#[test]
fn nothing_of_a_server_lies_on_its_own_mount_however_it_is_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let server = place.serve(&place.sections(&[]));
    let disk = place.target.join("db/disk.raw");
    fs::File::create(&disk).unwrap().set_len(MIB).unwrap();
    let link = place.directory.join("link");
    std::os::unix::fs::symlink(&disk, &link).unwrap();
    let dotted = place.source.join("../target/db/../db/disk.raw");
    let bound = place.directory.join("bound");
    fs::create_dir(&bound).unwrap();
    let mut names = vec![disk, link, dotted];
    // Only root may.
    let is_bound = rustix::mount::mount_bind(place.target.join("db"), &bound).is_ok();
    names.extend(is_bound.then(|| bound.join("disk.raw")));
    for name in &names {
        let said = server.ctl_fail(1, &["export", "add", "e", "--path", path(name), "--partition", "p"]);
        assert!(said.contains("is on a mount of this server itself"), "{name:?}: {said}");
    }
    if is_bound {
        rustix::mount::unmount(&bound, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    let recording = place.target.join("db/new.octr");
    let socket = path(&server.control).to_owned();
    let words = ["record", "p", "--socket", &socket, "--output", path(&recording)];
    let said = octavo_fails(&words, 1);
    assert!(said.contains("new.octr is on a mount of this server itself") && !recording.exists(), "{said}");

    // A reload, by a link, which the file's text does not show.
    let link = place.directory.join("link");
    let export = format!("[[export]]\nname = \"e\"\npath = \"{}\"\npartition = \"p\"\n", path(&link));
    place.edit("[[mount]]\n", &format!("{export}[[mount]]\n"));
    let said = server.ctl_fail(1, &["reload"]);
    assert!(said.contains("which this server mounts itself"), "{said}");
    place.edit(&export, "");
    // The lower file is another matter.
    let lower = place.source.join("db/disk.raw");
    server.ctl_succeed(&["export", "add", "e", "--path", path(&lower), "--partition", "p"]);
}

/// An export whose store lies on the server's mount in a way that the server cannot see: another
/// server's mount is between them.
#[test]
fn exports_are_drained_while_the_mounts_still_serve() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut server = place.serve(&place.sections(&[]));
    let outer = place.directory.join("outer");
    fs::create_dir(&outer).unwrap();
    octavo_succeeds(&["mount", "--daemon", path(&place.target), path(&outer)]);
    let disk = outer.join("db/disk.raw");
    fs::File::create(&disk).unwrap().set_len(MIB).unwrap();
    server.ctl_succeed(&["export", "add", "e", "--path", path(&disk), "--partition", "p"]);
    let mut client = Client::connect(&server.nbd, "e").unwrap();
    client.write(0, &vec![9; MIB as usize]);
    drop(client);
    server.end("TERM", 0);
    unmount(&outer);
    assert!(fs::read(place.source.join("db/disk.raw")).unwrap() == vec![9; MIB as usize]);
}

#[test]
fn a_log_below_the_mount_that_it_is_about_is_refused() {
    let place = Place::new();
    let log = format!("log={}", path(&place.target.join("log")));
    let words = ["mount", "-o", &log, "--daemon", path(&place.source), path(&place.target)];
    let said = octavo_fails(&words, 2);
    assert!(said.contains("which is to be mounted"), "{said}");
}

#[test]
fn metrics_have_the_figures_of_mounts() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let sections = format!("metrics = \"127.0.0.1:0\"\n{}", place.sections(TENANTS));
    let server = place.serve(&sections);
    write(place.target.join("db/1.sst"), MIB);
    let address = server.metrics_address();
    let page = metrics::ask(&address, "GET /metrics", &address);
    let labels = format!("path=\"{}\",source=\"{}\"", path(&place.target), path(&place.source));
    assert!(page.contains(&format!("octavo_mount_files{{{labels}}} 1\n")), "{page}");
    assert!(page.contains(&format!("octavo_mount_mounted{{{labels}}} 1\n")), "{page}");
}
