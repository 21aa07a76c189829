//! A guest that breaks the rules loses its own device. Other devices keep working.

use crate::driver::Rig;
use crate::vmm::{Descriptor, FREE, Guest, INDIRECT, MEMORY, NEXT, SIZE, WRITE, header};
use octavo_block::VhostSettings;
use std::io::Read;

/// Data of a request: 512 bytes.
const DATA: Descriptor = Descriptor { at: 0x8_0000, len: 512, flags: WRITE, next: 0 };

/// Does something wrong, and makes it available.
type Wrong = (&'static str, fn(&Guest));

const WRONGS: [Wrong; 16] = [
    ("an index far ahead", |guest| guest.set_available(SIZE + 1)),
    ("a head out of the table", |guest| guest.offer(&[SIZE])),
    ("a read twice at a time", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.offer(&[0, 0]);
    }),
    ("a read's status outside the memory", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.describe(2, Descriptor { at: MEMORY as u64, len: 1, flags: WRITE, next: 0 });
        guest.offer(&[0]);
    }),
    ("a chain in a circle", |guest| {
        let first = Descriptor { at: FREE as u64, len: 16, flags: NEXT, next: 1 };
        guest.describe(0, first);
        guest.describe(1, Descriptor { next: 0, ..first });
        guest.offer(&[0]);
    }),
    ("a chain that leads out of the table", |guest| {
        guest.describe(0, Descriptor { at: FREE as u64, len: 16, flags: NEXT, next: SIZE });
        guest.offer(&[0]);
    }),
    ("a header outside the memory", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.describe(0, Descriptor { at: MEMORY as u64, len: 16, flags: NEXT, next: 1 });
        guest.offer(&[0]);
    }),
    ("a header that ends outside the memory", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.describe(0, Descriptor { at: MEMORY as u64 - 8, len: 16, flags: NEXT, next: 1 });
        guest.offer(&[0]);
    }),
    ("data outside the memory", |guest| {
        guest.request(0, 0, 0, Descriptor { at: u64::MAX - 0x10_0200, ..DATA });
        guest.offer(&[0]);
    }),
    ("data before the memory", |guest| {
        guest.request(0, 0, 0, Descriptor { at: 0_u64.wrapping_sub(0x10_0000), ..DATA });
        guest.offer(&[0]);
    }),
    ("a status outside the memory", |guest| {
        guest.request(0, 4, 0, Descriptor { len: 0, ..DATA });
        guest.describe(2, Descriptor { at: MEMORY as u64, len: 1, flags: WRITE, next: 0 });
        guest.offer(&[0]);
    }),
    ("no status", |guest| {
        guest.put(FREE, &header(0, 0));
        guest.describe(0, Descriptor { at: FREE as u64, len: 16, flags: 0, next: 0 });
        guest.offer(&[0]);
    }),
    ("a short header", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.describe(0, Descriptor { at: FREE as u64, len: 15, flags: NEXT, next: 1 });
        guest.offer(&[0]);
    }),
    ("what is read after what is written", |guest| {
        guest.request(0, 0, 0, DATA);
        guest.describe(2, Descriptor { at: FREE as u64, len: 1, flags: 0, next: 0 });
        guest.offer(&[0]);
    }),
    ("an indirect table in an indirect table", |guest| {
        let table = Descriptor { at: FREE as u64, len: 32, flags: INDIRECT, next: 0 };
        guest.put(FREE, &table.bytes());
        guest.describe(0, table);
        guest.offer(&[0]);
    }),
    ("an indirect table of half a descriptor", |guest| {
        guest.describe(0, Descriptor { at: FREE as u64, len: 24, flags: INDIRECT, next: 0 });
        guest.offer(&[0]);
    }),
];

#[test]
fn a_guest_that_breaks_the_rules_loses_its_own_device_until_it_is_reset() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let healthy = Rig::new(16 << 20, VhostSettings::default());
    let mut neighbour = healthy.driver(1);
    for (number, (what, wrong)) in WRONGS.into_iter().enumerate() {
        println!("{what}");
        let mut guest = Guest::new();
        let vmm = guest.connect(&rig.socket);
        wrong(&guest);
        guest.wait_until_broken();
        // A kick does not bring it back.
        guest.request(4, 0, 0, DATA);
        guest.offer(&[4]);
        let bytes = vec![number as u8 + 1; 4096];
        neighbour.write(4096, &bytes);
        assert_eq!(neighbour.read(4096, 4096), bytes, "{what}");
        assert_eq!(guest.used(), 0, "{what}");
        drop(vmm);
        let mut guest = Guest::new();
        let _vmm = guest.connect(&rig.socket);
        guest.request(0, 0, 0, DATA);
        guest.offer(&[0]);
        guest.wait_for(1);
        assert_eq!(guest.status(0), 0, "{what}");
        let broken = |rig: &Rig| rig.server.traffic().exports()[0].broken;
        assert_eq!((broken(&rig), broken(&healthy)), (number as u64 + 1, 0), "{what}");
    }
}

/// A guest that breaks its ring in every way, round after round, until its standard input ends: the
/// neighbour of the guests of `cargo xtask vm`. Not a test itself.
#[test]
#[ignore = "a guest for another program"]
fn broken_guest() {
    let Some(socket) = std::env::var_os("OCTAVO_TEST_VHOST_SOCKET") else { return };
    std::thread::spawn(move || {
        for round in 1.. {
            for (_, wrong) in WRONGS {
                let mut guest = Guest::new();
                let _vmm = guest.connect(socket.as_ref());
                wrong(&guest);
                guest.wait_until_broken();
            }
            println!("broken guest: round {round}");
        }
    });
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_request_that_cannot_succeed_fails_alone() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut guest = Guest::new();
    let _vmm = guest.connect(&rig.socket);
    let last = (16 << 20) / 512 - 1;
    let (ioerr, unsupported) = (1, 2);
    let written = Descriptor { flags: 0, ..DATA };
    let cases = [
        (0, last, DATA, 0),
        (0, last + 1, DATA, ioerr),
        (0, u64::MAX, DATA, ioerr),
        (0, last, Descriptor { len: 1024, ..DATA }, ioerr),
        (0, 0, Descriptor { len: 100, ..DATA }, unsupported),
        (1, last + 1, written, ioerr),
        (77, 0, DATA, unsupported),
        (11, 0, Descriptor { len: 15, ..written }, unsupported),
        (13, 0, Descriptor { len: 0, ..written }, unsupported),
        (4, 0, Descriptor { len: 0, ..DATA }, 0),
    ];
    for (number, (kind, sector, data, expected)) in cases.into_iter().enumerate() {
        guest.request(0, kind, sector, data);
        guest.offer(&[0]);
        guest.wait_for(number as u16 + 1);
        assert_eq!(guest.status(0), expected, "request {kind} of {} bytes at {sector}", data.len);
    }
}

#[test]
fn memory_that_shrinks_breaks_the_device_and_nothing_else() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut guest = Guest::new();
    let vmm = guest.connect(&rig.socket);
    guest.request(0, 0, 0, Descriptor { at: MEMORY as u64 / 2, ..DATA });
    guest.file.set_len(MEMORY as u64 / 4).unwrap();
    guest.offer(&[0]);
    guest.wait_until_broken();
    drop(vmm);
    let mut other = Guest::new();
    let _vmm = other.connect(&rig.socket);
    other.request(0, 0, 0, DATA);
    other.offer(&[0]);
    other.wait_for(1);
    assert_eq!(other.status(0), 0);
}
