//! Compares the sections of a configuration with each other and with the machine's files.
//!
//! The checks examine paths and never open them. Only the engine knows whether the memory suffices
//! and whether a store can be locked: `serve` finds out when it creates the cache and opens the
//! stores.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use octavo_block::Address as SocketAddress;
use octavo_s3::Address;
use toml::Spanned;

use super::mount::{MountSection, Pattern};
use super::source::Problem;
use super::values::Attach;
use super::{Config, Size, bytes, tls};
use crate::control::tree;
use crate::mounts;
use crate::suggest;
use crate::units::human_bytes;

/// The NBD protocol's limit on names and descriptions.
const STRING_BYTES_MAX: usize = 4096;

/// The kernel's limit on the path of a unix socket, without its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What is said of objects that are to be written.
pub const READ_ONLY: &str = "objects of S3 can only be read; read_only = true is missing";

/// Where the identity of a file has the number of its device: an object of S3, then a hash of its
/// address.
const OBJECT: u64 = u64::MAX - 1;

/// Adds every problem of a configuration whose sections were all read.
pub fn check(config: &Config, problems: &mut Vec<Problem>) {
    // A key that could not be read must not be reported as missing.
    let is_whole = problems.is_empty();
    let partitions = config.partitions.iter().map(|partition| partition.name.get_ref().as_str()).collect();
    let mut check = Check { config, partitions, problems };
    check.sizes();
    check.partitions(is_whole);
    check.shares();
    check.exports();
    check.paths();
    check.mounts();
    check.own_mounts();
    check.sockets(is_whole);
    if let Some(section) = &config.tls {
        section.check(&config.source, is_whole, check.problems);
    }
    if let Some((offset, message)) = config.s3.problem() {
        check.problems.push(config.source.problem(offset, message));
    }
    check.control();
    check.groups();
}

/// Warns if `memory_max` exceeds the machine's memory, and about partitions and groups that nothing
/// uses. Such a configuration is valid, but probably a mistake.
pub fn doubtful(config: &Config) {
    let memory_max = &config.cache.memory_max;
    let system = rustix::system::sysinfo();
    let machine = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1)));
    if memory_max.get_ref().0 > machine {
        let (wanted, machine) = (human_bytes(memory_max.get_ref().0), human_bytes(machine));
        let message = format!("{wanted} is more than the memory of this machine, {machine}");
        log::warn!("{}", config.line(memory_max, message));
    }
    let names = config.partitions.iter().map(|partition| partition.name.get_ref());
    let groups: HashSet<&str> = names.flat_map(|name| octavo::groups_of(name)).collect();
    for group in &config.groups {
        let name = group.name.get_ref();
        if !groups.contains(name.as_str()) {
            let message = format!("no partition is in this group: no name begins with \"{name}/\"");
            log::warn!("{}", config.line(&group.name, message));
        }
    }
    let shares: HashSet<&str> = config
        .exports
        .iter()
        .filter_map(|export| export.share.as_ref())
        .map(|share| &**share.get_ref())
        .collect();
    for share in &config.shares {
        let name = share.name.get_ref();
        if !shares.contains(name.as_str()) {
            log::warn!("{}", config.line(&share.name, format!("no export is in the share group \"{name}\"")));
        }
    }
    let by_mounts = config.mounts.iter().flat_map(|mount| mount.partitions()).map(|used| &**used.get_ref());
    let by_exports = config.exports.iter().filter_map(|export| config.partition_of(export));
    let used: HashSet<&str> = by_mounts.chain(by_exports).collect();
    for partition in &config.partitions {
        let name = &**partition.name.get_ref();
        if !used.contains(name) {
            let message = format!("no export uses \"{name}\"");
            log::warn!("{}", config.line(&partition.name, message));
        }
    }
}

/// Values, each with the byte offset of its first occurrence.
type Seen<T> = HashMap<T, usize>;

struct Check<'c> {
    config: &'c Config,
    /// The names of all partitions.
    partitions: HashSet<&'c str>,
    problems: &'c mut Vec<Problem>,
}

impl Check<'_> {
    fn report<T>(&mut self, value: &Spanned<T>, message: impl AsRef<str>) {
        self.problems.push(self.config.source.problem(value.span().start, message));
    }

    /// Reports a value that occurred before: `message` gets the line of its first occurrence.
    fn once<K: Hash + Eq, T>(
        &mut self,
        seen: &mut Seen<K>,
        key: K,
        value: &Spanned<T>,
        message: impl FnOnce(usize) -> String,
    ) {
        let first = *seen.entry(key).or_insert(value.span().start);
        if first != value.span().start {
            self.report(value, message(self.config.source.line_of(first)));
        }
    }

    /// Reports a name that occurred before. `what` says what has the name.
    fn unique<'n>(&mut self, seen: &mut Seen<&'n str>, what: &str, name: &'n Spanned<String>) {
        self.once(seen, name.get_ref(), name, |line| {
            format!("there is {what} \"{}\" already, on line {line}", name.get_ref())
        });
    }

    /// Reports a size that is larger than the whole that it is a part of.
    fn fits(&mut self, part: &Option<Size>, whole_bytes: u64, whole: &str) {
        if let Some(part) = part
            && part.get_ref().0 > whole_bytes
        {
            let (bytes, most) = (human_bytes(part.get_ref().0), human_bytes(whole_bytes));
            self.report(part, format!("{bytes} does not fit into {whole}, {most}"));
        }
    }

    /// Reports a whole that is smaller than the sum of the sizes that are guaranteed to its parts.
    fn keeps<'p>(&mut self, whole: &Size, what: &str, parts: impl Iterator<Item = &'p Option<Size>>) {
        let promised: u128 = parts.filter_map(bytes).map(u128::from).sum();
        if promised > u128::from(whole.get_ref().0) {
            let (bytes, promised) =
                (human_bytes(whole.get_ref().0), human_bytes(u64::try_from(promised).unwrap_or(u64::MAX)));
            self.report(whole, format!("{bytes} is less than {what} together, {promised}"));
        }
    }

    /// Reports a name or a description with characters that are not shown as they are.
    fn printable(&mut self, text: &Spanned<String>) {
        if let Err(why) = octavo::check_name(text.get_ref()) {
            self.report(text, why);
        }
    }

    fn sizes(&mut self) {
        let cache = &self.config.cache;
        let memory_max = cache.memory_max.get_ref().0;
        let pages = self.config.partitions.iter().map(|partition| &partition.page_bytes);
        for page in pages.chain([&cache.page_bytes]).flatten() {
            let page_bytes = page.get_ref().0;
            if !page_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&page_bytes) {
                let page_size = human_bytes(page_bytes);
                let message =
                    format!("invalid page size {page_size}; expected a power of two from 4KiB to 1MiB");
                self.report(page, message);
            }
        }
        self.fits(&cache.buffers_max, memory_max, "cache.memory_max");
        for partition in &self.config.partitions {
            self.fits(&partition.max, memory_max, "cache.memory_max");
            let most = bytes(&partition.max).unwrap_or(memory_max);
            self.fits(&partition.min, most, "this partition's max, or memory_max");
            self.fits(&partition.low, most, "this partition's max, or memory_max");
            let of = if partition.max.is_some() { "this partition's max" } else { "cache.memory_max" };
            self.fits(&partition.dirty_max, most, of);
        }
        // `max` is a limit: the sum of all `max` may exceed memory_max. `min` is a guarantee: the
        // sum of all `min` may not.
        let promised = self.config.partitions.iter().map(|partition| &partition.min);
        self.keeps(&cache.memory_max, "the partitions' min", promised);
    }

    fn groups(&mut self) {
        let memory_max = self.config.cache.memory_max.get_ref().0;
        let mut promised: HashMap<&str, Vec<&Option<Size>>> = HashMap::new();
        for partition in self.config.partitions.iter().filter(|partition| partition.min.is_some()) {
            for group in octavo::groups_of(partition.name.get_ref()) {
                promised.entry(group).or_default().push(&partition.min);
            }
        }
        let mut seen = Seen::new();
        for group in &self.config.groups {
            let name = group.name.get_ref();
            self.printable(&group.name);
            self.unique(&mut seen, "a group", &group.name);
            let most = bytes(&group.max).map_or(memory_max, |max| max.min(memory_max));
            self.fits(&group.min, most, "this group's max, or memory_max");
            self.fits(&group.low, most, "this group's max, or memory_max");
            if let Some(max) = &group.max {
                let inside = promised.get(name.as_str()).into_iter().flatten();
                self.keeps(max, "the min of its partitions", inside.copied());
            }
        }
    }

    fn partitions(&mut self, is_whole: bool) {
        let (mut names, mut files) = (Seen::new(), Seen::new());
        for partition in &self.config.partitions {
            self.printable(&partition.name);
            if partition.name.get_ref().is_empty() {
                self.report(&partition.name, "a partition's name cannot be empty");
            }
            self.unique(&mut names, "a partition", &partition.name);
            if let Some(file) = &partition.record {
                if let Err(why) = partition.order().map_or(Ok(()), |order| order.check()) {
                    self.report(file, why);
                }
                self.once(&mut files, file.get_ref(), file, |line| {
                    format!("\"{}\" is recorded to already, on line {line}", file.get_ref().display())
                });
            } else if let Some(offset) = partition.record_option().filter(|_| is_whole) {
                let message = "nothing is recorded; record = \"/var/tmp/vm1.octr\" is missing";
                self.problems.push(self.config.source.problem(offset, message));
            }
        }
    }

    fn exports(&mut self) {
        let mut seen = Seen::new();
        for export in &self.config.exports {
            for text in [Some(&export.name), export.description.as_ref()].into_iter().flatten() {
                self.printable(text);
                let len = text.get_ref().len();
                if len > STRING_BYTES_MAX {
                    self.report(text, format!("{len} bytes are too many; NBD allows {STRING_BYTES_MAX}"));
                }
            }
            self.unique(&mut seen, "an export", &export.name);
            if let Some(partition) = &export.partition {
                self.is_partition(partition);
            }
            if let Some(share) = &export.share {
                let shares = &self.config.shares;
                let known =
                    suggest::named("share group", share.get_ref(), shares, |share| share.name.get_ref());
                if let Err(why) = known {
                    self.report(share, why);
                }
            }
            if let Some((value, why)) = export.contradiction() {
                self.report(value, why);
            }
            if export.address().is_some() && !export.read_only {
                self.report(&export.path, READ_ONLY);
            }
        }
    }

    fn shares(&mut self) {
        let mut names = Seen::new();
        for share in &self.config.shares {
            self.printable(&share.name);
            if share.name.get_ref().is_empty() {
                self.report(&share.name, "a share group's name cannot be empty");
            }
            self.unique(&mut names, "a share group", &share.name);
            self.is_partition(&share.partition);
        }
    }

    /// Reports a name that no partition has.
    fn is_partition(&mut self, name: &Spanned<String>) {
        if !self.partitions.contains(name.get_ref().as_str()) {
            let known = self.config.partitions.iter().map(|partition| partition.name.get_ref().as_str());
            let known: Vec<&str> = known.collect();
            self.report(name, suggest::missing("partition", name.get_ref(), &known));
        }
    }

    fn paths(&mut self) {
        let mut seen: HashMap<(u64, u64), (&Spanned<PathBuf>, bool)> = HashMap::new();
        for export in &self.config.exports {
            let path = &export.path;
            let shown = path.get_ref().display();
            match identity(path.get_ref()) {
                Err(why) => self.report(path, format!("\"{shown}\" {why}")),
                Ok(identity) => {
                    let (first, first_read_only) = *seen.entry(identity).or_insert((path, export.read_only));
                    if first.span() != path.span() && !(export.read_only && first_read_only) {
                        let line = self.config.source.line_of(first.span().start);
                        self.report(
                            path,
                            format!(
                                "\"{shown}\" is exported already, on line {line}; a path can be exported twice only \
                                 if every export of it is read_only"
                            ),
                        );
                    }
                }
            }
        }
    }

    /// Directories are examined when they are mounted.
    fn mounts(&mut self) {
        let mut seen = Seen::new();
        for mount in &self.config.mounts {
            if let Some(address) = mount.address() {
                match address {
                    Err(why) => {
                        self.report(&mount.source, format!("\"{}\" {why}", mount.source.get_ref().display()))
                    }
                    Ok(_) if !mount.read_only => self.report(&mount.source, READ_ONLY),
                    Ok(_) => {}
                }
            }
            for path in [&mount.source, &mount.path] {
                if !path.get_ref().is_absolute() && path.get_ref().to_str().and_then(Address::parse).is_none()
                {
                    let shown = path.get_ref().display();
                    self.report(path, format!("\"{shown}\" is not absolute; expected a path from the root"));
                }
            }
            self.once(&mut seen, mount.path.get_ref(), &mount.path, |line| {
                format!("\"{}\" is mounted at already, on line {line}", mount.path.get_ref().display())
            });
            for partition in mount.partitions() {
                self.is_partition(partition);
            }
            for tenant in &mount.tenants {
                if let Some(pattern) = &tenant.pattern
                    && let Err(why) = Pattern::parse(pattern.get_ref())
                {
                    self.report(pattern, why);
                }
            }
        }
    }

    /// Reports what lies below a directory that the server is to mount itself. Once the directory
    /// is mounted, `own.rs` finds it by its device.
    fn own_mounts(&mut self) {
        let config = self.config;
        let at = |mount: &MountSection| (mounts::resolved(mount.path.get_ref()), mount.path.span().start);
        let at: Vec<(PathBuf, usize)> = config.mounts.iter().map(at).collect();
        if at.is_empty() {
            return;
        }
        let own = |path: &Path, but: Option<usize>| {
            let path = mounts::resolved(path);
            let found = at.iter().find(|(mount, offset)| Some(*offset) != but && path.starts_with(mount));
            found.map(|(mount, offset)| {
                let line = config.source.line_of(*offset);
                let (path, mount) = (path.display(), mount.display());
                format!("{path} is below {mount}, which this server mounts itself, on line {line}")
            })
        };
        let exports = config.exports.iter().filter(|export| export.address().is_none());
        let records = config.partitions.iter().filter_map(|partition| partition.record.as_ref());
        let files = exports.map(|export| &export.path).chain(records);
        for file in files.chain(&config.s3.tier).chain(&config.control.fs) {
            own(file.get_ref(), None).into_iter().for_each(|why| self.report(file, why));
        }
        for mount in config.mounts.iter().filter(|mount| mount.address().is_none()) {
            let but = Some(mount.path.span().start);
            own(mount.source.get_ref(), but).into_iter().for_each(|why| self.report(&mount.source, why));
        }
        // Nor is a mount in what another one shows.
        for mount in config.mounts.iter().filter(|mount| mount.address().is_none()) {
            let source = mounts::resolved(mount.source.get_ref());
            let others = config.mounts.iter().zip(&at);
            let shown = others.filter(|(_, (path, offset))| {
                *offset != mount.path.span().start && path.starts_with(&source)
            });
            for (other, (path, _)) in shown {
                let line = config.source.line_of(mount.source.span().start);
                let (path, source) = (path.display(), source.display());
                self.report(
                    &other.path,
                    format!("{path} is in {source}, which is mounted itself, on line {line}"),
                );
            }
        }
        let mut sockets: Vec<(usize, &Path)> = Vec::new();
        for nbd in &config.listen.nbd.0 {
            if let SocketAddress::Unix(path) = &nbd.get_ref().0 {
                sockets.push((nbd.span().start, path));
            }
        }
        for attach in config.exports.iter().flat_map(|export| &export.attach).flat_map(|list| &list.0) {
            if let Attach::VhostUser(path) = &attach.get_ref().0 {
                sockets.push((attach.span().start, path));
            }
        }
        let control = config.listen.control.as_ref();
        sockets.extend(control.map(|control| (control.span().start, &*control.get_ref().0.0)));
        for (offset, path) in sockets {
            let problem = own(path, None).map(|why| config.source.problem(offset, why));
            self.problems.extend(problem);
        }
    }

    fn sockets(&mut self, is_whole: bool) {
        let listen = &self.config.listen;
        let mut seen = Seen::new();
        for nbd in &listen.nbd.0 {
            let address = &nbd.get_ref().0;
            match address {
                SocketAddress::Unix(path) => self.socket_path(nbd, path),
                SocketAddress::Tcp(_) if address.is_remote() && tls::offset(&self.config.source).is_none() => self.report(
                    nbd,
                    "clients on other machines need TLS: add [listen.tls] with certificates = \"/etc/octavo/tls\", or \
                     listen at a loopback address such as \"tcp:127.0.0.1:10809\" and use an SSH tunnel",
                ),
                SocketAddress::Tcp(_) => {}
            }
            self.listens_once(&mut seen, nbd, address.to_string());
        }
        for export in &self.config.exports {
            for attach in export.attach.iter().flat_map(|list| &list.0) {
                if let Attach::VhostUser(path) = &attach.get_ref().0 {
                    self.socket_path(attach, path);
                    self.listens_once(&mut seen, attach, SocketAddress::Unix(path.clone()).to_string());
                }
            }
            if let Some(size) = export.queue_size.as_ref().filter(|size| !size.get_ref().0.is_power_of_two())
            {
                self.report(size, "the size of a ring must be a power of two");
            }
        }
        if let Some(control) = &listen.control {
            let path = &control.get_ref().0.0;
            self.socket_path(control, path);
            self.listens_once(&mut seen, control, SocketAddress::Unix(path.clone()).to_string());
        }
        if let Some(metrics) = &listen.metrics {
            let address = metrics.get_ref().0;
            if !address.ip().is_loopback() {
                self.report(
                    metrics,
                    "metrics have no access control: only loopback addresses such as \"127.0.0.1:9187\" are allowed; to \
                     read them from elsewhere, use an SSH tunnel or a proxy",
                );
            }
            self.listens_once(&mut seen, metrics, SocketAddress::Tcp(address).to_string());
        } else if let Some(host) = listen.metrics_hosts.iter().flat_map(|hosts| &hosts.0).next()
            && is_whole
        {
            self.report(host, "no metrics are served; metrics = \"127.0.0.1:9187\" is missing");
        }
    }

    fn socket_path<T>(&mut self, value: &Spanned<T>, path: &Path) {
        if !path.is_absolute() {
            self.report(value, "the path after \"unix:\" is not absolute; expected a path from the root");
        }
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            let most = format!("the path of a socket has at most {SOCKET_PATH_BYTES_MAX}");
            self.report(value, format!("{bytes} bytes are too many; {most}"));
        }
    }

    fn listens_once<T>(&mut self, seen: &mut Seen<String>, value: &Spanned<T>, address: String) {
        let shown = address.clone();
        self.once(seen, address, value, |line| format!("{shown} is listened on already, on line {line}"));
    }

    fn control(&mut self) {
        let Some(fs) = &self.config.control.fs else { return };
        let path = fs.get_ref().display();
        if !fs.get_ref().is_absolute() {
            let example = "a path from the root such as \"/run/octavo/fs\"";
            self.report(fs, format!("\"{path}\" is not absolute; expected {example}"));
        } else if std::fs::metadata(fs.get_ref()).is_ok_and(|meta| !meta.is_dir()) {
            self.report(fs, format!("\"{path}\" is not a directory"));
        }
        let mut seen = Seen::new();
        let reported: HashSet<usize> = self.problems.iter().map(|problem| problem.offset).collect();
        for partition in &self.config.partitions {
            let name = &partition.name;
            // A name that is malformed or already taken has been reported.
            if reported.contains(&name.span().start) {
                continue;
            }
            self.once(&mut seen, tree::path_of(name.get_ref()), name, |line| {
                let name = name.get_ref();
                format!("\"{name}\" and the partition on line {line} would be one directory under control.fs")
            });
        }
    }
}

/// Returns an identity that two paths share exactly if they lead to the same store. The error is
/// the rest of a sentence that begins with the path.
pub fn identity(path: &Path) -> Result<(u64, u64), String> {
    if let Some(address) = path.to_str().and_then(Address::parse) {
        let mut hasher = DefaultHasher::new();
        address?.hash(&mut hasher);
        return Ok((OBJECT, hasher.finish()));
    }
    if !path.is_absolute() {
        let example = "a path from the root such as \"/var/lib/images/vm1.raw\"";
        return Err(format!("is not absolute; expected {example}"));
    }
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("does not exist; `truncate -s 10G {}` makes an empty disk", path.display())
        }
        _ => format!("cannot be examined: {error}"),
    })?;
    let kind = meta.file_type();
    if kind.is_block_device() {
        // Two nodes of one device are one store: compare the device's number, not the node's.
        Ok((u64::MAX, meta.rdev()))
    } else if kind.is_file() {
        if let Some(system) = mounts::kernel_view(path) {
            return Err(format!(
                "is a view of the kernel's own state ({system}), without contents to cache; expected a file or a \
                 block device"
            ));
        }
        Ok((meta.dev(), meta.ino()))
    } else {
        let what = if kind.is_dir() { "a directory" } else { "neither a file nor a block device" };
        Err(format!("is {what}; expected a file or a block device"))
    }
}
