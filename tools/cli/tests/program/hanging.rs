//! Stores that hang: what the server still does, and what it waits for.
//!
//! `hanging.c` makes system calls hang. The C compiler of the machine, which also links Rust,
//! builds it as a library.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::mount::{can_mount, directories};
use crate::nbd_client::Client;
use crate::server::{Directory, PATIENCE, Server, Setup, program, signal, wait_for, wait_until};

/// Runs a command, which must end although a store hangs.
fn ends(mut command: Command) -> Output {
    let (told, tells) = channel();
    std::thread::spawn(move || told.send(command.output().unwrap()));
    tells.recv_timeout(PATIENCE).expect("the command ends while the store does not answer")
}

/// Builds the library that makes calls hang.
pub fn library(directory: &Directory) -> PathBuf {
    let library = directory.join("hanging.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/hanging.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(made.expect("cc is there, for it links Rust").success());
    library
}

/// A server of write-back disks on files whose calls can be made to hang.
struct Scene {
    server: Server,
    directory: Directory,
}

impl Scene {
    fn new(drain_timeout: &str) -> Scene {
        Scene::with(drain_timeout, |_| String::new())
    }

    fn with(drain_timeout: &str, more: impl FnOnce(&Directory) -> String) -> Scene {
        let directory = Directory::new();
        let library = library(&directory);
        let before =
            format!("export LD_PRELOAD={} HANGING={}", library.display(), directory.join("").display());
        let server = Server::start(
            &directory,
            &Setup {
                cache: "io = \"blocking\"",
                serve: &format!("drain_timeout = \"{drain_timeout}\"\n{}", more(&directory)),
                before: &before,
                ..Setup::default()
            },
        );
        Scene { server, directory }
    }

    /// With a second partition that allows few dirty pages, and an export in it.
    fn with_another(drain_timeout: &str) -> Scene {
        Scene::with(drain_timeout, |directory| {
            format!(
                "[[partition]]\nname = \"q\"\ncache_mode = \"writeback\"\ndirty_max = \"1MiB\"\n[[export]]\n\
                 name = \"other\"\npath = \"{}\"\npartition = \"q\"\n",
                directory.disk("other", 16 << 20).display()
            )
        })
    }

    /// A server that was told to stop, and waits for a sync that hangs.
    fn draining() -> (Scene, PathBuf) {
        let scene = Scene::new("100ms");
        Client::connect(&scene.server.nbd, "disk").unwrap().write(4096, &[7; 8192]);
        let hanging = scene.hang("syncs");
        scene.server.signal("TERM");
        scene.server.wait_for_log("waiting for the stores to make it durable");
        (scene, hanging)
    }

    fn hang(&self, what: &str) -> PathBuf {
        let path = self.directory.join(what);
        File::create(&path).unwrap();
        path
    }
}

/// After `drain_timeout`, a drain gave up a store that had all bytes and was making them durable,
/// and reported 0 bytes lost.
#[test]
fn the_drain_waits_for_a_store_whose_sync_takes_long() {
    let (mut scene, hanging) = Scene::draining();
    // Several times the timeout: a drain that gives up has done so by then.
    std::thread::sleep(Duration::from_millis(500));
    std::fs::remove_file(hanging).unwrap();
    let status = scene.server.wait();
    assert_eq!(status.code(), Some(0), "{}", scene.server.log());
    assert!(scene.server.log().contains("drained"), "{}", scene.server.log());
}

/// The server had stopped to take requests, and did not end: programs that had files open waited,
/// and could not be killed.
#[test]
fn files_that_are_open_fail_while_the_end_of_a_server_waits_for_their_store() {
    if !can_mount() {
        return;
    }
    let (directory, source, target) = directories();
    std::fs::write(source.join("file"), vec![1; 100_000]).unwrap();
    let mount = format!(
        "[[mount]]\nsource = \"{}\"\npath = \"{}\"\npartition = \"p\"\n",
        source.display(),
        target.display()
    );
    let library = library(&directory);
    let before = format!("export LD_PRELOAD={} HANGING={}", library.display(), directory.join("").display());
    let setup = Setup { cache: "io = \"blocking\"", listen: &mount, before: &before, ..Setup::default() };
    let mut server = Server::start(&directory, &setup);
    let file = File::options().read(true).write(true).open(target.join("file")).unwrap();
    file.write_all_at(&[2; 4096], 0).unwrap();
    let hanging = directory.join("syncs-file");
    File::create(&hanging).unwrap();
    server.signal("TERM");
    server.wait_for_log("waiting for the stores to make it durable");
    let (told, tells) = channel();
    std::thread::spawn(move || told.send(file.read_at(&mut [0], 50_000).map_err(|error| error.kind())));
    let read = tells.recv_timeout(PATIENCE);
    std::fs::remove_file(hanging).unwrap();
    assert_eq!(read.expect("the read does not wait for the server"), Err(ErrorKind::NotConnected));
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert_eq!(std::fs::read(source.join("file")).unwrap()[..4096], [2; 4096]);
}

/// A signal in the first milliseconds killed a server that was to end in order.
#[test]
fn a_signal_before_the_arguments_are_read_ends_a_server_in_order() {
    let directory = Directory::new();
    Server::start(&directory, &Setup::default()).stop();
    let library = library(&directory);
    let run = |words: &[&str]| {
        let mut command = program(words);
        command.arg(directory.join("octavo.toml")).env("LD_PRELOAD", &library);
        // The library sends the signal when the environment is read.
        command.env("SIGNAL_AT_START", "15");
        ends(command).status
    };
    assert_eq!(run(&["serve", "--config"]).code(), Some(0));
    assert_eq!(run(&["serve", "--check", "--config"]).signal(), Some(15));
}

/// A second signal ends a server that waits for a sync, and gives up the sync.
#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_sync() {
    let (mut scene, _hanging) = Scene::draining();
    scene.server.end("INT", 130);
    assert!(scene.server.log().contains("ended at once, 0 dirty bytes left"), "{}", scene.server.log());
}

/// A server whose start waited for a store did not end at SIGTERM, for as long as the store hung.
#[test]
fn a_signal_ends_a_server_whose_start_hangs() {
    let directory = Directory::new();
    // A server writes the configuration.
    Server::start(&directory, &Setup::default()).stop();
    File::create(directory.join("opens")).unwrap();
    let mut command = program(&["serve", "--config"]);
    command.arg(directory.join("octavo.toml")).env("LD_PRELOAD", library(&directory));
    command.env("HANGING", directory.join("")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Killed(command.spawn().unwrap());
    // The thread of signals is the first one.
    wait_until(
        || "the server does not start".into(),
        || {
            let tasks = format!("/proc/{}/task", process.0.id());
            std::fs::read_dir(tasks).is_ok_and(|tasks| tasks.count() > 2)
        },
    );
    signal(process.0.id(), "TERM");
    let status = wait_for(|| "the server does not end".into(), || process.0.try_wait().unwrap());
    let mut said = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("SIGTERM: the server has not started"), "{said}");
}

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A resize that waited for a store held its lock, and everything that reads figures waited for the
/// lock: `ctl stat`, the status line and with it the first SIGTERM, and the second SIGTERM, which
/// reports the dirty bytes.
#[test]
fn a_resize_that_waits_for_a_store_delays_neither_stat_nor_the_shutdown() {
    let mut scene = Scene::new("500ms");
    let mut client = Client::connect(&scene.server.nbd, "disk").unwrap();
    let _hanging = scene.hang("writes");
    // Every segment has dirty pages, so none can be removed without the store. They are more than
    // half of dirty_max, so the cleaner starts to write, and hangs. No set is full: a page whose
    // set is full would wait for the store, and its client with it.
    scene.server.ctl_succeed(&["set", "p", "dirty_max=5MiB"]);
    for at in 0..3 {
        client.write(at << 20, &vec![1; 1 << 20]);
    }
    let control = scene.server.control.clone();
    let ctl = |words: &[&str]| program(&[&["ctl", "--socket", control.to_str().unwrap()], words].concat());
    // `set` hung as long as the store did. Now it reports what is owed, and the limit holds.
    for command in [
        ctl(&["set", "p", "max=8MiB"]),
        ctl(&["set", "p", "max=8MiB", "--json"]),
        ctl(&["reclaim", "p", "2MiB"]),
    ] {
        let said = ends(command);
        assert!(said.status.success(), "{said:?}");
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(said.contains("still to be given back (its store") || said.contains("owed_bytes"), "{said}");
    }
    let settings = scene.server.ctl_json(&["partitions"]);
    assert_eq!(settings["partitions"][0]["max"], 8 << 20, "{settings}");
    // Whether the resize waits for the store already or will in a moment, `stat` answers.
    for _ in 0..30 {
        assert!(ends(ctl(&["stat", "--json"])).status.success());
        std::thread::sleep(Duration::from_millis(50));
    }
    scene.server.end("TERM", 1);
    assert!(scene.server.log().contains("bytes lost"), "{}", scene.server.log());
}

/// One hanging store stopped the write-back of all stores: the cleaner waited for it, and it
/// occupied all I/O threads.
#[test]
fn a_hanging_store_does_not_delay_other_stores() {
    let mut scene = Scene::with_another("500ms");
    scene.server.ctl_succeed(&["set", "p", "dirty_max=2MiB"]);
    let dirty_bytes =
        |partition: usize| scene.server.stat()["partitions"][partition]["dirty_bytes"].as_u64().unwrap();
    let hanging = [scene.hang("writes-disk"), scene.hang("syncs-disk")];
    // Enough dirty pages to be written immediately: every other page, so that each is an I/O of its
    // own, and more of them than I/O threads.
    let mut stuck = Client::connect(&scene.server.nbd, "disk").unwrap();
    (0..400).for_each(|page| stuck.write(page * 8192, &[1; 4096]));
    stuck.send_flush(77).unwrap();
    // The same for the other partition, which is written back down to a quarter.
    let mut other = Client::connect(&scene.server.nbd, "other").unwrap();
    other.write(0, &vec![2; 900 << 10]);
    let what = || format!("{:#}\n{}", scene.server.stat(), scene.server.log());
    wait_until(what, || dirty_bytes(1) <= 256 << 10);
    // More than the dirty limit.
    (0..8).for_each(|at| other.write(at << 20, &vec![3; 1 << 20]));
    assert_eq!(other.flush(), 0);
    let written = std::fs::read(scene.directory.join("other")).unwrap();
    assert!(written[..8 << 20].iter().all(|byte| *byte == 3));
    assert_eq!(dirty_bytes(0), 400 * 4096);
    // The store answers again.
    hanging.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!(stuck.reply().unwrap(), (77, 0));
    assert_eq!(dirty_bytes(0), 0);
    scene.server.end("TERM", 0);
    let written = std::fs::read(scene.directory.join("disk")).unwrap();
    assert!((0..400).all(|page| written[page * 8192..][..4096] == [1; 4096]));
}

/// A drain never gave up a hanging disk while any other disk was written to.
#[test]
fn a_drain_gives_up_a_hanging_store_while_other_stores_write() {
    let mut scene = Scene::with_another("500ms");
    Client::connect(&scene.server.nbd, "disk").unwrap().write(0, &[1; 4096]);
    let hanging = scene.hang("writes-disk");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut other = Client::connect(&scene.server.nbd, "other").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                other.write(0, &[2; 4096]);
                assert_eq!(other.flush(), 0);
            }
        });
        let (told, tells) = channel();
        threads.spawn(|| {
            let told = told;
            told.send(scene.server.ctl_fail(1, &["drain"])).unwrap();
        });
        let said = tells.recv_timeout(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        std::fs::remove_file(&hanging).unwrap();
        let said = said.expect("the drain ends");
        assert!(said.contains("disk") && said.contains("does not answer"), "{said}");
        assert!(!said.contains("other"), "{said}");
    });
    scene.server.end("TERM", 0);
}

/// Sixteen `ctl sync` on a hanging store took all places of the control socket, even after their
/// clients had disconnected: no other command worked any more.
#[test]
fn commands_that_wait_for_a_store_leave_places_for_other_commands() {
    let scene = Scene::new("10s");
    let mut client = Client::connect(&scene.server.nbd, "disk").unwrap();
    client.write(4096, &[7; 8192]);
    let hanging = scene.hang("syncs");
    let sync = || {
        let mut command = program(&["ctl", "sync", "--socket"]);
        command.arg(&scene.server.control).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut waiting: Vec<Child> = (0..16).map(|_| sync()).collect();
    wait_until(
        || "fewer than four were refused".into(),
        || {
            waiting.retain_mut(|child| {
                let Some(status) = child.try_wait().unwrap() else { return true };
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                assert!(
                    !status.success() && said.contains("12 commands wait for stores"),
                    "{status}: {said}"
                );
                false
            });
            waiting.len() <= 12
        },
    );
    assert_eq!(waiting.len(), 12);
    assert!(scene.server.dirty_bytes() <= 8192);
    scene.server.ctl_succeed(&["set", "p", "weight=200"]);
    std::fs::remove_file(hanging).unwrap();
    assert!(waiting.into_iter().all(|mut child| child.wait().unwrap().success()));
}
