//! [`MountOptions`]: how a directory is mounted. Not here: options of the command line.

use std::time::Duration;

/// How long the kernel keeps names and attributes by default.
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The most bytes of one read or write.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// The threads of a file system below the source, and the most bytes of one read or write there: it
/// may be one of many.
const THREADS_BELOW: usize = 2;
const TRANSFER_BELOW_BYTES_MAX: usize = 128 << 10;

/// The least that a file system gets of what all share.
const SHARE_MIN: usize = 16;

/// What other programs may do to the lower directory while it is mounted, and when the mount sees
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// They may change it. An `open` sees all changes that were made before it, to files that no
    /// program changes through the mount at the same time. A file that is open keeps the pages that
    /// it has; pages that are read later have the bytes of then. Names and attributes are as old as
    /// [`MountOptions::valid`] at most.
    #[default]
    CloseToOpen,
    /// They may change it, and every read returns the bytes that the file has when the read begins,
    /// or later ones. A file's pages are kept while no program has it open for writing: the kernel
    /// tells the mount before another program opens it (a lease of `fcntl`). All writes, and reads
    /// of files that are open for writing, go to the lower file itself. Names are as in
    /// [`Coherence::CloseToOpen`].
    Lease,
    /// They change nothing: their changes may never be seen, and may be overwritten. Saves the
    /// kernel and the mount most requests for attributes.
    Exclusive,
}

/// How a directory is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Users other than the server's have access. Default: true for root, else false.
    pub allow_other: bool,
    /// Refuses writes. Default: false.
    pub read_only: bool,
    /// Set-user-ID bits count. Needs root. Default: false.
    pub suid: bool,
    /// Device files can be opened. Needs root. Default: false.
    pub dev: bool,
    /// Programs can be run. Default: true.
    pub exec: bool,
    /// What other programs may do to the lower directory. Default: [`Coherence::CloseToOpen`].
    pub coherence: Coherence,
    /// How long the kernel may keep names and attributes before it asks again. Default: 1 s, or an
    /// hour with [`Coherence::Exclusive`].
    pub valid: Option<Duration>,
    /// Threads. Default: one for each processor, at least 2 and at most 16.
    pub threads: usize,
    /// Most files whose pages are kept. Each takes two descriptors. With [`Coherence::Lease`] it
    /// takes three, and one more for each time that it is open for writing. Half of the cache's
    /// `buffers_max`, and the process's descriptors, are limits, too. Default: 1 << 24.
    pub files_max: usize,
    /// How long a file's pages are kept after its last close. Default: an hour.
    pub idle_max: Duration,
    /// Most files without users whose bytes could not be written back and are kept to be tried
    /// again. At this limit, writes to further files fail with the error of these. Each
    /// takes two descriptors. Default: a sixteenth of the process's descriptors.
    pub unwritten_max: usize,
    /// Above this number of known files and directories the kernel is asked to forget some (Linux
    /// 6.18; older kernels forget when they are short of memory). Each takes about 400 bytes of
    /// the cache's `memory_max`; when that leaves no room, it is asked earlier. Default: 1 << 20.
    pub nodes_max: usize,
    /// Most files that are known by a descriptor of their own, those in use. As root, on file
    /// systems that have handles, any number more are known by these. Default: a quarter of the
    /// process's descriptors.
    pub places_max: usize,
    /// Bypasses the kernel's page cache, where the lower file system supports that. Default: true.
    pub direct: bool,
    /// The most bytes that one request moves. Each thread has a buffer for them.
    #[doc(hidden)]
    pub transfer_bytes_max: usize,
    /// For tests: the descriptors that the mount may keep open, in place of the process's.
    #[doc(hidden)]
    pub descriptors_max: Option<usize>,
    /// For benchmarks: reads are answered without the cache.
    #[doc(hidden)]
    pub reference: Option<Reference>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let descriptors = limit.current.unwrap_or(1 << 20);
        MountOptions {
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            coherence: Coherence::default(),
            valid: None,
            threads,
            files_max: 1 << 24,
            idle_max: HOUR,
            unwritten_max: (descriptors / 16).max(16) as usize,
            nodes_max: 1 << 20,
            places_max: (descriptors / 4).max(16) as usize,
            direct: true,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            descriptors_max: None,
            reference: None,
        }
    }
}

impl MountOptions {
    /// The options where this many file systems share the descriptors.
    pub(crate) fn divided(&self, count: usize) -> MountOptions {
        let part = |most: usize| (most / count.max(1)).max(SHARE_MIN.min(most));
        MountOptions {
            files_max: part(self.files_max),
            unwritten_max: part(self.unwritten_max),
            places_max: part(self.places_max),
            ..self.clone()
        }
    }

    /// Those of a file system below the source.
    pub(crate) fn of_one_below(&self) -> MountOptions {
        let threads = self.threads.min(THREADS_BELOW);
        MountOptions { threads, transfer_bytes_max: TRANSFER_BELOW_BYTES_MAX, ..self.clone() }
    }

    /// Whether other programs change nothing. The kernel may then also keep that names do not
    /// exist.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.coherence == Coherence::Exclusive
    }

    /// Whether pages are kept under leases.
    pub(crate) fn has_leases(&self) -> bool {
        self.coherence == Coherence::Lease
    }

    /// For how long the kernel may keep names and attributes.
    pub(crate) fn valid_for(&self) -> Duration {
        self.valid.unwrap_or(if self.is_exclusive() { HOUR } else { SECOND })
    }
}

/// What answers reads instead of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Bytes of the thread's buffer, always the same: a round trip and nothing else.
    Constant,
    /// The lower file through the kernel's page cache: one `pread` and one `writev`, which is what
    /// a plain passthrough file system does.
    Passthrough,
}
