//! [`Machine`]: a guest under qemu, and its shell on the serial console.
//!
//! The guest's first process reads lines from the console and runs each as a command of the shell;
//! after each it prints [`ENDED`] with the exit status. Commands in the background print between
//! the answers.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Memory of a guest, in MiB.
pub const MEMORY_MIB: u32 = 512;

/// The line that a guest prints when it waits for commands.
pub const READY: &str = "vm: ready";
/// The beginning of the line after a command; the exit status follows.
pub const ENDED: &str = "vm: ended ";

/// The arguments of every kernel. `no_timer_check`: on a busy machine, the kernel does not see ten
/// ticks of its timer in time, and panics.
pub const KERNEL_ARGUMENTS: &str = "console=ttyS0 nokaslr no_timer_check quiet panic=-1";

/// How a guest boots.
pub enum Boot<'a> {
    /// qemu loads a kernel and an initramfs.
    Direct { kernel: &'a Path, initramfs: &'a Path },
    /// The BIOS loads the first sector of the first disk.
    Bios,
    /// The same, of a disk in qcow2.
    Overlay(&'a Path),
}

/// A running guest. It is killed when this is dropped.
pub struct Machine {
    name: String,
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    monitor: PathBuf,
    /// All that the guest has printed.
    said: String,
}

impl Machine {
    /// Starts a guest with these vhost-user disks, and waits until it takes commands.
    pub fn start(folder: &Path, name: &str, boot: &Boot, sockets: &[PathBuf]) -> Result<Machine, String> {
        let monitor = folder.join(format!("{name}.monitor"));
        let _ = std::fs::remove_file(&monitor);
        let mut qemu = Command::new("qemu-system-x86_64");
        // One thread emulates all processors: see `guest.rs`.
        qemu.args(["-accel", "tcg,thread=single", "-cpu", "qemu64,-cx16", "-smp", "2"]);
        qemu.args(["-nodefaults", "-display", "none", "-serial", "stdio"]);
        qemu.args(["-m", &format!("{MEMORY_MIB}M")]);
        qemu.args(["-object", &format!("memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on")]);
        qemu.args(["-numa", "node,memdev=mem"]);
        qemu.args(["-monitor", &format!("unix:{},server=on,wait=off", monitor.display())]);
        for (number, socket) in sockets.iter().enumerate() {
            let path = socket.display();
            qemu.args(["-chardev", &format!("socket,id=c{number},path={path},reconnect=1")]);
            // A kernel that qemu loads has the first place.
            let place = number + usize::from(matches!(boot, Boot::Direct { .. }));
            let device = format!("vhost-user-blk-pci,chardev=c{number},num-queues=2,bootindex={place}");
            qemu.args(["-device", &device]);
        }
        if let Boot::Overlay(path) = boot {
            qemu.args(["-drive", &format!("file={},format=qcow2,if=virtio", path.display())]);
        }
        if let Boot::Direct { kernel, initramfs } = boot {
            qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
            qemu.args(["-append", KERNEL_ARGUMENTS]);
        }
        // qemu logs a complaint about every lost connection.
        let complaints = OpenOptions::new().create(true).append(true).open(folder.join("qemu.log"));
        let complaints = complaints.map_err(|error| format!("qemu.log: {error}"))?;
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
        let mut process = qemu.spawn().map_err(|error| format!("qemu: {error}"))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("qemu has no pipes".into());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        let name = name.to_owned();
        let mut machine = Machine { name, process, input, lines, monitor, said: String::new() };
        machine.wait_for(READY, Duration::from_secs(240))?;
        Ok(machine)
    }

    /// Runs a command, and returns what the guest prints until its end. A status other than 0 is an
    /// error.
    pub fn run(&mut self, command: &str, patience: Duration) -> Result<String, String> {
        self.send(command)?;
        let (said, status) = self.wait_for(ENDED, patience)?;
        match status.trim() {
            "0" => Ok(said),
            status => Err(format!("{}: `{command}` ended with {status}:\n{said}", self.name)),
        }
    }

    /// Sends a line to the console.
    pub fn send(&mut self, line: &str) -> Result<(), String> {
        let sent = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        sent.map_err(|error| self.about(&format!("the console: {error}")))
    }

    /// Waits for a line that contains `mark`. Returns the lines before it, and what follows `mark`
    /// in its line.
    pub fn wait_for(&mut self, mark: &str, patience: Duration) -> Result<(String, String), String> {
        let until = Instant::now() + patience;
        let mut before = String::new();
        loop {
            let line = match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = patience.as_secs();
                    return Err(self.about(&format!("no \"{mark}\" within {seconds} s")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.about("qemu has ended")),
            };
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains("Kernel panic") {
                return Err(self.about("the kernel panicked"));
            }
            if let Some((_, rest)) = line.split_once(mark) {
                return Ok((before, rest.to_owned()));
            }
            before.push_str(&line);
            before.push('\n');
        }
    }

    /// Resets the guest, as the button on a machine does, and waits until it takes commands.
    pub fn reset(&mut self) -> Result<(), String> {
        let mut monitor =
            UnixStream::connect(&self.monitor).map_err(|error| format!("qemu's monitor: {error}"))?;
        monitor.write_all(b"system_reset\n").map_err(|error| format!("qemu's monitor: {error}"))?;
        self.wait_for(READY, Duration::from_secs(240)).map(drop)
    }

    /// Switches the guest off when its file systems are unmounted.
    pub fn power_off(mut self, patience: Duration) -> Result<(), String> {
        self.send("cd /; sync; umount -a -r 2>/dev/null; poweroff -f")?;
        let start = Instant::now();
        while start.elapsed() < patience {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(self.about("the guest does not switch off"))
    }

    /// The lines of the console that contain `mark`: what follows it.
    pub fn all(&self, mark: &str) -> Vec<String> {
        let lines = self.said.lines().filter_map(|line| line.split_once(mark));
        lines.map(|(_, rest)| rest.to_owned()).collect()
    }

    fn about(&self, what: &str) -> String {
        let tail: Vec<&str> = self.said.lines().rev().take(40).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!("{}: {what}; the guest said last:\n{}", self.name, tail.join("\n"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
