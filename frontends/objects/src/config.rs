//! Settings, and the hints that a read may carry.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::tier::TierConfig;

/// Settings of [`Objects`](crate::Objects).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use octavo_objects::ObjectsConfig;
/// // Objects that nobody changes within a minute.
/// let config = ObjectsConfig { meta_ttl: Duration::from_secs(60), ..ObjectsConfig::default() };
/// config.validate()?;
/// # Ok::<(), octavo_objects::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ObjectsConfig {
    /// The unit of a fill in bytes: a miss reads the whole unit around it with one GET. A power of
    /// two from 64 KiB to 4 MiB. Default: 512 KiB.
    pub fill_bytes: u32,
    /// How long a miss of a part of a unit, whose other pages are resident, waits for further
    /// misses of the unit, which the same GET then serves. Zero: not at all. Default: 1 ms.
    pub merge_window: Duration,
    /// How long the size and version of an object may be taken from an earlier answer. Zero: every
    /// read asks the server first, with a HEAD. Default: zero.
    pub meta_ttl: Duration,
    /// Most GETs in flight. Default: 64.
    pub fills_max: usize,
    /// Most attempts of one fill. Default: 4.
    pub attempts_max: u32,
    /// How long a server may send nothing before the attempt ends. Default: 10 s.
    pub patience: Duration,
    /// How long all attempts of one request may take together. Default: 60 s.
    pub deadline: Duration,
    /// Most objects whose pages are kept. Beyond it, the pages of the least recently used object
    /// are dropped. Each takes about 2 KiB, charged to the cache's buffers. Default: 65,536.
    pub objects_max: usize,
    /// Most bytes of pages that [`Usage::Pin`] keeps in memory. Default: `None`, a sixteenth of the
    /// cache's `memory_max`.
    pub pins_max_bytes: Option<u64>,
    /// Threads that talk to servers. Default: 2.
    pub threads: usize,
    /// Which partition has the pages of which objects: the first route whose prefix the path
    /// begins with. Default: none.
    pub routes: Vec<Route>,
    /// Files on a local disk that keep filled units beyond memory and across restarts. Its blocks
    /// have the size of `fill_bytes`. Default: `None`.
    pub tier: Option<TierConfig>,
}

/// Sends the objects below a prefix to a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The beginning of a path, such as `warehouse/orders/`.
    pub prefix: String,
    /// The name of the partition.
    pub partition: String,
}

impl Default for ObjectsConfig {
    fn default() -> ObjectsConfig {
        ObjectsConfig {
            fill_bytes: 512 << 10,
            merge_window: Duration::from_millis(1),
            meta_ttl: Duration::ZERO,
            fills_max: 64,
            attempts_max: 4,
            patience: Duration::from_secs(10),
            deadline: Duration::from_secs(60),
            objects_max: 65_536,
            pins_max_bytes: None,
            threads: 2,
            routes: Vec::new(),
            tier: None,
        }
    }
}

impl ObjectsConfig {
    /// # Errors
    /// [`ErrorKind::Config`] with a sentence that names the setting and what it may be.
    pub fn validate(&self) -> Result<(), Error> {
        let fill = self.fill_bytes;
        let problem = match self {
            _ if !fill.is_power_of_two() || !(64 << 10..=4 << 20).contains(&fill) => {
                format!("fill_bytes is {fill}: a power of two from 65536 to 4194304 is needed")
            }
            ObjectsConfig { fills_max: 0, .. } => "fills_max is 0: at least 1 is needed".into(),
            ObjectsConfig { attempts_max: 0, .. } => "attempts_max is 0: at least 1 is needed".into(),
            ObjectsConfig { objects_max: 0, .. } => "objects_max is 0: at least 1 is needed".into(),
            ObjectsConfig { threads: 0, .. } => "threads is 0: at least 1 is needed".into(),
            _ if self.patience.is_zero() => "patience is zero: no server answers in no time".into(),
            _ if self.merge_window >= self.patience => {
                "merge_window is not shorter than patience: a miss would wait longer than for a server".into()
            }
            _ if self.deadline < self.patience => "deadline is shorter than patience".into(),
            ObjectsConfig { tier: Some(tier), .. } if tier.block_bytes != fill => format!(
                "the file tier has blocks of {} bytes, fills have {fill}: both must be equal",
                tier.block_bytes
            ),
            _ => return self.tier.as_ref().map_or(Ok(()), TierConfig::validate),
        };
        Err(Error::new(ErrorKind::Config, "", problem))
    }
}

/// What a reader knows about its read that the cache does not.
///
/// Wrappers of `object_store` find it in `GetOptions::extensions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// How the bytes will be used.
    pub usage: Usage,
    /// The partition for the object's pages, in place of the route's. Readers with different
    /// tenants do not share pages.
    pub tenant: Option<String>,
}

/// How the bytes of a read will be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// Nothing is known.
    #[default]
    Normal,
    /// They are read once: they come from the cache if they are there, but are not kept.
    Once,
    /// They are needed for as long as the object is: their pages stay in memory, as far as
    /// [`ObjectsConfig::pins_max_bytes`] allows. For small, hot parts such as footers.
    Pin,
    /// The cache is passed by: every byte comes from the server.
    Bypass,
}

impl From<Usage> for Hint {
    fn from(usage: Usage) -> Hint {
        Hint { usage, tenant: None }
    }
}
