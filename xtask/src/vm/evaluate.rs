//! `cargo xtask vm --evaluate`: two tenants with real kernels in one cache and in partitions, after
//! Sharma, Kulkarni and Shenoy, "Per-VM Page Cache Partitioning for Cloud Computing Platforms".
//!
//! One guest has three disks for three loads; the other one is a sequential reader beside each of
//! them. Both stay while servers with other configurations follow each other. Prints the tables of
//! `docs/EVALUATION.md`.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::kit::Kit;
use super::machine::{Boot, Machine};
use super::server::{Disk, Server, Settings};
use crate::cargo::succeeds;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// The cache of all tenants. Each tenant's working set is larger.
const MEMORY_MAX: &str = "48MiB";
/// The loads run this long before they are measured: memory moves once a second.
const WARM: Duration = Duration::from_secs(65);
/// And this long while they are measured.
const MEASURE: Duration = Duration::from_secs(20);
/// Longer than a whole case.
const LOAD_SECONDS: u64 = 95;
const PATIENCE: Duration = Duration::from_secs(300);

/// The names of the tenants' partitions, and of the one that both share.
const TENANTS: [&str; 2] = ["worker", "scanner"];
const TOGETHER: &str = "together";

/// The load of the first tenant: a name, and a command that ends after `LOAD_SECONDS` and prints
/// how long an operation took.
struct Load {
    name: &'static str,
    export: &'static str,
    command: &'static str,
}

const LOADS: [Load; 3] = [
    Load { name: "random reader", export: "random", command: "fio_load randread /dev/vda" },
    Load {
        name: "many small files",
        export: "files",
        // Small numbers are more likely, as in a build, where few files are read often.
        command: "timed 'echo 3 > /proc/sys/vm/drop_caches; awk -v s=$n \"BEGIN { srand(s); for (i = 0; i < 200; \
                  i++) { f = int(4000 * rand() * rand()); print \\\"/data/\\\" int(f / 100) \\\"/\\\" f } }\" | \
                  xargs cat > /dev/null' 200",
    },
    Load {
        name: "SQLite database",
        export: "database",
        command: "timed 'echo 3 > /proc/sys/vm/drop_caches; sqlite3 -readonly /more/db \"WITH RECURSIVE r(n) AS (SELECT \
                  1 UNION ALL SELECT n + 1 FROM r WHERE n < 200) SELECT sum(length(v)) FROM r JOIN t ON t.id = 1 + \
                  (abs(random() + n) % 316) * (abs(random() + n) % 316);\" > /dev/null' 200",
    },
];

/// Functions of the guests' shell. `timed` repeats a command of a number of operations.
const FUNCTIONS: [&str; 2] = [
    "fio_load() { fio --name=l --filename=$2 --rw=$1 --size=64m --bs=32k --direct=1 --ioengine=psync --norandommap \
     --randrepeat=0 --time_based --runtime=$T --output-format=terse --terse-version=3 | \
     awk -F';' '{ print \"vm: took \" $40 }'; }",
    "timed() { n=0; start=$(awk '{ print $1 }' /proc/uptime); while awk -v s=$start -v t=$T '{ exit !($1 - s < t) \
     }' /proc/uptime; do n=$((n+1)); eval \"$1\"; done; awk -v s=$start -v n=$n -v o=$2 '{ print \"vm: took \" \
     ($1 - s) * 1000000 / (n * o) }' /proc/uptime; }",
];

/// A configuration: a name, whether each tenant has a partition, and the policy.
const MODES: [(&str, bool, &str); 4] = [
    ("one LRU cache", false, "lru"),
    ("LRU partitions", true, "lru"),
    ("one cache, default policy", false, "octavo"),
    ("partitions, default policy", true, "octavo"),
];

/// The measured values of a case.
struct Measured {
    lookups: [u64; 2],
    hits: [Option<u64>; 2],
    hits_of_both: f64,
    fills: u64,
    held_bytes: [u64; 2],
    took_us: [f64; 2],
}

/// Runs the cases of the loads whose disks are named, or all, and prints their table.
pub fn run(kit: &Kit, names: &[&str]) -> Result<(), String> {
    let is_wanted = |load: &&Load| names.is_empty() || names.contains(&load.export);
    let disks = |partition: [&'static str; 2]| {
        let disk = |name, partition| Disk { name, partition, len_bytes: 64 * MIB };
        let [worker, scanner] = partition;
        [disk("random", worker), disk("files", worker), disk("database", worker), disk("scan", scanner)]
    };
    let alone = disks(TENANTS);
    make_images(kit, &alone)?;
    let sockets: Vec<_> = alone.iter().map(|disk| disk.socket(&kit.folder)).collect();
    let mut server = start(kit, &alone, true, "lru")?;
    let boot = Boot::Direct { kernel: &kit.kernel.image, initramfs: &kit.initramfs };
    let mut worker = Machine::start(&kit.folder, TENANTS[0], &boot, &sockets[..3])?;
    let mut scanner = Machine::start(&kit.folder, TENANTS[1], &boot, &sockets[3..])?;
    for guest in [&mut worker, &mut scanner] {
        guest.run(&format!("T={LOAD_SECONDS}"), PATIENCE)?;
        FUNCTIONS.iter().try_for_each(|function| guest.run(function, PATIENCE).map(drop))?;
    }
    worker.run("mount -o ro /dev/vdb /data && mount -o ro /dev/vdc /more", PATIENCE)?;
    let mut table = String::from(
        "| load beside the scan | cache | hit ratio | of both | of the scan | fills | held MiB | by the scan | us \
         per operation | of the scan |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for modes in MODES.chunks(2) {
        for (load, (name, is_alone, policy)) in
            LOADS.iter().filter(is_wanted).flat_map(|load| modes.iter().map(move |m| (load, *m)))
        {
            let disks = disks(if is_alone { TENANTS } else { [TOGETHER; 2] });
            server.end()?;
            server = start(kit, &disks, is_alone, policy)?;
            let measured = case(&server, [&mut worker, &mut scanner], load, is_alone)?;
            let line = row(load, name, &measured);
            println!("{line}");
            let _ = writeln!(table, "{line}");
        }
    }
    println!("\n{table}");
    Ok(())
}

fn start(kit: &Kit, disks: &[Disk], is_alone: bool, policy: &str) -> Result<Server, String> {
    // Read-ahead would hide the effect of the scan on its neighbour.
    let keys = || format!("policy = \"{policy}\"\nread_ahead = 0");
    let names: &[&str] = if is_alone { &TENANTS } else { &[TOGETHER] };
    let partitions: Vec<_> = names.iter().map(|name| (*name, keys())).collect();
    let settings = Settings { memory_max: MEMORY_MAX, partitions: &partitions, disks };
    Server::start(&kit.program, &kit.folder, &settings)
}

/// Makes the disks: two of random bytes, one with 4000 files of 1 to 15 KiB, one with a database.
fn make_images(kit: &Kit, disks: &[Disk]) -> Result<(), String> {
    let shell = |script: &str| {
        let done = succeeds(Command::new("bash").args(["-e", "-c", script]).current_dir(&*kit.folder));
        if done { Ok(()) } else { Err(format!("this failed: {script}")) }
    };
    shell("for disk in random scan; do head -c 64M /dev/urandom > $disk.raw; done")?;
    shell(
        "mkdir -p files database; for n in $(seq 0 3999); do d=files/$((n / 100)); mkdir -p $d; \
         head -c $((1024 + n * 7919 % 14336)) /dev/urandom > $d/$n; done",
    )?;
    shell(
        "sqlite3 database/db \"CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB); WITH RECURSIVE r(n) AS (SELECT 1 UNION \
         ALL SELECT n + 1 FROM r WHERE n < 100000) INSERT INTO t SELECT n, randomblob(400) FROM r;\"",
    )?;
    shell(
        "PATH=$PATH:/usr/sbin:/sbin; for d in files database; do mke2fs -q -t ext4 -d $d $d.raw 64M; done",
    )?;
    let is_there = |disk: &Disk| disk.image(&kit.folder).metadata().is_ok_and(|m| m.len() == disk.len_bytes);
    if disks.iter().all(is_there) { Ok(()) } else { Err("an image is missing".into()) }
}

fn case(server: &Server, guests: [&mut Machine; 2], load: &Load, is_alone: bool) -> Result<Measured, String> {
    let [worker, scanner] = guests;
    worker.send(&format!("({}) &", load.command))?;
    scanner.send("(fio_load read /dev/vda) &")?;
    std::thread::sleep(WARM);
    let before = Stat::of(server)?;
    std::thread::sleep(MEASURE);
    let after = Stat::of(server)?;
    let pages = |export: &str| (after.read_bytes(export) - before.read_bytes(export)) / PAGE;
    let count = |partition: &str, key: &str| after.count(partition, key) - before.count(partition, key);
    let partitions: &[&str] = if is_alone { &TENANTS } else { &[TOGETHER] };
    let sum = |key: &str| partitions.iter().map(|name| count(name, key)).sum::<u64>();
    let held_bytes = match is_alone {
        true => TENANTS.map(|name| after.count(name, "resident_bytes")),
        false => {
            let scan = evict(server, "scan")?;
            [after.count(TOGETHER, "resident_bytes").saturating_sub(scan), scan]
        }
    };
    let mut took_us = [0.0; 2];
    for (guest, took) in [worker, scanner].into_iter().zip(&mut took_us) {
        let (_, said) = guest.wait_for("vm: took ", PATIENCE)?;
        *took = said.trim().parse().map_err(|_| format!("the guest measured \"{said}\""))?;
    }
    Ok(Measured {
        lookups: match is_alone {
            true => TENANTS.map(|name| count(name, "hits") + count(name, "misses")),
            false => [pages(load.export), pages("scan")],
        },
        hits: match is_alone {
            true => TENANTS.map(|name| Some(count(name, "hits"))),
            false => [None; 2],
        },
        hits_of_both: sum("hits") as f64 / (sum("hits") + sum("misses")).max(1) as f64,
        fills: sum("fills"),
        held_bytes,
        took_us,
    })
}

fn row(load: &Load, mode: &str, measured: &Measured) -> String {
    let ratio = |of: usize| match measured.hits[of] {
        Some(hits) => format!("{:.3}", hits as f64 / measured.lookups[of].max(1) as f64),
        None => "-".into(),
    };
    let mib = |of: usize| measured.held_bytes[of] as f64 / MIB as f64;
    let took = measured.took_us;
    format!(
        "| {} | {mode} | {} | {:.3} | {} | {} | {:.1} | {:.1} | {:.0} | {:.0} |",
        load.name,
        ratio(0),
        measured.hits_of_both,
        ratio(1),
        measured.fills,
        mib(0),
        mib(1),
        took[0],
        took[1]
    )
}

/// Evicts the pages of an export from the cache of both, and returns their bytes.
fn evict(server: &Server, export: &str) -> Result<u64, String> {
    let said = server.ctl(&["evict", TOGETHER, "--export", export, "--json"])?;
    let said: Value = serde_json::from_str(&said).map_err(|error| format!("octavo ctl evict: {error}"))?;
    said["evicted_bytes"].as_u64().ok_or_else(|| format!("octavo ctl evict: {said}"))
}

/// What `octavo ctl stat` says.
struct Stat(Value);

impl Stat {
    fn of(server: &Server) -> Result<Stat, String> {
        let said = server.ctl(&["stat", "--json"])?;
        serde_json::from_str(&said).map(Stat).map_err(|error| format!("octavo ctl stat: {error}"))
    }

    fn count(&self, partition: &str, key: &str) -> u64 {
        let found = self.partitions().find(|found| found["name"] == partition);
        found.and_then(|found| found[key].as_u64()).unwrap_or(0)
    }

    fn read_bytes(&self, export: &str) -> u64 {
        let mut objects =
            self.partitions().flat_map(|found| found["objects"].as_array().into_iter().flatten());
        let found = objects.find(|found| found["name"] == export);
        found.and_then(|found| found["read_bytes"].as_u64()).unwrap_or(0)
    }

    fn partitions(&self) -> impl Iterator<Item = &Value> {
        self.0["partitions"].as_array().into_iter().flatten()
    }
}
