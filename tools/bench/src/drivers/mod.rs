//! The table of drivers, and the functions that use it: checks, memory, stages.
//!
//! Each driver is one file or folder here. It imports `stage.rs` and the files below it, and at
//! most one other driver; nothing but this table knows them all.

pub mod apps;
pub mod bounded;
mod churn;
mod crossing;
mod evenness;
mod fit;
mod fuse;
mod hits;
mod locks;
mod memory;
mod misses;
mod nbd;
mod nodes;
mod numa;
mod partitions;
mod resize;
mod simulate;
mod stores;
mod through;
mod twins;
mod vhost;
mod writeback;
mod ycsb;

use crate::case::{Case, Place};
use crate::error::Error;
use crate::stage::{Driver, Needs, Run, Stage};

/// All drivers.
pub const DRIVERS: [&Driver; 25] = [
    &hits::DRIVER,
    &misses::DRIVER,
    &churn::DRIVER,
    &through::DRIVER,
    &ycsb::DRIVER,
    &resize::DRIVER,
    &evenness::DRIVER,
    &fit::DRIVER,
    &writeback::DRIVER,
    &stores::DRIVER,
    &memory::DRIVER,
    &locks::DRIVER,
    &simulate::DRIVER,
    &bounded::DRIVER,
    &nbd::DRIVER,
    &vhost::DRIVER,
    &vhost::MISSES,
    &vhost::IDLE,
    &fuse::DRIVER,
    &fuse::MISSES,
    &fuse::IDLE,
    &numa::DRIVER,
    &crossing::DRIVER,
    &twins::DRIVER,
    &partitions::DRIVER,
];

/// Figures that rows have besides the keys of their cases, for the axes of charts.
pub const FACTS: &[&str] = &["segments", "hit_ratio", "who"];

/// Returns the driver of a case.
fn of(case: &Case) -> Result<&'static Driver, String> {
    let mut all = DRIVERS.into_iter().chain(apps::DRIVERS);
    all.find(|driver| driver.name == case.driver.0).ok_or_else(|| {
        let line = |driver: &Driver| format!("\n  {}: {}", driver.name, driver.purpose);
        let known: String = DRIVERS.into_iter().chain(apps::DRIVERS).map(line).collect();
        format!("there is no driver \"{}\"; the drivers are{known}", case.driver.0)
    })
}

/// Refuses a case that cannot be run. `rivals` are the names of rivals.
pub fn check(case: &Case, rivals: &[&str]) -> Result<(), String> {
    let driver = of(case)?;
    let is_known = |name: &&String| driver.contestants.contains(&&***name) || rivals.contains(&&***name);
    // `simulate` has the simulator's policies as contestants, and checks them itself.
    let is_open = driver.name == simulate::DRIVER.name;
    let mut named = case.contestants.iter().chain(&case.reference);
    if let Some(name) = named.find(|name| !is_open && !is_known(name)) {
        let all: Vec<&str> = driver.contestants.iter().chain(rivals).copied().collect();
        return Err(format!(
            "there is no contestant \"{name}\" for {}; the contestants are {}",
            driver.name,
            all.join(", ")
        ));
    }
    if let Some(name) = case.reference.iter().find(|name| !case.contestants.contains(name)) {
        return Err(format!("the reference \"{name}\" is not among the contestants"));
    }
    if !case.seconds.is_none_or(|seconds| seconds > 0.0 && seconds <= 3600.0) {
        return Err("seconds: more than 0 and at most 3600 are possible".into());
    }
    (driver.check)(case)
}

/// Returns the most memory that a case takes, in bytes: frames, files in memory, arrays and rivals'
/// caches. Leaves out the kernel's page cache, which the kernel can drop at any time.
pub fn memory_bytes(case: &Case) -> u64 {
    let Ok(driver) = of(case) else { return 0 };
    let whole_file = case.file.0.into();
    let is_rival = |name: &&String| !driver.contestants.contains(&&***name);
    let taken = (driver.memory)(&Needs {
        frames: case.memory.0.into(),
        whole_file,
        file: if case.store == Place::Disk { 0 } else { whole_file },
        share: case.share.0.into(),
        contestants: case.contestants.len() as u128,
        rivals: case.contestants.iter().filter(is_rival).count() as u128,
    });
    // Metadata, buffers, streams of places, the program itself.
    u64::try_from(taken + taken / 64 + (64 << 20)).unwrap_or(u64::MAX)
}

/// Returns the scenery of a case: two cases with equal sceneries can share a stage.
pub fn scenery(case: &Case) -> String {
    let keys = of(case).map_or(&[][..], |driver| driver.scenery);
    let values = keys.iter().filter_map(|key| case.value(key));
    values.fold(case.driver.0.clone(), |scenery, value| format!("{scenery} {value}"))
}

/// Sets the stage for a case.
pub fn set(case: &Case, run: &mut Run<'_>) -> Result<Stage, Error> {
    (of(case).map_err(Error::new)?.set)(case, run)
}
