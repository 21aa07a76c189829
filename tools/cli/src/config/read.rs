//! Reads a configuration: the file, its TOML, and the sections.
//!
//! serde stops at the first problem of a section. The reader then removes the wrong key and reads
//! the section again, until nothing else is wrong. One run therefore reports all problems.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::mount::MountSection;
use super::source::{Problem, Source};
use super::{Config, check, tls};
use crate::error::Error;
use crate::{suggest, units};

/// The largest configuration that is read; a larger one is refused.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// How many wrong array elements of a section are reported one by one: for each of them, the
/// section is read again.
const ELEMENTS_MAX: usize = 50;

/// The required keys: section, key, and an example of its value.
const REQUIRED: [(&str, &str, &str); 17] = [
    ("", "cache", "[cache] with memory_max = \"32MiB\""),
    ("", "partition", "[[partition]] with name = \"vm1\""),
    ("", "export", "[[export]] with name, path and partition"),
    ("", "listen", "[listen] with nbd = \"unix:/run/octavo/nbd.sock\""),
    ("cache", "memory_max", "memory_max = \"32MiB\""),
    ("group", "name", "name = \"host\", for partitions such as \"host/vm1\""),
    ("partition", "name", "name = \"vm1\""),
    ("share", "name", "name = \"debian\""),
    ("share", "partition", "partition = \"bases\", the name of a [[partition]]"),
    ("export", "name", "name = \"vm1\", what a client asks for"),
    ("export", "path", "path = \"/var/lib/images/vm1.raw\""),
    ("export", "partition", "partition = \"vm1\", the name of a [[partition]]"),
    ("mount", "source", "source = \"/srv/data\", the directory whose files are cached"),
    ("mount", "path", "path = \"/mnt/data\", where it is mounted"),
    ("mount", "partition", "partition = \"files\", the name of a [[partition]]"),
    ("mount.tenant", "partition", "partition = \"homes\", the name of a [[partition]]"),
    ("listen", "nbd", "nbd = \"unix:/run/octavo/nbd.sock\""),
];

impl Config {
    /// Reads a file. The error lists all problems.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let name = path.display().to_string();
        let text = text(path).map_err(|why| Error::Config(vec![format!("{name}: {why}")]))?;
        Config::parse(Source::new(name, text))
    }

    /// Reads a text. The error lists all problems.
    pub fn parse(source: Source) -> Result<Config, Error> {
        let text = source.text.clone();
        let mut reader = Reader { source, problems: Vec::new(), is_whole: true, has_only_mounts: false };
        let config = match table(&text) {
            Ok(table) => reader.config(table),
            Err(problems) => {
                reader.problems = problems;
                None
            }
        };
        let Reader { source, mut problems, .. } = reader;
        if let Some(config) = &config {
            check::check(config, &mut problems);
        }
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(Error::Config(source.lines(problems))),
        }
    }
}

/// Reads the text of a configuration: a regular file, or a pipe such as `<(sed ..)` of a shell. The
/// error is the rest of a sentence that begins with the path.
fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let kind = std::fs::metadata(path).map_err(unreadable)?.file_type();
    let mut options = std::fs::File::options();
    options.read(true);
    if kind.is_fifo() {
        log::info!("{}: reading the configuration from a pipe, until its writer closes it", path.display());
    } else if kind.is_dir() {
        return Err("is a directory; expected a TOML file".into());
    } else if kind.is_file() {
        // A read of a procfs file may block for events instead of ending.
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    } else {
        return Err("is a device or a socket; expected a TOML file".into());
    }
    let file = options.open(path).map_err(unreadable)?;
    // The length that the kernel reports for a pipe or a procfs file is 0: read to the end.
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(format!(
            "is no configuration: it is larger than the limit, {}",
            units::human_bytes(TEXT_BYTES_MAX)
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (at, text) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = text[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("is no configuration: byte {at}, on line {line}, is not UTF-8")
    })
}

/// Reads one section that no file contains: its name, and the keys and values of a command line.
/// Each problem is a line such as `export.path: sentence`.
pub fn section<T: DeserializeOwned>(
    kind: &str,
    name: &str,
    values: &[(String, String)],
) -> Result<T, Vec<String>> {
    let mut text = format!("[[{kind}]]\nname = {}\n", quoted(name));
    for (key, value) in values {
        let is_bare = BARE.contains(&key.as_str()) && value.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let value = if is_bare && !value.is_empty() { value.clone() } else { quoted(value) };
        text += &format!("{} = {value}\n", quoted(key));
    }
    let messages = |problems: Vec<Problem>| problems.into_iter().map(|problem| problem.message).collect();
    let mut table = table(&text).map_err(messages)?;
    let mut reader = Reader {
        source: Source::new(kind.into(), text.clone()),
        problems: Vec::new(),
        is_whole: true,
        has_only_mounts: false,
    };
    let mut sections = reader.many(kind, &mut table);
    match (sections.pop(), reader.problems.is_empty()) {
        (Some(section), true) => Ok(section),
        _ => Err(messages(reader.problems)),
    }
}

/// Keys whose values TOML writes without quotes. (A size may be written as a string.)
const BARE: [&str; 4] = ["read_only", "weight", "node", "record_keep"];

/// A TOML string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Part of the parser's message about values that are nested too deeply. Its later messages are
/// consequences of that one.
const TOO_DEEP: &str = "recurs";

fn table(text: &str) -> Result<DeTable<'_>, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table.into_inner());
    }
    let problem = |error: &toml::de::Error, message| Problem {
        offset: error.span().map_or(0, |span| span.start),
        message,
    };
    Err(match errors.iter().find(|error| error.message().contains(TOO_DEEP)) {
        Some(error) => vec![problem(error, "not readable: the value is nested too deeply".into())],
        None => errors
            .iter()
            .map(|error| problem(error, format!("not TOML: {}", error.message().replace('\n', ", "))))
            .collect(),
    })
}

/// A text whose sections are being read.
struct Reader {
    source: Source,
    problems: Vec<Problem>,
    /// Every partition and export could be read.
    is_whole: bool,
    /// There are mounts and no exports.
    has_only_mounts: bool,
}

impl Reader {
    /// Reads the sections. Returns no configuration if a section that others refer to is missing or
    /// wrong: checks between sections would only guess.
    fn config(&mut self, mut table: DeTable<'_>) -> Option<Config> {
        self.has_only_mounts = table.contains_key("mount") && !table.contains_key("export");
        self.name_keys("", &table);
        self.require("", &table, self.source.text.trim_end().len());
        let cache = self.one("cache", &mut table);
        let groups = self.many("group", &mut table);
        self.is_whole = true;
        let partitions = self.many("partition", &mut table);
        let shares = self.many("share", &mut table);
        let exports = self.many("export", &mut table);
        let mounts = self.mounts(&mut table);
        let tls = table.get_mut("listen").and_then(|listen| match listen.get_mut() {
            DeValue::Table(listen) => listen.remove("tls"),
            _ => None,
        });
        let needs_no_listen = self.has_only_mounts && !table.contains_key("listen");
        let listen = self.one("listen", &mut table).or(needs_no_listen.then(Default::default));
        let tls = tls.and_then(|section| self.section(tls::NAME, section));
        let control = self.one("control", &mut table);
        let serve = self.one("serve", &mut table);
        let s3 = self.one("s3", &mut table);
        let log = self.one("log", &mut table);
        let known = [
            "cache",
            "group",
            "partition",
            "share",
            "export",
            "mount",
            "listen",
            "control",
            "serve",
            "s3",
            "log",
        ];
        for key in table.keys() {
            let message = unknown(key.get_ref(), &known);
            self.problems.push(self.source.problem(key.span().start, message));
        }
        let source = self.source.clone();
        self.is_whole.then_some(())?;
        Some(Config {
            source,
            cache: cache?,
            groups,
            partitions,
            shares,
            exports,
            mounts,
            listen: listen?,
            tls,
            control: control.unwrap_or_default(),
            serve: serve.unwrap_or_default(),
            s3: s3.unwrap_or_default(),
            log: log.unwrap_or_default(),
        })
    }

    /// Removes a section that is one table from `table`, and reads it.
    fn one<T: DeserializeOwned>(&mut self, name: &str, table: &mut DeTable<'_>) -> Option<T> {
        let value = table.remove(name)?;
        self.section(name, value)
    }

    /// Removes a section that is an array of tables from `table`, and reads each element.
    fn many<T: DeserializeOwned>(&mut self, name: &str, table: &mut DeTable<'_>) -> Vec<T> {
        table.remove(name).map_or_else(Vec::new, |value| self.each(name, value))
    }

    /// Reads the mounts, each with its tenants.
    fn mounts(&mut self, table: &mut DeTable<'_>) -> Vec<MountSection> {
        let mut tenants = Vec::new();
        if let Some(value) = table.get_mut("mount")
            && let DeValue::Array(mounts) = value.get_mut()
        {
            for mount in mounts.iter_mut() {
                let DeValue::Table(mount) = mount.get_mut() else { continue };
                let given = mount.remove("tenant");
                tenants.push(given.map_or_else(Vec::new, |given| self.each("mount.tenant", given)));
            }
        }
        let mut mounts: Vec<MountSection> = self.many("mount", table);
        // If a mount could not be read, these are not in step; the configuration is refused then.
        for (mount, tenants) in mounts.iter_mut().zip(tenants) {
            mount.tenants = tenants;
        }
        mounts
    }

    /// Reads each element of an array of tables.
    fn each<T: DeserializeOwned>(&mut self, name: &str, value: Spanned<DeValue<'_>>) -> Vec<T> {
        let start = value.span().start;
        match value.into_inner() {
            DeValue::Array(array) => {
                let sections: Vec<Option<T>> =
                    array.into_iter().map(|section| self.section(name, section)).collect();
                self.is_whole &= sections.iter().all(Option::is_some);
                sections.into_iter().flatten().collect()
            }
            other => {
                let found = other.type_str();
                let message = format!("invalid type: {found}, expected an array of tables, [[{name}]]");
                self.problems.push(self.source.problem(start, message));
                self.is_whole = false;
                Vec::new()
            }
        }
    }

    /// Reads a section and reports all its problems; `None` if a required key is missing or wrong.
    fn section<T: DeserializeOwned>(&mut self, name: &str, mut value: Spanned<DeValue<'_>>) -> Option<T> {
        let start = value.span().start;
        self.source.keys.insert(start, name.to_owned());
        if let DeValue::Table(table) = value.get_ref() {
            self.name_keys(name, table);
            self.require(name, table, start);
        }
        let mut elements_left = ELEMENTS_MAX;
        loop {
            let error = match T::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(section) => return Some(section),
                Err(error) => error,
            };
            let at = error.span().map_or(start, |span| span.start);
            let DeValue::Table(table) = value.get_mut() else {
                self.problems.push(self.source.problem(at, error.message()));
                return None;
            };
            if let Some(known) = known_keys(error.message()) {
                self.remove_unknown(table, &known);
            } else if remove(table, at, elements_left > 0) {
                elements_left = elements_left.saturating_sub(1);
                let rest = if elements_left == 0 { "; the rest of this value was not checked" } else { "" };
                let message = format!("{}{rest}", error.message());
                self.problems.push(self.source.problem(at, message));
            } else {
                if !error.message().starts_with("missing field") {
                    self.problems.push(self.source.problem(at, error.message()));
                }
                // `require` has reported missing fields.
                return None;
            }
        }
    }

    /// Reports the keys that a section cannot have, and removes them.
    fn remove_unknown(&mut self, table: &mut DeTable<'_>, known: &[&str]) {
        let keys = table.keys().map(|key| (key.get_ref().to_string(), key.span().start));
        let wrong: Vec<(String, usize)> = keys.filter(|(key, _)| !known.contains(&key.as_str())).collect();
        for (key, at) in wrong {
            table.remove(key.as_str());
            self.problems.push(self.source.problem(at, unknown(&key, known)));
        }
    }

    /// Records where keys and their values begin, for messages.
    fn name_keys(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let dotted = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
            self.source.keys.insert(value.span().start, dotted.clone());
            self.source.keys.insert(key.span().start, dotted);
        }
    }

    /// Reports the required keys that a section lacks.
    fn require(&mut self, section: &str, table: &DeTable<'_>, offset: usize) {
        for (_, key, example) in REQUIRED.iter().filter(|(of, ..)| *of == section) {
            let is_shared = (section, *key) == ("export", "partition") && table.contains_key("share");
            let is_for_exports = matches!((section, *key), ("", "export" | "listen") | ("listen", "nbd"));
            let is_needless = is_shared || is_for_exports && self.has_only_mounts;
            if !table.contains_key(*key) && !is_needless {
                let dot = if section.is_empty() { "" } else { "." };
                let message = format!("{section}{dot}{key}: missing; for example {example}");
                self.problems.push(Problem { offset, message });
            }
        }
    }
}

/// Removes the key whose value includes the byte offset `at`. If the value is an array and
/// `only_element` is set, removes only the element at the offset. Returns false if no value
/// includes the offset.
fn remove<'t>(table: &mut DeTable<'t>, at: usize, only_element: bool) -> bool {
    let is_here = |value: &Spanned<DeValue<'t>>| value.span().contains(&at);
    let Some((key, value)) = table.iter_mut().find(|(_, value)| is_here(value)) else { return false };
    if let DeValue::Array(array) = value.get_mut()
        && only_element
        && array.len() > 1
        && array.iter().any(is_here)
    {
        *array = array.iter().filter(|item| !is_here(item)).cloned().collect();
    } else {
        let key = key.get_ref().to_string();
        table.remove(key.as_str());
    }
    true
}

/// The keys that a section can have, if this is serde's message about an unknown key.
fn known_keys(message: &str) -> Option<Vec<&str>> {
    let known = message.strip_prefix("unknown field ")?.rsplit_once(", expected ")?.1;
    Some(known.split('`').skip(1).step_by(2).collect())
}

fn unknown(key: &str, known: &[&str]) -> String {
    format!("no such key; {}", suggest::of(key, known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[test]
    fn odd_paths_survive_the_configuration() {
        assert_eq!(quoted("/a b/\"c\"\\\u{7}"), "\"/a b/\\\"c\\\"\\\\\\u0007\"");
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Sections {
        one: Option<u8>,
        two: Option<u8>,
    }

    #[test]
    fn the_known_keys_are_read_from_serdes_message() {
        let error = toml::from_str::<Sections>("\"o`, expected `x\" = 1").unwrap_err();
        assert_eq!(known_keys(error.message()).unwrap(), ["one", "two"]);
        let error = toml::from_str::<Sections>("one = true").unwrap_err();
        assert_eq!(known_keys(error.message()), None);
    }
}
