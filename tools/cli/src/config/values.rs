//! The values that keys take: sizes, bounded numbers, and strings that are parsed.

use std::fmt::{self, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;
use octavo::disk::Engine;
use octavo::numa::{NumaMode, TopologySource};
use octavo::{CacheMode, PolicyName};
use octavo_block::Address;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use toml::Spanned;

use crate::control::host::Host;
use crate::logger::Format;
use crate::{logger, order, suggest, units};

/// A size in bytes: `"32MiB"`, or a plain number.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

/// A number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug)]
pub struct Number<const LEAST: u64, const MOST: u64>(pub u64);

/// A string that is parsed to a `T`.
#[derive(Clone, Debug)]
pub struct Parsed<T>(pub T);

/// One string or an array of them, each parsed to a `T`.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<Spanned<Parsed<T>>>);

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List(Vec::new())
    }
}

/// What a string can be parsed to.
pub trait Parse: Sized {
    /// The values that are allowed, for messages.
    fn expected() -> String;

    /// Parses a string; the error is a sentence.
    fn parse(text: &str) -> Result<Self, String>;
}

/// Parses a string; the error is a sentence.
type FromText<T> = fn(&str) -> Result<T, String>;

/// Visits a value that may be a string, a number, or either; a kind that is not allowed is `None`.
struct Scalar<T> {
    expected: String,
    text: Option<FromText<T>>,
    number: Option<fn(u64) -> Option<T>>,
}

impl<T> Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        match self.text {
            Some(parse) => parse(text).map_err(E::custom),
            None => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let Some(read) = self.number else {
            return Err(E::invalid_type(Unexpected::Signed(number), &self));
        };
        let value = u64::try_from(number).ok().and_then(read);
        value.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        deserializer.deserialize_any(Scalar {
            expected: units::SIZE_SHAPE.into(),
            text: Some(|text| units::size_bytes(text).map(Bytes)),
            number: Some(|bytes| Some(Bytes(bytes))),
        })
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar {
            expected: format!("a number from {LEAST} to {MOST}"),
            text: None,
            number: Some(|number| (LEAST..=MOST).contains(&number).then_some(Number(number))),
        })
    }
}

impl<'de, T: Parse> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed<T>, D::Error> {
        deserializer.deserialize_any(Scalar {
            expected: T::expected(),
            text: Some(|text| T::parse(text).map(Parsed)),
            number: None,
        })
    }
}

impl<'de, T: Parse> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        let read = Spanned::<OneOrMany<T>>::deserialize(deserializer)?;
        let span = read.span();
        Ok(List(match read.into_inner() {
            OneOrMany::One(one) => vec![Spanned::new(span, Parsed(one))],
            OneOrMany::Many(many) => many,
        }))
    }
}

enum OneOrMany<T> {
    One(T),
    Many(Vec<Spanned<Parsed<T>>>),
}

struct ListVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Parse> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany<T>, D::Error> {
        deserializer.deserialize_any(ListVisitor(std::marker::PhantomData))
    }
}

impl<'de, T: Parse> Visitor<'de> for ListVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or an array of them", T::expected())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
        T::parse(text).map(OneOrMany::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<OneOrMany<T>, A::Error> {
        let mut many = Vec::new();
        while let Some(item) = array.next_element()? {
            many.push(item);
        }
        match many.is_empty() {
            true => Err(A::Error::custom(format!("the array is empty; expected {}", T::expected()))),
            false => Ok(OneOrMany::Many(many)),
        }
    }
}

/// Implements [`Parse`] for the words of a key.
macro_rules! words {
    ($($type:ty, $key:literal: $words:expr;)*) => {
        $(impl Parse for $type {
            fn expected() -> String {
                format!("one of {}", $words.map(|(name, _)| name).join(", "))
            }

            fn parse(text: &str) -> Result<$type, String> {
                suggest::named($key, text, &$words, |(name, _)| name).map(|(_, meant)| *meant)
            }
        })*
    };
}

/// Implements [`Parse`] for other strings: what is expected, and how a string is parsed.
macro_rules! strings {
    ($($type:ty: $expected:expr, $parse:expr;)*) => {
        $(impl Parse for $type {
            fn expected() -> String {
                $expected.to_owned()
            }

            fn parse(text: &str) -> Result<$type, String> {
                let parse: fn(&str) -> Result<$type, String> = $parse;
                parse(text)
            }
        })*
    };
}

/// The path of the control socket, from `unix:/path`.
#[derive(Clone, Debug)]
pub struct ControlPath(pub PathBuf);

/// Which pages a recording samples: those whose sample number lies below this, of 65536.
#[derive(Clone, Copy, Debug)]
pub struct Sample(pub u32);

/// The file mode of sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketMode(pub u32);

/// A group of the system, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Group(pub u32);

/// What the bytes of an export are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// A raw disk, whatever its first bytes look like.
    Raw,
}

/// How clients reach an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// By name, at the addresses of `listen.nbd`.
    Nbd,
    /// By a unix socket of its own, as the disk of a virtual machine.
    VhostUser(PathBuf),
}

const ATTACH: &str = "\"nbd\" or \"vhost-user:/run/octavo/vm1.sock\"";
const SOCKET_MODE: &str = "an octal mode that lets the server itself connect, such as \"0660\"";
const CONTROL: &str = "\"unix:/run/octavo/control.sock\"";
const METRICS: &str = "an address such as \"127.0.0.1:9187\"";

words! {
    Engine, "io": [("auto", Engine::Auto), ("uring", Engine::Uring), ("blocking", Engine::Blocking)];
    NumaMode, "numa": NumaMode::ALL.map(|mode| (mode.name(), mode));
    PolicyName, "policy": PolicyName::ALL.map(|policy| (policy.name(), policy));
    CacheMode, "cache_mode":
        [CacheMode::Writethrough, CacheMode::Writeback].map(|mode| (mode.name(), mode));
    Format, "format": [("plain", Format::Plain), ("json", Format::Json)];
    DiskFormat, "format": [("raw", DiskFormat::Raw)];
    LevelFilter, "level": logger::LEVELS.map(|(name, level, _)| (name, level));
}

strings! {
    TopologySource: "auto, or nodes times cores such as \"2x4\"", |text| text.parse();
    Duration: units::DURATION_SHAPE, |text| match units::duration(text)? {
        Duration::ZERO => Err("the duration must be at least 1ms".into()),
        duration => Ok(duration),
    };
    Address: "\"unix:/run/octavo/nbd.sock\" or \"tcp:127.0.0.1:10809\"", |text| {
        text.parse().map_err(|error: octavo_block::Error| error.to_string())
    };
    Attach: ATTACH, |text| match text.split_once(':') {
        None if text == "nbd" => Ok(Attach::Nbd),
        Some(("vhost-user", path)) if path.starts_with('/') => Ok(Attach::VhostUser(path.into())),
        _ => Err(format!("expected {ATTACH}")),
    };
    SocketMode: SOCKET_MODE, |text| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & 0o600 == 0o600 && *mode <= 0o777);
        mode.map(SocketMode).ok_or_else(|| format!("expected {SOCKET_MODE}"))
    };
    Group: "the name or the number of a group", group;
    Host: "a host such as \"octavo.example.org\"", |text| text.parse();
    ControlPath: CONTROL, |text| {
        let path = text.strip_prefix("unix:").filter(|path| path.starts_with('/'));
        let path = path.map(|path| ControlPath(path.into()));
        path.ok_or_else(|| format!("the control socket is a unix socket; expected {CONTROL}"))
    };
    SocketAddr: METRICS, |text| {
        text.parse().map_err(|_| format!("metrics are served over HTTP; expected {METRICS}"))
    };
    Sample: order::SAMPLE_SHAPE, |text| order::sample(text).map(Sample);
}

/// The file that lists the groups of the system.
const GROUPS: &str = "/etc/group";

/// Finds a group, by its name or its number. The error is a sentence.
fn group(text: &str) -> Result<Group, String> {
    if let Ok(number) = text.parse() {
        return Ok(Group(number));
    }
    let list = std::fs::read_to_string(GROUPS).map_err(|error| format!("{GROUPS}: {error}"))?;
    let number = list.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
    });
    number.map(Group).ok_or_else(|| format!("no group is called \"{text}\" in {GROUPS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        assert_eq!(group("root").unwrap().0, 0);
        assert_eq!(group("4294967294").unwrap().0, u32::MAX - 1);
        assert_eq!(group("no such").unwrap_err(), "no group is called \"no such\" in /etc/group");
    }

    #[test]
    fn a_mode_is_octal_and_admits_the_server() {
        assert_eq!(SocketMode::parse("0660").unwrap().0, 0o660);
        for wrong in ["", "660x", "0060", "02660", "rw"] {
            assert!(SocketMode::parse(wrong).is_err(), "{wrong}");
        }
    }
}
