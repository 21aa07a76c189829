//! The configuration of `octavo serve`: the sections of a TOML file, and how they are read.
//!
//! Reading has three steps, and each continues after a problem as far as it can: the text becomes a
//! table (TOML's own errors), the table becomes a [`Config`] (`read`: keys and values), and `check`
//! compares sections with each other and with the machine. No step opens an export or creates
//! anything: `serve` does that.

pub mod check;
pub mod fixed;
pub mod mount;
pub mod read;
pub mod s3;
pub mod source;
pub mod tls;
pub mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;
use octavo::disk::Engine;
use octavo::numa::{NumaMode, Replication, TopologySource};
use octavo::{CacheMode, PolicyName};
use octavo_block::VhostSettings;
use octavo_s3::Address;
use serde::Deserialize;
use toml::Spanned;

use crate::control::host::Host;
use crate::error::Error;
use crate::logger::{Format, Wishes};
use crate::order::Order;
use mount::MountSection;
use s3::S3Section;
use source::Source;
use tls::TlsSection;
use values::{Attach, Bytes, ControlPath, DiskFormat, Group, List, Number, Parsed, Sample, SocketMode};

/// How long the final drain may go without progress before `serve` gives up.
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A size, and its position in the file.
pub type Size = Spanned<Bytes>;

/// How much a partition's or a group's misses count when memory is divided.
pub type Weight = Spanned<Number<1, 10_000>>;

/// The content of a file, with the position of every value that the engine or the system can still
/// refuse later.
#[derive(Clone, Debug)]
pub struct Config {
    /// The text, for messages.
    pub source: Source,
    /// `[cache]`.
    pub cache: CacheSection,
    /// `[[group]]`, in the file's order.
    pub groups: Vec<GroupSection>,
    /// `[[partition]]`, in the file's order.
    pub partitions: Vec<PartitionSection>,
    /// `[[share]]`, in the file's order.
    pub shares: Vec<ShareSection>,
    /// `[[export]]`, in the file's order.
    pub exports: Vec<ExportSection>,
    /// `[[mount]]`, in the file's order.
    pub mounts: Vec<MountSection>,
    /// `[listen]`.
    pub listen: ListenSection,
    /// `[listen.tls]`.
    pub tls: Option<TlsSection>,
    /// `[control]`.
    pub control: ControlSection,
    /// `[serve]`.
    pub serve: ServeSection,
    /// `[s3]`.
    pub s3: S3Section,
    /// `[log]`.
    pub log: LogSection,
}

/// `[cache]`: the memory that all partitions share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [cache]")]
pub struct CacheSection {
    /// The hard limit on all memory, in bytes.
    pub memory_max: Size,
    /// Bytes of a page, in partitions that do not say.
    pub page_bytes: Option<Size>,
    /// How stores are read and written.
    pub io: Option<Parsed<Engine>>,
    /// The share of `memory_max` for buffers, in bytes.
    pub buffers_max: Option<Size>,
    /// Whether the reaper moves memory to the partition where it avoids the most misses.
    pub reaper: Option<bool>,
    /// Whether the cache shrinks while the system is short of memory.
    #[serde(rename = "yield")]
    pub yields: Option<bool>,
    /// The machine's nodes, or emulated ones.
    pub topology: Option<Parsed<TopologySource>>,
    /// How threads access pages of other nodes.
    pub numa: Option<Parsed<NumaMode>>,
    twin_threshold: Option<Number<1, { u32::MAX as u64 }>>,
    twin_switch: Option<Number<0, 255>>,
    twin_refresh: Option<bool>,
    twin_elect: Option<bool>,
    twin_yield: Option<bool>,
    twin_weigh: Option<bool>,
}

/// `[[partition]]`: one tenant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[partition]]")]
pub struct PartitionSection {
    /// The name by which exports refer to the partition.
    pub name: Spanned<String>,
    /// The eviction policy.
    pub policy: Option<Parsed<PolicyName>>,
    /// When a write reaches the store.
    pub cache_mode: Option<Spanned<Parsed<CacheMode>>>,
    /// Bytes of its pages.
    pub page_bytes: Option<Size>,
    /// Bytes that are never taken from it.
    pub min: Option<Size>,
    /// Bytes that are taken from it last.
    pub low: Option<Size>,
    /// Bytes beyond which it holds only memory that no other partition can use.
    pub high: Option<Size>,
    /// The most memory it gets, in bytes.
    pub max: Option<Size>,
    /// How much its misses count when memory is divided.
    pub weight: Option<Weight>,
    /// The most bytes of dirty pages.
    pub dirty_max: Option<Size>,
    /// The file to which the partition's accesses are recorded, beginning with the first.
    pub record: Option<Spanned<PathBuf>>,
    record_sample: Option<Spanned<Parsed<Sample>>>,
    record_rotate: Option<Size>,
    record_keep: Option<Spanned<Number<1, { 1 << 20 }>>>,
    /// The most bytes that are read ahead of a stream.
    pub read_ahead: Option<Size>,
    /// The node where all its pages lie.
    pub node: Option<Spanned<Number<0, 1023>>>,
}

/// `[[group]]`: limits on the partitions whose names begin with its name and a slash.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[group]]")]
pub struct GroupSection {
    /// Its name.
    pub name: Spanned<String>,
    /// Bytes that are never taken from all of them together.
    pub min: Option<Size>,
    /// Bytes that are taken from them last.
    pub low: Option<Size>,
    /// Bytes beyond which they hold only memory that no other partition can use.
    pub high: Option<Size>,
    /// The most that they have together.
    pub max: Option<Size>,
    /// How much their misses count when memory is divided.
    pub weight: Option<Weight>,
}

/// `[[share]]`: a group whose exports of one image read one set of pages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[share]]")]
pub struct ShareSection {
    /// The name by which exports refer to the group.
    pub name: Spanned<String>,
    /// The name of the partition that caches the group's images.
    pub partition: Spanned<String>,
}

/// `[[export]]`: one disk that clients may ask for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[export]]")]
pub struct ExportSection {
    /// What a client asks for.
    pub name: Spanned<String>,
    /// The file or device.
    pub path: Spanned<PathBuf>,
    /// The name of the partition that caches it, unless it is in a share group.
    pub partition: Option<Spanned<String>>,
    /// The name of the share group that it is in.
    pub share: Option<Spanned<String>>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// What its bytes are; a raw disk that must not look like an image of another format if there
    /// is nothing.
    pub format: Option<Parsed<DiskFormat>>,
    /// A sentence for clients that list the exports.
    pub description: Option<Spanned<String>>,
    /// How clients reach it; only by NBD if there is nothing.
    pub attach: Option<List<Attach>>,
    /// The most rings of a vhost-user disk.
    pub queues: Option<Spanned<Number<1, 64>>>,
    /// The most entries of a ring.
    pub queue_size: Option<Spanned<Number<4, 1024>>>,
    /// The serial number of a vhost-user disk.
    pub serial: Option<Spanned<String>>,
    /// How long an idle ring is polled, in microseconds.
    pub poll_us: Option<Spanned<Number<0, 1_000_000>>>,
}

/// `[listen]`: the sockets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [listen]")]
pub struct ListenSection {
    /// Where NBD clients connect. Empty only if there are no exports.
    #[serde(default)]
    pub nbd: List<octavo_block::Address>,
    /// Where `octavo ctl` connects.
    pub control: Option<Spanned<Parsed<ControlPath>>>,
    /// Where Prometheus connects.
    pub metrics: Option<Spanned<Parsed<SocketAddr>>>,
    /// Hosts that requests for metrics may name, besides this machine's own names and addresses.
    pub metrics_hosts: Option<List<Host>>,
    /// The mode of the sockets of clients and virtual machines.
    pub socket_mode: Option<Spanned<Parsed<SocketMode>>>,
    /// Their group.
    pub socket_group: Option<Spanned<Parsed<Group>>>,
}

/// `[control]`: the control file system.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [control]")]
pub struct ControlSection {
    /// Where it is mounted.
    pub fs: Option<Spanned<PathBuf>>,
}

/// `[serve]`: how the server lets clients in and ends.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [serve]")]
pub struct ServeSection {
    /// How long the drain at the end may make no progress.
    pub drain_timeout: Option<Parsed<Duration>>,
    /// How long a client may take to agree on an export.
    pub handshake_timeout: Option<Parsed<Duration>>,
    /// The most clients at a time.
    pub connections_max: Option<Spanned<Number<1, 65_536>>>,
}

/// `[log]`: how the server writes its log.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [log]")]
pub struct LogSection {
    format: Option<Parsed<Format>>,
    level: Option<Parsed<LevelFilter>>,
    timestamps: Option<bool>,
}

impl Config {
    /// The error of a value that was refused later, when the engine or the system was asked.
    pub fn refused<T>(&self, value: &Spanned<T>, message: impl AsRef<str>) -> Error {
        Error::Config(vec![self.line(value, message)])
    }

    /// When a drain is given up.
    pub fn drain_timeout(&self) -> Duration {
        self.serve.drain_timeout.as_ref().map_or(DRAIN_TIMEOUT_DEFAULT, |timeout| timeout.0)
    }

    /// The name of the partition that caches an export: its own, or that of its share group.
    pub fn partition_of<'c>(&'c self, export: &'c ExportSection) -> Option<&'c str> {
        let Some(group) = &export.share else {
            return export.partition.as_ref().map(|name| &**name.get_ref());
        };
        let share = self.shares.iter().find(|share| share.name.get_ref() == group.get_ref());
        share.map(|share| &**share.partition.get_ref())
    }

    /// One line about a value that was refused later, when the engine was asked.
    pub fn line<T>(&self, value: &Spanned<T>, message: impl AsRef<str>) -> String {
        self.source.line(&self.source.problem(value.span().start, message))
    }
}

impl CacheSection {
    /// When copies of pages of other nodes are made, and when they are dropped.
    pub fn replication(&self) -> Replication {
        let usual = Replication::default();
        Replication {
            threshold: self.twin_threshold.map_or(usual.threshold, |count| count.0 as u32),
            refresh: self.twin_refresh.unwrap_or(true),
            elect: self.twin_elect.unwrap_or(true),
            yields: self.twin_yield.unwrap_or(true),
            switch_writes: self.twin_switch.map_or(usual.switch_writes, |count| count.0 as u32),
            weighs: self.twin_weigh.unwrap_or(true),
        }
    }
}

impl PartitionSection {
    /// The recording that starts with the partition.
    pub fn order(&self) -> Option<Order> {
        let sample = self.record_sample.as_ref().map(|sample| sample.get_ref().0.0);
        Some(Order {
            partition: self.name.get_ref().clone(),
            file: self.record.as_ref()?.get_ref().clone(),
            sample_below: sample.unwrap_or(octavo::recording::WHOLE),
            rotate_bytes: bytes(&self.record_rotate),
            // At most 2^20.
            keep: self.record_keep.as_ref().map(|keep| keep.get_ref().0 as u32),
            seconds: None,
        })
    }

    /// The byte offset of the first option of a recording, if there is one.
    fn record_option(&self) -> Option<usize> {
        let sample = self.record_sample.as_ref().map(Spanned::span);
        let rotate = self.record_rotate.as_ref().map(Spanned::span);
        let keep = self.record_keep.as_ref().map(Spanned::span);
        sample.or(rotate).or(keep).map(|span| span.start)
    }
}

fn number<const LEAST: u64, const MOST: u64>(number: &Option<Spanned<Number<LEAST, MOST>>>) -> Option<u64> {
    number.as_ref().map(|number| number.get_ref().0)
}

impl ExportSection {
    /// Whether both describe the same export.
    pub fn is_same(&self, other: &ExportSection) -> bool {
        let text = |text: &Option<Spanned<String>>| text.as_ref().map(|text| text.get_ref().clone());
        self.name.get_ref() == other.name.get_ref()
            && self.path.get_ref() == other.path.get_ref()
            && text(&self.partition) == text(&other.partition)
            && text(&self.share) == text(&other.share)
            && self.read_only == other.read_only
            && self.format.is_some() == other.format.is_some()
            && text(&self.description) == text(&other.description)
            && self.attached().eq(other.attached())
            && number(&self.queues) == number(&other.queues)
            && number(&self.queue_size) == number(&other.queue_size)
            && text(&self.serial) == text(&other.serial)
            && number(&self.poll_us) == number(&other.poll_us)
    }

    /// What `share` contradicts, if anything: the value that is wrong, and a sentence.
    pub fn contradiction(&self) -> Option<(&Spanned<String>, String)> {
        let share = self.share.as_ref()?;
        let group = share.get_ref();
        if let Some(partition) = &self.partition {
            let name = partition.get_ref();
            return Some((
                partition,
                format!(
                    "the share group \"{group}\" has a partition of its own; remove partition = \"{name}\" or share"
                ),
            ));
        }
        let why = format!("only read-only exports share pages in \"{group}\"; read_only = true is missing");
        (!self.read_only).then_some((share, why))
    }

    /// The object of S3 that the path names, if it names one.
    pub fn address(&self) -> Option<Result<Address, String>> {
        self.path.get_ref().to_str().and_then(Address::parse)
    }

    /// How clients reach the export.
    pub fn attached(&self) -> impl Iterator<Item = &Attach> {
        let given = self.attach.iter().flat_map(|list| &list.0).map(|attach| &attach.get_ref().0);
        given.chain(self.attach.is_none().then_some(&Attach::Nbd))
    }

    /// The settings of its vhost-user disk, but for the mode of its partition.
    pub fn vhost(&self) -> VhostSettings {
        let defaults = VhostSettings::default();
        VhostSettings {
            queues: number(&self.queues).map_or(defaults.queues, |queues| queues as u16),
            queue_size: number(&self.queue_size).map_or(defaults.queue_size, |size| size as u16),
            serial: self.serial.as_ref().map(|serial| serial.get_ref().clone()),
            poll: number(&self.poll_us).map_or(defaults.poll, Duration::from_micros),
            ..defaults
        }
    }
}

impl LogSection {
    /// The settings of the section, in the type of the command line's options.
    pub fn wishes(&self) -> Wishes {
        let (format, level) = (self.format.as_ref(), self.level.as_ref());
        Wishes {
            format: format.map(|format| format.0),
            level: level.map(|level| level.0),
            timestamps: self.timestamps,
        }
    }
}

/// The bytes of a size, if the file has it.
pub fn bytes(size: &Option<Size>) -> Option<u64> {
    size.as_ref().map(|size| size.get_ref().0)
}
