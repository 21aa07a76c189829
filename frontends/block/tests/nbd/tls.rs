//! TLS: the server accepts only valid certificates, discards everything that was negotiated before
//! the handshake, and survives broken and slow clients.

use crate::certificates::{Authority, Certified, Use};
use crate::client::*;
use crate::random::Random;
use crate::rig::{Plan, Rig, path_of, pattern};
use octavo_block::{Address, Error, Limits, Pem, Tls, TlsPart};
use rustls::ClientConnection;
use std::time::Duration;

const TLS_REQD: u32 = 0x8000_0005;
const STARTTLS: u32 = 5;

/// A server whose TCP clients must use TLS with a certificate of the authority.
fn rig(authority: &Authority, limits: Limits) -> Rig {
    Rig::new(Plan { tls: Some(authority.tls(true)), limits, ..Plan::default() })
}

#[test]
fn without_tls_every_option_is_refused_except_starttls_and_abort() {
    let rig = rig(&Authority::new("ca"), Limits::default());
    let mut client = rig.tcp_client();
    client.greet(3);
    for option in [3, 6, 7, 8, 9, 10, 11, 12345] {
        client.expect_option_reply(option, &info_data(b"disk0", &[]), TLS_REQD);
    }
    client.expect_option_reply(8, &[7; 20_000], TLS_REQD);
    client.expect_option_reply(STARTTLS, b"x", INVALID);
    client.expect_option_reply(2, b"", ACK);
    client.expect_end();

    let mut client = rig.tcp_client();
    client.greet(3);
    client.option(1, b"disk0");
    client.expect_end();
}

#[test]
fn a_unix_socket_offers_tls_and_does_not_demand_it() {
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits::default());
    assert_eq!(rig.attached("disk0", false).read_simple(0, 512).unwrap(), rig.image(0)[..512]);
    let own = authority.sign(Use::Client);
    let mut client = rig.client().start_tls(&authority.client(Some(&own))).unwrap();
    client.enter("disk0", true);
    assert_eq!(client.read_structured(0, 0, 512).unwrap(), rig.image(0)[..512]);
    rig.server().set_tls(None).unwrap();
    let mut client = rig.client();
    client.greet(3);
    client.expect_option_reply(STARTTLS, b"", UNSUP);
    client.enter_greeted("disk0", false);
}

/// Loopback addresses need TLS only if the server requires it.
#[test]
fn optional_tls_on_loopback_lets_plain_clients_in() {
    let authority = Authority::new("ca");
    let rig = Rig::new(Plan { tls: Some(authority.tls(false)), ..Plan::default() });
    let mut plain = rig.tcp_client();
    plain.enter("disk0", true);
    let own = authority.sign(Use::Client);
    let mut secure = rig.tcp_client().start_tls(&authority.client(Some(&own))).unwrap();
    secure.enter("disk0", true);
    assert_eq!(secure.put(0, 1, 0, &[9; 512]), 0);
    assert_eq!(plain.read_structured(0, 0, 512).unwrap(), [9; 512]);
}

#[test]
fn an_address_that_is_not_loopback_needs_tls() {
    let authority = Authority::new("ca");
    let rig = Rig::new(Plan::default());
    let remote: [Address; 1] = ["tcp:0.0.0.0:0".parse().unwrap()];
    let refused = rig.server().listen(&remote).unwrap_err().to_string();
    assert!(refused.contains("0.0.0.0") && refused.contains("TLS"), "{refused}");
    // Loopback clients need no TLS, but clients of this address do.
    rig.server().set_tls(Some(authority.tls(false))).unwrap();
    rig.server().listen(&remote).unwrap();
    let refused = rig.server().set_tls(None).unwrap_err();
    assert!(matches!(refused, Error::Address { .. }), "{refused}");
    let Address::Tcp(address) = rig.server().addresses()[2] else { unreachable!() };
    let there = || Client::tcp(([127, 0, 0, 1], address.port()).into());
    let mut plain = there();
    plain.greet(3);
    plain.expect_option_reply(3, b"", TLS_REQD);
    let own = authority.sign(Use::Client);
    there().start_tls(&authority.client(Some(&own))).unwrap().enter("disk0", false);
}

#[test]
fn clients_without_a_valid_certificate_are_refused() {
    let (authority, stranger) = (Authority::new("ca"), Authority::new("ca"));
    let rig = rig(&authority, Limits::default());
    let (expired, foreign) = (authority.sign(Use::ExpiredClient), stranger.sign(Use::Client));
    let server = authority.sign(Use::Server);
    for own in [None, Some(&expired), Some(&foreign), Some(&server)] {
        let started = rig.tcp_client().start_tls(&authority.client(own));
        // With TLS 1.3 a client learns only from its first read that the server refuses it.
        let entered = started.and_then(|mut client| client.try_receive(1));
        let refused = entered.unwrap_err();
        assert!(refused.to_string().contains("alert"), "{refused}");
    }
    // Here the client refuses the server, and sends an alert with the reason.
    assert!(rig.tcp_client().start_tls(&stranger.client(None)).is_err());
    let own = authority.sign(Use::Client);
    rig.tcp_client().start_tls(&authority.client(Some(&own))).unwrap().enter("disk0", false);
}

#[test]
fn revoked_clients_are_refused_and_without_an_authority_all_are_accepted() {
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits::default());
    let (own, server) = (authority.sign(Use::Client), authority.sign(Use::Server));
    let crl = authority.revocations();
    let (certificate, key) = (server.certificate.as_bytes(), server.key.as_bytes());
    let ca = authority.certificate.as_bytes();
    let pem = Pem { certificate, key, client_ca: Some(ca), client_crl: Some(crl.as_bytes()) };
    rig.server().set_tls(Some(Tls::new(&pem, true).unwrap())).unwrap();
    let revoked = rig.tcp_client().start_tls(&authority.client(Some(&own)));
    assert!(revoked.and_then(|mut client| client.try_receive(1)).is_err());

    let pem = Pem { client_ca: None, client_crl: None, ..pem };
    rig.server().set_tls(Some(Tls::new(&pem, true).unwrap())).unwrap();
    rig.tcp_client().start_tls(&authority.client(None)).unwrap().enter("disk0", false);
}

/// A renewal: clients that are connected stay, new ones see the new certificate.
#[test]
fn new_certificates_serve_new_clients_and_keep_old_connections() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let rig = rig(&old, Limits::default());
    let (old_own, new_own) = (old.sign(Use::Client), new.sign(Use::Client));
    let mut before = rig.tcp_client().start_tls(&old.client(Some(&old_own))).unwrap();
    before.enter("disk0", true);
    rig.server().set_tls(Some(new.tls(true))).unwrap();
    assert!(rig.tcp_client().start_tls(&old.client(Some(&old_own))).is_err());
    rig.tcp_client().start_tls(&new.client(Some(&new_own))).unwrap().enter("disk0", true);
    assert_eq!(before.read_structured(0, 0, 64).unwrap(), rig.image(0)[..64]);
}

#[test]
fn starttls_discards_everything_that_was_negotiated_before() {
    let authority = Authority::new("ca");
    let rig = Rig::new(Plan { tls: Some(authority.tls(false)), ..Plan::default() });
    let own = authority.sign(Use::Client);
    let mut client = rig.tcp_client();
    client.greet(3);
    client.expect_option_reply(8, b"", ACK);
    client.expect_option_reply(STARTTLS, b"", ACK);
    let mut client = client.handshake(&authority.client(Some(&own))).unwrap();
    client.expect_option_reply(STARTTLS, b"", INVALID);
    let (_, flags) = client.enter("disk0", false);
    assert_eq!(flags & 1 << 7, 0, "no DF: structured replies were forgotten");
    assert_eq!(client.read_simple(0, 512).unwrap(), rig.image(0)[..512]);
}

/// An attacker between client and server adds plain bytes after STARTTLS. The server must not take
/// them for bytes of the session.
#[test]
fn plain_bytes_that_follow_starttls_end_the_connection() {
    let rig = rig(&Authority::new("ca"), Limits::default());
    let mut client = rig.tcp_client();
    client.greet(3);
    client.send(&[option_bytes(STARTTLS, b""), option_bytes(7, &info_data(b"disk0", &[]))].concat());
    client.expect_end();
}

#[test]
fn garbage_and_a_cut_hello_end_the_handshake() {
    let rig = rig(&Authority::new("ca"), Limits::default());
    let accepted = || {
        let mut client = rig.tcp_client();
        client.greet(3);
        client.expect_option_reply(STARTTLS, b"", ACK);
        client
    };
    for garbage in [vec![0; 100], b"GET / HTTP/1.0\r\n\r\n".to_vec(), vec![0xff; 100_000]] {
        let mut client = accepted();
        // The server may have hung up already.
        let _ = client.try_send(&garbage);
        // An alert at most, and the end.
        assert!(client.rest().len() < 64);
    }
    // The header of a handshake record of 512 bytes, the first 4 of a ClientHello, and no more.
    let mut client = accepted();
    client.send(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]);
    client.close_sending_side();
    assert!(client.rest().len() < 64);
    // A handshake message that never ends: 64 KiB are enough.
    let mut client = accepted();
    let record = [&[0x16, 3, 3, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &vec![0; 0x4000 - 4]].concat();
    let sent = (0..100).take_while(|_| client.try_send(&record).is_ok()).count();
    assert!(sent < 100 || client.rest().len() < 64);
}

#[test]
fn mutated_hellos_harm_no_other_client() {
    let seed = crate::random::seed("mutated_hellos_harm_no_other_client");
    let mut random = Random::new(seed);
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits::default());
    let own = authority.sign(Use::Client);
    let settings = authority.client(Some(&own));
    for _ in 0..300 {
        let name = "localhost".try_into().unwrap();
        let mut hello = Vec::new();
        ClientConnection::new(settings.clone(), name).unwrap().write_tls(&mut hello).unwrap();
        for _ in 0..1 + random.below(4) {
            let at = random.below(hello.len() as u64) as usize;
            match random.below(4) {
                0 => hello.truncate(at),
                1 => hello.insert(at, random.next_u64() as u8),
                _ => hello[at] = random.next_u64() as u8,
            }
            if hello.is_empty() {
                break;
            }
        }
        let mut client = rig.tcp_client();
        client.greet(3);
        client.expect_option_reply(STARTTLS, b"", ACK);
        client.send(&hello);
        client.close_sending_side();
        client.rest();
    }
    rig.tcp_client().start_tls(&settings).unwrap().enter("disk0", false);
}

#[test]
fn the_handshake_time_bounds_the_handshake_of_tls() {
    let limits = Limits { handshake_time: Duration::from_millis(400), ..Limits::default() };
    let rig = rig(&Authority::new("ca"), limits);
    let mut slow = rig.tcp_client();
    slow.greet(3);
    slow.expect_option_reply(STARTTLS, b"", ACK);
    // A byte every 50 ms. This would last 25 s if each byte restarted the handshake's time.
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    let sent = hello.iter().take_while(|&&byte| {
        std::thread::sleep(Duration::from_millis(50));
        slow.try_send(&[byte]).is_ok()
    });
    let sent = sent.count();
    assert!(sent < hello.len() / 2, "{sent} bytes were taken: a byte must not begin the time again");
}

#[test]
fn the_longest_requests_and_many_in_flight_arrive_whole() {
    const LEN: usize = 32 << 20;
    let authority = Authority::new("ca");
    let rig = Rig::new(Plan { lens: vec![LEN as u64], tls: Some(authority.tls(true)), ..Plan::default() });
    let own = authority.sign(Use::Client);
    let settings = authority.client(Some(&own));
    for structured in [false, true] {
        let mut client = rig.tcp_client().start_tls(&settings).unwrap();
        client.enter("disk0", structured);
        let image: Vec<u8> = pattern(LEN).iter().map(|byte| byte ^ u8::from(structured)).collect();
        assert_eq!(client.put(0, 1, 0, &image), 0);
        assert!(client.read(structured, 0, 0, LEN as u32).unwrap() == image);
        for cookie in 0..1000 {
            client.request(0, READ, cookie, 4096 * cookie, 4096);
        }
        for _ in 0..1000 {
            let (cookie, bytes) = match client.reply() {
                Reply::Simple { error, cookie } => {
                    assert_eq!(error, 0);
                    (cookie, client.receive(4096))
                }
                Reply::Chunk(chunk) => (chunk.cookie, chunk.payload[8..].to_vec()),
            };
            let at = 4096 * cookie as usize;
            assert!(bytes == image[at..at + 4096], "request {cookie}");
        }
    }
}

#[test]
fn keys_may_be_updated_and_a_flood_of_updates_ends_the_connection() {
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits::default());
    let own = authority.sign(Use::Client);
    let mut client = rig.tcp_client().start_tls(&authority.client(Some(&own))).unwrap();
    client.enter("disk0", false);
    for round in 0..50 {
        client.update_keys();
        assert_eq!(client.put(0, round, 0, &[round as u8; 4096]), 0);
        assert_eq!(client.read_simple(0, 4096).unwrap(), [round as u8; 4096]);
    }
    for _ in 0..1000 {
        client.update_keys();
    }
    let flooded = client.try_send(&request_bytes(0, READ, 1, 0, 1)).and_then(|()| client.try_receive(1));
    assert!(flooded.is_err());
}

/// Its replies stay in the queue of the server, and its requests are no longer read.
#[test]
fn a_client_that_stops_reading_gets_all_replies_later_and_delays_no_other_client() {
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits { requests_max: 16, ..Limits::default() });
    let own = authority.sign(Use::Client);
    let settings = authority.client(Some(&own));
    let mut silent = rig.tcp_client().start_tls(&settings).unwrap();
    silent.enter("disk0", false);
    const REQUESTS: u64 = 200;
    // The requests fit into the buffers of the sockets; their replies, 100 MiB, do not.
    for cookie in 0..REQUESTS {
        silent.request(0, READ, cookie, 0, 512 << 10);
    }
    let mut other = rig.tcp_client().start_tls(&settings).unwrap();
    other.enter("disk0", false);
    for round in 0..100 {
        assert_eq!(other.put(0, round, 512 << 10, &[round as u8; 4096]), 0);
    }
    let image = rig.image(0);
    for _ in 0..REQUESTS {
        let (error, _) = silent.simple();
        assert_eq!(error, 0);
        assert!(silent.receive(512 << 10) == image[..512 << 10]);
    }
}

/// A stop of the server, the goodbye, and the end of the stream in the middle of a write.
#[test]
fn both_sides_may_end_a_session() {
    let authority = Authority::new("ca");
    let rig = rig(&authority, Limits::default());
    let own = authority.sign(Use::Client);
    let enter = || {
        let mut client = rig.tcp_client().start_tls(&authority.client(Some(&own))).unwrap();
        client.enter("disk0", false);
        client
    };
    let mut polite = enter();
    polite.request(0, READ, 5, 0, 512);
    polite.request(0, DISC, 0, 0, 0);
    assert_eq!(polite.simple(), (0, 5));
    polite.receive(512);
    // An end without close_notify would be an error here.
    polite.expect_end();

    let mut cut = enter();
    cut.send(&write_bytes(0, 6, 0, &[1; 4096])[..2000]);
    cut.close_sending_side();
    assert_eq!(cut.status().1, 6);
    cut.expect_end();

    let mut stopped = enter();
    rig.server().shutdown(Duration::from_secs(5));
    stopped.expect_end();
}

#[test]
fn wrong_certificates_are_named() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let good = authority.sign(Use::Server);
    let (ca, crl) = (authority.certificate.clone(), authority.revocations());
    let tls = |certificate: &str, key: &str, ca: &str, crl: &str| {
        let pem = Pem {
            certificate: certificate.as_bytes(),
            key: key.as_bytes(),
            client_ca: Some(ca.as_bytes()),
            client_crl: Some(crl.as_bytes()),
        };
        match Tls::new(&pem, true) {
            Err(Error::Tls { part, reason }) => Some((part, reason)),
            other => other.map(|_| None).unwrap(),
        }
    };
    assert_eq!(tls(&good.certificate, &good.key, &ca, &crl), None);
    let Certified { key: stranger, .. } = other.sign(Use::Server);
    let cut = |text: &str| text[..text.len() / 2].to_owned();
    let damaged = |text: &str| text.replacen("M", "!", 1);
    let encrypted = good.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let empty_crl = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    let no_certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    use TlsPart::{Certificate, ClientCa, ClientCrl, Key};
    for (certificate, key, ca, crl, part, what) in [
        ("", &*good.key, &*ca, &*crl, Certificate, "no certificate"),
        (&*good.key, &good.key, &ca, &crl, Certificate, "no certificate"),
        (&*cut(&good.certificate), &good.key, &ca, &crl, Certificate, "damaged"),
        (&*damaged(&good.certificate), &good.key, &ca, &crl, Certificate, "damaged"),
        (no_certificate, &good.key, &ca, &crl, Certificate, ""),
        (&good.certificate, "", &ca, &crl, Key, "no private key"),
        (&good.certificate, &*encrypted, &ca, &crl, Key, "not encrypted"),
        (&good.certificate, no_key, &ca, &crl, Key, "supported: RSA"),
        (&good.certificate, &*stranger, &ca, &crl, Key, "not the key of"),
        (&good.certificate, &good.key, "", &crl, ClientCa, "no certificate"),
        (&good.certificate, &good.key, no_certificate, &crl, ClientCa, ""),
        (&good.certificate, &good.key, &ca, "", ClientCrl, "no list"),
        (&good.certificate, &good.key, &ca, empty_crl, ClientCrl, "not a usable list"),
    ] {
        let (found, reason) = tls(certificate, key, ca, crl).expect(what);
        assert_eq!(found, part, "{reason}");
        assert!(reason.contains(what), "{what:?} is not in {reason:?}");
    }
}

/// The folder of a client, for tools.
fn folder(rig: &Rig, authority: &Authority, own: Option<&Certified>) -> String {
    let folder = path_of(rig, if own.is_some() { "client" } else { "nobody" });
    authority.client_folder(&folder, own);
    folder.to_str().unwrap().into()
}

#[test]
fn libnbd_and_qemu_connect_with_certificates_and_not_without() {
    let authority = Authority::new("ca");
    let lens = vec![8 << 20, 8 << 20];
    let rig = Rig::new(Plan { lens, tls: Some(authority.tls(true)), ..Plan::default() });
    let own = authority.sign(Use::Client);
    let (client, nobody) = (folder(&rig, &authority, Some(&own)), folder(&rig, &authority, None));
    let address = rig.tcp_address();
    let uri = |folder: &str| format!("nbds://localhost:{}/disk0?tls-certificates={folder}", address.port());
    if let Some(output) = crate::tools::run("nbdinfo", &[&uri(&client)]) {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("export-size: 8388608") && text.contains("with TLS"), "{text}");
        assert!(!succeeds("nbdinfo", &[&uri(&nobody)]));
        assert!(!succeeds("nbdinfo", &[&format!("nbd://{address}/disk0")]), "plain");
        let to = path_of(&rig, "to");
        crate::tools::run("nbdcopy", &[&uri(&client), to.to_str().unwrap()]);
        assert!(std::fs::read(&to).unwrap() == pattern(8 << 20));
        let other: Vec<u8> = pattern(8 << 20).iter().map(|byte| !byte).collect();
        std::fs::write(&to, &other).unwrap();
        crate::tools::run("nbdcopy", &["--flush", to.to_str().unwrap(), &uri(&client)]);
        assert!(rig.image(0) == other);
    }
    let credentials =
        |folder: &str| format!("tls-creds-x509,id=tls0,endpoint=client,dir={folder},verify-peer=on");
    let port = address.port();
    let image = format!("driver=nbd,host=localhost,port={port},export=disk0,tls-creds=tls0");
    let to = path_of(&rig, "copy");
    let arguments = |folder: &str| {
        let words = ["convert", "--object", &credentials(folder), "--image-opts", &image];
        words.into_iter().chain(["-O", "raw", to.to_str().unwrap()]).map(String::from).collect::<Vec<_>>()
    };
    let words = arguments(&client);
    if crate::tools::run("qemu-img", &words.iter().map(String::as_str).collect::<Vec<_>>()).is_some() {
        assert!(std::fs::read(&to).unwrap() == rig.image(0));
        let words = arguments(&nobody);
        assert!(!succeeds("qemu-img", &words.iter().map(String::as_str).collect::<Vec<_>>()));
    }
}

fn succeeds(tool: &str, words: &[&str]) -> bool {
    std::process::Command::new(tool).args(words).output().unwrap().status.success()
}

#[test]
fn a_key_is_not_shown() {
    let shown = format!("{:?}", Authority::new("ca").tls(true));
    assert!(shown.contains("is_required: true") && !shown.contains("key"), "{shown}");
}
