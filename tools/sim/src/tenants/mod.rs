//! Several tenants that share one memory: compares their hits under four ways of sharing it.
//!
//! All four ways use the same policy and one reading of the traces:
//! - *unified*: one cache for all tenants;
//! - *equal*: a partition of the same size for each tenant;
//! - *utility*: partitions that the engine's own plan resizes during the run, by the curves of the
//!   engine's own monitors (`utility.rs`);
//! - *hindsight*: the best constant split, chosen at the end from partitions of all sizes that saw
//!   the whole run.
//!
//! What is not here: time. A period is a number of accesses.

mod merge;
mod mix;
mod partition;
mod utility;

use std::sync::atomic::AtomicBool;

use octavo_share::{Curve, Leaf, Node, Pace, State};

use crate::cache::{Cache, SetCache};
use crate::feed::{Feed, feed};
use crate::footprint::Footprint;
use crate::plan::Policy;
use crate::room::{self, Wanted};
use crate::row::ratio;
use crate::simulate::{Progress, Step};
use crate::source::SourceError;
use merge::{Access, Merge};
use utility::Utility;

pub use mix::{Mix, Outcome, Sizes, Tenant, TenantOutcome};

/// Tenants have numbers of 16 bits.
const TENANTS_MAX: u64 = 1 << 16;

/// The size that holds all of a tenant's pages, as a multiple of its footprint: above 1, because
/// sets fill unevenly. Hindsight tries no larger sizes.
const ROOM_FOR_ALL: f64 = 1.3;

/// The least pages of memory for each tenant.
pub const PAGES_MIN: u64 = 64;

/// The most pages of memory that are simulated.
const PAGES_MAX: u64 = 1 << 31;

/// Replays the tenants' traces together in all four ways. Returns None if `stop` was set.
///
/// # Errors
/// Too many tenants or too little memory for them, a trace that cannot be read, is empty or changes
/// between its two readings, or tables that do not fit into memory.
pub fn share(
    tenants: &[Tenant<'_>],
    mix: &Mix,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Option<Vec<Outcome>>, SourceError> {
    let count = tenants.len() as u64;
    if !(1..=TENANTS_MAX).contains(&count) || mix.pages < PAGES_MIN * count {
        return Err(SourceError(format!(
            "cannot plan {count} tenants in {} pages: a plan takes 1 to {TENANTS_MAX} tenants, and at least \
            {PAGES_MIN} pages for each",
            mix.pages
        )));
    }
    // 1. The lengths and the footprints of the traces.
    let mut footprints = Vec::new();
    for tenant in tenants {
        let Some(counted) = Footprint::of(&tenant.trace, stop, progress)? else { return Ok(None) };
        tenant.trace.must_have_accesses(counted.requests)?;
        footprints.push(counted);
    }
    // 2. One reading for all caches. Memory that no tenant could fill is left out.
    let most = footprints.iter().map(pages_enough).max().unwrap_or(0).saturating_mul(count).min(PAGES_MAX);
    let mix = &Mix { pages: mix.pages.min(most.max(PAGES_MIN * count)), ..mix.clone() };
    check_room(mix, &footprints)?;
    let mut models = models(tenants, mix, &footprints);
    let mut merged = Merge::open(tenants, &footprints)?;
    let mut next = |batch: &mut Vec<Access>| merged.next(batch);
    let fed = feed(&mut next, &mut models, mix.jobs, stop, &mut |requests, share| {
        progress(Progress { trace: "all together", step: Step::Run, requests, share });
    })?;
    // 3. The results.
    Ok(fed.complete.then(|| outcomes(tenants, mix, &footprints, models)))
}

/// Returns a size, in pages, at which a tenant misses each of its pages only once.
fn pages_enough(footprint: &Footprint) -> u64 {
    (footprint.pages as f64 * ROOM_FOR_ALL) as u64 + PAGES_MIN
}

/// Refuses tables that cannot be made: a table for each tenant that can grow to all the memory, one
/// table for all tenants, and those of fixed sizes.
fn check_room(mix: &Mix, footprints: &[Footprint]) -> Result<(), SourceError> {
    let (chunk_pages, chunks) = mix.pieces(footprints.len() as u64);
    let wanted = |pages| Wanted { policy: Policy::Engine(mix.policy), ways: Some(16), pages };
    let mut tables = vec![wanted(mix.pages); footprints.len() + 1];
    for footprint in footprints {
        let known = (pages_enough(footprint) / chunk_pages + 1).min(chunks);
        tables.extend((1..=known).map(|number| wanted(number * chunk_pages)));
        tables.push(wanted(mix.pages / footprints.len() as u64));
    }
    room::check(&tables, mix.page_bytes, mix.memory_bytes)
}

/// One cache or several, which see all accesses.
enum Model {
    Utility(Box<Utility>),
    Unified(SetCache<16>, Vec<u64>),
    Fixed { tenant: u16, is_share: bool, pages: u64, cache: SetCache<16>, misses: u64, scratch: Vec<u64> },
}

/// Makes the models of all four ways.
fn models(tenants: &[Tenant<'_>], mix: &Mix, footprints: &[Footprint]) -> Vec<Model> {
    let count = tenants.len() as u64;
    let (chunk_pages, chunks) = mix.pieces(count);
    let all: u64 = footprints.iter().map(|footprint| footprint.requests).sum();
    let period = if mix.period > 0 { mix.period } else { (all / 500).max(1) };
    let mut models = vec![
        Model::Utility(Box::new(Utility::new(tenants, mix, period))),
        Model::Unified(SetCache::new(mix.policy, mix.pages, mix.seed), vec![0; tenants.len()]),
    ];
    for (tenant, footprint) in footprints.iter().enumerate() {
        let fixed = |pages, is_share| Model::Fixed {
            tenant: tenant as u16,
            is_share,
            pages,
            cache: SetCache::new(mix.policy, pages, mix.seed.wrapping_add(tenant as u64)),
            misses: 0,
            scratch: Vec::new(),
        };
        models.push(fixed(mix.pages / count, true));
        let enough = pages_enough(footprint) + chunk_pages;
        let sizes = (1..=chunks).map(|chunks| chunks * chunk_pages);
        models.extend(sizes.take_while(|pages| *pages <= enough).map(|pages| fixed(pages, false)));
    }
    models
}

impl Feed<Access> for Model {
    fn feed(&mut self, accesses: &[Access]) {
        match self {
            Model::Utility(of) => accesses.iter().for_each(|(tenant, page)| of.access(*tenant, *page)),
            Model::Unified(cache, misses) => {
                for (tenant, page) in accesses {
                    // Pages of different tenants have different numbers, far apart, which are then
                    // hashed.
                    let page = page.wrapping_add(u64::from(*tenant) << 48);
                    misses[usize::from(*tenant)] += u64::from(!cache.access(page));
                }
            }
            Model::Fixed { tenant, cache, misses, scratch, .. } => {
                scratch.clear();
                scratch.extend(accesses.iter().filter(|(of, _)| of == tenant).map(|(_, page)| page));
                *misses += cache.run(scratch);
            }
        }
    }
}

/// Makes the results of all four ways.
fn outcomes(tenants: &[Tenant<'_>], mix: &Mix, footprints: &[Footprint], models: Vec<Model>) -> Vec<Outcome> {
    let (chunk_pages, chunks) = mix.pieces(tenants.len() as u64);
    let requests: Vec<u64> = footprints.iter().map(|footprint| footprint.requests).collect();
    let outcome = |way, misses: &[u64], pages: Option<&[u64]>, sizes| {
        let tenants = tenants.iter().enumerate().map(|(number, tenant)| TenantOutcome {
            name: tenant.trace.name.clone(),
            requests: requests[number],
            hits: requests[number] - misses[number],
            hit_ratio: ratio(requests[number] - misses[number], requests[number]),
            pages: pages.map(|pages| pages[number]),
            pages_bytes: pages.map(|pages| pages[number] * mix.page_bytes),
        });
        let tenants: Vec<TenantOutcome> = tenants.collect();
        let all: u64 = requests.iter().sum();
        let hits = tenants.iter().map(|tenant| tenant.hits).sum();
        Outcome { kind: "plan", way, requests: all, hits, hit_ratio: ratio(hits, all), tenants, sizes }
    };
    let (mut utility, mut unified) = (None, Vec::new());
    let mut equal = vec![0; tenants.len()];
    let mut known: Vec<Vec<(u64, u64)>> = vec![Vec::new(); tenants.len()];
    for model in models {
        match model {
            Model::Utility(of) => utility = Some(of),
            Model::Unified(_, misses) => unified = misses,
            Model::Fixed { tenant, is_share: true, misses, .. } => equal[usize::from(tenant)] = misses,
            Model::Fixed { tenant, pages, misses, .. } => known[usize::from(tenant)].push((pages, misses)),
        }
    }
    let equal_split = vec![mix.pages / tenants.len() as u64; tenants.len()];
    let (mut split, mut best) = hindsight(&known, &requests, chunk_pages, chunks);
    // Hindsight also considers equal shares: its own sizes are whole chunks, which together may be
    // less than the memory.
    if equal.iter().sum::<u64>() < best.iter().sum() {
        (split, best) = (equal_split.clone(), equal.clone());
    }
    let utility = utility.expect("`models` makes one");
    let misses: Vec<u64> = utility.partitions.iter().map(|partition| partition.misses).collect();
    vec![
        outcome("unified", &unified, None, Vec::new()),
        outcome("equal", &equal, Some(&equal_split), Vec::new()),
        outcome("utility", &misses, Some(&utility.mean_pages()), utility.history),
        outcome("hindsight", &best, Some(&split), Vec::new()),
    ]
}

/// Returns the split of `chunks` chunks with the fewest misses, and the misses of each tenant. It
/// is exact: every size was run.
fn hindsight(known: &[Vec<(u64, u64)>], requests: &[u64], chunk: u64, chunks: u64) -> (Vec<u64>, Vec<u64>) {
    let nodes = known.iter().zip(requests).map(|(points, requests)| Node {
        leaf: Some(Leaf {
            curve: Curve::new(
                *requests as f64,
                points.iter().map(|(pages, misses)| (*pages, *misses as f64)),
            ),
            ..Leaf::default()
        }),
        ..Node::default()
    });
    let state = State { total_bytes: chunk * chunks, granule_bytes: chunk, nodes: nodes.collect() };
    let split = state.targets(&Pace { inertia: 0.0, exact_max: usize::MAX, ..Pace::default() });
    let misses = known.iter().zip(&split).zip(requests).map(|((points, pages), requests)| {
        let sizes = points.iter().rev().find(|(size, _)| size <= pages);
        sizes.map_or(*requests, |(_, misses)| *misses)
    });
    let misses = misses.collect();
    (split, misses)
}

#[cfg(test)]
mod tests;
