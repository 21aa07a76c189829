//! Hosts that a request over HTTP may name: the guard against DNS rebinding.
//!
//! An attacker serves a web page under a name, then changes the name's address to this machine's.
//! The page can then make a visitor's browser send requests to this server, and can read the
//! answers. The browser still sends the attacker's name as `Host`, so requests that name another
//! host are refused. DNS cannot redirect an IP address, so a request may name the address at which
//! its connection arrived.
//!
//! Ports are not compared: a tunnel or a published port changes them, and the attacker's page uses
//! the right port anyway.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The longest name that DNS allows, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// A host in a URL, a `Host` header or a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address; an IPv4 address that is mapped into IPv6 is IPv4.
    Address(IpAddr),
    /// A name in lower case, without the dot that may end it.
    Name(String),
}

impl Host {
    /// The host of `host[:port]`, with IPv6 addresses in brackets; `None` where it is malformed.
    pub fn of_authority(authority: &[u8]) -> Option<Host> {
        let authority = std::str::from_utf8(authority).ok()?.trim_ascii();
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Host::Address(IpAddr::V6(address.parse::<Ipv6Addr>().ok()?).to_canonical()), port)
            }
            None => {
                let end = authority.find(':').unwrap_or(authority.len());
                let (host, port) = authority.split_at(end);
                (Host::of_name(host)?, port)
            }
        };
        let digits = port.strip_prefix(':').unwrap_or_default();
        let is_port = port.is_empty()
            || port.starts_with(':')
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits.is_empty() || digits.parse::<u16>().is_ok());
        is_port.then_some(host)
    }

    /// Whether a request that arrived at the address `local` may name this host: the loopback,
    /// `local` itself, the machine's name, or one of `names`.
    pub fn is_own(&self, local: IpAddr, names: &[Host]) -> bool {
        let is_known = match self {
            Host::Address(address) => address.is_loopback() || *address == local.to_canonical(),
            Host::Name(name) => name == "localhost" || Host::of_machine().as_ref() == Some(self),
        };
        is_known || names.contains(self)
    }

    /// The machine's host name. It can change, so it is read for every request.
    pub fn of_machine() -> Option<Host> {
        Host::of_name(rustix::system::uname().nodename().to_str().ok()?)
    }

    /// A name, or an IPv4 address.
    fn of_name(text: &str) -> Option<Host> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = name.parse() {
            return Some(Host::Address(IpAddr::V4(address)));
        }
        // Host names may not contain an underscore, but names of services may.
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_name_byte);
        is_name.then(|| Host::Name(name.to_ascii_lowercase()))
    }
}

impl FromStr for Host {
    type Err = String;

    /// A name or an address as in a configuration: without a port; IPv6 with or without brackets.
    fn from_str(text: &str) -> Result<Host, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let address = bare.parse().ok().map(|address: IpAddr| Host::Address(address.to_canonical()));
        address.or_else(|| Host::of_name(text)).ok_or_else(|| {
            format!("\"{text}\" is no host; expected a name or an IP address without a port, such as \"octavo.example.org\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_parsed_with_and_without_a_port_and_malformed_ones_are_none() {
        let name = |name: &str| Some(Host::Name(name.into()));
        let address = |address: &str| Some(Host::Address(address.parse().unwrap()));
        for (authority, host) in [
            ("localhost", name("localhost")),
            ("LocalHost.:9187", name("localhost")),
            ("a_service.default.svc:", name("a_service.default.svc")),
            (" 127.0.0.1:9187\t", address("127.0.0.1")),
            ("127.0.0.1.", address("127.0.0.1")),
            ("[::1]", address("::1")),
            ("[::ffff:127.0.0.1]:65535", address("127.0.0.1")),
            // A name, although some resolvers read the number as 127.0.0.1.
            ("2130706433", name("2130706433")),
            ("", None),
            (":9187", None),
            (".", None),
            ("::1", None),
            ("[::1", None),
            ("[::1]9187", None),
            ("[fe80::1%25eth0]:1", None),
            ("[127.0.0.1]", None),
            ("localhost:+80", None),
            ("localhost:http", None),
            ("localhost:65536", None),
            ("localhost:1:2", None),
            ("user@localhost", None),
            ("localhost/", None),
            ("a b", None),
            ("caf\u{e9}", None),
        ] {
            assert_eq!(Host::of_authority(authority.as_bytes()), host, "{authority}");
        }
        assert_eq!(Host::of_authority(b"\xff"), None);
        assert_eq!(Host::of_authority(&[b'x'; NAME_BYTES_MAX + 1]), None);
    }

    #[test]
    fn a_server_accepts_its_own_addresses_and_names_and_no_others() {
        let listed: Vec<Host> =
            ["Octavo.Example.org", "fd00::1", "192.0.2.1"].map(|host| host.parse().unwrap()).to_vec();
        let is_own = |authority: &str, local: &str| {
            Host::of_authority(authority.as_bytes()).unwrap().is_own(local.parse().unwrap(), &listed)
        };
        let machine = rustix::system::uname().nodename().to_str().unwrap().to_owned();
        for own in [
            "localhost:1",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
            "10.0.0.5:9187",
            &machine,
            "octavo.example.org.:80",
            "[fd00:0::1]",
            "192.0.2.1",
        ] {
            assert!(is_own(own, "::ffff:10.0.0.5"), "{own}");
        }
        for foreign in
            ["evil.example", "10.0.0.6", "[::2]", "localhost.evil.example", "example.org", "0.0.0.0"]
        {
            assert!(!is_own(foreign, "10.0.0.5"), "{foreign}");
        }
        for wrong in ["octavo:9187", "http://octavo", "", "*"] {
            assert!(wrong.parse::<Host>().unwrap_err().contains("without a port"), "{wrong}");
        }
    }
}
