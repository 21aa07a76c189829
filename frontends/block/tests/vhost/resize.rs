//! The length of the disk changes while a guest runs.

use crate::driver::Rig;
use crate::vmm::{Descriptor, Guest, PATIENCE, Vmm, WRITE};
use octavo_block::{Export, VhostSettings};
use std::io::{ErrorKind, Read, pipe};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, without a payload and without NEED_REPLY.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

const LEN_BYTES: u64 = 16 << 20;
const DATA: Descriptor = Descriptor { at: 0x8_0000, len: 512, flags: WRITE, next: 0 };

/// Hands a channel over, and returns the VMM's end of it.
fn channel(vmm: &mut Vmm) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    vmm.frontend.set_backend_request_fd(&theirs).unwrap();
    ours
}

/// Waits for a message of the device.
fn message(channel: &mut UnixStream) -> [u32; 3] {
    let mut bytes = [0; 12];
    channel.read_exact(&mut bytes).unwrap();
    [0, 4, 8].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()))
}

fn expect_silence(mut channel: &UnixStream) {
    channel.set_nonblocking(true).unwrap();
    assert_eq!(channel.read(&mut [0; 12]).unwrap_err().kind(), ErrorKind::WouldBlock);
    channel.set_nonblocking(false).unwrap();
}

/// Returns the length in the device's configuration space.
fn capacity(vmm: &mut Vmm) -> u64 {
    let (_, bytes) = vmm.frontend.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap();
    512 * u64::from_le_bytes(bytes.try_into().unwrap())
}

/// The status of a read of this sector, the `number`th request.
fn read(guest: &Guest, number: u16, sector: u64) -> u8 {
    guest.request(0, 0, sector, DATA);
    guest.offer(&[0]);
    guest.wait_for(number);
    guest.status(0)
}

#[test]
fn the_device_announces_a_new_length_and_checks_requests_against_it() {
    let rig = Rig::new(LEN_BYTES, VhostSettings::default());
    let mut guest = Guest::new();
    let mut vmm = guest.connect(&rig.socket);
    assert_eq!(capacity(&mut vmm), LEN_BYTES);
    let mut channel = channel(&mut vmm);
    let last = LEN_BYTES / 512 - 1;
    assert_eq!((read(&guest, 1, last), read(&guest, 2, last + 1)), (0, 1));
    expect_silence(&channel);

    rig.object.set_len_bytes(2 * LEN_BYTES).unwrap();
    rig.server.announce_len(&rig.object);
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    assert_eq!(capacity(&mut vmm), 2 * LEN_BYTES);
    assert_eq!((read(&guest, 3, 2 * last), read(&guest, 4, 2 * last + 2)), (0, 1));

    rig.object.set_len_bytes(LEN_BYTES / 2).unwrap();
    rig.server.announce_len(&rig.object);
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    assert_eq!(capacity(&mut vmm), LEN_BYTES / 2);
    assert_eq!((read(&guest, 5, last / 2), read(&guest, 6, last)), (0, 1));
    // The device sends one message for each change.
    expect_silence(&channel);
}

/// Exports of a share group have one object.
#[test]
fn only_the_vmms_of_exports_of_the_object_get_the_message() {
    let rig = Rig::new(LEN_BYTES, VhostSettings::default());
    let other = Rig::new(LEN_BYTES, VhostSettings::default());
    let (mut guests, mut vmms, mut channels) = (Vec::new(), Vec::new(), Vec::new());
    for (name, object) in [("one", &rig.object), ("two", &rig.object), ("apart", &other.object)] {
        let (description, object) = (String::new(), object.clone());
        let export = Export { name: name.into(), description, object, read_only: true, is_listed: false };
        rig.server.add(export).unwrap();
        let socket = rig.socket.with_file_name(name);
        rig.server.attach(name, &socket, VhostSettings::default()).unwrap();
        let mut guest = Guest::new();
        let mut vmm = guest.connect(&socket);
        assert_eq!(capacity(&mut vmm), LEN_BYTES);
        channels.push(channel(&mut vmm));
        vmms.push(vmm);
        guests.push(guest);
    }
    rig.object.set_len_bytes(2 * LEN_BYTES).unwrap();
    rig.server.announce_len(&rig.server.object("one").unwrap());
    for number in [0, 1] {
        assert_eq!(message(&mut channels[number]), CONFIG_CHANGE);
        assert_eq!(capacity(&mut vmms[number]), 2 * LEN_BYTES);
        assert_eq!(read(&guests[number], 1, 2 * LEN_BYTES / 512 - 1), 0);
    }
    expect_silence(&channels[2]);
}

/// Such a VMM reads the length only when it starts its guest.
#[test]
fn a_vmm_that_connects_again_without_reading_the_length_gets_the_message() {
    let rig = Rig::new(LEN_BYTES, VhostSettings::default());
    let mut guest = Guest::new();
    let mut first = Vmm::connect(&rig.socket);
    first.negotiate();
    capacity(&mut first);
    let first_channel = channel(&mut first);
    guest.track(&mut first);
    guest.start(&mut first);
    expect_silence(&first_channel);
    first.leave();

    rig.object.set_len_bytes(2 * LEN_BYTES).unwrap();
    let mut again = Vmm::connect(&rig.socket);
    again.negotiate();
    let mut channel = channel(&mut again);
    guest.track(&mut again);
    guest.start(&mut again);
    assert_eq!(message(&mut channel), CONFIG_CHANGE);
    expect_silence(&channel);
    drop(again);
    // When a VMM disconnects, its channel closes. A read with a time limit may be interrupted.
    let mut rest = Vec::new();
    channel.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, []);
    rig.server.announce_len(&rig.object);
}

/// The channel holds some hundred messages.
#[test]
fn a_vmm_that_does_not_read_its_channel_delays_no_call() {
    let rig = Rig::new(LEN_BYTES, VhostSettings::default());
    let mut guest = Guest::new();
    let mut vmm = guest.connect(&rig.socket);
    let channel = channel(&mut vmm);
    for _ in 0..5000 {
        rig.server.announce_len(&rig.object);
    }
    assert_eq!(capacity(&mut vmm), LEN_BYTES);
    assert_eq!(read(&guest, 1, 0), 0);
    drop(channel);
    rig.server.announce_len(&rig.object);
    assert_eq!(read(&guest, 2, 0), 0);
}

#[test]
fn a_descriptor_that_is_no_socket_gets_no_message() {
    let rig = Rig::new(LEN_BYTES, VhostSettings::default());
    let mut guest = Guest::new();
    let mut vmm = guest.connect(&rig.socket);
    let (mut ours, theirs) = pipe().unwrap();
    vmm.frontend.set_backend_request_fd(&theirs).unwrap_err();
    drop(theirs);
    rig.server.announce_len(&rig.object);
    drop(vmm);
    let mut found = Vec::new();
    ours.read_to_end(&mut found).unwrap();
    assert_eq!(found, []);
    assert_eq!(capacity(&mut guest.connect(&rig.socket)), LEN_BYTES);
}
