//! Wrong configurations: every message names the file, the line, the column and the key.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::clients;
use crate::server::{Directory, octavo, octavo_fails, octavo_succeeds, program};

/// The good file that the bad ones are made from. `@` is the test's directory.
const GOOD: &str = r#"[cache]
memory_max = "32MiB"
[[partition]]
name = "vm1"
policy = "lru"
cache_mode = "writeback"
[[export]]
name = "vm1"
path = "@/disk"
partition = "vm1"
[listen]
nbd = "unix:@/nbd.sock"
control = "unix:@/control.sock"
"#;

const SIZE: &str = "expected a size such as \"32MiB\", \"1G\" or a number of bytes";

const HIDDEN: &str = "it is not visible, or changes how the text around it is shown";

/// Cases, with an empty line between two: the text to replace in the good file, an arrow, its
/// replacement, and all messages that result. `%` stands for [`SIZE`], `&` for [`HIDDEN`].
const CASES: &str = r#"
[cache] -> [cache
1:7: not TOML: unclosed table, expected `]`

"32MiB" -> "32MiBs"
2:14: cache.memory_max: unknown unit "MiBs"; %

"32MiB" -> true
2:14: cache.memory_max: invalid type: boolean `true`, %

"32MiB" -> -1
2:14: cache.memory_max: invalid value: integer `-1`, %

"32MiB" -> "99999999T"
2:14: cache.memory_max: "99999999T" is more than the largest size, 8 EiB less one byte

memory_max -> memory_maxx
1:1: cache.memory_max: missing; for example memory_max = "32MiB"
2:1: cache.memory_maxx: no such key; did you mean "memory_max"? known: memory_max, page_bytes, io, buffers_max, reaper, yield, topology, numa, twin_threshold, twin_switch, twin_refresh, twin_elect, twin_yield, twin_weigh

"32MiB" -> "32MiB"
topology = "2*2"
numa = "partitoin"
3:12: cache.topology: auto is expected, or nodes times cores such as 2x4: up to 16 and 64
4:8: cache.numa: no numa is called "partitoin"; did you mean "partition"? known: off, partition, message, replicate, auto

"32MiB" -> "32MiB"
io = 5
topology = true
twin_switch = 256
reaper = "no"
3:6: cache.io: invalid type: integer `5`, expected one of auto, uring, blocking
4:12: cache.topology: invalid type: boolean `true`, expected auto, or nodes times cores such as "2x4"
5:15: cache.twin_switch: invalid value: integer `256`, expected a number from 0 to 255
6:10: cache.reaper: invalid type: string "no", expected a boolean

"32MiB" -> "32MiB"
io = "urng"
3:6: cache.io: no io is called "urng"; did you mean "uring"? known: auto, uring, blocking

"32MiB" -> "32MiB"
page_bytes = "5KiB"
buffers_max = "1G"
3:14: cache.page_bytes: invalid page size 5 KiB; expected a power of two from 4KiB to 1MiB
4:15: cache.buffers_max: 1 GiB does not fit into cache.memory_max, 32 MiB

"lru" -> "lruu"
5:10: partition.policy: no policy is called "lruu"; did you mean "lru"? known: fifo, lru, clock, lfu, nrlfu, car, mq, octavo

"writeback" -> "back"
6:14: partition.cache_mode: no cache_mode is called "back"; known: writethrough, writeback

policy = "lru" -> min = "64M"
weight = 0
2:14: cache.memory_max: 32 MiB is less than the partitions' min together, 64 MiB
5:7: partition.min: 64 MiB does not fit into this partition's max, or memory_max, 32 MiB
6:10: partition.weight: invalid value: integer `0`, expected a number from 1 to 10000

policy = "lru" -> max = "64MiB"
dirty_max = "65MiB"
5:7: partition.max: 64 MiB does not fit into cache.memory_max, 32 MiB
6:13: partition.dirty_max: 65 MiB does not fit into this partition's max, 64 MiB

[[export]] -> max = "20MiB"
[[partition]]
name = "vm1"
max = "20MiB"
[[export]]
9:8: partition.name: there is a partition "vm1" already, on line 4

partition = "vm1" -> partition = "vm2"
10:13: export.partition: no partition is called "vm2"; did you mean "vm1"? known: vm1

partition = "vm1" -> # none
7:1: export.partition: missing; for example partition = "vm1", the name of a [[partition]]

partition = "vm1" -> share = "debain"
read_only = true
[[share]]
name = "debian"
partition = "vm2"
[[share]]
name = "debian"
partition = "vm1"
10:9: export.share: no share group is called "debain"; did you mean "debian"? known: debian, debian
14:13: share.partition: no partition is called "vm2"; did you mean "vm1"? known: vm1
16:8: share.name: there is a share group "debian" already, on line 13

partition = "vm1" -> share = "debian"
[[share]]
name = "debian"
partition = "vm1"
10:9: export.share: only read-only exports share pages in "debian"; read_only = true is missing

partition = "vm1" -> partition = "vm1"
share = "debian"
[[share]]
name = "debian"
partition = "vm1"
10:13: export.partition: the share group "debian" has a partition of its own; remove partition = "vm1" or share

[[export]] -> [[share]]
[[export]]
7:1: share.name: missing; for example name = "debian"
7:1: share.partition: missing; for example partition = "bases", the name of a [[partition]]

@/disk -> @/absent
9:8: export.path: "@/absent" does not exist; `truncate -s 10G @/absent` makes an empty disk

@/disk -> @
9:8: export.path: "@" is a directory; expected a file or a block device

@/disk -> disk
9:8: export.path: "disk" is not absolute; expected a path from the root such as "/var/lib/images/vm1.raw"

[listen] -> [[export]]
name = "vm1"
path = "@/link"
partition = "vm1"
[listen]
12:8: export.name: there is an export "vm1" already, on line 8
13:8: export.path: "@/link" is exported already, on line 9; a path can be exported twice only if every export of it is read_only

path = "@/disk" -> read_only = 1
7:1: export.path: missing; for example path = "/var/lib/images/vm1.raw"
9:13: export.read_only: invalid type: integer `1`, expected a boolean

partition = "vm1" -> partition = "vm1"
attach = ["ndb", "vhost-user:disk.sock"]
queues = 0
queue_size = 3
poll_us = -1
11:11: export.attach: expected "nbd" or "vhost-user:/run/octavo/vm1.sock"
11:18: export.attach: expected "nbd" or "vhost-user:/run/octavo/vm1.sock"
12:10: export.queues: invalid value: integer `0`, expected a number from 1 to 64
13:14: export.queue_size: invalid value: integer `3`, expected a number from 4 to 1024
14:11: export.poll_us: invalid value: integer `-1`, expected a number from 0 to 1000000

partition = "vm1" -> partition = "vm1"
attach = ["vhost-user:@/nbd.sock"]
queue_size = 100
11:11: export.attach: unix:@/nbd.sock is listened on already, on line 14
12:14: export.queue_size: the size of a ring must be a power of two

"unix:@/nbd.sock" -> [5, "nbd.sock"]
12:8: listen.nbd: invalid type: integer `5`, expected "unix:/run/octavo/nbd.sock" or "tcp:127.0.0.1:10809"
12:11: listen.nbd: address "nbd.sock": expected unix:<path> or tcp:<IP address>:<port>

"unix:@/nbd.sock" -> "tcp:10.0.0.1:10809"
12:7: listen.nbd: clients on other machines need TLS: add [listen.tls] with certificates = "/etc/octavo/tls", or listen at a loopback address such as "tcp:127.0.0.1:10809" and use an SSH tunnel

"unix:@/control.sock" -> "unix:@/control.sock"
tls = true
14:7: listen.tls: invalid type: boolean `true`, expected a table, [listen.tls]

"unix:@/control.sock" -> "unix:@/control.sock"
[listen.tls]
14:1: listen.tls: certificates is missing, for example certificates = "/etc/octavo/tls", a directory with server-cert.pem, server-key.pem and ca-cert.pem; or certificate and key

"unix:@/control.sock" -> "unix:@/control.sock"
[listen.tls]
certificates = "tls"
key = "/etc/octavo/key.pem"
15:16: listen.tls.certificates: "tls" is not absolute; expected a path from the root such as "/etc/octavo/tls"
16:7: listen.tls.key: certificates names a directory that has this file; remove one of the two keys

"unix:@/control.sock" -> "unix:@/control.sock"
[listen.tls]
certificate = "/etc/octavo/cert.pem"
key = "/etc/octavo/key.pem"
15:15: listen.tls.certificate: client_ca is missing, the authorities that sign the certificates of clients; clients without certificates are accepted with verify_clients = false

"unix:@/control.sock" -> "unix:@/control.sock"
[listen.tls]
certificate = "/etc/octavo/cert.pem"
key = "/etc/octavo/key.pem"
client_ca = "/etc/octavo/ca.pem"
verify_clients = false
17:13: listen.tls.client_ca: it has no effect, because verify_clients is false

"unix:@/control.sock" -> "unix:@/control.sock"
[listen.tls]
certificate = 5
keys = "/etc/octavo/key.pem"
15:15: listen.tls.certificate: invalid type: integer `5`, expected path string
16:1: listen.tls.keys: no such key; did you mean "key"? known: certificates, certificate, key, client_ca, client_crl, verify_clients, required

"unix:@/control.sock" -> "tcp:127.0.0.1:1"
13:11: listen.control: the control socket is a unix socket; expected "unix:/run/octavo/control.sock"

"unix:@/control.sock" -> "unix:@/nbd.sock"
13:11: listen.control: unix:@/nbd.sock is listened on already, on line 12

"unix:@/control.sock" -> "unix:@/control.sock"
metrics = "9187"
14:11: listen.metrics: metrics are served over HTTP; expected an address such as "127.0.0.1:9187"

"unix:@/control.sock" -> "unix:@/control.sock"
metrics = "10.0.0.1:9187"
14:11: listen.metrics: metrics have no access control: only loopback addresses such as "127.0.0.1:9187" are allowed; to read them from elsewhere, use an SSH tunnel or a proxy

"unix:@/control.sock" -> "unix:@/control.sock"
metrics = "127.0.0.1:9187"
metrics_hosts = ["octavo:9187", 7]
15:18: listen.metrics_hosts: "octavo:9187" is no host; expected a name or an IP address without a port, such as "octavo.example.org"
15:33: listen.metrics_hosts: invalid type: integer `7`, expected a host such as "octavo.example.org"

"unix:@/control.sock" -> "unix:@/control.sock"
socket_mode = "u+rw"
socket_group = "no such"
14:15: listen.socket_mode: expected an octal mode that lets the server itself connect, such as "0660"
15:16: listen.socket_group: no group is called "no such" in /etc/group

"unix:@/control.sock" -> "unix:@/control.sock"
metrics_hosts = "octavo"
14:17: listen.metrics_hosts: no metrics are served; metrics = "127.0.0.1:9187" is missing

[listen] -> [serve]
drain_timeout = "30"
connections_max = 0
[listen]
12:17: serve.drain_timeout: "30" has no unit; expected a duration such as "30s", "500ms" or "2m"
13:19: serve.connections_max: invalid value: integer `0`, expected a number from 1 to 65536

[listen] -> [log]
format = "jsno"
level = "trace"
timestamps = "yes"
[listen]
12:10: log.format: no format is called "jsno"; did you mean "json"? known: plain, json
13:9: log.level: no level is called "trace"; known: error, warn, info, debug
14:14: log.timestamps: invalid type: string "yes", expected a boolean

[listen] -> [serve]
handshake_timeout = "0s"
[listen]
12:21: serve.handshake_timeout: the duration must be at least 1ms

// 64 idle clients need more buffers than the share has: the server promised them and refused
// the 50th.
[listen] -> [serve]
connections_max = 64
[listen]
12:19: serve.connections_max: the share of memory_max for buffers, 4 MiB, has room for 37 clients; increase cache.buffers_max or cache.memory_max

"unix:@/nbd.sock" -> []
12:7: listen.nbd: the array is empty; expected "unix:/run/octavo/nbd.sock" or "tcp:127.0.0.1:10809"

policy = "lru" -> max = 1
5:7: partition.max: partition "vm1": max is 1 bytes, but the smallest partition takes 2064 KiB: one segment with its metadata

[cache] -> [[group]]
name = "host"
min = "64MiB"
[[group]]
name = "host"
[[partition]]
name = "host/a\u0007"
[cache]
3:7: group.min: 64 MiB does not fit into this group's max, or memory_max, 32 MiB
5:8: group.name: there is a group "host" already, on line 2
7:8: partition.name: the character U+0007 cannot be in a name: &

// Names and descriptions with hidden characters, and a key that is a terminal command.
[listen] -> description = "a\u2028b"
[[export]]
name = "vm2\u202E"
path = "@/other"
partition = "vm1"
[[group]]
name = "\u200Bhost"
[[partition]]
name = "vm1 "
[listen]
"\u001B[2J" = 1
11:15: export.description: the character U+2028 cannot be in a name: &
13:8: export.name: the character U+202E cannot be in a name: &
17:8: group.name: the character U+200B cannot be in a name: &
19:8: partition.name: a name cannot begin or end with a space
21:1: listen.\u{1b}[2J: no such key; known: nbd, control, metrics, metrics_hosts, socket_mode, socket_group

"@/disk" -> "/proc/self/mem"
9:8: export.path: "/proc/self/mem" is a view of the kernel's own state (proc), without contents to cache; expected a file or a block device

"@/disk" -> "/proc/cpuinfo"
9:8: export.path: "/proc/cpuinfo" is a view of the kernel's own state (proc), without contents to cache; expected a file or a block device

[cache] -> [metrics]
[cache]
1:2: metrics: no such key; known: cache, group, partition, share, export, mount, listen, control, serve, s3, log
"#;

#[test]
fn every_error_names_its_place_and_its_remedy() {
    let directory = Directory::new();
    directory.disk("disk", 1 << 20);
    directory.disk("other", 1 << 20);
    std::os::unix::fs::symlink(directory.join("disk"), directory.join("link")).unwrap();
    let here = directory.join("").display().to_string();
    let here = here.trim_end_matches('/');
    octavo_succeeds(&checking(&written(&directory, &GOOD.replace('@', here))));
    let mut wrong = String::new();
    for case in CASES.trim().split("\n\n") {
        let is_message = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
        let lines = case.lines().filter(|line| !line.starts_with("//"));
        let (expected, change): (Vec<&str>, Vec<&str>) = lines.partition(is_message);
        let change = change.join("\n");
        let (good, bad) = change.split_once(" -> ").unwrap();
        assert!(GOOD.contains(good) && !expected.is_empty(), "{case}");
        let path = written(&directory, &GOOD.replacen(good, bad, 1).replace('@', here));
        let output = octavo(&checking(&path));
        let said = String::from_utf8(output.stderr).unwrap();
        let whole = |line: &&str| line.replace('%', SIZE).replace('&', HIDDEN);
        let expected: String =
            expected.iter().map(|line| format!("@/octavo.toml:{}\n", whole(line))).collect();
        let expected = expected.replace('@', here);
        if said != expected || output.status.code() != Some(2) {
            wrong += &format!("--- {bad}: {}\n{said}--- expected\n{expected}", output.status);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let directory = Directory::new();
    let said = octavo_fails(&["serve", "--config", "/nonexistent/octavo.toml"], 2);
    assert_eq!(said, "/nonexistent/octavo.toml: cannot be read: No such file or directory (os error 2)\n");
    let path = directory.join("octavo.toml");
    std::fs::write(&path, b"name = \"\xff\"").unwrap();
    let said = octavo_fails(&["serve", "--config", path.to_str().unwrap()], 2);
    assert!(said.contains("is no configuration: byte 8, on line 1, is not UTF-8"), "{said}");
}

/// `--config /dev/zero` was read until the memory was used up.
#[test]
fn at_most_one_mebibyte_of_an_endless_file_is_read() {
    let directory = Directory::new();
    let pipe = directory.join("pipe");
    clients::succeed("mkfifo", &[pipe.to_str().unwrap()]);
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        // A writer gets an error when its reader closes the pipe. So it counts the bytes that were
        // read, give or take the pipe's buffer.
        move || {
            let mut pipe = std::fs::File::options().write(true).open(pipe).unwrap();
            (0..1024).take_while(|_| pipe.write_all(&[b'#'; 64 << 10]).is_ok()).count() * (64 << 10)
        }
    });
    let said = refused(&pipe);
    assert!(said.ends_with("/pipe: is no configuration: it is larger than the limit, 1 MiB\n"), "{said}");
    let taken = writer.join().unwrap();
    assert!(taken <= 3 << 20, "{taken} bytes were taken");
    let said = refused(Path::new("/dev/zero"));
    assert_eq!(said, "/dev/zero: is a device or a socket; expected a TOML file\n");
    let large = directory.join("large");
    std::fs::write(&large, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert!(refused(&large).contains("it is larger than the limit, 1 MiB"));
    let said = refused(&directory.join(""));
    assert!(said.ends_with("is a directory; expected a TOML file\n"), "{said}");
}

/// A shell's `<(..)` is a pipe without a length.
#[test]
fn a_configuration_is_read_from_a_pipe_to_its_end() {
    let directory = Directory::new();
    directory.disk("disk", 1 << 20);
    let here = directory.join("").display().to_string();
    let good = GOOD.replace('@', here.trim_end_matches('/'));
    let mut command = program(&["serve", "--check", "--config", "/dev/stdin"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    for half in [&good[..50], &good[50..]] {
        stdin.write_all(half.as_bytes()).unwrap();
    }
    drop(stdin);
    assert!(process.wait().unwrap().success());
}

/// Each level of nesting and each unclosed bracket was reported: thousands of equal lines.
#[test]
fn a_value_that_is_nested_too_deeply_is_one_problem() {
    let directory = Directory::new();
    for text in [
        format!("a = {}", "[".repeat(5000)),
        format!("a = {}{}", "[".repeat(5000), "]".repeat(5000)),
        format!("{}b = 1", "a.".repeat(5000)),
        format!("[{}b]", "a.".repeat(5000)),
        format!("a = {}", "{b=".repeat(5000)),
    ] {
        let said = refused_text(&directory, &text);
        let told = said.lines().filter(|line| line.ends_with("nested too deeply")).count();
        assert_eq!((told, said.lines().count()), (1, 1), "{}: {said}", &text[..20]);
    }
}

/// Reporting 45 000 duplicates took minutes: each line was counted from the beginning of the file.
#[test]
fn of_many_problems_the_first_50_are_shown_and_the_rest_counted() {
    let directory = Directory::new();
    let twice = "[[partition]]\nname = \"a\"\n".repeat(40_000);
    let said = refused_text(&directory, &(GOOD.to_owned() + &twice));
    assert_eq!(said.lines().count(), 51, "{said}");
    assert!(said.contains("there is a partition \"a\" already, on line 15\n"), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.ends_with(" more problems"), "{last}");
}

#[test]
fn an_empty_configuration_lacks_every_required_section() {
    let directory = Directory::new();
    let said = refused_text(&directory, "");
    for key in ["cache", "partition", "export", "listen"] {
        assert!(said.contains(&format!("octavo.toml:1:1: {key}: missing; for example [")), "{said}");
    }
}

#[test]
fn the_example_in_the_help_is_a_valid_configuration() {
    let help = octavo_succeeds(&["--help"]);
    let start = help.find("  [cache]").unwrap();
    is_valid(help[start..].split("\n\n").next().unwrap());
}

#[test]
fn the_example_in_the_manual_is_a_valid_configuration() {
    let manual = include_str!("../../../../docs/octavo.toml.5.md");
    is_valid(manual.split("```toml\n").nth(1).unwrap().split("```").next().unwrap());
}

/// Checks an example, with a disk in place of the one that it names.
fn is_valid(example: &str) {
    let directory = Directory::new();
    let disk = directory.disk("disk", 1 << 20);
    let text = example.replace("/var/lib/images/vm1.raw", disk.to_str().unwrap());
    octavo_succeeds(&checking(&written(&directory, &text)));
}

/// The messages about a file that is refused as a whole.
fn refused(path: &Path) -> String {
    let said = octavo_fails(&checking(path), 2);
    said.lines().filter(|line| !line.contains("from a pipe")).map(|line| line.to_owned() + "\n").collect()
}

/// The same for a text.
fn refused_text(directory: &Directory, text: &str) -> String {
    refused(&written(directory, text))
}

fn written(directory: &Directory, text: &str) -> PathBuf {
    let path = directory.join("octavo.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn checking(path: &Path) -> [&str; 4] {
    ["serve", "--check", "--config", path.to_str().unwrap()]
}
