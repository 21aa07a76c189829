//! A server that takes over from one that was killed, with the record of requests in flight.

use crate::driver::Rig;
use crate::vmm::{Descriptor, Guest};
use octavo_block::VhostSettings;
use std::fs::File;
use std::os::unix::fs::FileExt;

const DATA: Descriptor = Descriptor { at: 0x8_0000, len: 512, flags: 0, next: 0 };

/// Marks a request as in flight, as the killed server did.
fn mark(record: &File, head: u16, number: u64) {
    let at = 16 + 16 * u64::from(head);
    record.write_all_at(&[1], at).unwrap();
    record.write_all_at(&number.to_le_bytes(), at + 8).unwrap();
}

/// Whether a request is marked as in flight.
fn is_marked(record: &File, head: u16) -> bool {
    let mut mark = [0];
    record.read_exact_at(&mut mark, 16 + 16 * u64::from(head)).unwrap();
    mark[0] != 0
}

#[test]
fn requests_in_flight_are_repeated_in_their_order() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut guest = Guest::new();
    guest.connect(&rig.socket).leave();
    // Two writes of one sector, of which the later has the lower head, and one that ended.
    for (head, byte) in [(6, 1), (3, 2), (9, 3)] {
        let at = DATA.at + 512 * u64::from(head);
        guest.put(at as usize, &[byte; 512]);
        guest.request(head, 1, 5, Descriptor { at, ..DATA });
    }
    let record = guest.inflight.as_ref().unwrap().1.try_clone().unwrap();
    mark(&record, 6, 70);
    mark(&record, 3, 71);
    guest.offer(&[6, 3]);
    let _vmm = guest.connect(&rig.socket);
    guest.wait_for(2);
    let mut found = [0; 512];
    rig.object.read_at(5 * 512, &mut found).unwrap();
    assert_eq!(found, [2; 512]);
    assert!(!is_marked(&record, 3) && !is_marked(&record, 6));
    // The server then takes new requests.
    guest.offer(&[9]);
    guest.wait_for(3);
    rig.object.read_at(5 * 512, &mut found).unwrap();
    assert_eq!(found, [3; 512]);
}

#[test]
fn a_request_that_has_entered_the_used_ring_is_not_repeated() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut guest = Guest::new();
    guest.connect(&rig.socket).leave();
    guest.put(DATA.at as usize, &[7; 512]);
    guest.request(0, 1, 5, DATA);
    guest.offer(&[0]);
    // The server was killed between the used ring and the mark (I2).
    let record = guest.inflight.as_ref().unwrap().1.try_clone().unwrap();
    mark(&record, 0, 1);
    record.write_all_at(&0_u16.to_le_bytes(), 12).unwrap();
    guest.set_used(1);
    let _vmm = guest.connect(&rig.socket);
    // Nor had it signalled: the guest would wait for ever.
    guest.wait_for_signal();
    guest.request(4, 4, 0, Descriptor { len: 0, ..DATA });
    guest.offer(&[4]);
    guest.wait_for(2);
    let mut found = [1; 512];
    rig.object.read_at(5 * 512, &mut found).unwrap();
    assert_eq!(found, [0; 512]);
    assert!(!is_marked(&record, 0));
}

/// The features of a record, and the bit that says that unflushed writes would be lost.
fn features(record: &File) -> u64 {
    let mut features = [0; 8];
    record.read_exact_at(&mut features, 0).unwrap();
    u64::from_le_bytes(features)
}

const UNFLUSHED: u64 = 1 << 63;

#[test]
fn a_device_whose_unflushed_writes_are_lost_does_not_go_on() {
    let settings = VhostSettings { is_writeback: true, ..VhostSettings::default() };
    let rig = Rig::new(16 << 20, settings);
    let mut guest = Guest::new();
    let vmm = guest.connect(&rig.socket);
    let record = guest.inflight.as_ref().unwrap().1.try_clone().unwrap();
    guest.request(0, 1, 5, DATA);
    guest.request(4, 4, 0, Descriptor { len: 0, ..DATA });
    guest.offer(&[0]);
    guest.wait_for(1);
    assert_eq!(features(&record), UNFLUSHED);
    guest.offer(&[4]);
    guest.wait_for(2);
    assert_eq!(features(&record), 0, "a flush has made the write durable");
    guest.offer(&[0]);
    guest.wait_for(3);
    // A server that lets the guest go makes its writes durable.
    vmm.leave();
    let vmm = guest.connect(&rig.socket);
    assert_eq!(features(&record), 0);
    guest.offer(&[0]);
    guest.wait_for(4);
    assert_eq!((guest.status(0), features(&record)), (0, UNFLUSHED));
    vmm.leave();
    // One that was killed did not.
    drop(guest.connect(&rig.socket));
    record.write_all_at(&UNFLUSHED.to_le_bytes(), 0).unwrap();
    let _vmm = guest.connect(&rig.socket);
    guest.wait_until_broken();
}

#[test]
fn a_record_that_is_nonsense_breaks_the_device() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    // The number of entries; the used index; the last batch while an entry is owed.
    for (at, value) in [(10, 7_u16), (14, 40_000), (12, 9_999)] {
        let mut guest = Guest::new();
        guest.connect(&rig.socket).leave();
        guest.set_used(1);
        let record = &guest.inflight.as_ref().unwrap().1;
        record.write_all_at(&value.to_le_bytes(), at).unwrap();
        let _vmm = guest.connect(&rig.socket);
        guest.wait_until_broken();
    }
}
