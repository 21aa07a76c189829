//! The handshake: every option, every wrong form of it, and clients that are slow or leave.

use crate::client::*;
use crate::rig::{Plan, Rig};
use octavo_block::Limits;
use std::time::Duration;

#[test]
fn export_name_enters_transmission_with_and_without_zeroes() {
    let rig = Rig::new(Plan::default());
    for (flags, zeroes) in [(3, 0), (1, 124)] {
        let mut client = rig.client();
        client.greet(flags);
        client.option(1, b"disk0");
        assert_eq!(client.u64(), 1 << 20);
        assert_eq!(client.u16(), 0b1101_0110_1101, "no DF: replies are simple");
        assert_eq!(client.receive(zeroes), vec![0; zeroes]);
        assert_eq!(client.read_simple(0, 512).unwrap(), rig.image(0)[..512]);
        client.request(0, DISC, 0, 0, 0);
        client.expect_end();
    }
}

#[test]
fn an_unknown_name_in_export_name_ends_the_session() {
    let rig = Rig::new(Plan::default());
    for name in [b"nothing".to_vec(), vec![b'x'; 5000], vec![b'x'; 20_000]] {
        let mut client = rig.client();
        client.greet(3);
        client.option(1, &name);
        client.expect_end();
    }
}

#[test]
fn info_and_go_reply_alike_and_the_empty_name_means_the_first_export() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.client();
    client.greet(3);
    client.expect_option_reply(8, b"", ACK);
    for option in [6, 7] {
        client.option(option, &info_data(b"", &[3, 1, 2, 9999]));
        let mut found = Vec::new();
        loop {
            match client.option_reply(option) {
                (3, data) => found.push(data),
                (kind, _) => break assert_eq!(kind, ACK),
            }
        }
        let export =
            [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &0b1101_1110_1101_u16.to_be_bytes()].concat();
        let sizes = [[0, 3, 0, 0].as_slice(), &[0, 1, 0, 0, 16, 0, 2, 0, 0, 0]].concat();
        assert_eq!(found, [export, b"\0\x01disk0".to_vec(), b"\0\x02number 0".to_vec(), sizes]);
    }
    assert_eq!(client.read_structured(0, 0, 16).unwrap(), rig.image(0)[..16]);
}

#[test]
fn a_read_only_export_has_the_read_only_flag_and_none_for_changes() {
    let rig = Rig::new(Plan::default());
    assert_eq!(rig.client().enter("disk1", false), (1 << 20, 0b101_0000_1111));
}

#[test]
fn list_names_every_export_and_abort_is_acknowledged() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.tcp_client();
    client.greet(3);
    client.option(3, b"");
    for name in ["disk0", "disk1"] {
        let (kind, data) = client.option_reply(3);
        assert_eq!((kind, &data[..4], &data[4..9]), (2, &[0, 0, 0, 5][..], name.as_bytes()));
        assert_eq!(data[9..], *format!("number {}", &name[4..]).as_bytes());
    }
    assert_eq!(client.option_reply(3).0, ACK);
    client.expect_option_reply(2, b"ignored", ACK);
    client.expect_end();
}

#[test]
fn a_wrong_option_gets_its_error_and_the_handshake_continues() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.client();
    client.greet(3);
    let mut long_name = info_data(&[b'x'; 4097], &[]);
    let cases: [(u32, &[u8], u32); 15] = [
        (3, b"x", INVALID),
        (8, b"x", INVALID),
        (5, b"", UNSUP),
        (5, b"x", INVALID),
        (9, b"anything", INVALID),
        (10, b"anything", INVALID),
        (11, b"x", INVALID),
        (4, b"", UNSUP),
        (0, b"", UNSUP),
        (u32::MAX, &[7; 9000], UNSUP),
        (u32::MAX, &[7; 20_000], TOO_BIG),
        (6, &info_data(b"nothing", &[]), UNKNOWN),
        (7, &info_data(b"nothing", &[3]), UNKNOWN),
        (7, &long_name.clone(), TOO_BIG),
        (7, &[0xff; 6], INVALID),
    ];
    for (option, data, kind) in cases {
        client.expect_option_reply(option, data, kind);
    }
    let right = info_data(b"disk0", &[3, 1]);
    for len in 0..right.len() {
        client.expect_option_reply(6, &right[..len], INVALID);
    }
    long_name = [right, vec![0]].concat();
    client.expect_option_reply(6, &long_name, INVALID);
    client.expect_option_reply(2, b"", ACK);
}

#[test]
fn a_violation_without_an_error_reply_ends_the_session() {
    let rig = Rig::new(Plan::default());
    let unknown_flag = 4_u32.to_be_bytes().to_vec();
    let wrong_magic = [&[0, 0, 0, 3], &b"IHAVENOT\0\0\0\x03\0\0\0\0"[..]].concat();
    let too_long = [&[0, 0, 0, 3], &b"IHAVEOPT\0\0\0\x63\0\x01\0\x01"[..]].concat();
    let longest = [&[0, 0, 0, 3], &b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff"[..]].concat();
    for bytes in [unknown_flag, wrong_magic, too_long, longest] {
        let mut client = rig.client();
        client.send(&bytes);
        assert_eq!(client.rest().len(), 18, "the greeting and nothing else");
    }
}

#[test]
fn a_handshake_with_more_options_than_the_limit_ends() {
    let rig = Rig::new(Plan { limits: Limits { options_max: 5, ..Limits::default() }, ..Plan::default() });
    let mut client = rig.client();
    client.greet(3);
    for _ in 0..5 {
        client.expect_option_reply(5, b"", UNSUP);
    }
    client.expect_end();
}

#[test]
fn a_client_may_leave_after_every_byte_of_a_handshake() {
    let rig = Rig::new(Plan::default());
    let handshake = [
        3_u32.to_be_bytes().to_vec(),
        option_bytes(3, b""),
        option_bytes(8, b""),
        option_bytes(6, &info_data(b"disk0", &[1, 2, 3])),
        option_bytes(7, &info_data(b"disk0", &[3])),
    ]
    .concat();
    for len in 0..=handshake.len() {
        let mut client = rig.client();
        client.send(&handshake[..len]);
        client.close_sending_side();
        assert!(client.rest().starts_with(b"NBDMAGICIHAVEOPT"));
    }
}

#[test]
fn a_handshake_may_arrive_a_byte_at_a_time() {
    let rig = Rig::new(Plan::default());
    let mut client = rig.client();
    for byte in [&3_u32.to_be_bytes()[..], &option_bytes(7, &info_data(b"disk0", &[]))].concat() {
        client.send(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.receive(18 + 20 + 12 + 20).len(), 70);
    client.read_simple(0, 1).unwrap();
}

#[test]
fn the_handshake_time_bounds_the_handshake_and_not_the_transmission() {
    const HANDSHAKE_TIME: Duration = Duration::from_millis(400);
    let limits = Limits { handshake_time: HANDSHAKE_TIME, ..Limits::default() };
    let rig = Rig::new(Plan { limits, ..Plan::default() });
    // On a busy machine the time may pass before this client is in transmission: then another
    // tries.
    let greeted = || {
        let mut client = rig.client();
        let handshake = [&3_u32.to_be_bytes()[..], &option_bytes(7, &info_data(b"disk0", &[]))].concat();
        client.try_send(&handshake).ok()?;
        client.try_receive(18 + 20 + 12 + 20).ok().map(|_| client)
    };
    let mut client = (0..50).find_map(|_| greeted()).expect("a client enters within the handshake time");
    std::thread::sleep(HANDSHAKE_TIME + HANDSHAKE_TIME / 2);
    client.read_simple(0, 1).unwrap();

    // A byte every 50 ms, for 21 s in all, if each byte began the time again.
    let (mut slow, bytes) = (rig.client(), option_bytes(7, &info_data(&[b'x'; 400], &[])));
    let sent = bytes.iter().take_while(|&&byte| {
        std::thread::sleep(Duration::from_millis(50));
        slow.try_send(&[byte & 3]).is_ok()
    });
    let sent = sent.count();
    assert!(sent < bytes.len() / 2, "{sent} bytes were taken: a byte must not begin the time again");
    let mut silent = rig.client();
    assert_eq!(silent.rest().len(), 18);
}
