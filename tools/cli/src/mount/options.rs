//! The options of a mount, as `-o` and fstab have them: `rw,noatime,memory_max=64m`.

use std::path::PathBuf;
use std::time::Duration;

use octavo::{CacheMode, PolicyName};
use octavo_fuse::{Coherence, MountOptions};

use crate::config::values::Parse;
use crate::error::Error;
use crate::{suggest, units};

/// The limit on memory of a mount that has none: that of `octavo serve` without a configuration.
const MEMORY_MAX_DEFAULT: u64 = 128 << 20;

/// The least limit with which a mount starts: one thread's buffers, the reserve for requests, and a
/// segment of pages.
pub const MEMORY_MAX_LEAST: u64 = 4 << 20;

/// Memory for each thread, whose buffers take a megabyte.
const MEMORY_PER_THREAD: u64 = 16 << 20;

/// The options with a meaning. Those with a value end with `=`.
const KNOWN: [&str; 20] = [
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "allow_other",
    "no_allow_other",
    "writeback",
    "writethrough",
    "memory_max=",
    "policy=",
    "coherence=",
    "attr_timeout=",
    "threads=",
    "files_max=",
    "nodes_max=",
    "log=",
];

/// Options of mount(8) that mean nothing here, or are meant for other programs: when fstab's line
/// is used, by whom, and times of access, which reads that hit do not change.
const IGNORED: [&str; 31] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "fail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "nomand",
    "comment",
];

/// What the options ask for.
#[derive(Debug)]
pub struct Options {
    /// The limit on all memory of the cache.
    pub memory_max_bytes: u64,
    /// When a write reaches the directory below.
    pub cache_mode: CacheMode,
    /// Which pages are evicted.
    pub policy: PolicyName,
    /// The file that gets the log once the mount is in the background.
    pub log: Option<PathBuf>,
    /// The rest.
    pub mount: MountOptions,
}

impl Options {
    /// Reads lists of options. A later option wins.
    ///
    /// # Errors
    /// The name of an option that is unknown, or whose value is wrong.
    pub fn read<'o>(lists: impl IntoIterator<Item = &'o str>) -> Result<Options, Error> {
        let mut options = Options {
            memory_max_bytes: MEMORY_MAX_DEFAULT,
            cache_mode: CacheMode::default(),
            policy: PolicyName::default(),
            log: None,
            mount: MountOptions::default(),
        };
        let mut threads = None;
        for word in lists.into_iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let refused = |why: String| Error::Usage(format!("option {word}: {why}"));
            options.set(word, &mut threads).map_err(refused)?;
        }
        if options.mount.read_only && options.cache_mode == CacheMode::Writeback {
            let why = "a read-only mount writes nothing back; leave out one of ro and writeback";
            return Err(Error::Usage(why.into()));
        }
        options.mount.threads = threads.unwrap_or_else(|| threads_of(options.memory_max_bytes));
        Ok(options)
    }

    /// Takes an option. The error is a sentence.
    fn set(&mut self, word: &str, threads: &mut Option<usize>) -> Result<(), String> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let mount = &mut self.mount;
        match word {
            "ro" => mount.read_only = true,
            "rw" => mount.read_only = false,
            "suid" => mount.suid = true,
            "nosuid" => mount.suid = false,
            "dev" => mount.dev = true,
            "nodev" => mount.dev = false,
            "exec" => mount.exec = true,
            "noexec" => mount.exec = false,
            "allow_other" => mount.allow_other = true,
            "no_allow_other" => mount.allow_other = false,
            "writeback" => self.cache_mode = CacheMode::Writeback,
            "writethrough" => self.cache_mode = CacheMode::Writethrough,
            "remount" => {
                return Err("the options of a mount stay as they are; unmount it and mount it again".into());
            }
            _ if word.contains('=') => match name {
                "memory_max" => self.memory_max_bytes = memory_max(value)?,
                "policy" => self.policy = policy(value)?,
                "attr_timeout" => mount.valid = Some(seconds(value)?),
                "coherence" => mount.coherence = Coherence::parse(value)?,
                "threads" => *threads = Some(number(value, 1, 256)?),
                "files_max" => mount.files_max = number(value, 1, 1 << 24)?,
                "nodes_max" => mount.nodes_max = number(value, 16, 1 << 30)?,
                "log" => self.log = Some(value.into()),
                "user" | "uhelper" | "helper" | "comment" => {}
                _ if is_for_others(name) => {}
                _ => return Err(unknown(name)),
            },
            _ if IGNORED.contains(&word) || is_for_others(word) => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }
}

fn memory_max(text: &str) -> Result<u64, String> {
    let bytes = units::size_bytes(text)?;
    if bytes < MEMORY_MAX_LEAST {
        let least = units::human_bytes(MEMORY_MAX_LEAST);
        return Err(format!("this is too little for a mount; the least is {least}"));
    }
    Ok(bytes)
}

/// The usual number of threads of a mount, of a cache with this much memory.
pub fn threads_of(memory_max_bytes: u64) -> usize {
    let affordable = usize::try_from(memory_max_bytes / MEMORY_PER_THREAD).unwrap_or(usize::MAX);
    MountOptions::default().threads.min(affordable.max(1))
}

fn unknown(word: &str) -> String {
    format!("no such option; {}", suggest::of(word, &KNOWN))
}

/// Whether an option is meant for systemd or another program.
fn is_for_others(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("X-")
}

fn policy(name: &str) -> Result<PolicyName, String> {
    let names: Vec<&str> = PolicyName::ALL.iter().map(|policy| policy.name()).collect();
    let found = PolicyName::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| format!("no such policy; {}", suggest::of(name, &names)))
}

fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// Parses seconds, which may have a fraction, as libfuse's options do, or a duration with a unit.
fn seconds(text: &str) -> Result<Duration, String> {
    let bare = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let most = Duration::from_secs(24 * 3600);
    match bare {
        Some(bare) if bare <= most => Ok(bare),
        Some(_) => Err(format!("\"{text}\" is more than a day")),
        None => units::duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_are_read_and_those_of_other_programs_ignored() {
        let lists = ["rw,noatime,_netdev,noauto,nofail,user=me,x-systemd.requires=/srv,X-mount.mkdir", "ro,"];
        let options = Options::read(lists).unwrap();
        assert!(options.mount.read_only && options.cache_mode == CacheMode::Writethrough);
        assert_eq!(options.memory_max_bytes, MEMORY_MAX_DEFAULT);
        let list = "memory_max=64m,writeback,coherence=exclusive,attr_timeout=0.5,threads=3,\
                    policy=lru,suid,noexec,log=/l";
        let options = Options::read([list]).unwrap();
        assert_eq!((options.memory_max_bytes, options.mount.threads), (64 << 20, 3));
        assert_eq!(options.mount.valid, Some(Duration::from_millis(500)));
        assert_eq!(options.mount.coherence, Coherence::Exclusive);
        assert_eq!((options.policy.name(), options.cache_mode), ("lru", CacheMode::Writeback));
        assert!(options.mount.suid && !options.mount.exec && !options.mount.dev);
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (list, why) in [
            ("rw,writebak", "option writebak: no such option; did you mean \"writeback\"?"),
            ("memory_max=much", "option memory_max=much: \"much\" does not begin with a number"),
            ("memory_max=0", "option memory_max=0: this is too little for a mount; the least is 4 MiB"),
            ("memory_max=4095k", "the least is 4 MiB"),
            ("memory_max", "option memory_max: no such option; did you mean \"memory_max=\"?"),
            ("ro=1", "option ro=1: no such option"),
            ("threads=0", "option threads=0: expected a number from 1 to 256"),
            ("policy=octvo", "no such policy; did you mean \"octavo\"?"),
            ("attr_timeout=-1", "option attr_timeout=-1: "),
            ("remount,ro", "unmount it and mount it again"),
            ("ro,writeback", "a read-only mount writes nothing back"),
            ("writeback,ro", "a read-only mount writes nothing back"),
        ] {
            let error = Options::read([list]).unwrap_err();
            assert!(error.lines()[0].contains(why), "{list}: {:?}", error.lines());
            assert_eq!(error.exit_status(), 2);
        }
    }

    #[test]
    fn little_memory_means_few_threads() {
        assert_eq!(Options::read(["memory_max=16m"]).unwrap().mount.threads, 1);
        assert_eq!(Options::read(["memory_max=4m"]).unwrap().memory_max_bytes, MEMORY_MAX_LEAST);
    }
}
