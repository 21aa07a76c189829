//! `octavo mrc`: miss-ratio curves, the miss ratio of a cache by its size.

use clap::Args;
use octavo_sim::mrc::{Curve, Method, Options, PARTS, curves};
use octavo_sim::report::{self, Series};

use super::inputs::{self, Named, Run, Running, Traces, Ways};
use crate::error::Error;
use crate::suggest::{Word, one_of};

/// Make miss-ratio curves: the miss ratio of a cache by its size
#[derive(Args)]
#[command(after_help = "\
Examples:
  octavo mrc --trace disk.u64.zst                                    LRU, exactly
  octavo mrc --trace disk.u64.zst --method exact,shards-size --html curves.html
  octavo mrc --trace disk.u64.zst --policy nrlfu,global-s3fifo       any policy, in miniature")]
pub struct Arguments {
    #[command(flatten)]
    traces: Traces,
    /// Policies by name, or the groups engine, reference, all; methods other than miniature support
    /// only lru
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "lru")]
    policy: Vec<String>,
    /// How the curves are made [default: exact for lru, else miniature]
    #[arg(long, value_name = "METHOD", value_delimiter = ',', value_parser = one_of(&METHODS))]
    method: Vec<Method>,
    /// Pages in the sample of shards-size, and in a miniature [default: 65536, and 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24))]
    samples: Option<u32>,
    /// The share of the pages in the sample of shards [default: 0.01]; for miniatures, in place of
    /// --samples
    #[arg(long, value_name = "SHARE", value_parser = rate)]
    rate: Option<f64>,
    /// Sizes of a curve, by equal factors from a thousandth of the different pages to all of them
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    points: u32,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    running: Running,
}

const METHODS: [Word<Method>; 4] = [
    ("exact", Method::Exact, "Of LRU, from every reuse distance"),
    ("shards", Method::Shards, "Of LRU, from a fixed share of the pages"),
    ("shards-size", Method::ShardsSize, "Of LRU, from a fixed number of pages"),
    ("miniature", Method::Miniature, "Of any policy, from small caches that see a share of the pages"),
];

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if rate > 0.0 && rate <= 1.0 { Ok(rate) } else { Err("expected a share above 0 and at most 1".into()) }
}

/// Makes the curves, and writes them as traces end.
pub fn run(arguments: &Arguments, quiet: bool) -> Result<(), Error> {
    let options = options(arguments)?;
    let traces = arguments.traces.named(None)?;
    let mut run = Run::start(arguments.running.json.as_deref(), quiet, traces.len())?;
    let mut pages = Vec::new();
    let ended = traces.iter().try_for_each(|Named { trace, .. }| {
        let curves = run.next(|stop, progress| curves(trace, &options, stop, progress))?;
        if !curves.is_empty() {
            run.json.lines_or(&curves, || text(&curves))?;
            pages.push((trace.name.clone(), series(&curves)));
        }
        run.unless_interrupted()
    });
    inputs::write_page(arguments.running.html.as_deref(), || {
        report::curves_html("octavo mrc", &error_note(), options.page_bytes, &pages)
    })?;
    ended
}

fn options(arguments: &Arguments) -> Result<Options, Error> {
    let policies = inputs::policies(&arguments.policy)?;
    let is_lru = policies.iter().all(|policy| ["lru", report::BASE].contains(&policy.name()));
    let methods: Vec<Method> = match &arguments.method[..] {
        [] if is_lru => vec![Method::Exact],
        [] => vec![Method::Miniature],
        given => given.to_vec(),
    };
    inputs::refuse_twice("method", methods.iter().map(|method| method.name().to_owned()))?;
    let ways = arguments.ways.checked()?;
    if let Some(method) = methods.iter().find(|method| **method != Method::Miniature)
        && !methods.contains(&Method::Miniature)
        && !is_lru
    {
        let name = method.name();
        return Err(Error::Usage(format!("--method {name} supports only lru; use --method miniature")));
    }
    if methods.contains(&Method::Miniature) {
        if let Some(prophet) = policies.iter().find(|policy| policy.needs_future()) {
            let name = prophet.name();
            return Err(Error::Usage(format!(
                "--policy {name}: a policy that knows the future has no miniature"
            )));
        }
        arguments.traces.refuse_standard_input("miniatures need a first reading that counts its pages")?;
    }
    Ok(Options {
        methods,
        policies,
        ways,
        points: arguments.points as usize,
        samples: arguments.samples,
        page_bytes: arguments.traces.page_bytes(),
        memory_bytes: inputs::memory_available_bytes(),
        rate: arguments.rate,
        seed: arguments.running.seed,
        jobs: arguments.running.jobs(),
    })
}

fn label(curve: &Curve) -> String {
    let policy = report::label((curve.policy, curve.ways));
    if curve.method == Method::Miniature.name() {
        format!("{policy} in miniature")
    } else {
        format!("{policy} {}", curve.method)
    }
}

fn error_note() -> String {
    format!(
        "+-: how far the true ratio may be from the estimate; this holds for 19 of 20 points. The bar is three standard errors, from the spread of \
        the estimates of {PARTS} disjoint parts of the sample. The errors of one curve mostly have one sign; another --seed draws another sample. \
        A - means that too few pages of the sample fit into the cache: use more --samples, a higher --rate, or --method exact."
    )
}

/// The curves of a trace side by side, and how each was made.
fn text(curves: &[Curve]) -> String {
    let first = &curves[0];
    let unfinished = if first.complete { "" } else { " (interrupted)" };
    let mut text = format!("{}: {} accesses{unfinished}\n", first.trace, first.requests);
    let optional = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.4}"));
    let mut about =
        vec![["curve", "pages", "size", "rate", "from exact: mean", "greatest"].map(String::from).to_vec()];
    for curve in curves {
        about.push(vec![
            label(curve),
            curve.footprint_pages.to_string(),
            report::human_bytes(curve.footprint_bytes),
            format!("{:.4}", curve.rate),
            optional(curve.exact_difference_mean),
            optional(curve.exact_difference_max),
        ]);
    }
    text.push_str(&report::aligned(&about, 1));
    text.push('\n');
    let mut lines = vec![vec!["pages".to_owned(), "size".to_owned()]];
    lines[0].extend(curves.iter().flat_map(|curve| [label(curve), "+-".into()]));
    for (number, point) in first.points.iter().enumerate() {
        let mut line = vec![point.capacity_pages.to_string(), report::human_bytes(point.capacity_bytes)];
        for curve in curves {
            let point = curve.points.get(number);
            line.push(point.map_or(String::new(), |point| format!("{:.4}", point.miss_ratio)));
            line.push(point.map_or(String::new(), |point| optional(point.error)));
        }
        lines.push(line);
    }
    text.push_str(&report::aligned(&lines, 0));
    if curves.iter().any(|curve| curve.rate < 1.0) {
        text.push_str(&error_note());
        text.push('\n');
    }
    text.push('\n');
    text
}

fn series(curves: &[Curve]) -> Vec<Series> {
    let series = curves.iter().map(|curve| Series { label: label(curve), points: curve.points.clone() });
    series.collect()
}
