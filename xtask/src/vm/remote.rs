//! A guest that boots from an object of S3: the disk that the installer made is the object, and
//! what the guest writes goes to an overlay.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::kit::Kit;
use super::machine::{Boot, Machine};
use super::server::Server;

/// Boots twice from the image of a system. Returns what the server of S3 was asked, in words.
pub fn run(kit: &Kit, image: &Path, patience: Duration) -> Result<String, String> {
    let folder: &Path = &kit.folder;
    let failed = |error: std::io::Error| format!("the server of S3: {error}");
    std::fs::create_dir_all(folder.join("objects/images")).map_err(failed)?;
    std::fs::hard_link(image, folder.join("objects/images/system.raw")).map_err(failed)?;
    let objects = Objects::start(&kit.objects, &folder.join("objects")).map_err(failed)?;
    let (nbd, control) = (folder.join("nbd.sock"), folder.join("control.sock"));
    let text = format!(
        "[cache]\nmemory_max = \"64MiB\"\n[[partition]]\nname = \"remote\"\npage_bytes = \"16KiB\"\n\
         [[export]]\nname = \"system\"\npath = \"s3://images/system.raw\"\npartition = \"remote\"\n\
         read_only = true\n[listen]\nnbd = \"unix:{}\"\ncontrol = \"unix:{}\"\n[s3]\nendpoint = \"{}\"\n",
        nbd.display(),
        control.display(),
        objects.endpoint
    );
    let server = Server::start_with(&kit.program, folder, &text)?;
    let overlay = folder.join("overlay.qcow2");
    let base = format!("nbd+unix:///system?socket={}", nbd.display());
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base]).arg(&overlay);
    let created = create.status().map_err(|error| format!("qemu-img: {error}"))?;
    if !created.success() {
        return Err(format!("qemu-img create: {created}"));
    }
    for command in ["echo kept > /remembered && sync", "cat /remembered | grep kept"] {
        let mut guest = Machine::start(folder, "remote", &Boot::Overlay(&overlay), &[])?;
        let root = guest.run("grep ' / ' /proc/mounts", patience)?;
        if !root.contains("/dev/vda1 / ext4") {
            return Err(format!("the root of the guest is not on its disk: {root}"));
        }
        guest.run(command, patience)?;
        guest.power_off(patience)?;
    }
    let stat = server.ctl(&["stat"])?;
    server.end()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("S3: "));
    line.map(str::to_owned).ok_or_else(|| format!("the server of S3 was not asked:\n{stat}"))
}

/// The server of S3. It ends when this is dropped.
struct Objects {
    process: Child,
    endpoint: String,
}

impl Objects {
    fn start(program: &Path, directory: &Path) -> std::io::Result<Objects> {
        let mut command = Command::new(program);
        command.arg("--directory").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut endpoint = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut endpoint)?;
        }
        Ok(Objects { process, endpoint: endpoint.trim().to_owned() })
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
