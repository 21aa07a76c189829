//! Tests on machines with two and with four NUMA nodes, which qemu emulates.
//!
//! A Debian kernel runs under qemu, which emulates the processors too: no KVM is needed, and there
//! is no AVX2. The root is an initramfs with the tests that need nodes ([`PROGRAMS`]): those of the
//! engine, built statically for musl, and those of the program, as the step `test` builds them,
//! with their libraries. If qemu, busybox or a kernel is missing and cannot be fetched, the step is
//! skipped with the reason.
//!
//! Not here: measurements of time. Such a guest is about thirty times slower than its host.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::archive::{Archive, libraries, which};
use crate::cargo::{build, executable, succeeds, target_of};
use crate::kernel;
use crate::step::Outcome;

/// The guests: the number of nodes, and the processors of each node.
const GUESTS: [(u32, u32); 2] = [(2, 2), (4, 1)];

/// Memory of each node, in MiB.
const NODE_MIB: u32 = 384;

/// The longest run of a guest, in seconds. A guest that takes longer hangs.
const GUEST_SECONDS_MAX: u32 = 150;

const MUSL: &str = "x86_64-unknown-linux-musl";
const GNU: &str = "x86_64-unknown-linux-gnu";

/// The last line that a guest prints.
const OVER: &str = "guest: all ran";

/// The test programs that run in guests: their file names there, and the module to run.
const PROGRAMS: [(&str, &str); 2] = [("engine", "on_nodes::"), ("program", "nodes::")];

/// Boots all guests.
pub fn run(root: &Path) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Outcome::Skipped("the guests are x86-64".into());
    }
    for program in ["qemu-system-x86_64", "busybox", "dpkg-deb", "ldd"] {
        if !succeeds(Command::new(program).arg("--help")) {
            return Outcome::Skipped(format!("{program} is not installed; `make test` installs it"));
        }
    }
    let folder = PathBuf::from(target_of(root, "guest"));
    let kernel = match kernel::fetch(&folder) {
        Ok(kernel) => kernel.image,
        Err(why) => return Outcome::Skipped(why),
    };
    let archive = match archive(root) {
        Ok(archive) => archive,
        Err(error) => return Outcome::Failed(error),
    };
    let initramfs = folder.join("initramfs");
    if let Err(error) = std::fs::write(&initramfs, archive) {
        return Outcome::Failed(format!("{}: {error}", initramfs.display()));
    }
    for (nodes, cores) in GUESTS {
        println!("a guest with {nodes} nodes of {cores} processors");
        if let Err(error) = boot(&kernel, &initramfs, nodes, cores) {
            return Outcome::Failed(format!("the guest of {nodes} nodes: {error}"));
        }
    }
    Outcome::Passed
}

/// Runs a guest. The error contains the guest's output.
fn boot(kernel: &Path, initramfs: &Path, nodes: u32, cores: u32) -> Result<(), String> {
    let mut qemu = Command::new("timeout");
    qemu.args([&GUEST_SECONDS_MAX.to_string(), "qemu-system-x86_64"]);
    // One thread emulates all processors, which takes no longer. With a thread per processor, on a
    // busy machine, a kernel thread waited forever for another processor (a soft lockup, which now
    // makes the kernel panic at once). qemu would emulate cmpxchg16b by stopping all processors, so
    // the guest has none. `nokaslr`: the kernel stays at its linked address. `no_timer_check`: on a
    // busy machine, the kernel does not see ten ticks of its timer in time, and panics.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "qemu64,-cx16"]);
    qemu.args(["-nodefaults", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", "stdio"]);
    let append = format!(
        "console=ttyS0 nokaslr no_timer_check quiet panic=-1 softlockup_panic=1 OCTAVO_NODES={nodes}"
    );
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs).args(["-append", &append]);
    qemu.args(["-smp", &(nodes * cores).to_string(), "-m", &format!("{}M", nodes * NODE_MIB)]);
    for node in 0..nodes {
        let (first, last) = (node * cores, node * cores + cores - 1);
        qemu.args(["-object", &format!("memory-backend-ram,id=m{node},size={NODE_MIB}M")]);
        qemu.args(["-numa", &format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}")]);
    }
    // The distances between nodes, which qemu takes only after all nodes.
    for (near, far) in (0..nodes).flat_map(|near| (0..nodes).map(move |far| (near, far))) {
        if near != far {
            qemu.args(["-numa", &format!("dist,src={near},dst={far},val=21")]);
        }
    }
    let output = qemu.stdin(Stdio::null()).output().map_err(|error| format!("qemu: {error}"))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    judge(&said).map(|summary| print!("{summary}")).map_err(|why| format!("{why}\n{said}"))
}

/// Extracts the result of each test program from the output of a guest. The error says what is
/// wrong.
fn judge(said: &str) -> Result<String, String> {
    let mut summary = String::new();
    let mut lines = said.lines();
    for (program, _) in PROGRAMS {
        let result =
            lines.by_ref().find_map(|line| line.split_once("test result: ").map(|(_, result)| result));
        let result = result.ok_or_else(|| format!("{program} did not end"))?;
        if !result.starts_with("ok. ") || result.starts_with("ok. 0 passed") {
            return Err(format!("{program}: {result}"));
        }
        writeln!(summary, "  {program}: {}", result.trim_end()).expect("strings take everything");
    }
    if !said.contains(OVER) {
        return Err(format!("the guest did not print \"{OVER}\""));
    }
    match said.lines().find(|line| line.contains("SKIP")) {
        Some(line) => Err(format!("a test was skipped: {line}")),
        None => Ok(summary),
    }
}

/// Creates the initramfs.
fn archive(root: &Path) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    let add = |archive: &mut Archive, path: &Path, from: &Path| {
        archive.copy(path, from).map_err(|error| format!("{}: {error}", from.display()))
    };
    for folder in ["proc", "sys", "dev", "tmp"] {
        archive.folder(Path::new(folder));
    }
    let busybox = which("busybox").ok_or("busybox is not in PATH")?;
    add(&mut archive, Path::new("bin/busybox"), &busybox)?;
    archive.link(Path::new("bin/sh"), "busybox");
    // 1. The tests of the engine, which need no libraries.
    add(&mut archive, Path::new("engine"), &engine_tests(root)?)?;
    // 2. The tests of the program, which expect it at its build path, with a folder for files.
    let built = build(root, &["--workspace"], &[])?;
    let tests = executable(&built, "program").ok_or("cargo built no tests of the program")?;
    let octavo = executable(&built, "octavo").ok_or("cargo built no octavo")?;
    for (path, from) in [(Path::new("program"), &tests), (octavo.as_path(), &octavo)] {
        add(&mut archive, path, from)?;
        for library in libraries(from)? {
            add(&mut archive, &library, &library)?;
        }
    }
    archive.folder(&PathBuf::from(target_of(root, "tmp")));
    // 3. The script that runs them.
    let runs =
        PROGRAMS.map(|(program, module)| format!("/{program} --test-threads 1 {module} || exit\n")).concat();
    let init = format!(
        "#!/bin/sh\ntrap '/bin/busybox poweroff -f' EXIT\n/bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t sysfs sys /sys\n\
         /bin/busybox mount -t devtmpfs dev /dev\nexport OCTAVO_NODES RUST_BACKTRACE=1\n{runs}echo {OVER}\n"
    );
    archive.file(Path::new("init"), init.as_bytes(), true);
    Ok(archive.end())
}

/// Builds the tests of the engine statically: for musl, or with glibc if rustup cannot install
/// musl.
fn engine_tests(root: &Path) -> Result<PathBuf, String> {
    let installed = Command::new("rustup").args(["target", "list", "--installed"]).output();
    let has_musl = installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(MUSL));
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let (target, flags) = if has_musl || succeeds(Command::new("rustup").args(["target", "add", MUSL])) {
        (MUSL, flags)
    } else {
        println!("rustup cannot add {MUSL}: the tests are linked statically with glibc instead");
        (GNU, format!("{flags} -C target-feature=+crt-static"))
    };
    let built =
        build(root, &["-p", "octavo", "--test", "engine", "--target", target], &[("RUSTFLAGS", flags)])?;
    executable(&built, "engine").ok_or_else(|| "cargo built no tests of the engine".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_whose_tests_failed_were_skipped_or_did_not_run_has_not_passed() {
        let ok = "test result: ok. 3 passed; 0 failed\r\n";
        let said = format!("{ok}noise\n[  1.0] test result: ok. 1 passed\n{OVER}\n");
        assert!(judge(&said).unwrap().contains("program: ok. 1 passed"));
        for wrong in [
            format!("{ok}{OVER}"),
            format!("{ok}{ok}"),
            format!("{ok}SKIP: one node\n{ok}{OVER}"),
            format!("{ok}test result: FAILED. 1 passed; 1 failed\n{OVER}"),
            format!("{ok}test result: ok. 0 passed; 0 failed\n{OVER}"),
        ] {
            assert!(judge(&wrong).is_err(), "{wrong}");
        }
    }
}
