//! Block status, fast zeroing, extended headers and changes of length: answers of every form, the
//! wrong requests, and random operations compared with a twin.

use crate::client::*;
use crate::random::{Random, seed};
use crate::rig::{Plan, Rig};
use octavo::{CacheConfig, CacheMode};
use octavo_block::Limits;

const GIB: u64 = 1 << 30;

/// A sparse export of 8 GiB with 64 KiB of data at 1 MiB and, in the cache alone, at 5 GiB.
fn sparse(limits: Limits) -> Rig {
    let plan = Plan {
        lens: vec![8 * GIB],
        limits,
        sparse: true,
        cache_mode: CacheMode::Writeback,
        ..Plan::default()
    };
    let rig = Rig::new(plan);
    rig.objects[0].write_at(1 << 20, &[1; 64 << 10]).unwrap();
    rig.objects[0].sync().unwrap();
    rig.objects[0].write_at(5 * GIB, &[1; 64 << 10]).unwrap();
    rig
}

#[test]
fn contexts_are_listed_and_selected_by_queries() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.client();
    client.greet(3);
    client.expect_option_reply(8, b"", ACK);
    let both = ["base:allocation", "qemu:allocation-depth"];
    for (queries, names) in [
        (&[][..], &both[..]),
        (&["base:"], &both[..1]),
        (&["qemu:"], &both[1..]),
        (&["base:", "qemu:", "qemu:allocation-depth"], &both),
        (&["x-other:", "base:other", "", "base", "qemu:dirty-bitmap:"], &[]),
    ] {
        let listed = client.contexts(9, "disk0", queries).unwrap();
        assert_eq!(listed, names.iter().map(|name| (0, name.to_string())).collect::<Vec<_>>(), "{queries:?}");
    }
    for (queries, selected) in [
        (&[][..], &[][..]),
        (&["base:", "qemu:", "base:other"], &[]),
        (&["qemu:allocation-depth"], &[2]),
        (&["qemu:allocation-depth", "x:y", "base:allocation", "base:allocation"], &[1, 2]),
    ] {
        let found = client.contexts(10, "disk0", queries).unwrap();
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), selected, "{queries:?}");
    }
    for option in [9, 10] {
        assert_eq!(client.contexts(option, "nothing", &[]).unwrap_err(), UNKNOWN);
        assert_eq!(client.contexts(option, &"x".repeat(4097), &[]).unwrap_err(), TOO_BIG);
        let right = context_data(b"disk0", &[b"base:allocation", b"qemu:"]);
        for len in 0..right.len() {
            client.expect_option_reply(option, &right[..len], INVALID);
        }
        client.expect_option_reply(option, &[&right[..], &[0]].concat(), INVALID);
        let many = [context_data(b"disk0", &[]), vec![]].concat();
        let many = [&many[..many.len() - 4], &u32::MAX.to_be_bytes()].concat();
        client.expect_option_reply(option, &many, INVALID);
        client.expect_option_reply(option, &[0; 20_000], TOO_BIG);
    }
    // The latest selection has failed, and selects nothing.
    client.go("disk0");
    assert_eq!(client.block_status(false, 0, 0, 512).unwrap_err(), EINVAL);
}

#[test]
fn a_selection_is_for_one_export_and_needs_structured_replies() {
    let rig = Rig::new(Plan::default());
    for extended in [false, true] {
        let mut client = rig.client();
        client.greet(3);
        for option in [9, 10] {
            assert_eq!(client.contexts(option, "disk0", &["base:allocation"]).unwrap_err(), INVALID);
        }
        client.expect_option_reply(if extended { 11 } else { 8 }, b"", ACK);
        client.contexts(10, "disk0", &["base:allocation"]).unwrap();
        let (_, flags) = client.go("disk1");
        assert_eq!(flags >> 12, 0, "nothing to choose from");
        assert_eq!(client.block_status(extended, 0, 0, 512).unwrap_err(), EINVAL);
        let mut client = rig.client();
        assert_eq!(client.enter_with_contexts("disk0", extended) >> 12, u16::from(extended));
        client.block_status(extended, 0, 0, 512).unwrap();
    }
}

#[test]
fn extents_are_holes_and_data_in_every_form() {
    let rig = sparse(Limits::default());
    let all = |at: u64| {
        let data = [1 << 20, 5 * GIB].map(|start| start..start + (64 << 10));
        let ends = [data[0].start, data[0].end, data[1].start, data[1].end, 8 * GIB];
        let mut at = at;
        let mut extents = Vec::new();
        for (number, end) in ends.into_iter().enumerate() {
            if end > at {
                extents.push((end - at, number % 2 == 0));
                at = end;
            }
        }
        extents
    };
    let expected = |offset: u64, len: u64, most: usize| {
        let mut left = len;
        let mut extents = Vec::new();
        for (len, is_hole) in all(offset).into_iter().take(most) {
            if left > 0 {
                extents.push((len.min(left), is_hole));
                left -= len.min(left);
            }
        }
        let statuses =
            |of: [u64; 2]| extents.iter().map(|(len, hole)| (*len, of[usize::from(*hole)])).collect();
        vec![
            Status { context: 1, extents: statuses([0, 3]) },
            Status { context: 2, extents: statuses([1, 0]) },
        ]
    };
    for extended in [false, true] {
        let mut client = rig.client();
        client.enter_with_contexts("disk0", extended);
        let mut ranges = vec![
            (0, 1 << 20),
            (0, 3 * GIB),
            (1 << 20, 4096),
            ((1 << 20) + 5, 70_001),
            (5 * GIB - 1, 2),
            (5 * GIB + 1, 3 * GIB - 1),
            (8 * GIB - 1, 1),
        ];
        if extended {
            ranges.extend([(0, 8 * GIB), (7, 8 * GIB - 7)]);
        }
        for (offset, len) in ranges {
            let found = client.block_status(extended, 0, offset, len).unwrap();
            assert_eq!(found, expected(offset, len, 9), "{len} bytes at {offset}");
            let found = client.block_status(extended, REQ_ONE, offset, len).unwrap();
            assert_eq!(found, expected(offset, len, 1), "{len} bytes at {offset}");
        }
        for (flags, offset, len) in [
            (0, 0, 0),
            (0, 8 * GIB, 1),
            (0, 8 * GIB - 1, 2),
            (0, u64::MAX, 1),
            (DF, 0, 1),
            (NO_HOLE, 0, 1),
            (FAST_ZERO, 0, 1),
            (1 << 6, 0, 1),
        ] {
            assert_eq!(client.block_status(extended, flags, offset, len).unwrap_err(), EINVAL);
        }
        assert_eq!(client.block_status(extended, 0, 0, 1).unwrap().len(), 2, "the connection continues");
    }
    let stat = &rig.traffic().exports()[0];
    assert!(stat.requests_of(octavo_block::Kind::Status) > 40);
}

/// Every second page is a hole, so that the answer to one request has far more extents than a reply
/// may have.
#[test]
fn the_status_of_a_fragmented_export_has_replies_of_bounded_length() {
    const PAGES: u64 = 3000;
    let short = Limits { borrowed_max_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
    for limits in [Limits::default(), short] {
        let rig = Rig::new(Plan { lens: vec![PAGES * 4096], sparse: true, limits, ..Plan::default() });
        for page in (0..PAGES).step_by(2) {
            rig.objects[0].write_at(page * 4096, &[1; 4096]).unwrap();
        }
        for extended in [false, true] {
            let mut client = rig.client();
            client.enter_with_contexts("disk0", extended);
            let (mut at, mut replies) = (0, 0);
            while at < PAGES * 4096 {
                let [first, second] =
                    client.block_status(extended, 0, at, PAGES * 4096 - at).unwrap().try_into().unwrap();
                assert!(first.extents.len() < 1024 && first.extents.len() == second.extents.len());
                for ((len, status), (other, depth)) in first.extents.into_iter().zip(second.extents) {
                    let is_hole = at / 4096 % 2 == 1;
                    assert_eq!((len, other), (4096, 4096));
                    assert_eq!((status, depth), if is_hole { (3, 0) } else { (0, 1) });
                    at += len;
                }
                replies += 1;
            }
            assert!(replies > 2, "{replies}");
        }
    }
}

#[test]
fn extended_headers_carry_every_command_and_lengths_beyond_32_bits() {
    let rig = sparse(Limits::default());
    let mut client = rig.client();
    assert_eq!(client.enter_with_contexts("disk0", true), 0b1_1101_1110_1101);
    let payload = vec![9; 5000];
    assert_eq!(client.ask_extended(PAYLOAD_LEN | FUA, WRITE, 6 * GIB + 3, 5000, &payload), 0);
    for flags in [0, DF] {
        assert!(client.read_extended(flags, 6 * GIB + 3, 5000).unwrap() == payload);
    }
    assert_eq!(client.ask_extended(0, FLUSH, 0, 0, b""), 0);
    assert_eq!(client.ask_extended(0, CACHE, 0, 8 * GIB, b""), 0);
    assert_eq!(client.ask_extended(0, WRITE_ZEROES, 1 << 20, 5 * GIB, b""), 0);
    let extents = &client.block_status(true, 0, 0, 8 * GIB).unwrap()[0].extents;
    let zeroed: u64 = extents.iter().take_while(|extent| extent.1 == 3).map(|extent| extent.0).sum();
    assert_eq!(zeroed, 6 * GIB, "{extents:?}");
    assert_eq!(client.ask_extended(0, TRIM, 0, 8 * GIB, b""), 0);
    let status = client.block_status(true, 0, 0, 8 * GIB).unwrap();
    assert_eq!(status[0], Status { context: 1, extents: vec![(8 * GIB, 3)] });
    for (command, offset, len, error) in [
        (TRIM, 1, 8 * GIB, EINVAL),
        (WRITE_ZEROES, 1, 8 * GIB, ENOSPC),
        (WRITE_ZEROES, 0, u64::MAX, ENOSPC),
        (CACHE, u64::MAX, u64::MAX, EINVAL),
        (READ, 0, 8 * GIB, EOVERFLOW),
        (READ, 8 * GIB, 1, EINVAL),
        (77, 0, u64::MAX, EINVAL),
    ] {
        assert_eq!(client.ask_extended(0, command, offset, len, b""), error, "{command} of {len}");
    }
    // Once, a write of QEMU, which does not set the flag, ended its connection.
    assert_eq!(client.ask_extended(FUA, WRITE, 7 * GIB, 5000, &payload), 0);
    assert!(client.read_extended(0, 7 * GIB, 5000).unwrap() == payload);
    // Payloads that their commands do not have are skipped.
    for command in [READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, 77] {
        assert_eq!(client.ask_extended(PAYLOAD_LEN, command, 0, 3000, &[0x21; 3000]), EINVAL);
    }
    assert_eq!(client.ask_extended(PAYLOAD_LEN, WRITE, 8 * GIB, 3000, &[0x21; 3000]), ENOSPC);
    client.send(&extended_bytes(0, DISC, 0, 0, 0));
    client.expect_end();
    for len in [(32 << 20) + 1, u64::from(u32::MAX), u64::MAX] {
        let mut client = rig.client();
        client.enter_with_contexts("disk0", true);
        client.send(&extended_bytes(PAYLOAD_LEN, WRITE, 0, 0, len));
        client.expect_end();
    }
}

#[test]
fn extended_reads_of_any_memory_have_their_bytes() {
    let short = Limits { borrowed_max_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
    for limits in [Limits::default(), short] {
        let rig = Rig::new(Plan { limits, ..Plan::default() });
        let mut client = rig.client();
        client.enter_with_contexts("disk0", true);
        for flags in [0, DF] {
            assert!(client.read_extended(flags, 5, (1 << 20) - 5).unwrap() == rig.image(0)[5..]);
        }
    }
}

#[test]
fn a_payload_chooses_contexts_for_one_status_request() {
    let rig = sparse(Limits::default());
    let mut client = rig.client();
    client.enter_with_contexts("disk0", true);
    let payload = |len: u64, ids: &[u32]| {
        let ids = ids.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<_>>();
        [&len.to_be_bytes()[..], &ids].concat()
    };
    let ask = |client: &mut Client, offset: u64, payload: &[u8]| {
        let header = extended_bytes(PAYLOAD_LEN, BLOCK_STATUS, 9, offset, payload.len() as u64);
        client.send(&[&header[..], payload].concat());
        client.statuses(true, offset)
    };
    for (ids, contexts) in [(&[1][..], &[1][..]), (&[2], &[2]), (&[2, 1], &[1, 2])] {
        let found = ask(&mut client, 0, &payload(6 * GIB, ids)).unwrap();
        assert_eq!(found.iter().map(|status| status.context).collect::<Vec<_>>(), contexts);
        assert!(found.iter().all(|status| status.extents.len() == 5), "{found:?}");
    }
    for wrong in [
        payload(4096, &[]),
        payload(4096, &[3]),
        payload(4096, &[0]),
        payload(4096, &[1, 1]),
        payload(4096, &[1, 2, 1]),
        payload(0, &[1]),
        payload(8 * GIB + 1, &[1]),
        payload(4096, &[1])[..11].to_vec(),
        vec![0],
        vec![0x21; 9000],
        vec![0x21; 100_000],
    ] {
        assert_eq!(ask(&mut client, 0, &wrong).unwrap_err(), EINVAL, "{} bytes", wrong.len());
    }
    // A payload may arrive a byte at a time, and a client may leave in the middle of it.
    for byte in extended_bytes(PAYLOAD_LEN, BLOCK_STATUS, 9, 0, 12).into_iter().chain(payload(4096, &[2])) {
        client.send(&[byte]);
    }
    let found = client.statuses(true, 0).unwrap();
    assert_eq!(found, [Status { context: 2, extents: vec![(4096, 0)] }]);
    client.send(&extended_bytes(PAYLOAD_LEN, BLOCK_STATUS, 9, 0, 16));
    client.send(&[0; 15]);
    client.close_sending_side();
    client.expect_end();
}

#[test]
fn extended_headers_take_precedence_over_structured_replies() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.client();
    client.greet(3);
    client.expect_option_reply(8, b"", ACK);
    client.expect_option_reply(11, b"", ACK);
    client.expect_option_reply(11, b"", ACK);
    client.expect_option_reply(8, b"", EXT_HEADER_REQD);
    client.go("disk0");
    assert_eq!(client.read_extended(0, 0, 10).unwrap(), rig.image(0)[..10]);
    // The server no longer accepts compact requests on this connection.
    client.request(0, READ, 1, 0, 10);
    client.send(&[0; 4]);
    client.expect_end();
    let mut client = rig.client();
    client.greet(3);
    client.expect_option_reply(11, b"", ACK);
    client.option(1, b"disk0");
    client.expect_end();
}

#[test]
fn fast_zeroing_succeeds_on_files_and_is_refused_where_zeros_would_be_written() {
    for (carried, error) in [(None, 0), (Some(u64::MAX), ENOTSUP)] {
        let rig = Rig::new(Plan { carried, ..Plan::default() });
        let mut client = rig.attached("disk0", true);
        let image = rig.image(0);
        for flags in [FAST_ZERO, FAST_ZERO | NO_HOLE, FAST_ZERO | FUA] {
            assert_eq!(client.put(0, 1, 0, &image), 0);
            let found = client.ask(flags, WRITE_ZEROES, 1, 100, 100_000);
            if carried.is_none() && found == ENOTSUP {
                return println!("SKIP: no file is zeroed in {}", rig.directory.0.display());
            }
            assert_eq!(found, error);
            let mut expected = image.clone();
            if error == 0 {
                expected[100..100_100].fill(0);
            }
            assert!(client.read_structured(0, 0, 1 << 20).unwrap() == expected);
            // Without the flag the zeros are written.
            assert_eq!(client.ask(flags & !FAST_ZERO, WRITE_ZEROES, 1, 100, 100_000), 0);
        }
        assert_eq!(client.ask(FAST_ZERO, TRIM, 1, 0, 4096), EINVAL);
        assert_eq!(client.ask(FAST_ZERO, WRITE_ZEROES, 1, 1 << 20, 4096), ENOSPC);
    }
    let rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk1", true);
    assert_eq!(client.ask(FAST_ZERO, WRITE_ZEROES, 1, 0, 4096), EPERM);
}

#[test]
fn a_changed_length_is_that_of_new_clients_and_of_new_requests() {
    let rig = Rig::new(Plan { cache_mode: CacheMode::Writeback, ..Plan::default() });
    let mut client = rig.client();
    client.enter_with_contexts("disk0", false);
    rig.objects[0].set_len_bytes(2 << 20).unwrap();
    assert_eq!(client.put(0, 1, (2 << 20) - 10, &[1; 10]), 0);
    assert_eq!(client.read_structured(0, (2 << 20) - 10, 10).unwrap(), [1; 10]);
    let whole: u64 = client.block_status(false, 0, 0, 2 << 20).unwrap()[0].extents.iter().map(|e| e.0).sum();
    assert_eq!(whole, 2 << 20);
    assert_eq!(rig.client().enter("disk0", false).0, 2 << 20);
    rig.objects[0].set_len_bytes(4096).unwrap();
    assert_eq!(client.read_structured(0, 4000, 97).unwrap_err(), EINVAL);
    assert_eq!(client.put(0, 1, 4096, &[1]), ENOSPC);
    assert_eq!(client.block_status(false, 0, 0, 4097).unwrap_err(), EINVAL);
    assert_eq!(client.read_structured(0, 4000, 96).unwrap().len(), 96);
    assert_eq!(rig.client().enter("disk0", true).0, 4096);
}

/// Performs random writes, zeroes, trims and flushes, and asks for the status of a range after each
/// one. Each range that the server reports as zero must read as zeros, and the server must report
/// each range of a file that was never written as a hole.
fn random_operations_agree(seed: u64, cache_mode: CacheMode, carried: Option<u64>) {
    const LEN: u64 = 3 << 20;
    let cache = CacheConfig { memory_max_bytes: 16 << 20, ..CacheConfig::default() };
    let plan = Plan { lens: vec![LEN], sparse: true, cache_mode, cache, carried, ..Plan::default() };
    let rig = Rig::new(plan);
    let mut random = Random::new(seed);
    let mut clients = [rig.client(), rig.client()];
    clients[0].enter_with_contexts("disk0", false);
    clients[1].enter_with_contexts("disk0", true);
    let mut twin = vec![0_u8; LEN as usize];
    let mut is_touched = vec![false; (LEN / 4096) as usize];
    for _ in 0..600 {
        let len = 1 + random.below(20_000);
        let offset = random.below(LEN * 3 / 4 - len);
        let range = offset as usize..(offset + len) as usize;
        let (flags, command) = match random.below(8) {
            0..3 => {
                let payload: Vec<u8> = (0..len).map(|_| 1 + random.below(255) as u8).collect();
                assert_eq!(clients[0].put(0, 1, offset, &payload), 0);
                twin[range.clone()].copy_from_slice(&payload);
                (0, None)
            }
            3 => (0, Some(TRIM)),
            4 => (NO_HOLE, Some(WRITE_ZEROES)),
            5 => (FAST_ZERO, Some(WRITE_ZEROES)),
            6 => (FUA, Some(WRITE_ZEROES)),
            _ => {
                assert_eq!(clients[0].ask(0, FLUSH, 1, 0, 0), 0);
                (0, None)
            }
        };
        if let Some(command) = command {
            match clients[0].ask(flags, command, 1, offset, len as u32) {
                0 => twin[range.clone()].fill(0),
                error => assert_eq!((error, flags), (ENOTSUP, FAST_ZERO)),
            }
        }
        is_touched[range.start / 4096..range.end.div_ceil(4096)].fill(true);
        let at = random.below(LEN);
        let len = 1 + random.below(LEN - at);
        let extended = random.below(2) == 1;
        let client = &mut clients[usize::from(extended)];
        let flags = if random.below(4) == 0 { REQ_ONE } else { 0 };
        let [first, second] = client.block_status(extended, flags, at, len).unwrap().try_into().unwrap();
        let mut at = at as usize;
        for ((len, status), (_, depth)) in first.extents.into_iter().zip(second.extents) {
            let bytes = &twin[at..at + len as usize];
            match (status, depth) {
                (3, 0) => assert!(bytes.iter().all(|byte| *byte == 0), "{len} at {at} (seed {seed})"),
                (0, 1) => {
                    let mut pages = at.div_ceil(4096)..(at + len as usize) / 4096;
                    let is_known = carried.is_some() || pages.all(|page| is_touched[page]);
                    assert!(is_known, "{len} at {at} were never written (seed {seed})");
                }
                other => panic!("{other:?}"),
            }
            at += len as usize;
        }
    }
    assert!(rig.image(0) == twin, "seed {seed}");
}

#[test]
fn the_status_agrees_with_a_twin_after_random_operations() {
    let seed = seed("the_status_agrees_with_a_twin_after_random_operations");
    for cache_mode in [CacheMode::Writeback, CacheMode::Writethrough] {
        random_operations_agree(seed, cache_mode, None);
        random_operations_agree(seed + 1, cache_mode, Some(u64::MAX));
    }
}
