//! Valid sessions with random damage: the server may answer or hang up, and it always survives.

use crate::client::*;
use crate::random::{Random, seed};
use crate::rig::{Plan, Rig};
use octavo_block::Limits;
use std::time::Duration;

const SESSIONS: u32 = 2000;

fn session(random: &mut Random) -> Vec<u8> {
    let mut bytes = (1 + 2 * random.below(2) as u32).to_be_bytes().to_vec();
    let extended = random.below(3) == 0;
    for option in [3, 8, 5, 10, 9] {
        if random.below(3) == 0 {
            bytes.extend(option_bytes(option, b""));
        }
    }
    if extended {
        bytes.extend(option_bytes(11, b""));
    }
    for option in [9, 10] {
        let queries: [&[u8]; 3] = [b"base:", b"base:allocation", b"qemu:allocation-depth"];
        bytes.extend(option_bytes(option, &context_data(b"disk0", &queries[..random.below(4) as usize])));
    }
    match random.below(4) {
        0 => bytes.extend(option_bytes(1, b"disk0")),
        _ => bytes.extend(option_bytes(7, &info_data(b"disk0", &[1, 2, 3]))),
    }
    for cookie in 0..random.below(8) {
        let (offset, len) = (random.below(70_000), random.below(3000) as u32);
        let command = random.below(8) as u16;
        if extended {
            let has_payload = command == WRITE || random.below(4) == 0;
            let flags = if has_payload { PAYLOAD_LEN } else { (random.below(64) as u16) & !PAYLOAD_LEN };
            let len = if has_payload && command == BLOCK_STATUS { 12 } else { u64::from(len) };
            bytes.extend(extended_bytes(flags, command, cookie, offset, len));
            if has_payload {
                bytes.extend((0..len).map(|i| [0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 1][i as usize % 12]));
            }
            continue;
        }
        bytes.extend(request_bytes((random.below(3) as u16) & FUA, command, cookie, offset, len));
        if command == WRITE {
            bytes.extend((0..len).map(|i| i as u8));
        }
    }
    bytes
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes[at] = random.next_u64() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
            3 if bytes.len() > 1 => drop(bytes.remove(at)),
            4 => bytes.insert(at, random.next_u64() as u8),
            _ => bytes.truncate(at.max(1)),
        }
    }
}

#[test]
fn damaged_sessions_neither_stop_the_server_nor_leave_connections_behind() {
    let limits = Limits { handshake_time: Duration::from_millis(500), ..Limits::default() };
    let rig = Rig::new(Plan { lens: vec![1 << 16, 1 << 16], limits, ..Plan::default() });
    let mut random =
        Random::new(seed("damaged_sessions_neither_stop_the_server_nor_leave_connections_behind"));
    for _ in 0..SESSIONS {
        let mut bytes = session(&mut random);
        if random.below(10) > 0 {
            damage(&mut random, &mut bytes);
        }
        let mut client = rig.client();
        let _ = client.try_send(&bytes); // The server may have hung up already.
        match random.below(4) {
            0 => drop(client),
            _ => {
                client.close_sending_side();
                client.rest();
            }
        }
    }
    rig.assert_deserted();
    assert_eq!(rig.attached("disk0", true).read_structured(0, 0, 1 << 16).unwrap().len(), 1 << 16);
}
