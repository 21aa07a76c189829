//! Stores that fail: which errors syncs return, which pages stay dirty and how they are retried,
//! how long an object is after a failed change of length, and how a failed plain read ends.

use crate::fixture::{
    Scratch, bytes_at, complete_all, disk, open, request, scene, sized, small, until, write_request,
    written_back,
};
use crate::watchdog::Watchdog;
use octavo::disk::{SimDisk, SimFaults, SimOptions, Store};
use octavo::{
    Advice, Cache, CacheConfig, CacheMode, Error, Object, ObjectStat, Op, Partition, PartitionConfig,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

fn on(cache_mode: CacheMode, store: Store) -> (Cache, Partition, Object) {
    let config = PartitionConfig { cache_mode, dirty_max_bytes: Some(1 << 20), ..sized(1 << 20) };
    scene(small(3), config, store)
}

/// A cache with an object on a simulated disk.
fn on_disk(cache_mode: CacheMode) -> (Cache, Partition, SimDisk, Object) {
    let disk = disk(9);
    let (cache, partition, object) = on(cache_mode, disk.store("disk", LEN as u64));
    (cache, partition, disk, object)
}

/// The results of all operations that make an object durable.
fn all_syncs(cache: &Cache, object: &Object) -> Vec<Result<(), Error>> {
    let mut results = vec![object.sync(), object.sync_range(0, 100)];
    let mut queue = cache.queue().unwrap();
    let durable = write_request(0, 15 * PAGE as u64, vec![77; PAGE], true);
    let zero = Op::Zero { offset: 14 * PAGE as u64, len: PAGE as u64, durable: true };
    queue.submit(object, [request(Op::Sync), durable, request(zero)]);
    results.extend(complete_all(&mut queue).into_iter().map(|completion| completion.result));
    results
}

/// Contract 3, second half: a store whose own sync failed may have lost any of its bytes, so the
/// object is failed until it is opened again.
#[test]
fn after_a_failed_fdatasync_every_sync_fails_until_the_object_is_opened_again() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "a failed fdatasync");
    for mode in [CacheMode::Writethrough, CacheMode::Writeback] {
        let (cache, partition, disk, object) = on_disk(mode);
        object.write_at(0, &[5; LEN]).unwrap();
        disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
        let first = object.sync().unwrap_err();
        assert!(matches!(first, Error::Io { .. }) && first.to_string().contains("sync"), "{first}");
        disk.set_faults(SimFaults::default());
        assert!(object.stat().failed);
        assert_eq!(partition.stat().sync_errors, 1);
        for result in all_syncs(&cache, &object) {
            assert!(matches!(result, Err(Error::Failed { .. })), "{mode:?}: {result:?}");
        }
        let closed = object.close();
        assert!(matches!(closed, Err(Error::Failed { .. })), "{mode:?}: {closed:?}");
        // Reads still work, and return written bytes or those of the store.
        assert!(bytes_at(&object, 0, LEN as u64).iter().all(|byte| [0, 5, 77].contains(byte)));
        object.abandon();
        let object = partition.open(disk.store("disk", 0), "object").unwrap();
        object.write_at(0, &[6; LEN]).unwrap();
        assert!(all_syncs(&cache, &object).iter().all(Result::is_ok));
        assert!(disk.image("disk")[..14 * PAGE].iter().all(|byte| *byte == 6));
    }
}

/// Contract 3, first half.
#[test]
fn pages_whose_write_back_fails_stay_dirty_and_every_sync_fails_until_one_succeeds() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "failing write-backs");
    for (torn, no_space) in [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)] {
        let (cache, partition, disk, object) = on_disk(CacheMode::Writeback);
        object.write_at(0, &[5; LEN]).unwrap();
        let p_write_error = 1.0 - no_space;
        let faults = SimFaults { p_write_error, p_no_space: no_space, p_torn: torn, ..SimFaults::default() };
        disk.set_faults(faults);
        for _ in 0..3 {
            let error = object.sync().unwrap_err();
            assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("write"), "{error}");
            let stat = object.stat();
            assert_eq!((stat.dirty_bytes, stat.failed), (LEN as u64, false));
            assert!(stat.writeback_error.is_some());
        }
        let mut queue = cache.queue().unwrap();
        queue.submit(&object, [request(Op::Sync)]);
        queue.wait(1, |completion| assert!(completion.result.is_err()));
        assert!(object.close().is_err(), "the object stays open");
        assert_eq!(partition.stat().sync_errors, 0, "no sync of the store follows a failed write");
        // Dirty pages can be read and written again.
        assert!(bytes_at(&object, 0, LEN as u64) == [5; LEN]);
        object.write_at(PAGE as u64, &[8; PAGE]).unwrap();
        disk.set_faults(SimFaults::default());
        object.sync().unwrap();
        let stat = object.stat();
        assert_eq!((stat.dirty_bytes, stat.writeback_error), (0, None));
        disk.crash();
        let mut expected = [5; LEN];
        expected[PAGE..2 * PAGE].fill(8);
        assert!(disk.image("disk") == expected);
    }
}

/// A page that cannot be written does not stop the write-back of others.
#[test]
fn a_sync_that_fails_for_some_pages_has_written_the_others() {
    let (_cache, _partition, disk, object) = on_disk(CacheMode::Writeback);
    // Every other page, so that each is an I/O of its own.
    (0..8).for_each(|page| object.write_at(page * 2 * PAGE as u64, &[5; PAGE]).unwrap());
    disk.set_faults(SimFaults { p_write_error: 0.5, p_torn: 0.0, ..SimFaults::default() });
    object.sync().unwrap_err();
    let dirty = object.stat().dirty_bytes as usize;
    let written = disk.image("disk").chunks(PAGE).filter(|page| *page == [5; PAGE]).count();
    assert!(dirty > 0 && written > 0);
    assert_eq!(dirty + written * PAGE, 8 * PAGE);
    disk.set_faults(SimFaults::default());
    object.sync().unwrap();
    assert_eq!(disk.image("disk").chunks(PAGE).filter(|page| *page == [5; PAGE]).count(), 8);
}

/// The store had become shorter and then failed at the sync; the object used to return to its old
/// length. Writes behind the end of the store were then acknowledged, synced and lost.
#[test]
fn after_a_failed_change_of_length_the_object_is_as_long_as_its_store() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..20 {
        for (mode, wanted) in [(CacheMode::Writeback, 5_000), (CacheMode::Writethrough, 30_000)] {
            let disk = disk(seed);
            let (_cache, _partition, object) = on(mode, disk.store("disk", 20_000));
            object.write_at(0, &[3; 20_000]).unwrap();
            disk.set_faults(SimFaults { p_sync_error: 1.0, ..SimFaults::default() });
            let error = object.set_len_bytes(wanted).unwrap_err().to_string();
            disk.set_faults(SimFaults::default());
            assert!(error.contains("object") && error.contains("sync"), "seed {seed}: {error}");
            let len = object.store().len_bytes();
            assert_eq!(object.len_bytes(), len, "seed {seed}");
            lengths.insert(len);
            assert_eq!(object.write_at(16_000, &[9; 4_000]).is_ok(), len >= 20_000, "seed {seed}");
            // Earlier writes to the store may be lost.
            assert!(object.stat().failed, "seed {seed}");
            let synced = object.sync();
            assert!(matches!(synced, Err(Error::Failed { .. })), "seed {seed}: {synced:?}");
            object.advise(0, len, Advice::DontNeed).unwrap();
            let bytes = bytes_at(&object, 0, len);
            assert!(
                len < 20_000 || bytes[16_000..20_000] == [9; 4_000],
                "seed {seed}: written bytes are gone"
            );
            object.abandon();
        }
    }
    // Both outcomes occurred, for a shorter and for a longer length.
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [5_000, 20_000, 30_000]);
}

/// A cache, and an object on a full disk.
fn on_a_full_disk(background: bool, dirty_max_bytes: u64) -> (Cache, SimDisk, Object) {
    // Enough bounce pages for long runs.
    let buffers_max_bytes = Some(16 << 20);
    let config = CacheConfig { memory_max_bytes: 32 << 20, buffers_max_bytes, background, ..small(3) };
    let partition = PartitionConfig { dirty_max_bytes: Some(dirty_max_bytes), ..written_back(4 << 20) };
    let faults = SimFaults { p_no_space: 1.0, p_torn: 0.0, ..SimFaults::default() };
    let disk = SimDisk::new(SimOptions { faults, ..SimOptions::default() });
    let (cache, _, object) = scene(config, partition, disk.store("disk", 400 * 4096));
    (cache, disk, object)
}

/// Every pass of the cleaner used to ask a full store for each dirty page alone; and when the store
/// had room again, pages were written one by one until a sync.
#[test]
fn a_full_store_gets_few_writes_per_pass_and_long_runs_once_it_has_room() {
    let (cache, disk, object) = on_a_full_disk(false, 4 << 20);
    (0..400).for_each(|page| object.write_at(page * 4096, &[page as u8 | 1; 4096]).unwrap());
    let writes_of = |pass: &dyn Fn()| {
        let before = disk.counters().writes;
        pass();
        disk.counters().writes - before
    };
    // More passes than needed to ask for each page once.
    for pass in 0..10 {
        let asked =
            writes_of(&|| cache.clean().unwrap_err().to_string().contains("object").then_some(()).unwrap());
        assert!(asked < 200, "pass {pass}: {asked} writes");
        let stat = object.stat();
        assert!(stat.writeback_error.is_some() && stat.dirty_bytes == 400 * 4096, "pass {pass}");
    }
    disk.set_faults(SimFaults::default());
    let asked = writes_of(&|| cache.clean().unwrap());
    assert!(asked < 100, "{asked} writes");
    let stat = object.stat();
    assert_eq!((stat.dirty_bytes, stat.writeback_error), (0, None));
    object.sync().unwrap();
    assert!(disk.image("disk").into_iter().eq((0..400).flat_map(|page| [page as u8 | 1; 4096])));
}

/// The statistics used to report failing write-back until a sync, even after all pages were written
/// or none was left.
#[test]
fn the_statistics_show_that_write_back_works_again_without_a_sync() {
    let _watchdog = Watchdog::new(Duration::from_secs(60), "write-back that works again");
    // A small limit, so that a few dirty pages are urgent.
    let (_cache, disk, object) = on_a_full_disk(true, 16 * 4096);
    let until = |done: &dyn Fn(&ObjectStat) -> bool| until(|| done(&object.stat()));
    let refuse = || {
        disk.set_faults(SimFaults { p_no_space: 1.0, p_torn: 0.0, ..SimFaults::default() });
        (1..13).for_each(|page| object.write_at(page * 4096, &[1; 4096]).unwrap());
        until(&|stat| stat.writeback_error.is_some());
    };
    refuse();
    disk.set_faults(SimFaults::default());
    until(&|stat| stat.dirty_bytes == 0 && stat.writeback_error.is_none());
    refuse();
    object.set_len_bytes(0).unwrap();
    until(&|stat| stat.writeback_error.is_none());
    assert_eq!(disk.counters().syncs, 0);
}

/// A loop device over a file, removed on drop.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Result<Loop, String> {
        let output = Command::new("losetup").args(["--show", "-f"]).arg(file).output();
        let output = output.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(Loop(String::from_utf8_lossy(&output.stdout).trim().into())),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A blocking read that misses one run of pages is one plain read by the calling thread, without
/// the ring. If it fails, the caller gets the error, the slots become free, and threads that waited
/// for one of the pages read it themselves.
#[test]
fn a_failed_plain_read_returns_the_error_frees_its_slots_and_wakes_waiting_threads() {
    let _watchdog = Watchdog::new(Duration::from_secs(20), "a device that fails");
    let file = Scratch::of("failing", &[4; LEN]);
    let device = match Loop::new(&file.0) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: no loop device: {error}"),
    };
    let (_cache, partition, object) = on(CacheMode::Writethrough, open(&device.0));
    object.read_at(0, &mut [0; PAGE]).unwrap();
    // The second half of the device fails.
    std::fs::File::options().write(true).open(&file.0).unwrap().set_len(LEN as u64 / 2).unwrap();
    let read = |page: usize, pages: usize| {
        let mut bytes = vec![0; pages * PAGE];
        object.read_at((page * PAGE) as u64, &mut bytes).map(|()| bytes)
    };
    let resident = partition.stat().resident_bytes;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| read(12, 1))).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(&error, Error::Io { .. }), "{error}");
            assert!(error.to_string().contains("object") && error.to_string().contains("read of"), "{error}");
        }
    });
    assert!(partition.stat().read_errors >= 1);
    assert_eq!(partition.stat().resident_bytes, resident, "slots of a failed fill are free again");
    // A run with a bad part: each page is retried alone, and the good ones become resident.
    read(4, 8).unwrap_err();
    assert_eq!(partition.stat().resident_bytes, resident + 4 * PAGE as u64);
    assert!(read(4, 4).unwrap() == [4; 4 * PAGE]);
    // The device works again.
    std::fs::write(&file.0, [4; LEN]).unwrap();
    assert!(read(8, 8).unwrap() == [4; 8 * PAGE]);
}
