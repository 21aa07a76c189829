//! The sections of a configuration against each other and against the machine's files.
//!
//! Looks at paths and never opens them. What only the engine knows (whether the memory suffices,
//! whether a store can be locked) is asked when the cache is made.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use octavo_block::Address;

use super::source::{Place, Placed, Problem};
use super::{Config, PartitionSection};
use crate::control::tree;
use crate::{suggest, units};

/// The NBD protocol's bound on names and descriptions.
const STRING_BYTES_MAX: usize = 4096;

/// The kernel's bound on the path of a unix socket, less its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Adds every problem of a configuration whose sections were all read.
pub fn check(config: &Config, problems: &mut Vec<Problem>) {
    sizes(config, problems);
    partitions(config, problems);
    recordings(config, problems);
    exports(config, problems);
    paths(config, problems);
    sockets(config, problems);
    control(config, problems);
    groups(config, problems);
}

/// Warns of more memory than the machine has, and of partitions and groups that nothing uses: no
/// mistake, and hardly meant.
pub fn doubtful(config: &Config) {
    let memory_max = &config.cache.memory_max;
    let system = rustix::system::sysinfo();
    let machine = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1)));
    if memory_max.value > machine {
        let (wanted, there) = (units::human_bytes(memory_max.value), units::human_bytes(machine));
        let message = format!("{wanted} is more than the memory of this machine, {there}");
        log::warn!("{}", config.line(&memory_max.place, message));
    }
    for group in &config.groups {
        let name = &group.name.value;
        let is_inside = |partition: &PartitionSection| is_in(&partition.name.value, name);
        if !config.partitions.iter().any(is_inside) {
            let message = format!("no partition is in it: none is called \"{name}/\" and something");
            log::warn!("{}", config.line(&group.name.place, message));
        }
    }
    for partition in &config.partitions {
        if !config.exports.iter().any(|export| export.partition.value == partition.name.value) {
            log::warn!(
                "{}",
                config.line(&partition.name.place, format!("no export uses \"{}\"", partition.name.value))
            );
        }
    }
}

fn sizes(config: &Config, problems: &mut Vec<Problem>) {
    let cache = &config.cache;
    let memory_max = cache.memory_max.value;
    if let Some(page_bytes) = &cache.page_bytes
        && !(page_bytes.value.is_power_of_two() && (4096..=65536).contains(&page_bytes.value))
    {
        problems.push(page_bytes.place.problem(format!(
            "{} is no size of a page; a power of two from 4KiB to 64KiB is expected",
            units::human_bytes(page_bytes.value)
        )));
    }
    let mut fits = |part: &Option<Placed<u64>>, whole: u64, of: &str| {
        if let Some(part) = part
            && part.value > whole
        {
            problems.push(part.place.problem(format!(
                "{} does not fit into {of}, {}",
                units::human_bytes(part.value),
                units::human_bytes(whole)
            )));
        }
    };
    fits(&cache.buffers_max, memory_max, "cache.memory_max");
    for partition in &config.partitions {
        fits(&partition.max, memory_max, "cache.memory_max");
        let most = partition.max.as_ref().map_or(memory_max, |max| max.value);
        fits(&partition.min, most, "this partition's max, or memory_max");
        fits(&partition.low, most, "this partition's max, or memory_max");
        match &partition.max {
            Some(max) => fits(&partition.dirty_max, max.value, "this partition's max"),
            None => fits(&partition.dirty_max, memory_max, "cache.memory_max"),
        }
    }
    // `max` may be more than there is in all: it is a bound. What `min` promises must be there.
    let promised: u128 =
        config.partitions.iter().filter_map(|p| p.min.as_ref()).map(|min| u128::from(min.value)).sum();
    if promised > u128::from(memory_max) {
        problems.push(cache.memory_max.place.problem(format!(
            "{} is less than the partitions' min together, {}",
            units::human_bytes(memory_max),
            units::human_bytes(u64::try_from(promised).unwrap_or(u64::MAX))
        )));
    }
}

/// Whether a partition is in a group.
fn is_in(partition: &str, group: &str) -> bool {
    partition.strip_prefix(group).is_some_and(|rest| rest.starts_with('/'))
}

fn groups(config: &Config, problems: &mut Vec<Problem>) {
    let memory_max = config.cache.memory_max.value;
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for group in &config.groups {
        let name = &group.name;
        printable(name, problems);
        if let Some(first) = seen.insert(&name.value, &name.place) {
            let line = line(config, first);
            problems.push(
                name.place.problem(format!("there is a group \"{}\" already, on line {line}", name.value)),
            );
        }
        let most = group.max.as_ref().map_or(memory_max, |max| max.value.min(memory_max));
        for (part, of) in [(&group.min, "min"), (&group.low, "low")] {
            if let Some(part) = part.as_ref().filter(|part| part.value > most) {
                let (part_bytes, most) = (units::human_bytes(part.value), units::human_bytes(most));
                problems.push(part.place.problem(format!(
                    "{of} of {part_bytes} does not fit into this group's max, or memory_max, {most}"
                )));
            }
        }
        if let Some(max) = &group.max {
            let inside =
                config.partitions.iter().filter(|partition| is_in(&partition.name.value, &name.value));
            let promised = inside.filter_map(|partition| partition.min.as_ref());
            let promised: u128 = promised.map(|min| u128::from(min.value)).sum();
            if promised > u128::from(max.value) {
                problems.push(max.place.problem(format!(
                    "{} is less than the min of the partitions in it together, {}",
                    units::human_bytes(max.value),
                    units::human_bytes(u64::try_from(promised).unwrap_or(u64::MAX))
                )));
            }
        }
    }
}

/// Complains about names and descriptions that would not be shown as they are.
fn printable(name: &Placed<String>, problems: &mut Vec<Problem>) {
    problems.extend(octavo::check_name(&name.value).err().map(|why| name.place.problem(why)));
}

fn partitions(config: &Config, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for partition in &config.partitions {
        let name = &partition.name;
        printable(name, problems);
        if name.value.is_empty() {
            problems.push(name.place.problem("a partition's name cannot be empty"));
        }
        if let Some(first) = seen.insert(&name.value, &name.place) {
            problems.push(name.place.problem(format!(
                "there is a partition \"{}\" already, on line {}",
                name.value,
                line(config, first)
            )));
        }
    }
}

fn recordings(config: &Config, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&Path, &Place> = HashMap::new();
    for record in config.partitions.iter().filter_map(|partition| partition.record.as_ref()) {
        if let Some(first) = seen.insert(&record.value.file, &record.place) {
            let line = line(config, first);
            let what = record.value.file.display();
            problems.push(record.place.problem(format!("\"{what}\" is recorded to already, on line {line}")));
        }
    }
}

fn exports(config: &Config, problems: &mut Vec<Problem>) {
    let names: Vec<&str> = config.partitions.iter().map(|partition| partition.name.value.as_str()).collect();
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for export in &config.exports {
        let name = &export.name;
        printable(name, problems);
        export.description.iter().for_each(|text| printable(text, problems));
        for text in [Some(name), export.description.as_ref()].into_iter().flatten() {
            if text.value.len() > STRING_BYTES_MAX {
                problems.push(text.place.problem(format!(
                    "{} bytes are too many; NBD allows {STRING_BYTES_MAX}",
                    text.value.len()
                )));
            }
        }
        if let Some(first) = seen.insert(&name.value, &name.place) {
            problems.push(name.place.problem(format!(
                "there is an export \"{}\" already, on line {}",
                name.value,
                line(config, first)
            )));
        }
        let partition = &export.partition;
        if !names.contains(&partition.value.as_str()) {
            problems.push(partition.place.problem(format!(
                "no partition is called \"{}\"; {}",
                partition.value,
                suggest::of(&partition.value, &names)
            )));
        }
    }
}

fn paths(config: &Config, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<(u64, u64), (&Placed<PathBuf>, bool)> = HashMap::new();
    for export in &config.exports {
        let path = &export.path;
        let identity = match identity(&path.value) {
            Ok(identity) => identity,
            Err(message) => {
                problems.push(path.place.problem(format!("\"{}\" {message}", path.value.display())));
                continue;
            }
        };
        match seen.get(&identity) {
            Some((first, first_read_only)) if !(export.read_only && *first_read_only) => {
                problems.push(path.place.problem(format!(
                    "\"{}\" is exported already, on line {}; twice is possible only where all are read_only",
                    path.value.display(),
                    line(config, &first.place)
                )));
            }
            Some(_) => {}
            None => {
                seen.insert(identity, (path, export.read_only));
            }
        }
    }
}

/// What makes two paths the same store, or a sentence about why this one cannot be exported.
fn identity(path: &Path) -> Result<(u64, u64), String> {
    if !path.is_absolute() {
        return Err(
            "is not absolute; a path from the root, such as \"/var/lib/images/vm1.raw\", is expected".into(),
        );
    }
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("does not exist; `truncate -s 10G {}` makes an empty disk", path.display())
        }
        _ => format!("cannot be looked at: {error}"),
    })?;
    let kind = meta.file_type();
    if kind.is_block_device() {
        // Two nodes of one device are one store: the device's number says so, not the node's.
        Ok((u64::MAX, meta.rdev()))
    } else if kind.is_file() {
        Ok((meta.dev(), meta.ino()))
    } else if kind.is_dir() {
        Err("is a directory; a file or a block device is expected".into())
    } else {
        Err("is neither a file nor a block device".into())
    }
}

fn sockets(config: &Config, problems: &mut Vec<Problem>) {
    let mut seen: Vec<(String, &Place)> = Vec::new();
    let nbd = config.listen.nbd.iter().map(|nbd| match &nbd.value {
        Address::Unix(path) => (nbd.value.to_string(), Some(path), None, &nbd.place),
        Address::Tcp(tcp) => (nbd.value.to_string(), None, Some(tcp), &nbd.place),
    });
    let control = config.listen.control.iter().map(|control| {
        let path = &control.value;
        (format!("unix:{}", path.display()), Some(path), None, &control.place)
    });
    let metrics =
        config.listen.metrics.iter().map(|metrics| {
            (Address::Tcp(metrics.value).to_string(), None, Some(&metrics.value), &metrics.place)
        });
    for (address, path, tcp, place) in nbd.chain(control).chain(metrics) {
        if let Some(path) = path {
            if !path.is_absolute() {
                problems.push(place.problem("a path from the root is expected after \"unix:\""));
            }
            let bytes = path.as_os_str().len();
            if bytes > SOCKET_PATH_BYTES_MAX {
                problems.push(place.problem(format!(
                    "{bytes} bytes are too many for the path of a socket; {SOCKET_PATH_BYTES_MAX} is the most"
                )));
            }
        }
        if let Some(tcp) = tcp
            && !tcp.ip().is_loopback()
        {
            problems.push(place.problem(match place.key.as_str() {
                "listen.metrics" => {
                    "whoever can connect may read: only addresses of the loopback, such as \"127.0.0.1:9187\", are \
                     listened on; from elsewhere, use an SSH tunnel or a proxy"
                }
                _ => {
                    "NBD without TLS has no secrets: only addresses of the loopback, such as \
                     \"tcp:127.0.0.1:10809\", are listened on; from elsewhere, use an SSH tunnel"
                }
            }));
        }
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == address) {
            let line = line(config, first);
            problems.push(place.problem(format!("{address} is listened on already, on line {line}")));
        } else {
            seen.push((address, place));
        }
    }
}

fn control(config: &Config, problems: &mut Vec<Problem>) {
    let Some(fs) = &config.control.fs else { return };
    let path = fs.value.display();
    if !fs.value.is_absolute() {
        problems.push(fs.place.problem(format!(
            "\"{path}\" is not absolute; a path from the root, such as \"/run/octavo/fs\", is expected"
        )));
    } else if std::fs::metadata(&fs.value).is_ok_and(|meta| !meta.is_dir()) {
        problems.push(fs.place.problem(format!("\"{path}\" is no directory")));
    }
    let mut seen: HashMap<String, &Place> = HashMap::new();
    for partition in &config.partitions {
        let name = &partition.name;
        if let Some(first) = seen.insert(tree::path_of(&name.value), &name.place)
            && problems.iter().all(|problem| problem.place != name.place)
        {
            problems.push(name.place.problem(format!(
                "\"{}\" and the partition on line {} would be one directory under control.fs",
                name.value,
                line(config, first)
            )));
        }
    }
}

fn line(config: &Config, place: &Place) -> usize {
    config.source.line_of(place.offset)
}
