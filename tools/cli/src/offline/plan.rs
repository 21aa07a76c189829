//! `octavo plan`: what several tenants would miss in one memory, by how it is shared out.

use std::path::PathBuf;

use clap::Args;
use octavo_share::{Limits, Pace};
use octavo_sim::report;
use octavo_sim::simulate::Trace;
use octavo_sim::tenants::{Mix, PAGES_MIN, Tenant, share};
use octavo_sim::trace;
use octavo_table::PolicyKind;

use super::inputs::{self, Json, News};
use super::reading::Reading;
use crate::error::Error;
use crate::units;
use crate::{interruption, output};

/// Plan partitions: replay several tenants' traces together, and compare ways of sharing memory
#[derive(Args)]
#[command(after_help = "\
All traces begin and end together. Sizes are in pages of --page-size, and in bytes without metadata. Below the table
stand partitions for octavo.toml: `min` and `max` are the least and the most that the best split and the plan gave each. Compared are one cache for all (unified), a partition of the same size for each (equal), partitions that
are resized as the server would (utility), and the best split that stays, known when all is over (hindsight).

Examples:
  octavo plan --trace db=oltp.u64.zst --trace scan=backup.u64.zst --memory 512MiB
  octavo plan --trace a=a.u64 --trace b=gen:zipf:pages=100000,requests=1000000 --memory 64MiB --html plan.html")]
pub struct Arguments {
    /// A tenant: a name and a trace, which is a file or `gen:SPEC`
    #[arg(long = "trace", value_name = "NAME=FILE", num_args = 1.., required = true)]
    tenants: Vec<String>,
    #[command(flatten)]
    reading: Reading,
    /// Memory for all partitions, their metadata included
    #[arg(long, value_name = "SIZE", value_parser = units::size_bytes)]
    memory: u64,
    /// What tenants are promised, as octavo.toml(5) has it; binds the utility-based way
    #[arg(long, value_name = "NAME:KEY=VALUE", num_args = 1..)]
    limit: Vec<String>,
    /// Which page leaves first, in all of them
    #[arg(long, value_name = "POLICY", default_value = "octavo")]
    policy: PolicyKind,
    /// Accesses between two plans of the utility-based way [default: a five-hundredth of all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    period: Option<u64>,
    /// Sizes that hindsight knows: the memory in so many pieces
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=256))]
    chunks: u32,
    /// Places pages in sets; the same seed gives the same counts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write a JSON object a line and way; `-` or nothing is standard output, in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a page with the sizes over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Threads [default: as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,
}

/// Bytes of metadata of a page, and a little for the directory.
const METADATA_BYTES: u64 = 30;

/// Replays, and prints what came of it.
pub fn run(arguments: &Arguments, quiet: bool) -> Result<(), Error> {
    let options = arguments.reading.options();
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
    let pages = arguments.memory / (options.page_bytes + METADATA_BYTES);
    let least = PAGES_MIN * tenants.len() as u64;
    if pages < least {
        return Err(Error::Usage(format!(
            "--memory {}: {least} pages are the least for so many tenants",
            units::human_bytes(arguments.memory)
        )));
    }
    let mix = Mix {
        pages,
        page_bytes: options.page_bytes,
        policy: arguments.policy,
        chunks: arguments.chunks,
        period: arguments.period.unwrap_or(0),
        seed: arguments.seed,
        jobs: inputs::jobs(arguments.jobs),
        pace: Pace::default(),
        memory_bytes: inputs::memory_available_bytes(),
    };
    let mut json = Json::to(arguments.json.as_deref())?;
    let stop = interruption::flag()?;
    let mut news = News::new(quiet, 1);
    news.next_trace();
    let outcomes = share(&tenants, &mix, &stop, &mut |progress| news.show(progress));
    news.clear();
    let outcomes = outcomes.map_err(|error| Error::failed(error.to_string()))?;
    let Some(outcomes) = outcomes else { return interruption::unless_interrupted(&stop) };
    json.lines(&outcomes)?;
    if !json.is_on_standard_output() {
        output::text(&report::shares_text(&outcomes))?;
        let partitions = report::shares_toml(&outcomes, options.page_bytes, METADATA_BYTES);
        output::text(&format!("\n{partitions}"))?;
    }
    if let Some(path) = &arguments.html {
        inputs::write_page(path, &report::shares_html("octavo plan", &outcomes))?;
    }
    Ok(())
}

fn named(given: &str) -> Result<(&str, &str), Error> {
    let split = given.split_once('=').filter(|(name, path)| {
        !name.is_empty() && !name.contains([':', '/']) && !path.is_empty() && *path != "-"
    });
    split.ok_or_else(|| {
        Error::Usage(format!("--trace \"{given}\": a name and a file are expected, such as db=oltp.u64.zst"))
    })
}

fn promise(tenants: &mut [Tenant<'_>], given: &str) -> Result<(), Error> {
    let wrong = |why: String| Error::Usage(format!("--limit \"{given}\": {why}"));
    let parts = given.split_once(':').and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
    let (name, (key, value)) = parts.ok_or_else(|| wrong("such as db:min=64MiB is expected".into()))?;
    let tenant = tenants
        .iter_mut()
        .find(|tenant| tenant.trace.name == name)
        .ok_or_else(|| wrong(format!("no tenant is called \"{name}\"")))?;
    let limits = &mut tenant.limits;
    let size = units::size_bytes(value);
    match key {
        "min" => limits.min_bytes = size.map_err(wrong)?,
        "low" => limits.low_bytes = size.map_err(wrong)?,
        "high" => limits.high_bytes = size.map_err(wrong)?,
        "max" => limits.max_bytes = size.map_err(wrong)?,
        "weight" => {
            limits.weight =
                value.parse().map_err(|_| wrong("a weight is a number from 1 to 10000".into()))?;
        }
        _ => return Err(wrong(format!("there is no \"{key}\"; there are min, low, high, max, weight"))),
    }
    limits.validate().map_err(wrong)
}
