//! `octavo ctl export`, `partition` and `reload`: changes to what a running server serves.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::answer::{Json, tell, tell_with_progress};
use super::tables::number;
use crate::control::protocol::{Request, Verb};
use crate::error::Error;
use crate::remotes::Remotes;
use crate::units::{human_bytes, size_bytes};

/// Changes of exports.
#[derive(Subcommand)]
pub enum Export {
    /// Offer a file or a block device to clients, until it is removed or the server ends
    #[command(after_help = "\
Examples:
  octavo ctl export add vm2 --path /var/lib/images/vm2.raw --partition vm1
  octavo ctl export add golden --path /dev/vg0/golden --partition images --read-only
  octavo ctl export add vm3-base --path /var/lib/images/debian.raw --share debian --read-only")]
    Add {
        /// What clients ask for
        name: String,
        /// The file or device
        #[arg(long)]
        path: PathBuf,
        /// The partition that caches it
        #[arg(long, required_unless_present = "share")]
        partition: Option<String>,
        /// The share group whose exports of this image read one set of pages
        #[arg(long, value_name = "GROUP", conflicts_with = "partition")]
        share: Option<String>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// raw: it is a raw disk, though its first bytes are those of another format
        #[arg(long, value_name = "FORMAT")]
        format: Option<String>,
        /// A sentence for clients that list the exports
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Make an export as long as its file or device is now, or change the length of its file
    #[command(after_help = "\
Guests with a vhost-user disk see the new length at once. NBD clients see it when they connect again.

Examples:
  truncate -s 20G /var/lib/images/vm2.raw && octavo ctl export resize vm2
  octavo ctl export resize vm2 20G
  lvextend -L 20G vg0/vm3 && octavo ctl export resize vm3")]
    Resize {
        /// The export
        name: String,
        /// The new length of its file [default: the length that the file or device has]
        #[arg(value_name = "SIZE", value_parser = size_bytes)]
        len_bytes: Option<u64>,
        /// Allow a shorter length: all data past the new end is lost
        #[arg(long)]
        shrink: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Write an export's dirty pages, sync and close its store, and forget it
    #[command(after_help = "\
Clients no longer find the export at once. If its store refuses the dirty pages, the export is
served again, and nothing is lost.")]
    Remove {
        /// The export
        name: String,
        /// Disconnect its clients when their requests in flight are answered, after five seconds
        /// at the latest [default: refuse, and name them]
        #[arg(long, visible_alias = "force")]
        disconnect: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Give up an export whose store refuses or does not answer: lose its unwritten bytes
    #[command(after_help = "\
Such an export cannot be removed, and no other server can take over from this one. Without --yes,
says how many bytes would be lost, and changes nothing. With --yes, disconnects the clients of the
export, drops its dirty pages, and removes it; a reload or the next server opens it anew if the
configuration has it.

Examples:
  octavo ctl export abandon vm2         what would be lost
  octavo ctl export abandon vm2 --yes")]
    Abandon {
        /// The export
        name: String,
        /// Lose the bytes
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: Json,
    },
}

/// Changes of partitions.
#[derive(Subcommand)]
pub enum Partition {
    /// Make a partition, until it is removed or the server ends
    #[command(after_help = "\
Sizes are as in octavo.toml(5), which describes each option under its name there.

Example:
  octavo ctl partition add vm2 --cache-mode writeback --max 64MiB --min 8MiB")]
    Add(Box<New>),
    /// Remove a partition that no export uses, and free its memory
    Remove {
        /// The partition
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

/// A new partition: the keys of `[[partition]]`.
#[derive(Args)]
pub struct New {
    /// Its name
    name: String,
    /// The eviction policy [default: octavo]
    #[arg(long)]
    policy: Option<String>,
    /// writethrough or writeback [default: writethrough]
    #[arg(long, visible_alias = "mode", value_name = "MODE")]
    cache_mode: Option<String>,
    /// The size of its pages, from 4KiB to 1MiB [default: cache.page_bytes]
    #[arg(long, value_name = "SIZE")]
    page_bytes: Option<String>,
    /// Bytes that are never taken from it
    #[arg(long, value_name = "SIZE")]
    min: Option<String>,
    /// Bytes that are taken from it last
    #[arg(long, value_name = "SIZE")]
    low: Option<String>,
    /// Bytes beyond which it holds only memory that no other partition can use
    #[arg(long, value_name = "SIZE")]
    high: Option<String>,
    /// Bytes that it never exceeds
    #[arg(long, visible_alias = "size", value_name = "SIZE")]
    max: Option<String>,
    /// How much its misses count, from 1 to 10000 [default: 100]
    #[arg(long, value_name = "N")]
    weight: Option<String>,
    /// Most bytes of dirty pages
    #[arg(long, value_name = "SIZE")]
    dirty_max: Option<String>,
    /// Most bytes that are read ahead of a stream [default: 512KiB]
    #[arg(long, value_name = "SIZE")]
    read_ahead: Option<String>,
    /// The NUMA node where all its pages lie
    #[arg(long, value_name = "N")]
    node: Option<String>,
    #[command(flatten)]
    json: Json,
}

/// A reload.
#[derive(Args)]
#[command(after_help = "\
If one change is refused, none is made, and every reason is shown with its line of the file.
Exports and partitions that octavo ctl added are kept. SIGHUP does the same, without --disconnect.")]
pub struct Reload {
    /// Disconnect clients of exports that are removed [default: refuse, and name them]
    #[arg(long, visible_alias = "force")]
    disconnect: bool,
    #[command(flatten)]
    json: Json,
}

impl Export {
    /// Asks for the change, and prints the answer.
    pub fn ask(&self, socket: &Path) -> Result<(), Error> {
        match self {
            Export::Add { name, path, partition, share, read_only, format, description, json } => {
                let failed = |error| Error::failed(format!("{}: {error}", path.display()));
                let path = match Remotes::address(path) {
                    Some(_) => path.clone(),
                    None => std::path::absolute(path).map_err(failed)?,
                };
                let path = path
                    .to_str()
                    .ok_or_else(|| Error::Usage(format!("{}: the path is not UTF-8", path.display())))?;
                let mut values = vec![("path", path.to_owned())];
                values.extend(partition.clone().map(|name| ("partition", name)));
                values.extend(share.clone().map(|name| ("share", name)));
                values.extend(read_only.then(|| ("read_only", "true".to_owned())));
                values.extend(format.clone().map(|format| ("format", format)));
                values.extend(description.clone().map(|text| ("description", text)));
                let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                let request = Request { object: Some(name.clone()), values, ..Request::new(Verb::ExportAdd) };
                tell(json, socket, &request, |answer| {
                    let len = human_bytes(number(answer, "len_bytes"));
                    let partition = answer["partition"].as_str().unwrap_or_default();
                    format!("export \"{name}\" is added: {path}, {len}, in partition \"{partition}\"\n")
                })
            }
            Export::Resize { name, len_bytes, shrink, json } => {
                let request = Request {
                    object: Some(name.clone()),
                    bytes: *len_bytes,
                    shrink: *shrink,
                    ..Request::new(Verb::ExportResize)
                };
                tell(json, socket, &request, |answer| {
                    let [former, now] = ["former_len_bytes", "len_bytes"].map(|key| number(answer, key));
                    match former == now {
                        true => format!("export \"{name}\" has {now} bytes, as before\n"),
                        false => format!("export \"{name}\" is resized: {former} bytes -> {now} bytes\n"),
                    }
                })
            }
            Export::Remove { name, disconnect, json } => {
                let request = Request {
                    object: Some(name.clone()),
                    disconnect: *disconnect,
                    ..Request::new(Verb::ExportRemove)
                };
                tell_with_progress(json, socket, &request, |_| format!("export \"{name}\" is removed\n"))
            }
            Export::Abandon { name, yes, json } => {
                let request = Request {
                    object: Some(name.clone()),
                    confirmed: *yes,
                    ..Request::new(Verb::ExportAbandon)
                };
                tell(json, socket, &request, |answer| {
                    let bytes = number(answer, "lost_bytes");
                    format!("export \"{name}\" is given up: {bytes} bytes lost ({})\n", human_bytes(bytes))
                })
            }
        }
    }
}

impl Partition {
    /// Asks for the change, and prints the answer.
    pub fn ask(&self, socket: &Path) -> Result<(), Error> {
        match self {
            Partition::Add(new) => {
                let given = [
                    ("policy", &new.policy),
                    ("cache_mode", &new.cache_mode),
                    ("page_bytes", &new.page_bytes),
                    ("min", &new.min),
                    ("low", &new.low),
                    ("high", &new.high),
                    ("max", &new.max),
                    ("weight", &new.weight),
                    ("dirty_max", &new.dirty_max),
                    ("read_ahead", &new.read_ahead),
                    ("node", &new.node),
                ];
                let values = given.into_iter().filter_map(|(key, value)| Some((key.into(), value.clone()?)));
                let request =
                    Request { values: values.collect(), ..Request::about(Verb::PartitionAdd, &new.name) };
                let name = &new.name;
                tell(&new.json, socket, &request, |_| format!("partition \"{name}\" is added\n"))
            }
            Partition::Remove { name, json } => {
                let request = Request::about(Verb::PartitionRemove, name);
                tell(json, socket, &request, |_| format!("partition \"{name}\" is removed\n"))
            }
        }
    }
}

impl Reload {
    /// Asks for the reload, and prints what it did.
    pub fn ask(&self, socket: &Path) -> Result<(), Error> {
        let request = Request { disconnect: self.disconnect, ..Request::new(Verb::Reload) };
        tell_with_progress(&self.json, socket, &request, |answer| {
            let changes = answer["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
            let text = |change: &Value, key: &str| change[key].as_str().unwrap_or_default().to_owned();
            let line = |change| {
                format!("{} \"{}\": {}\n", text(change, "kind"), text(change, "name"), text(change, "change"))
            };
            match changes.is_empty() {
                true => "nothing has changed\n".into(),
                false => changes.iter().map(line).collect(),
            }
        })
    }
}
