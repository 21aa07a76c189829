//! [`is_killed`]: whether a thread that waits for a reply was killed. The kernel ends it only when
//! it has the reply. `octavo-fuse` has the same rule for directories (`lower.rs`).

use rustix::process::Signal;

/// The flag of a thread that is exiting (`PF_EXITING`).
const EXITING: u64 = 4;

/// Whether a thread has ended or is about to: it, or its process, was killed.
pub(crate) fn is_killed(thread: u32) -> bool {
    if thread == 0 {
        // One of another PID namespace.
        return false;
    }
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{thread}/{name}"));
    match read("status") {
        // An exiting thread has taken its signal, and closes its files.
        Ok(status) => has_kill_pending(&status) || read("stat").is_ok_and(|stat| is_exiting(&stat)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether the thread of a `stat` of /proc is exiting: by the ninth field, its flags. The second
/// one is a name in parentheses, which may contain any character.
fn is_exiting(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Whether SIGKILL waits for the thread of a status of /proc. The kernel sends it to all threads of
/// a process that any signal ends.
fn has_kill_pending(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    pending.is_some_and(|signals| signals & 1 << (Signal::KILL.as_raw() - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_killed_are_told_from_the_living() {
        let status = |pending: &str| format!("Name:\tcat\nSigPnd:\t{pending}\nShdPnd:\t0000000000000100\n");
        assert!(has_kill_pending(&status("0000000000000100")));
        assert!(!has_kill_pending(&status("0000000000002002")));
        let stat = |flags: u32| format!("7 (a) b) S 1 7 7 0 -1 {flags} 100 0 0 0");
        assert!(is_exiting(&stat(0x40_0004)) && !is_exiting(&stat(0x40_0000)) && !is_exiting("7 (a"));
        assert!(!is_killed(std::process::id()) && !is_killed(0) && is_killed(u32::MAX >> 1));
    }
}
