//! A day in operation: a real server under a load that checks every block, while an operator
//! changes, upgrades and kills it.
//!
//! | file | holds |
//! |---|---|
//! | `page.rs`, `report.rs` | what the day has shown: a page, a table, figures |
//! | `operator.rs` | the events: what an operator does to a server |
//! | `load.rs` | tenants: clients that check what they read |
//! | `server.rs` | the server's processes and its configuration |
//! | `samples.rs` | the server's figures each second, by minute |
//! | `control.rs` | requests to the control socket |
//! | `state.rs` | what the threads share |
//! | `schedule.rs` | what happens when |
//! | `checker.rs` | what each block must contain |
//!
//! Threads: one for each tenant, one for the samples, and the caller's, which is the operator.

mod checker;
mod control;
mod load;
mod operator;
mod page;
mod report;
mod samples;
mod schedule;
mod server;
mod state;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::json;

use crate::error::Error;
use checker::Mode;
use load::Tenant;
use operator::Operator;
use samples::Samples;
use server::{Disk, Server, configure};
use state::State;

pub use report::Report;
pub use state::Settings;

/// The unit of a day's sizes, in bytes: of one shorter than an hour, and of longer ones.
const UNIT_BYTES: [u64; 2] = [8 << 20, 64 << 20];

/// The memory of the cache, in units: a quarter of all disks, with the visitor's.
const MEMORY_UNITS: u64 = 3;

/// The residents with their sizes in units. The store of the last one fails in its upper half.
const RESIDENTS: [(&str, u64, Mode); 4] = [
    ("db", 2, Mode::Writeback),
    ("web", 2, Mode::Writethrough),
    ("mail", 2, Mode::Writeback),
    ("archive", 4, Mode::Writeback),
];

/// Runs a day. `say` gets a line each minute.
///
/// # Errors
///
/// The day cannot begin: the directory exists, or the server does not start. What fails later is in
/// the report.
pub fn run(settings: &Settings, say: &(dyn Fn(&str) + Sync)) -> Result<Report, Error> {
    let what = settings.directory.display().to_string();
    std::fs::create_dir(&settings.directory).map_err(Error::at(&what))?;
    let result = day(settings, say);
    let is_good = result.as_ref().is_ok_and(Report::is_good);
    match is_good {
        // What cannot be removed stays.
        true => drop(std::fs::remove_dir_all(&settings.directory)),
        false => say(&format!("{what} has the disks and the server's log")),
    }
    result
}

fn day(settings: &Settings, say: &(dyn Fn(&str) + Sync)) -> Result<Report, Error> {
    let unit_bytes = UNIT_BYTES[usize::from(settings.length.as_secs() >= 3600)];
    let memory_max_bytes = MEMORY_UNITS * unit_bytes;
    let (directory, seed) = (&settings.directory, settings.seed);
    let mut tenants = Vec::new();
    for (number, (name, units, mode)) in (1..).zip(RESIDENTS) {
        tenants.push(Tenant::new((name, number), directory, units * unit_bytes, mode, seed)?);
    }
    let last = tenants.len() - 1;
    tenants[last].can_fail = true;
    // Files of the others are no longer than the limit.
    let failing_bytes = tenants[last].bytes() / 2;
    let number = 1 + tenants.len() as u64;
    let visitor = Tenant::new(("guest", number), directory, 2 * unit_bytes, Mode::Writeback, seed)?;
    let residents: Vec<Disk> = tenants.iter().map(|tenant| tenant.disk.clone()).collect();
    let weight = 100;
    configure(directory, memory_max_bytes, weight, &residents)?;
    let state = State::new(settings);
    let server = Server::start(&settings.program, directory, &state)?;
    let mut operator = Operator {
        state: &state,
        directory: directory.clone(),
        memory_max_bytes,
        server,
        residents,
        failing_bytes,
        visitor,
        done: Vec::new(),
        upgrade_resident_bytes: 0,
        weight,
    };
    let samples = under_load(settings, &state, &mut tenants, &mut operator, say);
    let elapsed = state.begun.elapsed();
    let Operator { server, visitor, done, upgrade_resident_bytes, .. } = operator;
    close(server, &state);
    for tenant in tenants.iter().chain([&visitor]) {
        tenant.compare(&state).unwrap_or_else(|error| state.trouble(error.to_string()));
    }
    let upgrade_bytes = upgrade_resident_bytes;
    let memory = report::Memory { max_bytes: memory_max_bytes, upgrade_bytes };
    Ok(Report::new(settings, elapsed, memory, done, samples, &state))
}

/// Performs the day's events while the tenants work. When the load ends, each tenant has read its
/// whole disk.
fn under_load(
    settings: &Settings,
    state: &State,
    tenants: &mut [Tenant],
    operator: &mut Operator<'_>,
    say: &(dyn Fn(&str) + Sync),
) -> Samples {
    let (nbd, control) = (Server::nbd(&settings.directory), Server::control(&settings.directory));
    let samples_end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| Samples::take(&control, state, &|| samples_end.load(SeqCst), say));
        let workers: Vec<_> = tenants
            .iter_mut()
            .map(|tenant| scope.spawn(|| tenant.work(&nbd, state, &|| state.is_load_over())))
            .collect();
        operator.work();
        state.pause_until(settings.length, || false);
        state.end_load();
        for worker in workers {
            if worker.join().is_err() {
                state.trouble("a tenant's thread panicked".into());
            }
        }
        samples_end.store(true, SeqCst);
        sampler.join().unwrap_or_else(|_| {
            state.trouble("the thread of the samples panicked".into());
            Samples::default()
        })
    })
}

/// Drains and ends the server.
fn close(server: Server, state: &State) {
    let drained = server.ask(json!({"do": "drain"})).map(drop);
    if let Err(error) = drained.and_then(|()| server.stop(state)) {
        state.trouble(format!("the end: {error}"));
    }
}
