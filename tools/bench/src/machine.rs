//! Queries the kernel for facts about this machine and this process: processor, kernel release,
//! resident memory, huge pages.

use std::fs::read_to_string;
use std::path::PathBuf;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The commit that this program was built from.
pub const COMMIT: &str = env!("OCTAVO_COMMIT");

/// The compiler, target, profile and flags of this build.
pub const FLAGS: &str = env!("OCTAVO_FLAGS");

/// Returns the processor's name.
pub fn cpu() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or("unknown", |(_, name)| name.trim()).to_owned()
}

/// Returns the number of processors that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Binds the calling thread to one of the processors that this process may use: number `thread`,
/// modulo their count. Does nothing if the kernel refuses.
pub fn pin(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if let Some(cpu) = cpus.get(thread % cpus.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(*cpu);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Resident bytes of this process.
pub fn resident_bytes() -> u64 {
    let text = read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the path of an installed program. Also searches the `sbin` folders, which contain disk
/// servers and are only in root's PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Returns the kernel's release.
pub fn kernel() -> String {
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if release.is_empty() { "unknown".into() } else { release.trim().to_owned() }
}

/// Returns two figures of the mapping that contains `address`: its bytes on huge pages, and its
/// resident bytes.
pub fn huge_pages_bytes(address: usize) -> (u64, u64) {
    let smaps = read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut inside = false;
    let (mut huge, mut resident) = (0, 0);
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some((from, to)) = words.first().and_then(|first| range(first)) {
            inside = (from..to).contains(&address);
        } else if inside && let [key, kib, ..] = words[..] {
            let bytes = kib.parse::<u64>().unwrap_or(0) << 10;
            match key {
                "AnonHugePages:" => huge = bytes,
                "Rss:" => resident = bytes,
                _ => {}
            }
        }
    }
    (huge, resident)
}

/// Parses a range of addresses: `7f00-7f10`, hexadecimal.
fn range(word: &str) -> Option<(usize, usize)> {
    let (from, to) = word.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_an_address_is_found_with_its_resident_bytes() {
        let bytes = vec![1u8; 1 << 20];
        let (_, resident) = huge_pages_bytes(bytes.as_ptr().addr());
        assert!(resident >= 1 << 19, "{resident}");
        assert_eq!(range("7f00-7f10"), Some((0x7f00, 0x7f10)));
        assert_eq!(range("Rss:"), None);
    }

    #[test]
    fn the_machine_has_names() {
        assert!(!cpu().is_empty() && !kernel().is_empty() && !COMMIT.is_empty());
        assert!(cpus() > 0);
    }

    #[test]
    fn a_pinned_thread_stays_on_one_processor() {
        std::thread::spawn(|| {
            pin(3);
            assert_eq!(cpus(), 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_that_was_written_is_resident() {
        let before = resident_bytes();
        let bytes = vec![1u8; 64 << 20];
        assert!(resident_bytes() >= before + (48 << 20), "{}", bytes.len());
    }
}
