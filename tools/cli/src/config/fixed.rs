//! The keys that a reload cannot change, because the cache, its threads or its sockets were made
//! with their values.

use toml::Spanned;

use super::source::Problem;
use super::{Config, PartitionSection, bytes};

/// A key's value as text that is equal exactly for values that mean the same.
type Text<S> = fn(&S) -> String;

/// The keys that exist once, by their dotted names.
const OF_THE_SERVER: &[(&str, Text<Config>)] = &[
    ("cache.memory_max", |config| config.cache.memory_max.get_ref().0.to_string()),
    ("cache.page_bytes", |config| bytes(&config.cache.page_bytes).unwrap_or(4096).to_string()),
    ("cache.io", |config| debug(config.cache.io.as_ref().map(|io| io.0).unwrap_or_default())),
    ("cache.buffers_max", |config| debug(bytes(&config.cache.buffers_max))),
    ("cache.reaper", |config| debug(config.cache.reaper.unwrap_or(true))),
    ("cache.yield", |config| debug(config.cache.yields.unwrap_or(true))),
    ("cache.topology", |config| {
        debug(config.cache.topology.as_ref().map(|given| given.0).unwrap_or_default())
    }),
    ("cache.numa", |config| debug(config.cache.numa.as_ref().map(|mode| mode.0).unwrap_or_default())),
    ("cache.twin_threshold", |config| debug(config.cache.replication().threshold)),
    ("cache.twin_switch", |config| debug(config.cache.replication().switch_writes)),
    ("cache.twin_refresh", |config| debug(config.cache.replication().refresh)),
    ("cache.twin_elect", |config| debug(config.cache.replication().elect)),
    ("cache.twin_yield", |config| debug(config.cache.replication().yields)),
    ("cache.twin_weigh", |config| debug(config.cache.replication().weighs)),
    ("listen.nbd", |config| {
        config.listen.nbd.0.iter().map(|nbd| nbd.get_ref().0.to_string() + "\n").collect()
    }),
    ("listen.control", |config| {
        debug(config.listen.control.as_ref().map(|control| control.get_ref().0.0.clone()))
    }),
    ("listen.metrics", |config| debug(config.listen.metrics.as_ref().map(|address| address.get_ref().0))),
    ("listen.metrics_hosts", |config| {
        let hosts = config.listen.metrics_hosts.iter().flat_map(|hosts| &hosts.0);
        debug(hosts.map(|host| &host.get_ref().0).collect::<Vec<_>>())
    }),
    ("listen.socket_mode", |config| debug(config.listen.socket_mode.as_ref().map(|mode| mode.get_ref().0.0))),
    ("listen.socket_group", |config| {
        debug(config.listen.socket_group.as_ref().map(|group| group.get_ref().0.0))
    }),
    ("s3.endpoint", |config| debug(config.s3.settings().endpoint)),
    ("s3.region", |config| debug(config.s3.settings().region)),
    ("s3.profile", |config| debug(config.s3.settings().profile)),
    ("s3.redirect_hosts", |config| debug(config.s3.settings().redirect_hosts)),
    ("s3.fill_bytes", |config| debug(bytes(&config.s3.fill_bytes))),
    ("s3.tier", |config| debug(config.s3.tier.as_ref().map(Spanned::get_ref))),
    ("s3.tier_max", |config| debug(bytes(&config.s3.tier_max))),
    ("control.fs", |config| debug(config.control.fs.as_ref().map(Spanned::get_ref))),
    ("serve.handshake_timeout", |config| {
        debug(config.serve.handshake_timeout.as_ref().map(|timeout| timeout.0))
    }),
    ("serve.connections_max", |config| {
        debug(config.serve.connections_max.as_ref().map(|count| count.get_ref().0))
    }),
];

/// Where a key's value begins in the file, if it is there.
type Place<S> = fn(&S) -> Option<usize>;

/// The keys of a partition.
const OF_A_PARTITION: &[(&str, Text<PartitionSection>, Place<PartitionSection>)] = &[
    (
        "cache_mode",
        |section| debug(section.cache_mode.as_ref().map(|mode| mode.get_ref().0).unwrap_or_default()),
        |section| start(&section.cache_mode),
    ),
    ("page_bytes", |section| debug(bytes(&section.page_bytes)), |section| start(&section.page_bytes)),
    ("read_ahead", |section| debug(bytes(&section.read_ahead)), |section| start(&section.read_ahead)),
    (
        "node",
        |section| debug(section.node.as_ref().map(|node| node.get_ref().0)),
        |section| start(&section.node),
    ),
    ("record", |section| debug(section.order()), |section| start(&section.record)),
];

fn debug(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

fn start<T>(value: &Option<Spanned<T>>) -> Option<usize> {
    value.as_ref().map(|value| value.span().start)
}

const WHY: &str = "cannot change while the server runs; start the server again (`octavo serve --take-over` keeps clients \
                   and pages)";

/// Reports each key of the server whose value differs from the one in force.
pub fn of_the_server(old: &Config, new: &Config, problems: &mut Vec<Problem>) {
    for (key, _) in OF_THE_SERVER.iter().filter(|(_, text)| text(old) != text(new)) {
        let source = &new.source;
        let section = key.split('.').next().unwrap_or(key);
        let place = |name: &str| source.keys.iter().find(|(_, key)| *key == name).map(|(offset, _)| *offset);
        problems.push(match place(key) {
            Some(offset) => Problem { offset, message: format!("{key}: {WHY}") },
            None => Problem {
                offset: place(section).unwrap_or(0),
                message: format!("{key}: is missing, and {WHY}"),
            },
        });
    }
}

/// Reports each key of a partition whose value differs from the one in force.
pub fn of_a_partition(old: &PartitionSection, new: &PartitionSection, problems: &mut Vec<Problem>) {
    for (key, text, place) in OF_A_PARTITION {
        if text(old) == text(new) {
            continue;
        }
        let name = new.name.get_ref();
        let (offset, missing) = match place(new) {
            Some(offset) => (offset, ""),
            None => (new.name.span().start, "is missing, and "),
        };
        let message = format!("partition.{key}: {missing}{WHY}, or give \"{name}\" another name");
        problems.push(Problem { offset, message });
    }
}
