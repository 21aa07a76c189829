//! Addresses, limits for clients, statistics, shutdown, and the resources that a server frees.

use crate::client::*;
use crate::rig::{Directory, Plan, Rig, descriptors, eventually, naps, threads};
use octavo_block::{Address, Class, Error, Export, Limits, Server};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn an_address_parses_to_itself_and_anything_else_is_refused() {
    for text in ["unix:/a/b", "tcp:127.0.0.1:10809", "tcp:[::1]:0"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in
        ["", "unix:", "tcp:", "tcp:localhost:1", "tcp:127.0.0.1", "tcp:127.0.0.1:99999", "/a", "vsock:1"]
    {
        let error = text.parse::<Address>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

fn start(rig: &Rig, names: &[&str], listen: &str, limits: Limits) -> Result<Server, Error> {
    let export = |name: &&str| Export {
        name: name.to_string(),
        description: String::new(),
        object: rig.objects[0].clone(),
        read_only: false,
        is_listed: true,
    };
    let exports = names.iter().map(export).collect();
    Server::start(rig.cache.clone(), exports, &[listen.parse().unwrap()], limits)
}

#[test]
fn exports_addresses_and_limits_that_cannot_work_are_refused_with_the_reason() {
    let rig = Rig::new(Plan::default());
    let anywhere = "tcp:127.0.0.1:0";
    let no_requests = Limits { requests_max: 0, ..Limits::default() };
    let long_name = "x".repeat(4097);
    for (names, listen, limits, reason) in [
        (vec!["a", "a"], anywhere, Limits::default(), "export \"a\""),
        (vec![long_name.as_str()], anywhere, Limits::default(), "4096"),
        (vec!["a"], "tcp:0.0.0.0:0", Limits::default(), "loopback"),
        (vec!["a"], anywhere, no_requests, "requests_max"),
        (vec!["a"], "unix:/nowhere/at/all", Limits::default(), "/nowhere/at/all"),
    ] {
        let error = start(&rig, &names, listen, limits).err().expect(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_unix_socket_has_its_mode_and_a_stale_one_is_replaced_but_nothing_else_is() {
    let (rig, directory) = (Rig::new(Plan::default()), Directory::new());
    let path = directory.0.join("s");
    let listen = format!("unix:{}", path.display());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;

    drop(UnixListener::bind(&path).unwrap());
    let server = start(&rig, &["a"], &listen, Limits::default()).unwrap();
    assert_eq!(mode(&path), 0o600);
    Client::unix(&path).enter("a", false);
    let error = start(&rig, &["a"], &listen, Limits::default()).err().unwrap().to_string();
    assert!(error.contains("another process listens"), "{error}");
    Client::unix(&path).enter("a", false);
    server.shutdown(Duration::from_secs(5));
    assert!(!path.exists());

    // Any process may give a socket to its own group.
    let group = std::fs::metadata("/proc/self").unwrap().gid();
    let open = Limits { unix_mode: 0o666, unix_group: Some(group), ..Limits::default() };
    let server = start(&rig, &["a"], &listen, open).unwrap();
    assert_eq!((mode(&path), std::fs::metadata(&path).unwrap().gid()), (0o666, group));
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "not a socket").unwrap();
    drop(server);
    assert!(path.exists(), "a server removes its own socket only");
    let error = start(&rig, &["a"], &listen, Limits::default()).err().unwrap().to_string();
    assert!(error.contains("not a socket"), "{error}");
}

/// Once, a client that connected before the socket had its mode was accepted, and closed before the
/// greeting: one of twenty guests lost its disk.
#[test]
fn a_client_that_connects_as_soon_as_the_socket_exists_is_greeted() {
    let (rig, directory) = (Rig::new(Plan::default()), Directory::new());
    for round in 0..400 {
        let path = directory.0.join(format!("s{round}"));
        let listen = format!("unix:{}", path.display());
        let (path, mode) = (&path, if round % 2 == 0 { 0o600 } else { 0o666 });
        std::thread::scope(|scope| {
            let early = scope.spawn(move || {
                let mut stream =
                    std::iter::repeat_with(|| UnixStream::connect(path)).find_map(Result::ok).unwrap();
                let found = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
                let mut greeting = [0; 8];
                stream.read_exact(&mut greeting).map(|()| (found, greeting))
            });
            let limits = Limits { unix_mode: mode, ..Limits::default() };
            let server = start(&rig, &["a"], &listen, limits).unwrap();
            assert_eq!(early.join().unwrap().unwrap(), (mode, *b"NBDMAGIC"), "round {round}");
            drop(server);
        });
    }
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0, "no socket is left");
}

#[test]
fn clients_beyond_the_limit_are_refused_until_another_leaves() {
    let rig =
        Rig::new(Plan { limits: Limits { connections_max: 2, ..Limits::default() }, ..Plan::default() });
    let mut clients = vec![rig.attached("disk0", false), rig.attached("disk1", false)];
    rig.client().expect_end();
    assert_eq!(rig.traffic().connections(), 2);
    eventually("each is counted", || rig.traffic().exports().iter().all(|stat| stat.connections == 1));
    clients.pop();
    eventually("there is room", || rig.traffic().connections() == 1);
    rig.attached("disk0", false).read_simple(0, 1).unwrap();
}

/// Returns the counts of the first export: answered requests in the order of `Kind::ALL`, errors,
/// bytes read, bytes written.
fn counted(rig: &Rig) -> ([u64; 8], u64, u64, u64) {
    let stat = &rig.traffic().exports()[0];
    assert_eq!(stat.name, "disk0");
    (stat.requests, stat.errors, stat.read_bytes, stat.written_bytes)
}

#[test]
fn statistics_count_requests_by_kind_errors_and_bytes_of_an_export() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", true);
    client.read_structured(0, 0, 5000).unwrap();
    client.read_structured(0, 5000, 0).unwrap();
    assert_eq!(client.put(0, 1, 0, &[1; 300]), 0);
    // The request is refused before it starts, and its bytes are not counted.
    assert_eq!(client.put(0, 2, u64::MAX - 300, &[1; 300]), ENOSPC);
    for (cookie, command, offset_bytes, error) in [
        (3, FLUSH, 0, 0),
        (4, TRIM, 0, 0),
        (5, TRIM, u64::MAX, EINVAL),
        (6, WRITE_ZEROES, 0, 0),
        (7, CACHE, 0, 0),
        (8, BLOCK_STATUS, 0, EINVAL),
        (9, 77, 0, EINVAL),
    ] {
        assert_eq!(
            client.ask(0, command, cookie, offset_bytes, if command == FLUSH { 0 } else { 4096 }),
            error
        );
    }
    let expected = ([2, 2, 1, 2, 1, 1, 1, 1], 4, 5000, 300);
    assert_eq!(counted(&rig), expected);
    assert_eq!(rig.traffic().exports()[0].in_flight, 0);
    // The counts stay when a client leaves, and another client adds to them.
    drop(client);
    rig.assert_deserted();
    assert_eq!(counted(&rig), expected);
    rig.attached("disk0", false).read_simple(0, 10).unwrap();
    rig.assert_deserted();
    assert_eq!(counted(&rig), ([3, 2, 1, 2, 1, 1, 1, 1], 4, 5010, 300));
    assert_eq!(rig.traffic().exports()[1].requests, [0; 8]);
}

#[test]
fn requests_that_are_carried_out_are_timed_by_class() {
    let rig = Rig::new(Plan::default());
    let counts = || {
        let stat = rig.traffic().exports().remove(0);
        Class::ALL.map(|class| stat.latency(class).count())
    };
    for structured in [true, false] {
        let [hits, misses, ..] = counts();
        let mut client = rig.attached("disk0", structured);
        let page = if structured { 0 } else { 512 << 10 };
        client.read(structured, 0, page, 5000).unwrap();
        assert_eq!(counts()[..2], [hits, misses + 1], "nothing was resident");
        client.read(structured, 0, page, 5000).unwrap();
        client.read(structured, 0, page + 100, 0).unwrap();
        assert_eq!(counts()[..2], [hits + 2, misses + 1]);
    }
    let mut client = rig.attached("disk0", true);
    assert_eq!(client.put(0, 1, 0, &[1; 300]), 0);
    assert_eq!(client.put(0, 2, u64::MAX - 300, &[1; 300]), ENOSPC);
    for (command, len, error) in [(FLUSH, 0, 0), (TRIM, 4096, 0), (WRITE_ZEROES, 4096, 0), (CACHE, 4096, 0)] {
        assert_eq!(client.ask(0, command, 3, 0, len), error);
    }
    assert_eq!(client.ask(0, 77, 4, 0, 4096), EINVAL);
    assert_eq!(counts()[2..], [1, 1, 2], "refused requests are not timed");
}

#[test]
fn a_request_is_in_flight_from_its_receipt_until_its_answer_or_the_end_of_its_client() {
    let mut rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", false);
    client.send(&request_bytes(0, WRITE, 1, 0, 100)); // and no payload
    eventually("it is in flight", || rig.traffic().exports()[0].in_flight == 1);
    let traffic = rig.server().traffic();
    drop(client);
    eventually("it is no longer in flight", || traffic.exports()[0].in_flight == 0);
    let mut client = rig.attached("disk0", false);
    assert_eq!(client.put(0, 1, 0, &[1; 300]), 0);
    // The counts outlive the server.
    rig.server.take().unwrap().shutdown(Duration::from_secs(5));
    assert_eq!((traffic.connections(), traffic.exports()[0].written_bytes), (0, 300));
}

#[test]
fn shutdown_finishes_requests_in_flight_refuses_new_ones_and_wakes_idle_connections() {
    for tcp in [false, true] {
        let mut rig = Rig::new(Plan { lens: vec![32 << 20, 1 << 20], ..Plan::default() });
        let client = || if tcp { rig.tcp_client() } else { rig.client() };
        let (mut idle, mut greeting, mut busy) = (client(), client(), client());
        idle.enter("disk0", true);
        greeting.greet(3);
        busy.enter("disk0", true);
        busy.request(0, READ, 1, 0, 32 << 20);
        // Its reply has begun, and is longer than a socket holds.
        assert_eq!(busy.u32(), 0x668e_33ef);
        let server = rig.server.take().unwrap();
        // A shutdown that used up its grace would not end in this test.
        let stopping = std::thread::spawn(move || server.shutdown(Duration::from_secs(3600)));
        idle.expect_end();
        greeting.expect_end();
        busy.request(0, READ, 2, 0, 1);
        busy.write(0, 3, 0, b"late");
        let (mut received, mut ended) = (0, Vec::new());
        let mut next = Some(busy.chunk_after_magic());
        while ended.len() < 3 {
            let chunk = next.take().unwrap_or_else(|| busy.chunk());
            match chunk.kind {
                1 => received += chunk.payload.len() - 8,
                _ => assert_eq!(chunk.error(), ESHUTDOWN),
            }
            if chunk.done {
                ended.push(chunk.cookie);
            }
        }
        assert_eq!(received, 32 << 20);
        busy.expect_end();
        eventually("the shutdown ends without using up its grace", || stopping.is_finished());
        stopping.join().unwrap();
        assert!(!rig.socket.exists());
    }
}

#[test]
fn shutdown_waits_its_grace_for_stuck_clients_and_then_ends() {
    let mut rig = Rig::new(Plan::default());
    let mut stuck: Vec<Client> = (0..3).map(|_| rig.attached("disk0", false)).collect();
    stuck[0].send(&request_bytes(0, WRITE, 1, 0, 100)); // and no payload
    for i in 0..20 {
        stuck[1].request(0, READ, i, 0, 1 << 20);
    }
    eventually("two clients have requests in flight", || rig.traffic().exports()[0].in_flight >= 2);
    let (server, start) = (rig.server.take().unwrap(), Instant::now());
    let stopping = std::thread::spawn(move || server.shutdown(Duration::from_millis(300)));
    // Without an end of the grace the shutdown would never end: the clients stay stuck.
    eventually("the shutdown ends", || stopping.is_finished());
    stopping.join().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300), "the clients got their whole grace");
    for client in &mut stuck {
        client.rest();
    }
}

#[test]
fn an_idle_server_uses_no_cpu_and_leaves_no_descriptor_or_thread_behind() {
    // In a process of its own, because other tests also open descriptors and start threads.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "server::alone_in_its_process", "--nocapture"])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

/// Returns the CPU time of this process, in ticks of 10 ms.
/// A machine that has vanished would keep its connection for ever.
#[test]
fn the_kernel_probes_idle_tcp_clients() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.tcp_client();
    client.enter("disk0", false);
    let address = format!("0100007F:{:04X}", rig.tcp_address().port());
    eventually("the timer of a connected socket of the server is that of keepalive", || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Its local address, its state (connected), and its timer.
        sockets.any(|socket| socket[1] == address && socket[3] == "01" && socket[5].starts_with("02:"))
    });
}

fn processor_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
#[ignore = "runs as a child of an_idle_server_uses_no_cpu_and_leaves_no_descriptor_or_thread_behind"]
fn alone_in_its_process() {
    let mut rig = Rig::new(Plan::default());
    let before = descriptors(&rig.cache);
    let mut clients: Vec<Client> = (0..20).map(|_| rig.attached("disk0", true)).collect();
    clients[0].send(&request_bytes(0, WRITE, 1, 0, 100)); // and no payload
    (0..200).for_each(|i| clients[3].request(0, READ, i, 0, 1 << 20)); // and nobody reads
    eventually("every thread has its name", || (threads("octavo-accept"), threads("octavo-nbd")) == (2, 20));
    // The server may still serve requests in the first seconds, on a loaded machine.
    eventually("for a second, no thread of the server wakes up and the process uses no CPU", || {
        let before = (naps("octavo-accept"), naps("octavo-nbd"), processor_ticks());
        std::thread::sleep(Duration::from_secs(1));
        let after = (naps("octavo-accept"), naps("octavo-nbd"), processor_ticks());
        before.0.is_some()
            && before.1.is_some()
            && (before.0, before.1) == (after.0, after.1)
            && after.2 - before.2 <= 1
    });
    for (i, mut client) in clients.into_iter().enumerate() {
        match i % 4 {
            0 => client.request(0, DISC, 0, 0, 0),
            1 => client.send(&[0; 28]),
            2 => client.send(&request_bytes(0, WRITE, 1, 0, 1 << 20)),
            _ => (0..50).for_each(|i| client.request(0, READ, i, 0, 1 << 16)),
        }
    }
    rig.assert_deserted();
    eventually("descriptors are closed", || descriptors(&rig.cache) == before);
    eventually("threads are gone", || threads("octavo-nbd") == 0);
    rig.server.take().unwrap().shutdown(Duration::from_secs(5));
    // Two sockets, and an event for each.
    eventually("listeners are closed", || descriptors(&rig.cache) == before - 4);
    eventually("their threads are gone", || threads("octavo-accept") == 0);
}

#[test]
fn without_memory_new_clients_are_refused_and_connected_ones_use_their_reserve() {
    let rig = Rig::new(Plan::default());
    let mut old = rig.attached("disk0", true);
    let all = usize::try_from(rig.cache.stat().memory_max_bytes).unwrap() / 4096;
    let taken: Vec<_> = (0..=all).map_while(|_| rig.cache.buffer(4096)).collect();
    if taken.len() > all {
        return println!("skipped: this cache does not count its buffers");
    }
    rig.client().expect_end();
    let payload = vec![0x77; 1 << 20];
    assert_eq!(old.put(0, 1, 0, &payload), 0);
    assert!(old.read_structured(0, 0, 1 << 20).unwrap() == payload);
    assert!(old.read_structured(DF, 0, 1 << 20).unwrap() == payload);
    drop(taken);
    rig.attached("disk0", false).read_simple(0, 1 << 20).unwrap();
}

/// Once, a client that read no replies borrowed every buffer, and no other client was accepted.
#[test]
fn a_client_that_reads_no_replies_leaves_memory_for_others() {
    let cache = octavo::CacheConfig { memory_max_bytes: 32 << 20, ..octavo::CacheConfig::default() };
    let rig = Rig::new(Plan { lens: vec![32 << 20, 1 << 20], cache, ..Plan::default() });
    let before = rig.cache.stat().buffers_used_bytes;
    let mut stuck = rig.attached("disk0", false);
    (0..60).for_each(|cookie| stuck.request(0, READ, cookie, 0, 32 << 20));
    eventually("it has borrowed", || rig.cache.stat().buffers_used_bytes >= before + (256 << 10));
    let mut others: Vec<Client> = (0..20).map(|_| rig.attached("disk1", true)).collect();
    for other in &mut others {
        assert_eq!(other.read_structured(0, 0, 1 << 20).unwrap().len(), 1 << 20);
    }
}

#[test]
fn the_server_accepts_only_as_many_clients_as_it_has_memory_for() {
    // Enough memory that a thread's ring, created after the server counted, costs no client its
    // place.
    let cache = octavo::CacheConfig { memory_max_bytes: 34 << 20, ..octavo::CacheConfig::default() };
    let rig = Rig::new(Plan { cache, ..Plan::default() });
    let room = Limits::default().room(&rig.cache);
    assert!((16..64).contains(&room), "{room}");
    let mut clients: Vec<Client> = (0..room).map(|_| rig.attached("disk0", true)).collect();
    rig.client().expect_end();
    for client in &mut clients {
        client.read_structured(0, 0, 4096).unwrap();
    }
}
