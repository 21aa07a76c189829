//! One server takes over the sockets and the clients of another (S4), and its clients notice
//! nothing.

use crate::client::*;
use crate::rig::{PATIENCE, Plan, Rig, eventually, pattern};
use octavo_block::{Address, Estate, Export, Limits, Server};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const READ: u16 = 0;

/// Starts a server that takes an estate over. It serves the first `exports` of the rig.
fn succeed(rig: &Rig, estate: Estate, exports: usize) -> Server {
    let server = Server::new(rig.cache.clone(), Limits::default()).unwrap();
    server.hold();
    let addresses: Vec<Address> = estate.listeners.iter().map(|held| held.address.clone()).collect();
    server.inherit(estate.listeners);
    for (number, object) in rig.objects.iter().take(exports).enumerate() {
        let (name, description) = (format!("disk{number}"), String::new());
        let export =
            Export { name, description, object: object.clone(), read_only: number == 1, is_listed: true };
        server.add(export).unwrap();
    }
    server.listen(&addresses).unwrap();
    server.open().unwrap();
    estate.clients.into_iter().for_each(|client| server.adopt(client));
    server
}

/// Replaces the rig's server.
fn replace(rig: &mut Rig, exports: usize) {
    let old = rig.server.take().unwrap();
    let estate = old.hand_over(PATIENCE);
    assert_eq!(old.traffic().connections(), 0);
    drop(old);
    rig.server = Some(succeed(rig, estate, exports));
}

#[test]
fn clients_between_two_requests_are_served_on_in_the_form_that_they_had() {
    let mut rig = Rig::new(Plan::default());
    let mut simple = rig.attached("disk0", false);
    let mut structured = rig.attached("disk0", true);
    let mut over_tcp = rig.tcp_client();
    over_tcp.enter("disk0", true);
    for round in 0..3u64 {
        let bytes = [round as u8 + 1; 5000];
        assert_eq!(simple.put(0, round, round * 10_000, &bytes), 0);
        assert_eq!(structured.read(true, 0, round * 10_000, 5000).unwrap(), bytes);
        replace(&mut rig, 2);
        assert_eq!(simple.read(false, 0, round * 10_000, 5000).unwrap(), bytes);
        assert_eq!(over_tcp.read(true, 0, round * 10_000, 5000).unwrap(), bytes);
        // A client that comes now finds the same sockets.
        assert_eq!(rig.attached("disk0", true).read(true, 0, round * 10_000, 5000).unwrap(), bytes);
    }
    drop((simple, structured, over_tcp));
}

#[test]
fn a_request_that_has_arrived_in_part_is_completed_by_the_successor() {
    let mut rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", false);
    let request = request_bytes(0, READ, 7, 4096, 100);
    client.send(&request[..10]);
    replace(&mut rig, 2);
    client.send(&request[10..]);
    assert_eq!(client.simple(), (0, 7));
    assert_eq!(client.receive(100), pattern(1 << 20)[4096..4196]);
    drop(client);
}

#[test]
fn clients_with_many_requests_in_flight_get_each_answer_once() {
    let mut rig = Rig::new(Plan::default());
    let image = pattern(1 << 20);
    let is_over = AtomicBool::new(false);
    let clients: Vec<Client> = (0..3).map(|_| rig.attached("disk0", true)).collect();
    std::thread::scope(|scope| {
        let (image, is_over) = (&image, &is_over);
        let readers: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                scope.spawn(move || {
                    let mut rounds = 0u64;
                    // Each read is followed by another one that is sent at once, so that the
                    // servers find requests in the socket.
                    while !is_over.load(SeqCst) {
                        let at = rounds * 4096 % (1 << 19);
                        assert_eq!(
                            client.read(true, 0, at, 8192).unwrap(),
                            image[at as usize..at as usize + 8192]
                        );
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        for _ in 0..10 {
            let before = rig.traffic().exports()[0].requests[0];
            replace(&mut rig, 2);
            // Each server answers some requests of its own.
            eventually("the successor answers", || rig.traffic().exports()[0].requests[0] > before.min(20));
        }
        is_over.store(true, SeqCst);
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() > 0));
    });
}

#[test]
fn a_client_in_the_middle_of_a_write_is_waited_for() {
    let mut rig = Rig::new(Plan::default());
    let mut client = rig.attached("disk0", false);
    let write = write_bytes(0, 3, 0, &[9; 8192]);
    client.send(&write[..5000]);
    let traffic = rig.traffic();
    eventually("the write begins", || traffic.exports()[0].in_flight == 1);
    let mut rest = client.try_clone();
    let sender = std::thread::spawn(move || rest.send(&write[5000..]));
    replace(&mut rig, 2);
    sender.join().unwrap();
    assert_eq!(client.simple(), (0, 3));
    assert_eq!(client.read(false, 0, 0, 8192).unwrap(), [9; 8192]);
    drop(client);
}

#[test]
fn a_client_whose_export_is_gone_is_disconnected() {
    let mut rig = Rig::new(Plan::default());
    let (mut gone, mut kept) = (rig.attached("disk1", true), rig.attached("disk0", true));
    replace(&mut rig, 1);
    gone.expect_end();
    assert_eq!(kept.read(true, 0, 0, 100).unwrap(), pattern(1 << 20)[..100]);
    drop((gone, kept));
}

#[test]
fn a_client_in_the_handshake_is_disconnected() {
    let mut rig = Rig::new(Plan::default());
    let mut client = rig.client();
    client.greet(3);
    eventually("it is connected", || rig.traffic().connections() == 1);
    replace(&mut rig, 2);
    client.expect_end();
    assert_eq!(rig.attached("disk0", true).read(true, 0, 0, 100).unwrap(), pattern(1 << 20)[..100]);
}
