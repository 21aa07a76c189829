//! Memory pressure: how much memory the system has left, and how much of it the cache may hold.
//!
//! - [`Linux`] reads the kernel's figures: PSI, `MemAvailable`, and the limits of the process's
//!   cgroup and of all cgroups above it (version 2 or 1, whichever is set). If permitted, it
//!   sets PSI triggers, by which the kernel reports stalls at once: the averages over ten
//!   seconds are late.
//! - `Total::follow` decides, from samples alone, how much the cache may hold: less, in steps,
//!   while memory is short, and more again when it is not.
//!
//! Not here: taking memory from partitions (`control/reaper.rs`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::sync::Arc;

/// A sample of the system's memory at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Percentage of the last ten seconds in which some process waited for memory (PSI `some
    /// avg10`). `None`: unknown.
    pub stalled_percent: Option<f64>,
    /// Bytes available without swapping, under the tightest of all limits. `None`: unknown.
    pub available_bytes: Option<u64>,
    /// The tightest limit itself, in bytes: the machine's memory, or a cgroup's limit. `None`:
    /// unknown.
    pub bound_bytes: Option<u64>,
}

impl Sample {
    /// Returns the sample for a moment when processes are stalled: the average is at least the
    /// share of time at which triggers fire.
    pub(crate) fn stalled_now(self) -> Sample {
        Sample { stalled_percent: worse(self.stalled_percent, Some(STALLED_PERCENT)), ..self }
    }
}

/// Source of memory-pressure samples.
///
/// # Examples
/// ```
/// use octavo::pressure::{PressureSource, Sample};
/// let source = PressureSource::new(|| Sample { stalled_percent: Some(0.0), ..Sample::default() });
/// assert_eq!(source.sample().stalled_percent, Some(0.0));
/// ```
#[derive(Clone)]
pub struct PressureSource {
    sample: Arc<dyn Fn() -> Sample + Send + Sync>,
    triggers: fn() -> Vec<File>,
}

impl PressureSource {
    /// Creates a source from a function, which the reaper calls about once a second. To report a
    /// shortage earlier, call [`crate::Cache::memory_is_short`].
    pub fn new(sample: impl Fn() -> Sample + Send + Sync + 'static) -> PressureSource {
        PressureSource { sample: Arc::new(sample), triggers: Vec::new }
    }

    /// Creates a source of the kernel's figures, from `/proc` and `/sys/fs/cgroup`, with
    /// triggers.
    pub fn linux() -> PressureSource {
        let linux = Linux::new(Path::new("/"));
        PressureSource::new(move || linux.sample()).with_triggers()
    }

    /// Adds the kernel's PSI triggers, if the process may set them: the kernel then reports at
    /// once that processes stall for lack of memory.
    pub fn with_triggers(self) -> PressureSource {
        PressureSource { triggers: || Linux::new(Path::new("/")).triggers(), ..self }
    }

    /// Takes a sample.
    pub fn sample(&self) -> Sample {
        (self.sample)()
    }

    /// Opens the triggers: files for which poll(2) reports `POLLPRI` when processes stall for
    /// lack of memory.
    pub(crate) fn triggers(&self) -> Vec<File> {
        (self.triggers)()
    }
}

impl std::fmt::Debug for PressureSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PressureSource")
    }
}

/// The cache shrinks if processes wait for memory at least this percentage of the time.
const STALLED_PERCENT: f64 = 10.0;

/// The trigger's condition: processes waited for memory for a tenth ([`STALLED_PERCENT`]) of the
/// last two seconds. It fires at most once in two seconds; only root may ask for shorter
/// windows.
const TRIGGER: &str = "some 200000 2000000\0";

/// The cache may grow again at or below this percentage.
const CALM_PERCENT: f64 = 1.0;

/// The part of the limit that is left to other processes, 1/16: below half of it the cache
/// shrinks, above all of it the cache grows.
const MARGIN: u64 = 16;

/// In one period the cache shrinks by 1/8 of what it holds, and grows by 1/32 of what it may
/// hold.
const SHRINK: u64 = 8;
const GROW: u64 = 32;

/// How much memory the cache may hold now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub bytes: u64,
    most: u64,
}

impl Total {
    pub fn new(most: u64) -> Total {
        Total { bytes: most, most }
    }

    /// Whether the total is reduced, because the system is, or recently was, short of memory.
    pub fn is_less(&self) -> bool {
        self.bytes < self.most
    }

    /// Adjusts the total to a sample taken while `held` bytes are in use. Returns whether it
    /// changed.
    pub fn follow(&mut self, sample: &Sample, held: u64) -> bool {
        let before = self.bytes;
        let margin = sample.bound_bytes.unwrap_or(self.most) / MARGIN;
        let available = sample.available_bytes.unwrap_or(u64::MAX);
        let stalled = sample.stalled_percent.unwrap_or(0.0);
        let missing = (margin / 2).saturating_sub(available);
        if missing > 0 || stalled >= STALLED_PERCENT && available < 2 * margin {
            let held = held.min(self.bytes);
            self.bytes = held.saturating_sub(missing.max(held / SHRINK));
        } else if stalled <= CALM_PERCENT && available > margin {
            let step = (self.most / GROW).min(available - margin);
            self.bytes = self.bytes.saturating_add(step).min(self.most);
        }
        self.bytes != before
    }
}

/// The kernel's figures of memory, read from `/proc` and `/sys`.
#[derive(Debug)]
pub struct Linux {
    root: PathBuf,
}

impl Linux {
    /// Reads below `root`: `/`, except in tests.
    pub fn new(root: &Path) -> Linux {
        Linux { root: root.into() }
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// Takes a sample of the kernel's current figures.
    pub fn sample(&self) -> Sample {
        let mut sample = Sample {
            stalled_percent: self.read("proc/pressure/memory").and_then(|text| stalled(&text)),
            ..Sample::default()
        };
        let mut bound = |bound: Option<u64>, available: Option<u64>| {
            let (Some(bound), Some(available)) = (bound, available) else { return };
            if sample.available_bytes.is_none_or(|least| available < least) {
                (sample.bound_bytes, sample.available_bytes) = (Some(bound), Some(available));
            }
        };
        let meminfo = self.read("proc/meminfo").unwrap_or_default();
        let kib = |key: &str| field(&meminfo, key).and_then(|kib| kib.checked_mul(1024));
        bound(kib("MemTotal:"), kib("MemAvailable:"));
        let mut stalled_here: Option<f64> = None;
        for (version, folder) in self.cgroups() {
            let (limit, usage) = match version {
                2 => ("memory.max", "memory.current"),
                _ => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            };
            let limit = self.number(&format!("{folder}/{limit}")).filter(|limit| *limit < 1 << 60);
            let usage = self.number(&format!("{folder}/{usage}"));
            // The kernel can reclaim its own page cache in the group.
            let stat = self.read(&format!("{folder}/memory.stat")).unwrap_or_default();
            let inactive =
                ["inactive_file", "total_inactive_file"].iter().filter_map(|key| field(&stat, key));
            let free = limit.zip(usage).map(|(limit, usage)| limit.saturating_sub(usage));
            bound(limit, free.map(|free| free + inactive.max().unwrap_or(0)));
            if limit.is_some()
                && let Some(text) = self.read(&format!("{folder}/memory.pressure"))
            {
                stalled_here = worse(stalled(&text), stalled_here);
            }
        }
        sample.stalled_percent = worse(stalled_here, sample.stalled_percent);
        sample
    }

    /// Opens a trigger for stalls of the machine's processes or, if the kernel does not permit
    /// that, of the process's cgroup. Empty if PSI is off, or not permitted at all.
    pub(crate) fn triggers(&self) -> Vec<File> {
        let groups = self.cgroups().into_iter().filter(|(version, _)| *version == 2);
        let groups = groups.map(|(_, folder)| format!("{folder}/memory.pressure"));
        let trigger = |path: String| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
            let mut file = options.open(self.root.join(&path)).ok()?;
            file.write_all(TRIGGER.as_bytes()).ok()?;
            log::debug!("/{path} reports stalls for memory");
            Some(file)
        };
        ["proc/pressure/memory".to_owned()].into_iter().chain(groups).find_map(trigger).into_iter().collect()
    }

    /// Returns the folders of the process's cgroup and of all cgroups above it that may limit
    /// memory, each with its version.
    fn cgroups(&self) -> Vec<(u32, String)> {
        let mut folders = Vec::new();
        for line in self.read("proc/self/cgroup").unwrap_or_default().lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (version, mount) = match controllers {
                "" if self.root.join("sys/fs/cgroup/unified").is_dir() => (2, "sys/fs/cgroup/unified"),
                "" => (2, "sys/fs/cgroup"),
                list if list.split(',').any(|name| name == "memory") => (1, "sys/fs/cgroup/memory"),
                _ => continue,
            };
            // 64 levels are as deep as paths are. In a container the path may lie outside of the
            // mount; the mount itself is then the process's group.
            for folder in Path::new(path.trim_start_matches('/')).ancestors().take(64) {
                folders.push((version, format!("{mount}/{}", folder.display())));
            }
        }
        folders
    }
}

/// Returns the larger of two figures, of which either may be missing.
fn worse(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

/// Returns the number that follows the word `key` at the beginning of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| {
        words.next().filter(|word| *word == key).and_then(|_| words.next()?.parse().ok())
    })
}

/// Returns `some avg10` of a PSI file.
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Creates a root folder that contains `files`.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("octavo-pressure-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   400 kB\n");

    #[test]
    fn the_tightest_bound_counts_whichever_version_sets_it() {
        let psi = ("proc/pressure/memory", "some avg10=2.50 avg60=0.00 total=1\nfull avg10=9.00 total=0\n");
        let second = [
            MEMINFO,
            psi,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "300000\n"),
            ("sys/fs/cgroup/a/memory.current", "250000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 1000\n"),
            ("sys/fs/cgroup/a/memory.pressure", "some avg10=31.00 avg60=0 total=1\n"),
        ];
        let first = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/\n4:memory,hugetlb:/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "200000\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "150000\n"),
        ];
        for (name, files, stalled_percent, available_bytes, bound_bytes) in [
            ("machine", &[MEMINFO, psi][..], Some(2.5), Some(400 << 10), Some(1000 << 10)),
            ("v2", &second, Some(31.0), Some(51_000), Some(300_000)),
            ("v1", &first, None, Some(50_000), Some(200_000)),
            ("none", &[("x", "")], None, None, None),
        ] {
            let root = root(name, files);
            let expected = Sample { stalled_percent, available_bytes, bound_bytes };
            assert_eq!(Linux::new(&root).sample(), expected, "{name}");
            std::fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn a_trigger_is_set_where_the_kernel_lets_us_and_on_the_machine_first() {
        let group = ("proc/self/cgroup", "0::/a\n");
        let files = [group, ("proc/pressure/memory", ""), ("sys/fs/cgroup/a/memory.pressure", "")];
        for (name, files, set) in [
            ("triggers-machine", &files[..], Some("proc/pressure/memory")),
            ("triggers-group", &[files[0], files[2]], Some("sys/fs/cgroup/a/memory.pressure")),
            ("triggers-none", &files[..1], None),
        ] {
            let root = root(name, files);
            assert_eq!(Linux::new(&root).triggers().len(), usize::from(set.is_some()), "{name}");
            for (path, _) in &files[1..] {
                let text = std::fs::read_to_string(root.join(path)).unwrap();
                assert_eq!(text == TRIGGER, set == Some(path), "{name}: {path} has {text:?}");
            }
            std::fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn the_total_falls_by_steps_while_memory_is_short_and_grows_again() {
        let mut total = Total::new(800);
        let calm = Sample { stalled_percent: Some(0.0), available_bytes: Some(500), bound_bytes: Some(1600) };
        assert!(!total.follow(&calm, 800));
        let stalled = Sample { stalled_percent: Some(20.0), available_bytes: Some(150), ..calm };
        assert!(total.follow(&stalled, 800));
        assert_eq!(total.bytes, 700);
        // Nothing is left: the missing amount goes at once.
        total.follow(&Sample { available_bytes: Some(0), bound_bytes: Some(8000), ..calm }, 700);
        assert_eq!(total.bytes, 450);
        // Between short and calm the total stays.
        assert!(!total.follow(&Sample { available_bytes: Some(70), ..calm }, 450));
        (0..3).for_each(|_| _ = total.follow(&calm, 450));
        assert_eq!(total.bytes, 525);
        (0..30).for_each(|_| _ = total.follow(&calm, 450));
        assert_eq!(total.bytes, 800);
        // Without figures nothing changes.
        assert!(!total.follow(&Sample::default(), 800));
        // A trigger fires while the averages are still low: an amount between enough and too
        // little then counts as too little.
        let tight = Sample { available_bytes: Some(150), ..calm };
        assert!(!total.follow(&tight, 800) && total.follow(&tight.stalled_now(), 800));
        assert!(!Total::new(800).follow(&calm.stalled_now(), 800), "there is enough");
    }
}
