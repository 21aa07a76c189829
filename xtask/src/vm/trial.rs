//! The stages of `cargo xtask vm`. Each drives a guest through its console, and checks what the
//! guest reports against the images on this machine.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::kit::Kit;
use super::machine::{Boot, Machine};
use super::remote;
use super::server::{Disk, Server, Settings, log_of};
use super::system::INSTALL;

/// How often the server is killed under load.
const KILLS: u32 = 10;
/// How often another server takes over under load.
const UPGRADES: u32 = 5;
/// The rings of the guest whose server is killed: two for each of two disks.
const RINGS: usize = 4;
/// The longest command of a guest: qemu emulates its processors, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);

const MIB: u64 = 1 << 20;
/// The disk that guests boot from, the one that they work on, and that of a broken guest.
const DISKS: [Disk; 3] = [
    Disk { name: "system", partition: "system", len_bytes: 512 * MIB },
    Disk { name: "data", partition: "data", len_bytes: 1024 * MIB },
    Disk { name: "broken", partition: "broken", len_bytes: 16 * MIB },
];

/// The partitions of the data disk, in MiB: ext4, xfs and records without a file system.
const EXT4_AT: u64 = 1;
const EXT4_LEN: u64 = 256;
const XFS_LEN: u64 = 320;
const RECORDS_AT: u64 = EXT4_AT + EXT4_LEN + XFS_LEN;
const RECORDS_LEN: u64 = 64;
const RECORD_BYTES: u64 = 4096;

/// What a server says of writes that were not flushed when it was killed.
const LOST: &str = "the guest has lost them";

/// The line that a guest prints when a record is synced; its number follows.
const SYNCED: &str = "vm: synced ";

/// Runs all stages.
pub fn run(kit: &Kit) -> Result<(), String> {
    for disk in &DISKS {
        disk.create(&kit.folder)?;
    }
    let server = serve(kit, "writethrough")?;
    let (install, mut guest) = (Stage::begin("install"), kit.direct("installer", &DISKS[..1])?);
    for command in INSTALL {
        guest.run(command, PATIENCE)?;
    }
    guest.power_off(PATIENCE)?;
    install.end("partitioned, formatted and filled a disk, wrote a boot loader");

    let (boot, mut guest) = (Stage::begin("boot"), kit.bios("guest", &DISKS[..2])?);
    let root = guest.run("grep ' / ' /proc/mounts", PATIENCE)?;
    if !root.contains("/dev/vda1 / ext4") {
        return Err(format!("the root of the guest is not on its disk: {root}"));
    }
    boot.end("BIOS, GRUB, kernel and root from the vhost-user disk");
    work(kit, &mut guest)?;
    beside_a_broken_guest(kit, &mut guest)?;
    let mut server = server;
    interrupt(kit, guest, &mut server)?;
    server.end()?;
    write_back(kit)?;
    let stage = Stage::begin("s3");
    let asked = remote::run(kit, &DISKS[0].image(&kit.folder), PATIENCE)?;
    stage.end(&format!("booted twice from an object of S3, with an overlay; {asked}"));
    Ok(())
}

fn serve(kit: &Kit, mode: &str) -> Result<Server, String> {
    // Smaller than what the guests read and write, so that pages are evicted.
    let data = format!("cache_mode = \"{mode}\"");
    let partitions = [("system", String::new()), ("data", data), ("broken", String::new())];
    let settings = Settings { memory_max: "48MiB", partitions: &partitions, disks: &DISKS };
    Server::start(&kit.program, &kit.folder, &settings)
}

impl Kit {
    fn direct(&self, name: &str, disks: &[Disk]) -> Result<Machine, String> {
        let boot = Boot::Direct { kernel: &self.kernel.image, initramfs: &self.initramfs };
        self.machine(name, &boot, disks)
    }

    fn bios(&self, name: &str, disks: &[Disk]) -> Result<Machine, String> {
        self.machine(name, &Boot::Bios, disks)
    }

    fn machine(&self, name: &str, boot: &Boot, disks: &[Disk]) -> Result<Machine, String> {
        let sockets: Vec<_> = disks.iter().map(|disk| disk.socket(&self.folder)).collect();
        Machine::start(&self.folder, name, boot, &sockets)
    }

    fn data_image(&self) -> std::path::PathBuf {
        DISKS[1].image(&self.folder)
    }
}

/// Partitions, formats, fills, checks and trims the second disk.
fn work(kit: &Kit, guest: &mut Machine) -> Result<(), String> {
    let mut run = |command: &str| guest.run(command, PATIENCE);
    let stage = Stage::begin("format");
    let sector = |mib: u64| mib * 2048;
    let (ext4, xfs, raw) = (sector(EXT4_LEN), sector(XFS_LEN), sector(RECORDS_LEN));
    run(&format!(
        "printf 'start={}, size={ext4}\\nsize={xfs}\\nsize={raw}\\n' | sfdisk -q --label gpt /dev/vdb",
        sector(EXT4_AT)
    ))?;
    run("mkfs.ext4 -q -E nodiscard /dev/vdb1 && mkfs.xfs -q -K /dev/vdb2")?;
    run("mount -t ext4 /dev/vdb1 /data && mount -t xfs /dev/vdb2 /more")?;
    stage.end("GPT, ext4, xfs");

    let stage = Stage::begin("fill");
    for folder in ["/data", "/more"] {
        run(&format!(
            "for n in $(seq 40); do head -c 1048576 /dev/urandom > {folder}/$n; done; \
             (cd {folder} && md5sum [0-9]* > /tmp/sums && cp /tmp/sums sums)"
        ))?;
    }
    run("umount /data /more")?;
    run("e2fsck -f -n /dev/vdb1 && xfs_repair -n /dev/vdb2")?;
    run(
        "mount -t ext4 /dev/vdb1 /data && mount -t xfs /dev/vdb2 /more && echo 3 > /proc/sys/vm/drop_caches",
    )?;
    run("(cd /data && md5sum -c -s sums) && (cd /more && md5sum -c -s sums)")?;
    stage.end("40 MiB in each, unmounted, e2fsck and xfs_repair, read back");

    let stage = Stage::begin("trim");
    let before = allocated(&kit.data_image())?;
    run("rm /data/[0-9]* /more/[0-9]* && sync && fstrim /data && fstrim /more && sync")?;
    let after = allocated(&kit.data_image())?;
    if after + 60 * MIB > before {
        return Err(format!("fstrim freed too little: {before} bytes were allocated, now {after}"));
    }
    stage.end(&format!("allocated in the image: {} MiB, then {} MiB", before / MIB, after / MIB));

    let stage = Stage::begin("fio");
    let fio =
        "fio --output-format=terse --directory=/more --size=16m --direct=1 --ioengine=libaio --iodepth=16";
    run(&format!(
        "{fio} --name=a --rw=randwrite --bsrange=4k-64k --verify=crc32c --do_verify=1 --verify_fatal=1"
    ))?;
    stage.end("random writes of 4 to 64 KiB at depth 16, each verified");
    Ok(())
}

/// Runs a guest that breaks its ring in every way beside the healthy one.
fn beside_a_broken_guest(kit: &Kit, guest: &mut Machine) -> Result<(), String> {
    let stage = Stage::begin("broken");
    let (_, before) = log_of(&kit.folder, 0);
    let mut command = Command::new(&kit.hostile);
    command.args(["--exact", "hostile::broken_guest", "--ignored", "--nocapture"]);
    command.env("OCTAVO_TEST_VHOST_SOCKET", DISKS[2].socket(&kit.folder));
    let said = kit.folder.join("broken.log");
    let output = File::create(&said).map_err(|error| format!("broken.log: {error}"))?;
    command.stdin(Stdio::piped()).stdout(output);
    let mut broken = command.spawn().map_err(|error| format!("{}: {error}", kit.hostile.display()))?;
    let passed = guest.run(
        "fio --output-format=terse --directory=/more --name=d --size=48m --rw=randrw --bsrange=4k-64k --direct=1 \
         --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1",
        PATIENCE,
    );
    let is_alive = broken.try_wait().is_ok_and(|status| status.is_none());
    let _ = broken.kill();
    let _ = broken.wait();
    passed?;
    let rounds = std::fs::read_to_string(&said).unwrap_or_default().matches("broken guest: round").count();
    let (log, _) = log_of(&kit.folder, before);
    let told = |export: &str| {
        let line = |line: &&str| line.contains(&format!("export \"{export}\"")) && line.contains("is broken");
        log.lines().filter(line).count()
    };
    if !is_alive || rounds == 0 || told("broken") == 0 || told("data") + told("system") > 0 {
        return Err(format!("the broken guest: {rounds} rounds, alive: {is_alive}, its log:\n{log}"));
    }
    stage.end(&format!("fio verified beside {rounds} rounds of 14 broken rings; only that disk was broken"));
    Ok(())
}

/// Kills the server under load, then replaces it by others that take over, and compares what was
/// synced with the image.
fn interrupt(kit: &Kit, mut guest: Machine, server: &mut Server) -> Result<(), String> {
    let stage = Stage::begin("interrupt");
    // Each record is synced as a file and in a partition. Its number is in each of its lines.
    guest.send(&format!(
        "(n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); printf '%04095d\\n' $n > /tmp/record; \
         dd if=/tmp/record of=/data/records bs=4k seek=$n conv=notrunc,fsync 2>/dev/null && \
         dd if=/tmp/record of=/dev/vdb3 bs=4k seek=$n conv=notrunc,fsync 2>/dev/null && \
         echo \"{SYNCED}$n\"; done; echo vm: records ended) &"
    ))?;
    guest.send(
        "(while [ ! -e /tmp/stop ]; do fio --output-format=terse --name=b --directory=/more --size=48m \
         --rw=randrw --bsrange=4k-1m --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 \
         --verify_fatal=1 >/tmp/fio 2>&1 && echo vm: verified || { echo vm: fio failed; cat /tmp/fio; \
         touch /tmp/stop; }; done; echo vm: fio ended) &",
    )?;
    let (mut killed, mut upgraded) = (Duration::ZERO, Duration::ZERO);
    for number in 1..=KILLS + UPGRADES {
        guest.wait_for(SYNCED, PATIENCE)?;
        // Another moment of the load each time.
        std::thread::sleep(Duration::from_millis(u64::from(number) * 173 % 1000));
        // qemu 7.2 forgets a disk whose server dies while the two introduce themselves to each
        // other (`vhost_backend_init failed` in its log): it connects again, and says no more.
        server.wait_for_rings(RINGS)?;
        let start = Instant::now();
        let slowest = if number <= KILLS {
            server.kill_and_restart()?;
            &mut killed
        } else {
            server.replace()?;
            &mut upgraded
        };
        // A record may have been printed before that: the second one came after it.
        guest.wait_for(SYNCED, PATIENCE)?;
        guest.wait_for(SYNCED, PATIENCE)?;
        *slowest = start.elapsed().max(*slowest);
    }
    guest.send("touch /tmp/stop")?;
    guest.wait_for("vm: records ended", PATIENCE)?;
    if guest.all("vm: fio ended").is_empty() {
        guest.wait_for("vm: fio ended", PATIENCE)?;
    }
    guest.run("umount /data /more && e2fsck -f -n /dev/vdb1 && xfs_repair -n /dev/vdb2", PATIENCE)?;
    let passes = guest.all("vm: verified").len();
    let has_failed = !guest.all("vm: fio failed").is_empty();
    let synced = guest.all(SYNCED);
    guest.power_off(PATIENCE)?;
    if passes == 0 || has_failed {
        return Err("fio did not verify what it had written".into());
    }
    let synced: Result<Vec<u64>, _> = synced.iter().map(|number| number.trim().parse()).collect();
    let synced = synced.map_err(|_| "a line of the guest is damaged".to_owned())?;
    compare(kit, &synced)?;
    let (log, _) = log_of(&kit.folder, 0);
    let repeats = log.matches("requests that were in flight").count();
    let warm = log.matches("of pages came in").count();
    if warm < UPGRADES as usize {
        return Err(format!("{warm} of {UPGRADES} successors took pages over"));
    }
    stage.end(&format!(
        "killed {KILLS} times, upgraded {UPGRADES} times; {} records synced and found twice, {passes} fio runs \
         verified; {repeats} rings had requests in flight; at most {:.1} s from a kill to the second next \
         record, {:.1} s from the begin of an upgrade",
        synced.len(),
        killed.as_secs_f32(),
        upgraded.as_secs_f32()
    ));
    Ok(())
}

/// Checks that each synced record is in the image: in the file, and in the partition.
fn compare(kit: &Kit, synced: &[u64]) -> Result<(), String> {
    let image = kit.data_image();
    let found = kit.folder.join("records");
    let offset = EXT4_AT * MIB;
    let mut dump = Command::new("debugfs");
    dump.args(["-R", &format!("dump /records {}", found.display())]);
    let output = dump.arg(format!("{}?offset={offset}", image.display())).output();
    output.map_err(|error| format!("debugfs: {error}"))?;
    let file = std::fs::read(&found).map_err(|error| format!("/records in the image: {error}"))?;
    let whole = std::fs::read(&image).map_err(|error| format!("{}: {error}", image.display()))?;
    let partition = &whole[(RECORDS_AT * MIB) as usize..][..(RECORDS_LEN * MIB) as usize];
    for number in synced {
        let at = (number * RECORD_BYTES) as usize;
        let expected = format!("{number:04095}\n");
        for (what, bytes) in [("file", &file[..]), ("partition", partition)] {
            if bytes.get(at..at + RECORD_BYTES as usize) != Some(expected.as_bytes()) {
                return Err(format!("record {number} was synced, and is not in the {what}"));
            }
        }
    }
    Ok(())
}

/// In write-back mode a killed server may lose unflushed writes. If it does, the disk must be
/// broken until the guest is reset. Flushed bytes must survive. An upgrade must lose nothing.
fn write_back(kit: &Kit) -> Result<(), String> {
    let stage = Stage::begin("writeback");
    let mut server = serve(kit, "writeback")?;
    let mut guest = kit.bios("guest", &DISKS[..2])?;
    guest.run("head -c 4194304 /dev/urandom > /tmp/flushed && md5sum < /tmp/flushed > /tmp/sum", PATIENCE)?;
    guest.run("dd if=/tmp/flushed of=/dev/vdb3 bs=64k conv=notrunc,fsync", PATIENCE)?;
    let flushed = guest.run("cat /tmp/sum", PATIENCE)?;
    server.kill_and_restart()?;
    // Every write was flushed, so the next server must serve the guest as before.
    let read = "echo 3 > /proc/sys/vm/drop_caches; head -c 4194304 /dev/vdb3 | md5sum";
    if guest.run(read, PATIENCE)? != flushed {
        return Err("flushed bytes changed when the server was killed".into());
    }
    let (_, before) = log_of(&kit.folder, 0);
    // Around the guest's own cache, and not flushed.
    let unflushed = "dd if=/tmp/flushed of=/dev/vdb3 bs=64k seek=256 conv=notrunc oflag=direct";
    guest.run(unflushed, PATIENCE)?;
    server.replace()?;
    let read_unflushed =
        "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vdb3 bs=64k skip=256 count=64 2>/dev/null | md5sum";
    if guest.run(read_unflushed, PATIENCE)? != flushed || log_of(&kit.folder, before).0.contains(LOST) {
        return Err("writes that were not flushed changed in an upgrade".into());
    }
    // fio writes around the guest's own cache, and does not flush.
    let write = "fio --output-format=terse --name=c --filename=/dev/vdb3 --offset=32m --size=1m --rw=write \
                 --bs=64k --direct=1 --ioengine=libaio --iodepth=4 --end_fsync=0 >/dev/null; echo vm: written; \
                 while true; do sleep 1; done";
    guest.send(write)?;
    guest.wait_for("vm: written", PATIENCE)?;
    let (_, before) = log_of(&kit.folder, 0);
    server.kill_and_restart()?;
    let start = Instant::now();
    while !log_of(&kit.folder, before).0.contains(LOST) {
        if start.elapsed() > Duration::from_secs(60) {
            return Err("unflushed writes were lost, but the disk is not broken".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    guest.reset()?;
    if guest.run(read, PATIENCE)? != flushed {
        return Err("flushed bytes are missing after a reset".into());
    }
    guest.power_off(PATIENCE)?;
    server.end()?;
    stage.end(
        "flushed bytes survive a kill, and all bytes an upgrade; after a kill with unflushed ones the disk is \
         broken until a reset",
    );
    Ok(())
}

/// Returns the bytes that a file occupies.
fn allocated(path: &Path) -> Result<u64, String> {
    let found = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(found.blocks() * 512)
}

/// A stage, which is announced with its time when it ends.
struct Stage {
    name: &'static str,
    start: Instant,
}

impl Stage {
    fn begin(name: &'static str) -> Stage {
        Stage { name, start: Instant::now() }
    }

    fn end(self, what: &str) {
        println!("{:>10} {:>6.1} s  {what}", self.name, self.start.elapsed().as_secs_f32());
    }
}
