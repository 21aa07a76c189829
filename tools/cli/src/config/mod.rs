//! The configuration of `octavo serve`: what a TOML file may say, and what it means.
//!
//! Reading is in three steps, and each goes on after a problem as far as it can: the text into a
//! table (TOML's own errors), the table into a [`Config`] (`read`: keys, types, units), and the
//! sections against each other and the machine (`check`). No step opens an export or makes
//! anything: that is `serve`'s.

pub mod section;
pub mod source;

pub mod check;

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use octavo::disk::Engine;
use octavo::numa::{NumaMode, Replication, TopologySource};
use octavo::{CacheMode, PolicyName};
use octavo_block::Address;
use toml::de::DeTable;

use crate::control::host::Host;
use crate::logger::{Format, Verbosity, Wishes};
use crate::order::Order;
use crate::units;
use section::Section;
use source::{Place, Placed, Problem, Source};

/// The most that is read of a configuration; a longer one is refused.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// How long the drain at the end may fail before `serve` gives up.
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// What a file says, with the places of whatever can still be refused later.
#[derive(Debug)]
pub struct Config {
    /// The text, for messages.
    pub source: Source,
    /// `[cache]`.
    pub cache: CacheSection,
    /// `[[group]]`, in the file's order.
    pub groups: Vec<GroupSection>,
    /// `[[partition]]`, in the file's order.
    pub partitions: Vec<PartitionSection>,
    /// `[[export]]`, in the file's order.
    pub exports: Vec<ExportSection>,
    /// `[listen]`.
    pub listen: ListenSection,
    /// `[control]`.
    pub control: ControlSection,
    /// `[serve]`.
    pub serve: ServeSection,
    /// `[log]`.
    pub log: Wishes,
}

/// `[cache]`: the memory that everything shares.
#[derive(Debug)]
pub struct CacheSection {
    /// The hard bound on everything, in bytes.
    pub memory_max: Placed<u64>,
    /// Bytes of a page.
    pub page_bytes: Option<Placed<u64>>,
    /// How stores are read and written.
    pub io: Option<Placed<Engine>>,
    /// The share of `memory_max` for buffers, in bytes.
    pub buffers_max: Option<Placed<u64>>,
    /// Whether partitions are resized by what memory is worth to them.
    pub reaper: bool,
    /// The machine's nodes, or made-up ones.
    pub topology: Option<Placed<TopologySource>>,
    /// How nodes are used.
    pub numa: Option<Placed<NumaMode>>,
    /// What copies of pages of other nodes are made, and what becomes of them.
    pub replication: Replication,
    /// Whether the cache yields to others while the system is short of memory.
    pub yields: bool,
}

/// `[[partition]]`: one tenant.
#[derive(Debug)]
pub struct PartitionSection {
    /// Where the section stands.
    pub place: Place,
    /// What exports call it.
    pub name: Placed<String>,
    /// Which page leaves first.
    pub policy: Option<Placed<PolicyName>>,
    /// When a write reaches the store.
    pub cache_mode: Option<Placed<CacheMode>>,
    /// Bytes that are never taken from it.
    pub min: Option<Placed<u64>>,
    /// Bytes that are taken from it last.
    pub low: Option<Placed<u64>>,
    /// Bytes beyond which it has only what nobody else can use.
    pub high: Option<Placed<u64>>,
    /// The most memory it gets, in bytes.
    pub max: Option<Placed<u64>>,
    /// What its misses count for.
    pub weight: Option<Placed<u64>>,
    /// The most bytes of dirty pages.
    pub dirty_max: Option<Placed<u64>>,
    /// What is recorded of it from the first access on.
    pub record: Option<Placed<Order>>,
    /// The most bytes that are read ahead of a stream.
    pub read_ahead: Option<Placed<u64>>,
    /// The node where all its pages lie.
    pub node: Option<Placed<u64>>,
}

/// `[[group]]`: bounds on the partitions whose names begin with its name and a slash.
#[derive(Debug)]
pub struct GroupSection {
    /// Its name.
    pub name: Placed<String>,
    /// Bytes that are never taken from all of them together.
    pub min: Option<Placed<u64>>,
    /// Bytes that are taken from them last.
    pub low: Option<Placed<u64>>,
    /// Bytes beyond which they have only what nobody else can use.
    pub high: Option<Placed<u64>>,
    /// The most that they have together.
    pub max: Option<Placed<u64>>,
    /// What their misses count for.
    pub weight: Option<Placed<u64>>,
}

/// `[[export]]`: one disk that clients may ask for.
#[derive(Debug)]
pub struct ExportSection {
    /// What a client asks for.
    pub name: Placed<String>,
    /// The file or device.
    pub path: Placed<PathBuf>,
    /// The name of the partition that caches it.
    pub partition: Placed<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// A sentence for people who list the exports.
    pub description: Option<Placed<String>>,
}

/// `[listen]`: the sockets.
#[derive(Debug)]
pub struct ListenSection {
    /// Where NBD clients connect.
    pub nbd: Vec<Placed<Address>>,
    /// Where `octavo ctl` connects.
    pub control: Option<Placed<PathBuf>>,
    /// Where Prometheus connects.
    pub metrics: Option<Placed<SocketAddr>>,
    /// Hosts that requests for metrics may name, beside this machine's own.
    pub metrics_hosts: Vec<Host>,
}

/// `[control]`: how partitions are looked at and changed, beside the socket.
#[derive(Debug, Default)]
pub struct ControlSection {
    /// Where the control file system is mounted.
    pub fs: Option<Placed<PathBuf>>,
}

/// `[serve]`: how the server begins and ends.
#[derive(Debug, Default)]
pub struct ServeSection {
    /// How long the drain at the end may fail.
    pub drain_timeout: Option<Placed<Duration>>,
    /// How long a client may take to agree on an export.
    pub handshake_timeout: Option<Placed<Duration>>,
    /// The most clients at a time.
    pub connections_max: Option<Placed<u64>>,
}

impl Config {
    /// Reads a file. The error is what to print, one problem a line.
    pub fn read(path: &Path) -> Result<Config, Vec<String>> {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|why| vec![format!("{name}: {why}")])?;
        Config::parse(Source::new(name, text))
    }

    /// Reads a text. The error is what to print, one problem a line.
    pub fn parse(source: Source) -> Result<Config, Vec<String>> {
        let (config, problems) = match parse_table(&source.text) {
            Ok(table) => {
                let mut problems = Vec::new();
                let config = read(&source, &table, &mut problems);
                if let Some(config) = &config {
                    check::check(config, &mut problems);
                }
                (config, problems)
            }
            Err(problems) => (None, problems),
        };
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(source.lines(problems)),
        }
    }

    /// One line about a problem that came up later, when the engine was asked.
    pub fn line(&self, place: &Place, message: impl Into<String>) -> String {
        self.source.line(&place.problem(message))
    }
}

/// Reads the text of a configuration: a regular file, or a pipe such as `<(sed ..)` of a shell. The
/// error is the rest of a sentence that begins with the path.
fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let kind = std::fs::metadata(path).map_err(unreadable)?.file_type();
    let mut options = std::fs::File::options();
    options.read(true);
    if kind.is_fifo() {
        log::info!("{}: reading the configuration from a pipe, until its writer closes it", path.display());
    } else if kind.is_dir() {
        return Err("is a directory; a configuration file, TOML, is expected".into());
    } else if kind.is_file() {
        // A file of procfs may wait for news instead of ending.
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    } else {
        return Err("is a device or a socket; a configuration file, TOML, is expected".into());
    }
    let file = options.open(path).map_err(unreadable)?;
    // The length that the system tells of a pipe, or of a file of procfs, is 0.
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(format!(
            "is no configuration: it has more than {}, the most that is read",
            units::human_bytes(TEXT_BYTES_MAX)
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (at, text) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = text[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("is no configuration: byte {at}, on line {line}, is not UTF-8")
    })
}

/// What the parser says of values nested deeper than it follows; everything that it says after that
/// is a consequence.
const TOO_DEEP: &str = "recurs";

fn parse_table(text: &str) -> Result<DeTable<'_>, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table.into_inner());
    }
    let place = |error: &toml::de::Error| Place::new("", error.span().unwrap_or(0..0));
    if let Some(error) = errors.iter().find(|error| error.message().contains(TOO_DEEP)) {
        return Err(vec![place(error).problem("not TOML that is read here: it is nested too deeply")]);
    }
    let said = |error: &toml::de::Error| format!("not TOML: {}", error.message().replace('\n', ", "));
    Err(errors.iter().map(|error| place(error).problem(said(error))).collect())
}

/// The table as sections; `None` where a section that everything needs is missing or wrong.
fn read(source: &Source, table: &DeTable<'_>, problems: &mut Vec<Problem>) -> Option<Config> {
    let mut cache = None;
    let mut groups = Vec::new();
    let mut partitions = Vec::new();
    let mut exports = Vec::new();
    let mut listen = None;
    let mut control = ControlSection::default();
    let mut serve = ServeSection::default();
    let mut log = Wishes::default();
    let mut sections_lost = false;

    let mut root = Section::new("", table, 0..0, problems);
    root.table("cache", |section| cache = read_cache(section));
    root.tables("group", |section| groups.extend(read_group(section)));
    root.tables("partition", |section| match read_partition(section) {
        Some(partition) => partitions.push(partition),
        None => sections_lost = true,
    });
    root.tables("export", |section| match read_export(section) {
        Some(export) => exports.push(export),
        None => sections_lost = true,
    });
    root.table("listen", |section| listen = Some(read_listen(section)));
    root.table("control", |section| control = read_control(section));
    root.table("serve", |section| serve = read_serve(section));
    root.table("log", |section| log = read_log(section));

    let end = source.text.trim_end().len();
    for (key, there, example) in [
        ("cache", table.contains_key("cache"), "[cache] with memory_max = \"32MiB\""),
        ("partition", table.contains_key("partition"), "[[partition]] with name = \"vm1\""),
        ("export", table.contains_key("export"), "[[export]] with name, path and partition"),
        ("listen", table.contains_key("listen"), "[listen] with nbd = \"unix:/run/octavo/nbd.sock\""),
    ] {
        if !there {
            root.complain(Place::new(key, end..end).problem(format!("missing; for example {example}")));
        }
    }
    root.finish();
    if sections_lost {
        // What was not read might have been the partition that an export names: do not guess.
        return None;
    }
    Some(Config {
        source: source.clone(),
        cache: cache?,
        groups,
        partitions,
        exports,
        listen: listen?,
        control,
        serve,
        log,
    })
}

fn read_cache(mut section: Section<'_, '_>) -> Option<CacheSection> {
    let memory_max = section.size("memory_max");
    let memory_max = section.required(memory_max, "memory_max", "memory_max = \"32MiB\"");
    let page_bytes = section.size("page_bytes");
    let io = section
        .word("io", &[("auto", Engine::Auto), ("uring", Engine::Uring), ("blocking", Engine::Blocking)]);
    let buffers_max = section.size("buffers_max");
    let reaper = section.flag("reaper").is_none_or(|flag| flag.value);
    let yields = section.flag("yield").is_none_or(|flag| flag.value);
    let topology = section.parsed("topology");
    let numa = section.word("numa", &NumaMode::ALL.map(|mode| (mode.name(), mode)));
    let replication = read_replication(&mut section);
    section.finish();
    Some(CacheSection {
        memory_max: memory_max?,
        page_bytes,
        io,
        buffers_max,
        reaper,
        topology,
        numa,
        replication,
        yields,
    })
}

fn read_replication(section: &mut Section<'_, '_>) -> Replication {
    let whole = Replication::default();
    let threshold = section.count("twin_threshold", 1, u64::from(u32::MAX));
    let switch_writes = section.count("twin_switch", 0, 255);
    let mut flag = |name| section.flag(name).is_none_or(|flag| flag.value);
    Replication {
        threshold: threshold.map_or(whole.threshold, |count| count.value as u32),
        refresh: flag("twin_refresh"),
        elect: flag("twin_elect"),
        yields: flag("twin_yield"),
        switch_writes: switch_writes.map_or(whole.switch_writes, |count| count.value as u32),
        weighs: flag("twin_weigh"),
    }
}

fn read_partition(mut section: Section<'_, '_>) -> Option<PartitionSection> {
    let place = section.place();
    let name = section.string("name");
    let name = section.required(name, "name", "name = \"vm1\"");
    let policies: Vec<(&str, PolicyName)> = PolicyName::ALL.iter().map(|p| (p.name(), *p)).collect();
    let policy = section.word("policy", &policies);
    let cache_mode = section.word(
        "cache_mode",
        &[("writethrough", CacheMode::Writethrough), ("writeback", CacheMode::Writeback)],
    );
    let [min, low, high, max] = ["min", "low", "high", "max"].map(|name| section.size(name));
    let weight = section.count("weight", 1, 10_000);
    let dirty_max = section.size("dirty_max");
    let record = read_record(&mut section, name.as_ref());
    let read_ahead = section.size("read_ahead");
    let node = section.count("node", 0, 1023);
    section.finish();
    Some(PartitionSection {
        place,
        name: name?,
        policy,
        cache_mode,
        min,
        low,
        high,
        max,
        weight,
        dirty_max,
        record,
        read_ahead,
        node,
    })
}

fn read_group(mut section: Section<'_, '_>) -> Option<GroupSection> {
    let name = section.string("name");
    let name = section.required(name, "name", "name = \"host\", for partitions such as \"host/vm1\"");
    let [min, low, high, max] = ["min", "low", "high", "max"].map(|name| section.size(name));
    let weight = section.count("weight", 1, 10_000);
    section.finish();
    Some(GroupSection { name: name?, min, low, high, max, weight })
}

/// `record` and its options, `record_sample`, `record_rotate` and `record_keep`.
fn read_record(section: &mut Section<'_, '_>, partition: Option<&Placed<String>>) -> Option<Placed<Order>> {
    let file = section.string("record");
    let sample = section.string("record_sample");
    let rotate = section.size("record_rotate");
    let keep = section.count("record_keep", 1, 1 << 20);
    let places = [
        sample.as_ref().map(|s| &s.place),
        rotate.as_ref().map(|r| &r.place),
        keep.as_ref().map(|k| &k.place),
    ];
    let Some(file) = file else {
        if let Some(place) = places.into_iter().flatten().next() {
            let message = "there is nothing to record to; record = \"/var/tmp/vm1.octr\" is missing";
            section.complain(place.problem(message));
        }
        return None;
    };
    let sample_below = match sample {
        None => octavo::recording::WHOLE,
        Some(sample) => match crate::order::sample(&sample.value) {
            Ok(below) => below,
            Err(message) => {
                section.complain(sample.place.problem(message));
                return None;
            }
        },
    };
    let order = Order {
        partition: partition?.value.clone(),
        file: PathBuf::from(file.value),
        sample_below,
        rotate_bytes: rotate.map(|rotate| rotate.value),
        // At most 2^20.
        keep: keep.map(|keep| keep.value as u32),
        seconds: None,
    };
    if let Err(message) = order.check() {
        section.complain(file.place.problem(message));
        return None;
    }
    Some(Placed { value: order, place: file.place })
}

fn read_export(mut section: Section<'_, '_>) -> Option<ExportSection> {
    let name = section.string("name");
    let name = section.required(name, "name", "name = \"vm1\", what a client asks for");
    let path = section.string("path");
    let path = section.required(path, "path", "path = \"/var/lib/images/vm1.raw\"");
    let partition = section.string("partition");
    let partition =
        section.required(partition, "partition", "partition = \"vm1\", the name of a [[partition]]");
    let read_only = section.flag("read_only").is_some_and(|flag| flag.value);
    let description = section.string("description");
    section.finish();
    let path = path.map(|path| Placed { value: PathBuf::from(path.value), place: path.place });
    Some(ExportSection { name: name?, path: path?, partition: partition?, read_only, description })
}

fn read_listen(mut section: Section<'_, '_>) -> ListenSection {
    let nbd = section.parsed_list("nbd", "\"unix:/run/octavo/nbd.sock\" or \"tcp:127.0.0.1:10809\"");
    let first = nbd.first().map(|_| Placed { value: (), place: section.place() });
    section.required(first, "nbd", "nbd = \"unix:/run/octavo/nbd.sock\"");
    let control = section.string("control").and_then(|text| match control_path(&text.value) {
        Some(path) => Some(Placed { value: path, place: text.place }),
        None => {
            let message =
                "\"unix:/run/octavo/control.sock\" is expected: the control socket is a unix socket";
            section.complain(text.place.problem(message));
            None
        }
    });
    let metrics = section.string("metrics");
    let has_metrics = metrics.is_some();
    let metrics = metrics.and_then(|text| match text.value.parse() {
        Ok(address) => Some(Placed { value: address, place: text.place }),
        Err(_) => {
            let message = "an address such as \"127.0.0.1:9187\" is expected: metrics are served over HTTP";
            section.complain(text.place.problem(message));
            None
        }
    });
    let hosts = section.parsed_list::<Host>("metrics_hosts", "\"octavo.example.org\"");
    if let (false, Some(first)) = (has_metrics, hosts.first()) {
        let message = "there is nothing to ask; metrics = \"127.0.0.1:9187\" is missing";
        section.complain(first.place.problem(message));
    }
    let metrics_hosts = hosts.into_iter().map(|host| host.value).collect();
    section.finish();
    ListenSection { nbd, control, metrics, metrics_hosts }
}

fn read_control(mut section: Section<'_, '_>) -> ControlSection {
    let fs = section.string("fs");
    section.finish();
    ControlSection { fs: fs.map(|fs| Placed { value: PathBuf::from(fs.value), place: fs.place }) }
}

fn read_serve(mut section: Section<'_, '_>) -> ServeSection {
    let serve = ServeSection {
        drain_timeout: section.duration("drain_timeout"),
        handshake_timeout: section.duration("handshake_timeout"),
        connections_max: section.count("connections_max", 1, 65_536),
    };
    section.finish();
    serve
}

fn read_log(mut section: Section<'_, '_>) -> Wishes {
    use Verbosity::{Debug, Error, Info, Warn};
    let formats = [("plain", Format::Plain), ("json", Format::Json)];
    let levels = [("error", Error), ("warn", Warn), ("info", Info), ("debug", Debug)];
    let log = Wishes {
        format: section.word("format", &formats).map(|format| format.value),
        level: section.word("level", &levels).map(|level| level.value),
        timestamps: section.flag("timestamps").map(|flag| flag.value),
    };
    section.finish();
    log
}

/// The path of `unix:/path`, if that is what it is.
fn control_path(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("unix:")?;
    path.starts_with('/').then(|| PathBuf::from(path))
}
