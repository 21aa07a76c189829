//! System calls of the tests: where memory lies, which processors threads use, and `fork`. The
//! tests ask the kernel themselves, to check the answers of the cache.

use std::collections::BTreeMap;

/// The node of the page at each address; None for a page that was not touched yet.
pub fn nodes_of(pages: &[*const u8]) -> Vec<Option<u32>> {
    // Without target nodes the system call only reports.
    place(pages, None)
}

/// Moves pages to a node; returns where they lie afterwards.
pub fn move_to(pages: &[*const u8], number: u32) -> Vec<Option<u32>> {
    place(pages, Some(vec![number as i32; pages.len()]));
    nodes_of(pages)
}

fn place(pages: &[*const u8], to: Option<Vec<i32>>) -> Vec<Option<u32>> {
    let (count, mut status) = (pages.len(), vec![-1; pages.len()]);
    let to = to.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
    let move_mapped: libc::c_int = 2;
    // SAFETY: all arrays have that many members, and moving a page changes none of its bytes.
    let done = unsafe {
        let (pages, status) = (pages.as_ptr(), status.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, 0, count, pages, to, status, move_mapped)
    };
    assert!(done >= 0, "move_pages: {}", std::io::Error::last_os_error());
    status.into_iter().map(|node| u32::try_from(node).ok()).collect()
}

/// Keeps the calling thread, and processes and threads that it starts, on these processors.
pub fn stay_on(cpus: &[u32]) {
    // SAFETY: a set of processors is plain bits, and zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        assert!((*cpu as usize) < 8 * size_of::<libc::cpu_set_t>());
        // SAFETY: inside the set.
        unsafe { libc::CPU_SET(*cpu as usize, &mut set) };
    }
    // SAFETY: the set is alive and has that size.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    assert!(done == 0, "processors {cpus:?}: {}", std::io::Error::last_os_error());
}

/// The processor that the calling thread is on, and the number of its node.
pub fn here() -> (u32, u32) {
    let (mut cpu, mut node) = (0u32, 0u32);
    let nothing = std::ptr::null::<u8>();
    // SAFETY: both are alive; the third argument has not been looked at since Linux 2.6.24.
    let done = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, nothing) };
    assert!(done == 0, "getcpu: {}", std::io::Error::last_os_error());
    (cpu, node)
}

/// An address range with a memory policy: one line of `/proc/self/numa_maps`.
#[derive(Debug)]
pub struct Area {
    /// The first address of the range, which ends where the next one begins.
    pub start: usize,
    /// The preferred node, if any.
    pub prefers: Option<u32>,
    /// The number of pages on each node.
    pub pages: BTreeMap<u32, u64>,
}

/// All ranges, in the order of their addresses.
pub fn areas() -> Vec<Area> {
    let text = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let start = usize::from_str_radix(words.next()?, 16).unwrap();
        let prefers = words.next()?.strip_prefix("prefer:").map(|number| number.parse().unwrap());
        let pages = words.filter_map(|word| {
            let (node, count) = word.strip_prefix('N')?.split_once('=')?;
            Some((node.parse().ok()?, count.parse().ok()?))
        });
        Some(Area { start, prefers, pages: pages.collect() })
    };
    text.lines().filter_map(area).collect()
}

/// Forks the process. Returns None in the child, which must end by `exit`, and the id of the child
/// in the parent.
pub fn fork() -> Option<i32> {
    // SAFETY: the child uses what its C library keeps usable in one (the allocator), and what is
    // tested.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    (child > 0).then_some(child)
}

/// Ends the process at once, without dropping anything.
pub fn exit(status: u8) -> ! {
    // SAFETY: takes a number, and does not return.
    unsafe { libc::_exit(status.into()) }
}

/// Makes a signal end the process after `seconds` seconds.
pub fn end_after(seconds: u32) {
    // SAFETY: takes a number only.
    unsafe { libc::alarm(seconds) };
}

/// Waits for the end of a child.
pub fn wait_for(child: i32) -> std::process::ExitStatus {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child, "waitpid: {}", std::io::Error::last_os_error());
    std::os::unix::process::ExitStatusExt::from_raw(status)
}
