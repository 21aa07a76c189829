//! Several tenants in one memory: what they would miss together, by how the memory is shared out.
//!
//! Four ways are compared, all with one policy and from one reading of the traces: *unified*, one
//! cache for all; *equal*, a partition of the same size for each; *utility*, partitions that the
//! engine's own plan resizes as it goes, from the curves of the engine's own monitors; and
//! *hindsight*, the best split that stays, chosen when everything is over from partitions of all
//! sizes that did see everything.
//!
//! What is not here: time. A period is a number of accesses.

mod merge;
mod partition;

use std::sync::atomic::AtomicBool;

use octavo_share::{Curve, Leaf, Limits, Node, Pace, State};
use octavo_table::{PolicyKind, SEGMENTS_MAX, Shape};
use serde::Serialize;

use crate::cache::{Cache, SetCache};
use crate::footprint::Footprint;
use crate::plan::Policy;
use crate::room::{self, Wanted};
use crate::simulate::{Feed, Progress, Step, Trace, feed, ratio};
use crate::source::SourceError;
use merge::{Access, Merge};
use partition::Partition;

/// A tenant: his trace, and what he was promised.
pub struct Tenant<'t> {
    /// What he accesses; its name is his.
    pub trace: Trace<'t>,
    /// What he was promised. It binds the utility-based way alone.
    pub limits: Limits,
}

/// How the memory is shared.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Pages of memory.
    pub pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Of all partitions.
    pub policy: PolicyKind,
    /// Sizes that hindsight knows: the memory in so many pieces.
    pub chunks: u32,
    /// Accesses between two plans; 0: a five-hundredth of all.
    pub period: u64,
    /// Places pages in sets.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// How fast sizes follow.
    pub pace: Pace,
    /// Memory that the simulation may take. None: it is not known.
    pub memory_bytes: Option<u64>,
}

/// What became of the tenants by one way of sharing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// `plan`.
    pub kind: &'static str,
    /// `unified`, `equal`, `utility` or `hindsight`.
    pub way: &'static str,
    /// Accesses of all.
    pub requests: u64,
    /// Those whose page was there.
    pub hits: u64,
    /// Hits / requests.
    pub hit_ratio: f64,
    /// Each tenant, in the order given.
    pub tenants: Vec<TenantOutcome>,
    /// By the utility-based way: the sizes at the end of each period, and what moved in it. Empty
    /// for the others.
    pub sizes: Vec<Sizes>,
}

/// What became of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantOutcome {
    /// His name.
    pub name: String,
    /// His accesses.
    pub requests: u64,
    /// Those whose page was there.
    pub hits: u64,
    /// Hits / requests.
    pub hit_ratio: f64,
    /// Pages that he had: at the end, or on average by the utility-based way. None where all are in
    /// one cache.
    pub pages: Option<u64>,
    /// The same in bytes, without metadata.
    pub pages_bytes: Option<u64>,
}

/// Sizes at the end of a period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Accesses of all so far.
    pub requests: u64,
    /// Pages of each tenant's partition.
    pub pages: Vec<u64>,
    /// The same in bytes, without metadata.
    pub pages_bytes: Vec<u64>,
    /// Pages that partitions gave away in this period.
    pub moved: u64,
}

/// Tenants are numbered by sixteen bits.
const TENANTS_MAX: u64 = 1 << 16;

/// Segments that the memory has at least, where it has as many sets: with fewer, sizes would be
/// coarser than in a server.
const SEGMENTS_MIN: u64 = 256;

/// Hindsight knows one size beyond a tenant's footprint, for sets fill unevenly.
const ROOM_FOR_ALL: f64 = 1.3;

/// A piece of the memory is not smaller than this.
const PIECE_MIN: u64 = 16;

/// The least pages of memory for each tenant.
pub const PAGES_MIN: u64 = 64;

/// More memory than this for all is not simulated.
const PAGES_MAX: u64 = 1 << 31;

impl Mix {
    /// Sets of a segment: those of an engine's, or fewer where the memory is small for so many
    /// tenants, or more where it is very large.
    fn sets_per_segment(&self, tenants: u64) -> u64 {
        let mut sets = 32;
        while sets > 1 && self.pages / (sets * 16) < SEGMENTS_MIN.max(4 * tenants) {
            sets /= 2;
        }
        while self.pages / (sets * 16) > u64::from(SEGMENTS_MAX) {
            sets *= 2;
        }
        sets
    }

    /// Pages of one of hindsight's pieces, and how many there are: all together are not more than
    /// the memory, and there is one for each tenant.
    fn pieces(&self, tenants: u64) -> (u64, u64) {
        let pages = (self.pages / u64::from(self.chunks).max(tenants).max(1)).max(PIECE_MIN);
        (pages, self.pages / pages)
    }
}

/// Replays the tenants' traces together by all four ways. None: it was interrupted.
pub fn share(
    tenants: &[Tenant<'_>],
    mix: &Mix,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Option<Vec<Outcome>>, SourceError> {
    let count = tenants.len() as u64;
    if !(1..=TENANTS_MAX).contains(&count) || mix.pages < PAGES_MIN * count {
        return Err(SourceError(format!(
            "{count} tenants in {} pages: up to {TENANTS_MAX} tenants, with {PAGES_MIN} pages for each, can be planned",
            mix.pages
        )));
    }
    // 1. How long the traces are, and how large.
    let mut footprints = Vec::new();
    for tenant in tenants {
        let trace = &tenant.trace.name;
        let mut news = |requests, share| progress(Progress { trace, step: Step::Count, requests, share });
        let counted = Footprint::of(&mut *(tenant.trace.open)()?, stop, &mut news)?;
        if !counted.complete {
            return Ok(None);
        }
        if counted.requests == 0 {
            return Err(SourceError(format!("{trace}: there is no access in it")));
        }
        footprints.push(counted);
    }
    let requests: Vec<u64> = footprints.iter().map(|footprint| footprint.requests).collect();
    let all: u64 = requests.iter().sum();
    // 2. All caches see one reading. Memory that would be empty whoever had it is left out.
    let enough = |footprint: &Footprint| (footprint.pages as f64 * ROOM_FOR_ALL) as u64 + PAGES_MIN;
    let most = footprints.iter().map(enough).max().unwrap_or(0).saturating_mul(count).min(PAGES_MAX);
    let mix = &Mix { pages: mix.pages.min(most.max(PAGES_MIN * count)), ..mix.clone() };
    let (chunk_pages, chunks) = mix.pieces(count);
    let period = if mix.period > 0 { mix.period } else { (all / 500).max(1) };
    check_room(mix, &footprints, enough)?;
    let mut models = vec![Model::Utility(Box::new(Utility::new(tenants, mix, period)))];
    models.push(Model::Unified(SetCache::new(mix.policy, mix.pages, mix.seed), vec![0; tenants.len()]));
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
        let enough = enough(footprint) + chunk_pages;
        let sizes = (1..=chunks).map(|chunks| chunks * chunk_pages);
        models.extend(sizes.take_while(|pages| *pages <= enough).map(|pages| fixed(pages, false)));
    }
    let traces: Vec<&Trace<'_>> = tenants.iter().map(|tenant| &tenant.trace).collect();
    let mut merged = Merge::open(&traces, &requests)?;
    let mut next = |batch: &mut Vec<Access>| merged.next(batch);
    let fed = feed(&mut next, &mut models, mix.jobs, stop, &mut |requests, share| {
        progress(Progress { trace: "all together", step: Step::Run, requests, share });
    })?;
    if !fed.complete {
        return Ok(None);
    }
    // 3. What became of them.
    let names: Vec<&str> = tenants.iter().map(|tenant| tenant.trace.name.as_str()).collect();
    let told = |way, misses: &[u64], pages: Option<&[u64]>, sizes| {
        let tenants = names.iter().enumerate().map(|(number, name)| TenantOutcome {
            name: (*name).to_owned(),
            requests: requests[number],
            hits: requests[number] - misses[number],
            hit_ratio: ratio(requests[number] - misses[number], requests[number]),
            pages: pages.map(|pages| pages[number]),
            pages_bytes: pages.map(|pages| pages[number] * mix.page_bytes),
        });
        let hits = all - misses.iter().sum::<u64>();
        let tenants = tenants.collect();
        Outcome { kind: "plan", way, requests: all, hits, hit_ratio: ratio(hits, all), tenants, sizes }
    };
    let (mut utility, mut unified) = (None, None);
    let mut equal = vec![0; tenants.len()];
    let mut known: Vec<Vec<(u64, u64)>> = vec![Vec::new(); tenants.len()];
    for model in models {
        match model {
            Model::Utility(of) => utility = Some(of),
            Model::Unified(_, misses) => unified = Some(misses),
            Model::Fixed { tenant, is_share: true, misses, .. } => equal[usize::from(tenant)] = misses,
            Model::Fixed { tenant, pages, misses, .. } => known[usize::from(tenant)].push((pages, misses)),
        }
    }
    let equal_split = vec![mix.pages / count; tenants.len()];
    let (mut split, mut best) = hindsight(&known, &requests, chunk_pages, chunks);
    // Hindsight knows sizes in whole chunks, which together may be less than the memory, and equal
    // shares too.
    if equal.iter().sum::<u64>() < best.iter().sum() {
        (split, best) = (equal_split.clone(), equal.clone());
    }
    let utility = utility.expect("made above");
    let misses: Vec<u64> = utility.partitions.iter().map(|partition| partition.misses).collect();
    Ok(Some(vec![
        told("unified", &unified.expect("made above"), None, Vec::new()),
        told("equal", &equal, Some(&equal_split), Vec::new()),
        told("utility", &misses, Some(&utility.mean_pages()), utility.history),
        told("hindsight", &best, Some(&split), Vec::new()),
    ]))
}

/// Refuses tables that cannot be made: one of all the memory for each tenant, which is resized, one
/// for all, and those of fixed sizes.
fn check_room(
    mix: &Mix,
    footprints: &[Footprint],
    enough: impl Fn(&Footprint) -> u64,
) -> Result<(), SourceError> {
    let (chunk_pages, chunks) = mix.pieces(footprints.len() as u64);
    let wanted = |pages| Wanted { policy: Policy::Engine(mix.policy), ways: Some(16), pages };
    let mut tables = vec![wanted(mix.pages); footprints.len() + 1];
    for footprint in footprints {
        let known = (enough(footprint) / chunk_pages + 1).min(chunks);
        tables.extend((1..=known).map(|number| wanted(number * chunk_pages)));
        tables.push(wanted(mix.pages / footprints.len() as u64));
    }
    room::check(&tables, mix.page_bytes, mix.memory_bytes)
}

/// The split of so many chunks that misses least, and what each tenant misses then. Exact: every
/// size was run.
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

/// A cache, or several, that sees all accesses.
enum Model {
    Utility(Box<Utility>),
    Unified(SetCache<16>, Vec<u64>),
    Fixed { tenant: u16, is_share: bool, pages: u64, cache: SetCache<16>, misses: u64, scratch: Vec<u64> },
}

impl Feed<Access> for Model {
    fn feed(&mut self, accesses: &[Access]) {
        match self {
            Model::Utility(of) => accesses.iter().for_each(|(tenant, page)| of.access(*tenant, *page)),
            Model::Unified(cache, misses) => {
                for (tenant, page) in accesses {
                    // Tenants' pages are different pages: their numbers are far apart, and hashed.
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

/// Partitions that are resized as they go.
struct Utility {
    partitions: Vec<Partition>,
    limits: Vec<Limits>,
    total_bytes: u64,
    page_bytes: u64,
    granule_bytes: u64,
    period: u64,
    pace: Pace,
    requests: u64,
    /// References that the monitors were shown since their counts last faded.
    news: u64,
    history: Vec<Sizes>,
}

/// Between two plans the monitors' rings are emptied so often, as a server's thread does.
const DRAINS: u64 = 16;

impl Utility {
    fn new(tenants: &[Tenant<'_>], mix: &Mix, period: u64) -> Utility {
        let sets = mix.sets_per_segment(tenants.len() as u64);
        let segments = (mix.pages / (sets * 16)).max(tenants.len() as u64);
        let shape = Shape { segments_max: segments as u32, sets_per_segment: sets as u32 };
        let live = (segments / tenants.len() as u64) as u32;
        let partitions = (0..tenants.len() as u64).map(|tenant| {
            Partition::new(mix.policy, shape, live, mix.page_bytes, mix.seed.wrapping_add(tenant))
        });
        let granule_bytes = sets * 16 * mix.page_bytes;
        Utility {
            partitions: partitions.collect(),
            limits: tenants.iter().map(|tenant| tenant.limits).collect(),
            total_bytes: segments * granule_bytes,
            page_bytes: mix.page_bytes,
            granule_bytes,
            period,
            pace: mix.pace,
            requests: 0,
            news: 0,
            history: Vec::new(),
        }
    }

    fn access(&mut self, tenant: u16, page: u64) {
        self.partitions[usize::from(tenant)].access(page);
        self.requests += 1;
        if self.requests.is_multiple_of((self.period / DRAINS).max(1)) {
            self.news += self.drain();
        }
        if self.requests.is_multiple_of(self.period) {
            self.plan();
        }
    }

    fn drain(&self) -> u64 {
        self.partitions.iter().map(Partition::drain).sum()
    }

    fn plan(&mut self) {
        self.news += self.drain();
        let (granule_bytes, keep) = (self.granule_bytes, self.pace.keep_after(self.news));
        if keep < 1.0 {
            self.news = 0;
        }
        let leaves = self.partitions.iter_mut().map(|partition| partition.look(granule_bytes, keep));
        let nodes = leaves.zip(&self.limits).map(|(leaf, limits)| Node {
            parent: None,
            limits: *limits,
            leaf: Some(leaf),
        });
        let state = State { total_bytes: self.total_bytes, granule_bytes, nodes: nodes.collect() };
        let mut moved = 0;
        for resize in state.plan(&self.pace) {
            let partition = &mut self.partitions[resize.node];
            let segments = (resize.to_bytes / granule_bytes) as u32;
            moved +=
                u64::from(partition.segments().saturating_sub(segments)) * granule_bytes / self.page_bytes;
            partition.resize(segments);
        }
        let pages = self.pages();
        let pages_bytes = pages.iter().map(|pages| pages * self.page_bytes).collect();
        self.history.push(Sizes { requests: self.requests, pages, pages_bytes, moved });
    }

    fn pages(&self) -> Vec<u64> {
        let bytes =
            |partition: &Partition| u64::from(partition.segments()) * self.granule_bytes / self.page_bytes;
        self.partitions.iter().map(bytes).collect()
    }

    fn mean_pages(&self) -> Vec<u64> {
        if self.history.is_empty() {
            return self.pages();
        }
        let sum = |tenant: usize| self.history.iter().map(|sizes| sizes.pages[tenant]).sum::<u64>();
        (0..self.partitions.len()).map(|tenant| sum(tenant) / self.history.len() as u64).collect()
    }
}

#[cfg(test)]
mod tests;
