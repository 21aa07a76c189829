//! The NBD clients that people use (nbdinfo, nbdcopy, qemu-img, qemu-io, fio), if they are
//! installed.

use crate::rig::{Plan, Rig, path_of, pattern};
use octavo::CacheMode;
use octavo_block::Address;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
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

const DISK_BYTES: u64 = 100 << 30;

/// Where the large disk has a MiB of data. The last ones are in the cache alone.
const DATA_AT: [u64; 5] = [0, 3 << 20, 40 << 30, (77 << 30) + 4096, DISK_BYTES - (1 << 20)];

/// A sparse disk of 100 GiB with some MiB of data.
fn large() -> (Rig, String) {
    let (lens, cache_mode) = (vec![DISK_BYTES], CacheMode::Writeback);
    let rig = Rig::new(Plan { lens, cache_mode, sparse: true, ..Plan::default() });
    for (number, at) in DATA_AT.into_iter().enumerate() {
        rig.objects[0].write_at(at, &pattern(1 << 20)).unwrap();
        if number == 2 {
            rig.objects[0].sync().unwrap();
        }
    }
    let uri = format!("nbd+unix:///disk0?socket={}", rig.socket.display());
    (rig, uri)
}

/// Asserts that a file is a copy of the large disk, and as sparse.
fn assert_copied(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!(found.len(), DISK_BYTES);
    assert!(found.blocks() * 512 < 64 << 20, "{} bytes are allocated", found.blocks() * 512);
    for at in DATA_AT {
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes == pattern(1 << 20), "the data at {at} differ");
    }
}

/// The extents of the large disk: offset, length, and whether they are data.
fn expected_map() -> Vec<(u64, u64, bool)> {
    let mut map = Vec::new();
    let mut end = 0;
    for at in DATA_AT {
        map.extend((at > end).then_some((end, at - end, false)));
        map.push((at, 1 << 20, true));
        end = at + (1 << 20);
    }
    map
}

#[test]
fn nbdinfo_maps_a_sparse_disk_of_100_gib() {
    let (_rig, uri) = large();
    for (option, [data, hole]) in [("--map", [0, 3]), ("--map=qemu:allocation-depth", [1, 0])] {
        let Some(output) = run("nbdinfo", &[option, &uri]) else { return };
        let text = String::from_utf8(output.stdout).unwrap();
        let number = |field: &str| field.parse::<u64>().unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().take(3).map(number).collect::<Vec<_>>());
        let expected = expected_map().into_iter();
        let expected = expected.map(|(at, len, is_data)| vec![at, len, if is_data { data } else { hole }]);
        assert_eq!(lines.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{option}: {text}");
    }
}

#[test]
fn qemu_img_maps_a_sparse_disk_of_100_gib() {
    let (_rig, uri) = large();
    let Some(output) = run("qemu-img", &["map", "-f", "raw", &uri]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let hex = |field: &str| u64::from_str_radix(field.trim_start_matches("0x"), 16).unwrap();
    let lines = text.lines().skip(1).map(|line| line.split_whitespace().take(2).map(hex).collect::<Vec<_>>());
    let data = expected_map().into_iter().filter(|extent| extent.2).map(|(at, len, _)| vec![at, len]);
    assert_eq!(lines.collect::<Vec<_>>(), data.collect::<Vec<_>>(), "{text}");
}

#[test]
fn a_sparse_disk_of_100_gib_is_copied_and_stays_sparse() {
    let (rig, uri) = large();
    let (one, two) = (path_of(&rig, "one"), path_of(&rig, "two"));
    if run("nbdcopy", &[&uri, one.to_str().unwrap()]).is_none() {
        return;
    }
    assert_copied(&one);
    if run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, two.to_str().unwrap()]).is_none() {
        return;
    }
    assert_copied(&two);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, one.to_str().unwrap()]);
    // And back, over other data.
    rig.objects[0].write_at(50 << 30, &[1; 1 << 20]).unwrap();
    run("nbdcopy", &["--flush", one.to_str().unwrap(), &uri]);
    assert_copied(&path_of(&rig, "disk0"));
    rig.objects[0].write_at(50 << 30, &[1; 1 << 20]).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", two.to_str().unwrap(), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uri, two.to_str().unwrap()]);
    rig.objects[0].sync().unwrap();
    assert_copied(&path_of(&rig, "disk0"));
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
