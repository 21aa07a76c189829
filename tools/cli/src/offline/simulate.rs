//! `octavo simulate`: counts the hits and misses of policies over traces.

use std::path::PathBuf;

use clap::Args;
use octavo_sim::Sample;
use octavo_sim::plan::{Capacity, Policy};
use octavo_sim::recording::About;
use octavo_sim::report;
use octavo_sim::simulate::{Plan, Row, WHOLE, simulate};

use super::inputs::{self, Named, Run, Running, Traces, Ways};
use super::replay;
use crate::environment::{Environment, make_private_dir};
use crate::error::Error;
use crate::output;

/// Run eviction policies over traces of page accesses, and count their misses
#[derive(Args)]
#[command(after_help = "\
The engine's policies run in the engine's own code, without the bytes of pages. Policies named global-... (and
set-opt) are from the literature, for comparison.

Examples:
  octavo simulate --trace disk.u64.zst --policy lru,global-lru --capacity 1%,10%,1GiB
  octavo simulate --trace gen:zipf:pages=1000000 --policy engine --capacity 65536p --ways 8,16,32 --json
  octavo simulate --suite traces/ --html report.html
  octavo simulate --trace vm1.octr                     replay a recording, and compare
  octavo simulate --trace vm1.octr --policy lru,octavo run other policies over it")]
pub struct Arguments {
    #[command(flatten)]
    traces: Traces,
    /// Run over all traces in a folder, and compare the policies
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// Policies by name, or the groups engine, reference, all [default for a suite: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,
    /// Sizes: shares of a trace's different pages (1%), pages (65536p) or bytes (1GiB)
    /// [default for a suite: 0.1%,1%,5%,10%,20%,40%]
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    capacity: Vec<Capacity>,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    running: Running,
}

/// The default sizes of a suite.
const SUITE_CAPACITIES: [&str; 6] = ["0.1%", "1%", "5%", "10%", "20%", "40%"];

/// Runs the simulations, and writes results as traces end.
pub fn run(arguments: &Arguments, environment: &Environment, quiet: bool) -> Result<(), Error> {
    let traces = arguments.traces.named(arguments.suite.as_deref())?;
    let recorded: Vec<Option<About>> =
        traces.iter().map(|named| arguments.traces.recorded(&named.files)).collect::<Result<_, _>>()?;
    let nothing_asked =
        arguments.policy.is_empty() && arguments.capacity.is_empty() && arguments.suite.is_none();
    if nothing_asked && recorded.iter().all(Option::is_some) {
        return replay::run(&arguments.traces, &traces, arguments.running.json.as_deref(), quiet);
    }
    let plans: Vec<Plan> = recorded
        .iter()
        .map(|about| plan(arguments, environment, about.as_ref()))
        .collect::<Result<_, _>>()?;
    // Check as much as is known about the caches before a trace is read or a file is created.
    for (plan, about) in plans.iter().zip(&recorded) {
        let sample = about.as_ref().map_or(WHOLE, |about| Sample { rate: about.header.sample(), ..WHOLE });
        plan.check(None, &sample).map_err(|error| Error::Usage(format!("--capacity: {error}")))?;
    }
    let mut run = Run::start(arguments.running.json.as_deref(), quiet, traces.len())?;
    let mut rows: Vec<Row> = Vec::new();
    // After an interruption, the results so far are shown.
    let ended = traces.iter().zip(&plans).try_for_each(|(Named { trace, .. }, plan)| {
        let of_trace = run.next(|stop, progress| simulate(trace, plan, stop, progress))?;
        run.json.lines(&of_trace)?;
        rows.extend(of_trace);
        run.unless_interrupted()
    });
    let json = &mut run.json;
    let comparison = report::compare(&rows);
    if arguments.suite.is_some() {
        json.lines(&comparison.summaries)?;
        json.lines(&comparison.left_out)?;
    }
    if !json.is_on_standard_output() && !rows.is_empty() {
        output::text(&report::results_text(&rows))?;
        if arguments.suite.is_some() {
            output::text(&format!("\n{}", report::comparison_text(&comparison)))?;
        }
    }
    let folder = arguments.suite.as_ref().map_or(String::new(), |folder| format!(": {}", folder.display()));
    inputs::write_page(arguments.running.html.as_deref(), || {
        report::html(&format!("octavo simulate{folder}"), &rows, &comparison)
    })?;
    ended
}

/// The plan for a trace. A recording provides the values that the command line does not.
fn plan(arguments: &Arguments, environment: &Environment, about: Option<&About>) -> Result<Plan, Error> {
    let is_suite = arguments.suite.is_some();
    let header = about.map(|about| &about.header);
    let missing = |what: &str| {
        let only = "a suite has a default, and a recording (.octr) its own";
        Error::Usage(format!("{what} is missing: {only}"))
    };
    let mut policies = match (&arguments.policy[..], header) {
        ([], _) if is_suite => Policy::all(),
        ([], Some(header)) => inputs::policies(&[header.policy.name().to_owned()])?,
        ([], None) => return Err(missing("--policy")),
        (words, _) => inputs::policies(words)?,
    };
    if is_suite && !policies.iter().any(|policy| policy.name() == report::BASE) {
        // The comparison is relative to this policy.
        policies.extend(Policy::named(report::BASE).map_err(Error::Usage)?);
    }
    let capacities: Vec<Capacity> = match (&arguments.capacity[..], header) {
        ([], _) if is_suite => parsed(&SUITE_CAPACITIES),
        ([], Some(header)) => parsed(&[format!("{}p", header.slots())]),
        ([], None) => return Err(missing("--capacity")),
        (given, _) => given.to_vec(),
    };
    for (number, capacity) in capacities.iter().enumerate() {
        if let Some(same) = capacities[..number].iter().find(|other| capacity.is_same_as(other)) {
            return Err(Error::Usage(format!("the capacities {same} and {capacity} are the same")));
        }
    }
    let ways = arguments.ways.checked()?;
    if capacities.iter().any(Capacity::is_share) {
        arguments.traces.refuse_standard_input(
            "a capacity that is a share of its pages needs a first reading that counts them",
        )?;
    }
    let mut scratch = PathBuf::from("/tmp");
    if policies.iter().any(|policy| policy.needs_future()) {
        arguments.traces.refuse_standard_input("a policy that knows the future needs an earlier reading")?;
        scratch = environment.cache_dir()?;
        make_private_dir(&scratch).map_err(Error::failed)?;
    }
    Ok(Plan {
        policies,
        capacities,
        ways,
        page_bytes: header.map_or(arguments.traces.page_bytes(), |header| u64::from(header.page_bytes)),
        seed: arguments.running.seed,
        jobs: arguments.running.jobs(),
        scratch,
        memory_bytes: inputs::memory_available_bytes(),
    })
}

fn parsed(sizes: &[impl AsRef<str>]) -> Vec<Capacity> {
    sizes.iter().map(|text| text.as_ref().parse().expect("a size of our own")).collect()
}
