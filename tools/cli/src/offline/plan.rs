//! `octavo plan`: the misses of several tenants in one memory, by how the memory is shared; and
//! what memory a working set needs (`fit.rs`).

use std::path::PathBuf;

use clap::Args;
use octavo_share::{Limits, Pace};
use octavo_sim::report;
use octavo_sim::simulate::Trace;
use octavo_sim::tenants::{Mix, PAGES_MIN, Tenant, share};
use octavo_sim::trace;
use octavo_table::PolicyKind;

use super::fit::Fit;
use super::inputs::{self, Json, Run, Running};
use super::reading::Reading;
use crate::error::Error;
use crate::{limits, units};

/// Plan sizes: the memory that holds a working set, or ways for several tenants to share memory
#[derive(Args)]
#[command(after_help = "\
With --fit, says what memory_max holds a working set whole, and what takes the rest. The engine divides its memory by
the same code, for a cache with the defaults of octavo.toml(5): one partition has all the memory, or --partitions have
equal shares. The last lines say how much of the working set --memory holds, or as much memory as the working set.

With --trace, all traces begin and end together. Sizes are in pages of --page-size, and in bytes without metadata. The table compares:
  unified    one cache for all tenants
  equal      a partition of the same size for each tenant
  utility    partitions that are resized as the server would
  hindsight  the best fixed split, known only at the end
Below the table are partitions for octavo.toml: `min` and `max` are the least and the most memory that the best split
and the utility-based plan gave each tenant.

Examples:
  octavo plan --fit 10GiB
  octavo plan --fit 10GiB --partitions 4 --page-bytes 16KiB --memory 8GiB
  octavo plan --trace db=oltp.u64.zst --trace scan=backup.u64.zst --memory 512MiB
  octavo plan --trace a=a.u64 --trace b=gen:zipf:pages=100000,requests=1000000 --memory 64MiB --html plan.html")]
pub struct Arguments {
    /// A tenant: its name and its trace, a file or `gen:SPEC`
    #[arg(long = "trace", value_name = "NAME=FILE", num_args = 1.., required_unless_present = "fit")]
    tenants: Vec<String>,
    /// Say what `memory_max` holds a working set of this size whole
    #[arg(long, value_name = "SIZE", value_parser = units::size_bytes,
        conflicts_with_all = ["tenants", "limit", "html", "period"])]
    fit: Option<u64>,
    /// Partitions that share the working set of --fit equally [default: 1]
    #[arg(long, value_name = "N", requires = "fit", conflicts_with = "tenants",
        value_parser = clap::value_parser!(u32).range(1..=65535))]
    partitions: Option<u32>,
    #[command(flatten)]
    reading: Reading,
    /// Memory for all partitions, including their metadata; with --fit, including buffers
    #[arg(long, value_name = "SIZE", value_parser = units::size_bytes, required_unless_present = "fit")]
    memory: Option<u64>,
    /// Limits of a tenant, as in octavo.toml(5); they apply to the utility-based plan
    #[arg(long, value_name = "NAME:KEY=VALUE", num_args = 1..)]
    limit: Vec<String>,
    /// The eviction policy of all partitions
    #[arg(long, value_name = "POLICY", default_value = "octavo")]
    policy: PolicyKind,
    /// Accesses between two steps of the utility-based plan [default: 1/500 of all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    period: Option<u64>,
    /// Divide the memory into N chunks to find the best split
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=256))]
    chunks: u32,
    #[command(flatten)]
    running: Running,
}

/// Bytes of metadata of a page, rounded up for the directory.
const METADATA_BYTES: u64 = 30;

/// Replays the traces, and writes the comparison.
pub fn run(arguments: &Arguments, quiet: bool) -> Result<(), Error> {
    let options = arguments.reading.options();
    if let Some(working_set_bytes) = arguments.fit {
        let fit = Fit {
            working_set_bytes,
            page_bytes: options.page_bytes,
            partitions: arguments.partitions.unwrap_or(1),
            memory_bytes: arguments.memory,
        };
        return fit.run(Json::to(arguments.running.json.as_deref())?);
    }
    let memory = arguments.memory.expect("clap requires it without --fit");
    let mut tenants = Vec::new();
    for given in &arguments.tenants {
        let (name, path) = named(given)?;
        let (path, options) = (PathBuf::from(path), options.clone());
        let trace = Trace { name: name.to_owned(), open: Box::new(move || trace::open(&path, &options)) };
        tenants.push(Tenant { trace, limits: Limits::default() });
    }
    inputs::refuse_twice("tenant", tenants.iter().map(|tenant| tenant.trace.name.clone()))?;
    for limit in &arguments.limit {
        promise(&mut tenants, limit)?;
    }
    let pages = memory / (options.page_bytes + METADATA_BYTES);
    let least = PAGES_MIN * tenants.len() as u64;
    if pages < least {
        return Err(Error::Usage(format!(
            "--memory {}: too little for {} tenants; at least {least} pages are needed",
            units::human_bytes(memory),
            tenants.len()
        )));
    }
    let mix = Mix {
        pages,
        page_bytes: options.page_bytes,
        policy: arguments.policy,
        chunks: arguments.chunks,
        period: arguments.period.unwrap_or(0),
        seed: arguments.running.seed,
        jobs: arguments.running.jobs(),
        pace: Pace::default(),
        memory_bytes: inputs::memory_available_bytes(),
    };
    let mut run = Run::start(arguments.running.json.as_deref(), quiet, 1)?;
    let outcomes = run.next(|stop, progress| share(&tenants, &mix, stop, progress))?;
    let Some(outcomes) = outcomes else { return run.unless_interrupted() };
    run.json.lines_or(&outcomes, || {
        let partitions = report::shares_toml(&outcomes, options.page_bytes, METADATA_BYTES);
        format!("{}\n{partitions}", report::shares_text(&outcomes))
    })?;
    let page = || report::shares_html("octavo plan", &outcomes);
    inputs::write_page(arguments.running.html.as_deref(), page)
}

fn named(given: &str) -> Result<(&str, &str), Error> {
    let split = given.split_once('=').filter(|(name, path)| {
        !name.is_empty() && !name.contains([':', '/']) && !path.is_empty() && *path != "-"
    });
    split.ok_or_else(|| {
        Error::Usage(format!("--trace \"{given}\": expected a name and a file, such as db=oltp.u64.zst"))
    })
}

fn promise(tenants: &mut [Tenant<'_>], given: &str) -> Result<(), Error> {
    let wrong = |why: String| Error::Usage(format!("--limit \"{given}\": {why}"));
    let parts = given.split_once(':').and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
    let (name, (key, value)) = parts.ok_or_else(|| wrong("expected a limit such as db:min=64MiB".into()))?;
    let tenant = tenants
        .iter_mut()
        .find(|tenant| tenant.trace.name == name)
        .ok_or_else(|| wrong(format!("no tenant is called \"{name}\"")))?;
    if !limits::NAMES.contains(&key) {
        let known = limits::NAMES.join(", ");
        return Err(wrong(format!("there is no limit \"{key}\"; known: {known}")));
    }
    limits::change(&mut tenant.limits, key, value).map_err(wrong)?;
    tenant.limits.validate().map_err(wrong)
}
