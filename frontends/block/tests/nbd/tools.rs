//! The NBD clients that people use (nbdinfo, nbdcopy, qemu-img, qemu-io, fio), if they are
//! installed.

use crate::rig::{Plan, Rig, path_of, pattern};
use octavo_block::Address;
use std::process::{Command, Output};

/// Runs a tool. Returns None if it is not installed.
pub fn run(tool: &str, args: &[&str]) -> Option<Output> {
    match Command::new(tool).args(args).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {tool} is not installed");
            None
        }
        output => {
            let output = output.unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{tool} {args:?}: {}\n{out}{err}", output.status);
            Some(output)
        }
    }
}

fn rig() -> (Rig, String) {
    let rig = Rig::new(Plan { lens: vec![8 << 20, 8 << 20], ..Plan::default() });
    let uri = format!("nbd+unix:///disk0?socket={}", rig.socket.display());
    (rig, uri)
}

#[test]
fn nbdinfo_finds_the_exports_and_their_sizes() {
    let (rig, uri) = rig();
    if let Some(output) = run("nbdinfo", &[&uri]) {
        let text = String::from_utf8(output.stdout).unwrap();
        for line in
            ["export-size: 8388608", "can_multi_conn: true", "can_df: true", "block_size_maximum: 33554432"]
        {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
    let Address::Tcp(address) = rig.server().addresses()[1].clone() else { unreachable!() };
    if let Some(output) = run("nbdinfo", &["--list", &format!("nbd://{address}")]) {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("export=\"disk0\"") && text.contains("description: number 1"), "{text}");
    }
}

#[test]
fn nbdcopy_copies_in_both_directions() {
    let (rig, uri) = rig();
    let (to, from) = (path_of(&rig, "to"), path_of(&rig, "from"));
    if run("nbdcopy", &[&uri, to.to_str().unwrap()]).is_none() {
        return;
    }
    assert!(std::fs::read(&to).unwrap() == pattern(8 << 20));
    let other: Vec<u8> = pattern(8 << 20).iter().map(|byte| !byte).collect();
    std::fs::write(&from, &other).unwrap();
    run("nbdcopy", &["--flush", from.to_str().unwrap(), &uri]);
    assert!(rig.image(0) == other);
}

#[test]
fn qemu_img_compares_and_converts() {
    let (rig, uri) = rig();
    let to = path_of(&rig, "to");
    if run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, to.to_str().unwrap()]).is_none() {
        return;
    }
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, to.to_str().unwrap()]);
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", to.to_str().unwrap(), &uri]);
    assert!(rig.image(0) == pattern(8 << 20));
}

#[test]
fn qemu_io_writes_zeroes_and_discards_and_reads_them_back() {
    let (_rig, uri) = rig();
    let commands = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x5b 512 3584",
        "write -z 1M 64k",
        "discard 2M 64k",
        "flush",
        "read -P 0x5b 512 3584",
        "read -P 0x5a 4k 1020k",
        "read -P 0 1M 64k",
    ];
    let mut args = vec!["-f", "raw"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    args.push(&uri);
    if let Some(output) = run("qemu-io", &args) {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("failed"), "{text}");
    }
}

#[test]
fn fio_verifies_what_it_writes() {
    let (_rig, uri) = rig();
    let engines = match run("fio", &["--enghelp"]) {
        Some(output) => String::from_utf8(output.stdout).unwrap(),
        None => return,
    };
    if !engines.contains("nbd") {
        return println!("skipped: fio has no nbd engine");
    }
    let uri = format!("--uri={uri}");
    run(
        "fio",
        &[
            "--name=smoke",
            "--ioengine=nbd",
            "--verify_state_save=0",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--size=8M",
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ],
    );
}
