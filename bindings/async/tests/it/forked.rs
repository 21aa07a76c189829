//! A child of `fork` has the parent's memory and none of its threads: calls fail, and none hangs.

use octavo::{CacheMode, Error, Op};
use octavo_async::{DriverConfig, DriverStat};

use crate::fixture::{PAGE, Scene, block_on, is_alone, poll_once, scene, until, watch};

/// Forks the process. Returns the id of the child, or 0 in it.
fn fork() -> i32 {
    // SAFETY: the child uses what its C library keeps usable in one (the allocator), and what is
    // tested.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    child
}

fn exit(status: i32) -> ! {
    // SAFETY: takes a number, and does not return.
    unsafe { libc::_exit(status) }
}

/// Returns how a child has ended.
fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    status
}

#[test]
fn calls_of_a_forked_child_fail_and_none_hangs() {
    if !is_alone("forked::calls_of_a_forked_child_fail_and_none_hangs") {
        return;
    }
    let _watch = watch(60);
    let Scene { object, driver, late, .. } = scene(1024, CacheMode::Writeback, DriverConfig::default());
    block_on(object.read_at(0, &mut [0])).unwrap();
    late.hold(true);
    let other = object.clone();
    let mut pending = Box::pin(other.read_bytes_at(100 * PAGE, 1));
    assert!(poll_once(pending.as_mut()).is_pending());
    until(|| driver.stat().running == 1);
    let child = fork();
    if child == 0 {
        // SAFETY: takes a number only.
        unsafe { libc::alarm(30) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let is_refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Forked)));
            is_refused(block_on(pending).map(drop));
            is_refused(block_on(object.read_bytes_at(200 * PAGE, 1)).map(drop));
            is_refused(block_on(object.view_at(200 * PAGE, 1)).map(drop));
            is_refused(block_on(object.write_at(0, b"octavo")));
            is_refused(block_on(object.sync()));
            let (op, result) = block_on(object.run(Op::Sync));
            is_refused(result);
            assert!(op.is_some());
            assert_eq!(driver.stat(), DriverStat::default());
            drop(Box::pin(object.read_bytes_at(300 * PAGE, 1)));
            drop((object, driver));
        }));
        exit(i32::from(ended.is_err()));
    }
    assert_eq!(wait_for(child), 0);
    late.hold(false);
    assert_eq!(block_on(pending).unwrap(), "\0");
    block_on(object.write_at(0, b"octavo")).unwrap();
}
