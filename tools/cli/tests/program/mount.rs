//! `octavo mount` and `mount.octavo`, driven as administrators and programs do.
//!
//! Without /dev/fuse, or if mounting is not allowed, the tests print `SKIP`.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::clients::{self, shell_succeeds, text};
use crate::idle;
use crate::server::{Directory, octavo, octavo_fails, program, signal, wait_until};

/// A directory with the directories `source` and `target`.
pub fn directories() -> (Directory, PathBuf, PathBuf) {
    let directory = Directory::new();
    let (source, target) = (directory.join("source"), directory.join("target"));
    [&source, &target].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    (directory, source, target)
}

/// Whether the system lets this user mount, which a short mount finds out.
pub fn can_mount() -> bool {
    let (_directory, source, target) = directories();
    let output = octavo(&["mount", "--daemon", path(&source), path(&target)]);
    let mut said = text(&output.stderr);
    if output.status.success() {
        // Skipping is for systems, and not for an octavo that does not mount.
        if is_mounted(&target) {
            unmount(&target);
            return true;
        }
        said = "octavo has mounted nothing".to_owned();
    }
    clients::skip(&format!("cannot mount here: {said}"))
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The line of the mount at this path in the table of mounts.
fn mounted(target: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = |line: &&str| line.split(' ').nth(1) == Some(path(target));
    mounts.lines().rfind(at).map(str::to_owned)
}

pub fn is_mounted(target: &Path) -> bool {
    mounted(target).is_some()
}

/// Unmounts as users do. The child of another test may have our files open until it runs its
/// program.
pub fn unmount(target: &Path) {
    let run = || Command::new("fusermount3").arg("-u").arg(target).output().unwrap();
    let output = run();
    let failed = || format!("cannot unmount: {}", text(&output.stderr));
    if !output.status.success() {
        assert!(failed().contains("busy"), "{}", failed());
        wait_until(failed, || run().status.success());
    }
}

/// A mount in the foreground. Its drop ends it.
struct Foreground {
    process: Child,
    target: PathBuf,
}

impl Foreground {
    /// Mounts with these options, and waits until the directory is usable.
    fn start(source: &Path, target: &Path, words: &[&str]) -> Foreground {
        use std::io::BufRead;
        let mut command = program(&["mount"]);
        command.args(words).arg(source).arg(target).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let started = Foreground { process, target: target.to_owned() };
        let expected = format!("{} is mounted at {}: ", source.display(), target.display());
        assert!(line.starts_with(&expected), "{line:?}");
        started
    }

    /// Waits for the end. Its status, and what it has said.
    fn end(mut self) -> (Option<i32>, String) {
        wait_until(|| "the mount does not end".into(), || self.process.try_wait().unwrap().is_some());
        let mut said = String::new();
        self.process.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert!(!is_mounted(&self.target), "it left its mount behind: {said}");
        (self.process.wait().unwrap().code(), said)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // A test that fails must leave no mount behind, nor a process.
        if self.process.try_wait().unwrap().is_none() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.target).output();
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

#[test]
fn programs_read_and_write_through_a_mount_until_a_signal_ends_it() {
    if !can_mount() {
        return;
    }
    for (name, options) in [("TERM", &[][..]), ("INT", &["--writeback"]), ("HUP", &["-o", "writeback"])] {
        let (_directory, source, target) = directories();
        fs::write(source.join("old"), "before").unwrap();
        let mount = Foreground::start(&source, &target, options);
        assert_eq!(shell_succeeds(&target, "cat old"), "before");
        shell_succeeds(
            &target,
            "mkdir -p a/b && echo new > a/b/new && head -c 300000 /dev/zero | tr '\\0' x > x",
        );
        assert_eq!(shell_succeeds(&target, "tail -c 3 x && cat a/b/new && wc -c < x"), "xxxnew\n300000\n");
        signal(mount.process.id(), name);
        let (status, said) = mount.end();
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("SIG{name}")), "{said}");
        assert_eq!(fs::read(source.join("x")).unwrap(), vec![b'x'; 300_000]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }
}

#[test]
fn a_mount_ends_when_it_is_unmounted_from_outside() {
    if !can_mount() {
        return;
    }
    let (_directory, source, target) = directories();
    let mount = Foreground::start(&source, &target, &["--writeback", "--memory-max", "16MiB"]);
    fs::write(target.join("file"), "late").unwrap();
    unmount(&target);
    let (status, said) = mount.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("was unmounted"), "{said}");
    assert_eq!(fs::read(source.join("file")).unwrap(), b"late");
}

#[test]
fn sigterm_ends_a_mount_that_a_program_still_uses() {
    if !can_mount() {
        return;
    }
    let (_directory, source, target) = directories();
    let mount = Foreground::start(&source, &target, &["--writeback"]);
    let mut file = fs::File::create(target.join("open")).unwrap();
    use std::io::Write;
    file.write_all(b"written").unwrap();
    signal(mount.process.id(), "TERM");
    assert_eq!(mount.end().0, Some(0));
    assert_eq!(fs::read(source.join("open")).unwrap(), b"written");
    assert!(file.write_all(b"more").is_err());
}

#[test]
fn a_daemon_returns_when_its_mount_is_usable_and_holds_no_terminal() {
    if !can_mount() {
        return;
    }
    let (directory, source, target) = directories();
    fs::write(source.join("file"), "here").unwrap();
    let log = directory.join("log");
    let options = format!("log={}", log.display());
    // Its output is a pipe, which ends only when no process has it open.
    let output = octavo(&["mount", "--daemon", "-o", &options, path(&source), path(&target)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("write-through, 128 MiB of cache"), "{}", text(&output.stdout));
    assert_eq!(fs::read(target.join("file")).unwrap(), b"here");
    unmount(&target);
    wait_until(|| "no log".into(), || fs::read_to_string(&log).is_ok_and(|log| log.contains("unmounted")));

    // A daemon that cannot mount says why, and its status tells.
    let fails = |options: &str, status| {
        octavo_fails(&["mount", "--daemon", "-o", options, path(&source), path(&target)], status)
    };
    let said = fails("memory_max=4m,threads=256", 2);
    assert!(said.contains("256 threads need memory_max="), "{said}");
    // No machine has room for a mount in this little: the command line is wrong.
    for too_little in ["memory_max=0", "memory_max=1"] {
        let said = fails(too_little, 2);
        assert!(said.contains("the least is 4 MiB"), "{said}");
    }
    assert!(!is_mounted(&target));
}

/// Regression: the mount was left behind, dead, with its server gone.
#[test]
fn a_start_that_fails_leaves_nothing_mounted() {
    if !can_mount() {
        return;
    }
    let (_directory, source, target) = directories();
    // The descriptors of 256 threads are too many.
    let options = ["-o", "threads=256,memory_max=2g"];
    for daemon in [&[][..], &["--daemon"]] {
        let words = [&["mount"][..], daemon, &options, &[path(&source), path(&target)]].concat();
        let command = program(&words);
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=300:300").arg(command.get_program()).args(command.get_args());
        let output = limited.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("Too many open files"), "{said}");
        assert!(!is_mounted(&target), "{words:?}: {said}");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }
}

/// A mount in the background has a log, though nobody has asked for one.
#[test]
fn a_daemon_has_a_log_in_the_state_directory() {
    if !can_mount() {
        return;
    }
    let (directory, source, target) = directories();
    let state = directory.join("state");
    let mut daemon = program(&["mount", "--daemon", "--writeback", path(&source), path(&target)]);
    assert!(daemon.env("XDG_STATE_HOME", &state).status().unwrap().success());
    unmount(&target);
    let files = || fs::read_dir(state.join("octavo")).unwrap().map(|entry| entry.unwrap().path());
    let log = files().find(|file| file.extension().is_some_and(|kind| kind == "log")).unwrap();
    wait_until(|| "no log".into(), || fs::read_to_string(&log).is_ok_and(|log| log.contains("unmounted")));
    // And room for the names of what it may lose.
    let lost = files().find(|file| path(file).contains("/lost-")).unwrap();
    assert_eq!(fs::metadata(lost).unwrap().len(), 64 << 10);
}

/// `mount.octavo` with these words.
fn helper(directory: &Directory, words: &[&str]) -> Output {
    let link = directory.join("mount.octavo");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_octavo"), &link).unwrap();
    }
    let state = directory.join("state");
    Command::new(link).args(words).env("XDG_STATE_HOME", state).output().unwrap()
}

#[test]
fn the_helper_of_mount_takes_the_options_of_fstab() {
    if !can_mount() {
        return;
    }
    let (directory, source, target) = directories();
    fs::write(source.join("file"), "here").unwrap();
    let options = "ro,noatime,memory_max=16m,nofail,_netdev,x-systemd.automount,noexec";
    let output = helper(&directory, &[path(&source), path(&target), "-o", options]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let line = mounted(&target).unwrap();
    assert!(line.contains("fuse.octavo ro,") && line.contains("noexec"), "{line}");
    assert_eq!(fs::read(target.join("file")).unwrap(), b"here");
    assert!(fs::write(target.join("file"), "new").is_err());
    unmount(&target);

    for (words, status, why) in [
        (["-o", "rw,memroy_max=1g"], 1, "did you mean \"memory_max=\"?"),
        (["-o", "memory_max=4m,threads=256"], 1, "256 threads need memory_max="),
        (["-o", "memory_max=0"], 1, "the least is 4 MiB"),
        (["-f", "-v"], 0, ""),
    ] {
        let output = helper(&directory, &[path(&source), path(&target), words[0], words[1]]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(why) && !is_mounted(&target), "{said}");
    }
}

#[test]
fn mount_finds_the_helper() {
    let installed = Path::new("/sbin/mount.octavo");
    if !can_mount() || installed.exists() || !clients::present(&["mount", "unshare"]) {
        return;
    }
    let (directory, source, target) = directories();
    fs::write(source.join("file"), "here").unwrap();
    // In a namespace of its own, where /sbin is a directory of the test: mount(8) looks only there.
    let sbin = directory.join("sbin");
    fs::create_dir(&sbin).unwrap();
    let line = format!(
        "cp -a /usr/sbin/. {sbin} && ln -s {program} {sbin}/mount.octavo && mount --bind {sbin} /usr/sbin \
         && mount -t octavo -o ro,noauto {source} {target} && cat {target}/file && grep {target} /proc/mounts \
         && umount {target}",
        sbin = sbin.display(),
        program = env!("CARGO_BIN_EXE_octavo"),
        source = source.display(),
        target = target.display(),
    );
    let output =
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &line]).output();
    let output = output.unwrap();
    if !output.status.success() && text(&output.stderr).contains("unshare failed") {
        clients::skip(&text(&output.stderr));
        return;
    }
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("here") && said.contains("fuse.octavo ro,"), "{said}");
}

#[test]
fn a_wrong_command_line_is_told_from_a_failure() {
    let (directory, source, target) = directories();
    let inside = source.join("inside");
    fs::create_dir(&inside).unwrap();
    let file = directory.join("file");
    fs::write(&file, "").unwrap();
    let (source, target, inside, file) = (path(&source), path(&target), path(&inside), path(&file));
    for (words, why) in [
        (["/no/such", target], "there is no directory /no/such to mount"),
        ([file, target], "it is not a directory (for a disk image: octavo serve)"),
        ([source, "/no/such"], "cannot mount at /no/such: there is no such directory (mkdir -p /no/such)"),
        ([source, file], "it is not a directory"),
        ([source, inside], "it is inside"),
    ] {
        let said = octavo_fails(&["mount", words[0], words[1]], 2);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let said = octavo_fails(&["mount", "-o", "writebak", source, target], 2);
    assert!(said.contains("option writebak: no such option; did you mean \"writeback\"?"), "{said}");
}

/// After a crash, the directory is a dead mount, which every access fails with ENOTCONN.
#[test]
fn after_kill_9_the_next_mount_replaces_the_dead_one() {
    if !can_mount() {
        return;
    }
    let (_directory, source, target) = directories();
    let mut mount = Foreground::start(&source, &target, &[]);
    fs::write(target.join("file"), "written through").unwrap();
    mount.process.kill().unwrap();
    mount.process.wait().unwrap();
    assert_eq!(fs::read(source.join("file")).unwrap(), b"written through");
    assert!(is_mounted(&target) && fs::read_dir(&target).is_err());

    let second = Foreground::start(&source, &target, &[]);
    assert_eq!(fs::read(target.join("file")).unwrap(), b"written through");
    let said = octavo_fails(&["mount", path(&source), path(&target)], 2);
    assert!(said.contains("there is an octavo mount at") && said.contains("already"), "{said}");
    signal(second.process.id(), "TERM");
    assert_eq!(second.end().0, Some(0));
}

/// Above a mount whose server is stopped, reads hang as over a dead network.
///
/// Regression: the program stayed until the lower file system answered, killed or not.
#[test]
fn a_program_that_waits_for_a_hung_file_system_can_be_killed() {
    if !can_mount() {
        return;
    }
    let (directory, source, middle) = directories();
    let target = directory.join("above");
    fs::create_dir(&target).unwrap();
    fs::write(source.join("file"), vec![7; 4 << 20]).unwrap();
    let lower = Foreground::start(&source, &middle, &[]);
    let mount = Foreground::start(&middle, &target, &[]);
    // The first read of a file system in user space asks, and waits, for its answer to `poll`.
    fs::write(source.join("first"), "read").unwrap();
    assert_eq!(fs::read(target.join("first")).unwrap(), b"read");
    let mut killed = HungReader::start(&target);
    let mut waiting = HungReader::start(&target);
    signal(lower.process.id(), "STOP");
    killed.read();
    signal(killed.0.id(), "KILL");
    wait_until(|| "a killed reader waits".into(), || killed.0.try_wait().unwrap().is_some());

    // The server waits for the lower file system, and does not spin meanwhile.
    waiting.read();
    signal(mount.process.id(), "TERM");
    wait_until(|| "it is not unmounted".into(), || !is_mounted(&target));
    idle::assert_all_sleep(mount.process.id(), 20);
    signal(lower.process.id(), "CONT");
    assert_eq!(mount.end().0, Some(0));
    wait_until(|| "a reader waits for no mount".into(), || waiting.0.try_wait().unwrap().is_some());
    signal(lower.process.id(), "TERM");
    assert_eq!(lower.end().0, Some(0));
}

/// A shell that has `file` open. Its own `read` asks for bytes and nothing else.
struct HungReader(Child);

impl HungReader {
    fn start(target: &Path) -> HungReader {
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3< \"$0\"; echo; read go; read bytes <&3"])
            .arg(target.join("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        HungReader(shell)
    }

    /// Lets it read, and waits until it waits.
    fn read(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let place = format!("/proc/{}/wchan", self.0.id());
        let waits = || fs::read_to_string(&place).unwrap().contains("request_wait");
        wait_until(|| "the reader does not wait".into(), waits);
    }
}

#[test]
fn a_directory_can_be_mounted_over_itself() {
    if !can_mount() {
        return;
    }
    let (_directory, source, _) = directories();
    fs::write(source.join("file"), "old").unwrap();
    let mount = Foreground::start(&source, &source, &["--writeback"]);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"old");
    fs::write(source.join("file"), "changed").unwrap();
    signal(mount.process.id(), "TERM");
    assert_eq!(mount.end().0, Some(0));
    assert_eq!(fs::read(source.join("file")).unwrap(), b"changed");
}

#[test]
fn while_nothing_uses_it_the_threads_of_a_mount_sleep() {
    if !can_mount() {
        return;
    }
    let (_directory, source, target) = directories();
    let mount = Foreground::start(&source, &target, &["--writeback"]);
    fs::write(target.join("file"), vec![7; 1 << 20]).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), vec![7; 1 << 20]);
    idle::assert_sleeps(mount.process.id());
    signal(mount.process.id(), "TERM");
    assert_eq!(mount.end().0, Some(0));
}

/// Another user, in a namespace where /dev/fuse is open to all, as it is on most systems.
///
/// Regression: without root, every write failed, because only root may remove the attribute of a
/// file's capabilities, even one that does not exist.
#[test]
fn without_root_a_mount_goes_through_fusermount3_and_can_be_written() {
    let programs = ["setpriv", "unshare", "fusermount3"];
    if !can_mount() || !clients::present(&programs) {
        return;
    }
    // Below a directory that the user can reach.
    let place = std::env::temp_dir().join(format!("octavo-mount-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let script = format!(
        "cd {place} && touch octavo && mkdir source target && chmod 755 . && chown 65534 source target \
         && mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77
         mount --bind {program} octavo || exit 77
         as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         $as ./octavo mount --daemon source target && grep {place}/target /proc/mounts \
         && $as sh -c 'echo new > target/file && echo more >> target/file' && cat source/file \
         && $as fusermount3 -u target",
        place = place.display(),
        program = env!("CARGO_BIN_EXE_octavo"),
    );
    let output =
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]).output();
    let _ = fs::remove_dir_all(&place);
    let output = output.unwrap();
    let (said, complaint) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(77) || complaint.contains("unshare failed") {
        println!("SKIP: {complaint}");
        return;
    }
    assert!(output.status.success(), "{said}{complaint}");
    assert!(said.contains("user_id=65534") && said.ends_with("new\nmore\n"), "{said}");
}
