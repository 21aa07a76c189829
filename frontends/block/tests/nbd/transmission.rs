//! Transmission: every command, every error, and requests that meet a shortage of memory or a
//! failing store.

use crate::client::*;
use crate::rig::{Plan, Rig, pattern};
use octavo::{CacheConfig, CacheMode};
use octavo_block::Limits;
use std::collections::HashSet;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Limits without memory except the reserve of one page, so that longer requests need many pieces.
fn short_of_memory() -> Limits {
    Limits { borrowed_max_bytes: 0, reserve_bytes: 4096, ..Limits::default() }
}

fn memories() -> [Limits; 3] {
    let small_pieces = Limits { piece_max_bytes: 4096, borrowed_max_bytes: 3 * 4096, ..Limits::default() };
    [Limits::default(), small_pieces, short_of_memory()]
}

#[test]
fn every_command_works_with_little_memory_and_with_much() {
    for limits in memories() {
        let rig = Rig::new(Plan { limits, ..Plan::default() });
        for structured in [false, true] {
            let mut client = rig.attached("disk0", structured);
            let mut expected = rig.image(0);
            for (offset, len) in [(0, 1), (4095, 2), (100, 300_000), (0, 1 << 20), (MIB - 1, 1), (MIB, 0)] {
                let found = client.read(structured, 0, offset, len).unwrap();
                assert!(found == expected[offset as usize..][..len as usize], "{len} bytes at {offset}");
            }
            for (cookie, flags, offset, len) in
                [(1, 0, 5, 300_001), (2, FUA, 70_000, 9000), (3, FUA, 9, 1), (4, FUA, 0, 0)]
            {
                let payload: Vec<u8> = pattern(len).iter().map(|byte| byte ^ cookie as u8).collect();
                assert_eq!(client.put(flags, cookie, offset, &payload), 0);
                expected[offset as usize..][..len].copy_from_slice(&payload);
            }
            assert_eq!(client.ask(0, FLUSH, 5, 0, 0), 0);
            assert_eq!(client.ask(FUA | NO_HOLE, WRITE_ZEROES, 6, 1000, 5000), 0);
            assert_eq!(client.ask(FUA, TRIM, 7, 8192, 8192), 0);
            assert_eq!(client.ask(0, CACHE, 8, 0, 1 << 20), 0);
            expected[1000..6000].fill(0);
            expected[8192..16384].fill(0);
            assert!(client.read(structured, 0, 0, 1 << 20).unwrap() == expected);
            assert!(rig.image(0) == expected);
            client.request(0, DISC, 0, 0, 0);
            client.expect_end();
        }
    }
}

/// Once, a FUA write in several pieces ended with a sync of the whole object: it also wrote other
/// dirty pages, and failed if one of those failed.
#[test]
fn a_long_write_with_fua_makes_its_own_bytes_durable_and_no_others() {
    let cache = CacheConfig { background: false, ..CacheConfig::default() };
    for limits in memories() {
        let (lens, cache, cache_mode) = (vec![4 * MIB], cache.clone(), CacheMode::Writeback);
        let rig = Rig::new(Plan { lens, cache, cache_mode, limits, ..Plan::default() });
        let mut client = rig.attached("disk0", true);
        assert_eq!(client.put(0, 1, 3 * MIB, &vec![1; 64 << 10]), 0);
        assert_eq!(client.put(FUA, 2, 5000, &vec![2; 1 << 20]), 0);
        assert_eq!(rig.objects[0].stat().dirty_bytes, 64 << 10);
        let image = std::fs::read(crate::rig::path_of(&rig, "disk0")).unwrap();
        assert!(image[5000..5000 + (1 << 20)].iter().all(|byte| *byte == 2));
    }
}

#[test]
fn a_read_with_df_is_one_chunk_even_with_little_memory() {
    for limits in memories() {
        let rig = Rig::new(Plan { limits, ..Plan::default() });
        let mut client = rig.attached("disk0", true);
        client.request(DF, READ, 9, 3, 1_000_000);
        let chunk = client.chunk();
        assert_eq!((chunk.offset(), chunk.cookie, chunk.payload.len()), (3, 9, 1_000_008));
        assert!(chunk.payload[8..] == rig.image(0)[3..1_000_003]);
        if !chunk.done {
            let last = client.chunk();
            assert_eq!((last.kind, last.done, last.cookie), (0, true, 9));
        }
    }
}

#[test]
fn a_wrong_request_gets_its_error_and_the_connection_continues() {
    let limits = Limits { payload_max_bytes: 64 << 10, ..Limits::default() };
    let rig = Rig::new(Plan { limits, ..Plan::default() });
    for structured in [false, true] {
        for (export, len) in [("disk0", MIB), ("disk1", MIB)] {
            let read_only = export == "disk1";
            let mut client = rig.attached(export, structured);
            let (past_write, past_trim) = if read_only { (EPERM, EPERM) } else { (ENOSPC, EINVAL) };
            let too_long = if structured { EOVERFLOW } else { EINVAL };
            let cases = [
                (0, READ, len, 1, EINVAL),
                (0, READ, len - 1, 2, EINVAL),
                (0, READ, u64::MAX, 2, EINVAL),
                (0, READ, 0, (64 << 10) + 1, too_long),
                (0, READ, 0, u32::MAX, too_long),
                (NO_HOLE, READ, 0, 1, EINVAL),
                (0x8000, READ, 0, 1, EINVAL),
                (if structured { 8 } else { DF }, READ, 0, 1, EINVAL),
                (0, WRITE, len - 1, 2, past_write),
                (0, WRITE, u64::MAX, 50_000, past_write),
                (0, WRITE, 0, 100_000, EINVAL),
                (DF, WRITE, 0, 30_000, EINVAL),
                (0, FLUSH, 1, 0, EINVAL),
                (0, FLUSH, 0, 1, EINVAL),
                (DF, FLUSH, 0, 0, EINVAL),
                (0, TRIM, len, 1, past_trim),
                (0, TRIM, 0, u32::MAX, past_trim),
                (NO_HOLE, TRIM, 0, 1, EINVAL),
                (0, CACHE, len, 1, EINVAL),
                (DF, CACHE, 0, 1, EINVAL),
                (0, WRITE_ZEROES, len, 1, past_write),
                (PAYLOAD_LEN, WRITE_ZEROES, 0, 1, EINVAL), // Only with extended headers.
                (0, BLOCK_STATUS, 0, 1, EINVAL),           // Without a context.
                (0, 8, 0, 1, EINVAL),
                (0, 0xffff, 0, 1, EINVAL),
            ];
            for (i, (flags, command, offset, len, error)) in cases.into_iter().enumerate() {
                client.request(flags, command, i as u64, offset, len);
                if command == WRITE {
                    client.send(&vec![0xee; len as usize]);
                }
                let found = if structured { client.status() } else { client.simple() };
                let what = format!("command {command} flags {flags} at {offset}, {len} bytes");
                assert_eq!(found, (error, i as u64), "{what}");
            }
            if read_only {
                assert_eq!(client.put(0, 1, 0, b"x"), EPERM);
                assert_eq!(client.ask(0, WRITE_ZEROES, 2, 0, 1), EPERM);
            }
            client.request(FUA, READ, 99, 0, 1);
            match structured {
                true => assert!(client.chunk().done),
                false => assert_eq!((client.simple(), client.receive(1).len()), ((0, 99), 1)),
            }
        }
    }
    assert!(rig.image(0) == pattern(1 << 20), "no refused request changed the file");
}

#[test]
fn a_wrong_magic_or_an_endless_write_ends_the_connection() {
    let rig = Rig::new(Plan::default());
    for bytes in [vec![0; 28], request_bytes(0, WRITE, 1, 0, (32 << 20) + 1)] {
        let mut client = rig.attached("disk0", false);
        client.send(&bytes);
        client.expect_end();
    }
}

#[test]
fn a_client_may_leave_after_every_byte_of_its_requests() {
    let rig = Rig::new(Plan::default());
    let session = [
        request_bytes(0, READ, 1, 0, 600),
        write_bytes(FUA, 2, 5, &[1; 40]),
        write_bytes(0, 3, u64::MAX, &[2; 30]),
        request_bytes(0, FLUSH, 4, 0, 0),
        request_bytes(0, DISC, 0, 0, 0),
    ]
    .concat();
    for len in 0..=session.len() {
        let mut client = rig.attached("disk0", len % 2 == 0);
        client.send(&session[..len]);
        client.close_sending_side();
        let replies = client.rest();
        assert_eq!(replies.is_empty(), len < 28, "{len} bytes");
    }
}

#[test]
fn requests_may_come_in_fragments_of_any_length() {
    let rig = Rig::new(Plan::default());
    for fragment in [1, 3, 27, 29, 100] {
        let mut client = rig.tcp_client();
        client.enter("disk0", false);
        let payload: Vec<u8> = (0..50).map(|byte| byte + fragment as u8).collect();
        let bytes = [write_bytes(0, 1, 777, &payload), write_bytes(0, 2, u64::MAX, &[0; 9])].concat();
        for part in bytes.chunks(fragment) {
            client.send(part);
            std::thread::sleep(Duration::from_micros(300));
        }
        let mut replies = [client.simple(), client.simple()];
        replies.sort();
        assert_eq!(replies, [(0, 1), (ENOSPC, 2)]);
        assert_eq!(client.read_simple(777, 50).unwrap(), payload);
    }
}

#[test]
fn requests_in_one_packet_are_all_answered_and_their_number_in_flight_is_bounded() {
    let limits = Limits { requests_max: 4, ..Limits::default() };
    let rig = Rig::new(Plan { limits, ..Plan::default() });
    for structured in [false, true] {
        let mut client = rig.attached("disk0", structured);
        let requests: Vec<u8> = (0..500).flat_map(|i| request_bytes(0, READ, i, i * 8, 8)).collect();
        let mut sender = client.try_clone();
        let sending = std::thread::spawn(move || sender.send(&requests));
        let image = rig.image(0);
        let mut seen = HashSet::new();
        for _ in 0..500 {
            let (cookie, data) = match structured {
                true => {
                    let chunk = client.chunk();
                    assert!(chunk.done);
                    (chunk.cookie, chunk.payload[8..].to_vec())
                }
                false => (client.simple().1, client.receive(8)),
            };
            assert_eq!(data, image[cookie as usize * 8..][..8]);
            assert!(seen.insert(cookie));
        }
        sending.join().unwrap();
    }
}

#[test]
fn a_client_that_reads_no_replies_stops_only_itself() {
    let rig = Rig::new(Plan::default());
    let mut slow = rig.attached("disk0", true);
    let mut sender = slow.try_clone();
    let sending = std::thread::spawn(move || {
        for i in 0..200 {
            sender.request(0, READ, i, 0, 1 << 20);
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(rig.traffic().exports()[0].requests.iter().sum::<u64>() < 200, "most requests have not started");
    let mut quick = rig.attached("disk0", false);
    for _ in 0..50 {
        quick.read_simple(0, 4096).unwrap();
    }
    let (mut received, mut done) = (0, 0);
    while done < 200 {
        let chunk = slow.chunk();
        received += chunk.payload.len() - 8;
        done += usize::from(chunk.done);
    }
    assert_eq!(received, 200 << 20);
    sending.join().unwrap();
}

/// An export whose second half cannot be read.
fn broken(limits: Limits, structured: bool) -> (Rig, Client) {
    let rig = Rig::new(Plan { limits, carried: Some(512 << 10), ..Plan::default() });
    let client = rig.attached("disk0", structured);
    (rig, client)
}

#[test]
fn a_read_that_fails_in_the_middle_reports_it_while_there_is_memory_for_its_reply() {
    for structured in [false, true] {
        let (_rig, mut client) = broken(Limits::default(), structured);
        assert_eq!(client.read(structured, DF, 0, 1 << 20).unwrap_err(), EIO);
        assert_eq!(client.ask(0, FLUSH, 1, 0, 0), 0, "the connection continues");
    }
}

#[test]
fn a_simple_reply_that_cannot_be_completed_ends_the_connection() {
    let (_rig, mut client) = broken(short_of_memory(), false);
    client.request(0, READ, 1, 0, 1 << 20);
    assert_eq!(client.simple(), (0, 1));
    assert!(client.rest().len() <= 512 << 10, "only bytes that were read, and no others in their place");
}

#[test]
fn a_chunk_that_cannot_be_completed_is_padded_and_followed_by_its_error() {
    let (_rig, mut client) = broken(short_of_memory(), true);
    client.request(DF, READ, 1, 4, (1 << 20) - 4);
    assert_eq!(client.u32(), 0x668e_33ef);
    client.request(0, FLUSH, 2, 0, 0);
    let chunk = client.chunk_after_magic();
    assert_eq!((chunk.done, chunk.offset(), chunk.payload.len()), (false, 4, (1 << 20) + 4));
    let good = (512 << 10) - 4096;
    assert!(chunk.payload[8..8 + good] == pattern(1 << 20)[4..4 + good]);
    assert!(chunk.payload[8 + (512 << 10)..].iter().all(|byte| *byte == 0));
    let error = client.chunk();
    assert_eq!((error.cookie, error.done, error.error()), (1, true, EIO));
    assert!(((512 << 10) - 4096..=512 << 10).contains(&error.error_offset()));
    assert_eq!(client.status(), (0, 2), "no message of another request comes in between");
}

#[test]
fn a_fragmented_read_sends_its_data_and_then_the_offset_of_its_error() {
    let (_rig, mut client) = broken(short_of_memory(), true);
    client.request(0, READ, 1, 0, 1 << 20);
    let mut received = 0;
    let error = loop {
        let chunk = client.chunk();
        if chunk.kind & 0x8000 != 0 {
            break chunk;
        }
        assert_eq!(chunk.offset(), received, "with one buffer, chunks come in order");
        received += chunk.payload.len() as u64 - 8;
    };
    assert_eq!((error.done, error.error(), error.error_offset()), (true, EIO, 512 << 10));
    assert_eq!(received, 512 << 10);
}

#[test]
fn a_write_that_fails_in_the_middle_is_drained_and_reports_its_first_error() {
    for limits in memories() {
        let (_rig, mut client) = broken(limits, false);
        client.write(0, 1, 0, &vec![7; 1 << 20]);
        assert_eq!(client.simple(), (ENOSPC, 1));
        client.request(0, FLUSH, 2, 0, 0);
        assert_eq!(client.simple(), (0, 2));
    }
}

#[test]
fn many_long_reads_and_writes_share_one_page_of_memory() {
    for structured in [false, true] {
        let rig = Rig::new(Plan { limits: short_of_memory(), ..Plan::default() });
        let mut client = rig.attached("disk0", structured);
        let mut sender = client.try_clone();
        let sending = std::thread::spawn(move || {
            for i in 0..60 {
                match i % 3 {
                    0 => sender.request(if structured { DF } else { 0 }, READ, i, 0, 1 << 20),
                    1 => sender.write(FUA, i, (i % 4) << 18, &[i as u8; 200_000]),
                    _ => sender.request(0, READ, i, 0, 1),
                }
            }
        });
        let mut seen = HashSet::new();
        while seen.len() < 60 {
            // The reply to a write is simple, and with structured replies that to a read is not.
            let cookie = match client.reply() {
                Reply::Simple { error, cookie } => {
                    assert_eq!(error, 0);
                    let len = if structured { 0 } else { [1 << 20, 0, 1][cookie as usize % 3] };
                    client.receive(len);
                    cookie
                }
                Reply::Chunk(chunk) => {
                    assert!(structured);
                    if !chunk.done {
                        continue;
                    }
                    chunk.cookie
                }
            };
            assert!(seen.insert(cookie));
        }
        sending.join().unwrap();
    }
}

/// Once, `qemu-img convert` of an empty image filled its target, because WRITE_ZEROES always kept
/// the space.
#[test]
fn zeroes_take_no_space_unless_the_client_asks_for_it() {
    use std::os::unix::fs::MetadataExt;
    let rig = Rig::new(Plan::default());
    let blocks = || std::fs::metadata(crate::rig::path_of(&rig, "disk0")).unwrap().blocks();
    let mut client = rig.attached("disk0", true);
    assert_eq!(client.ask(FUA, WRITE_ZEROES, 1, 0, 1 << 20), 0);
    if blocks() > 64 {
        return println!("SKIP: no holes are punched in {}", rig.directory.0.display());
    }
    assert_eq!(client.ask(FUA | NO_HOLE, WRITE_ZEROES, 2, 0, 1 << 20), 0);
    assert!(blocks() >= (1 << 20) / 512, "{}", blocks());
    assert!(client.read_structured(0, 0, 1 << 20).unwrap().iter().all(|byte| *byte == 0));
}
