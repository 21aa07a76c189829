//! What is measured of a set of workers, whichever engine spreads the queries over them.

use datafusion::execution::context::SessionContext;

use crate::error::Result;
use crate::figures::{ClusterReport, Pass, Ran, ServerStat};
use crate::processes::{Process, Server};
use crate::route::Routing;
use crate::server::COORDINATOR;
use crate::tpch;
use crate::worker::WorkerStat;

/// The client names of workers begin with this.
pub const WORKER: &str = "worker-";

/// The name of a worker, which is also what its files are chosen by.
pub fn name_of(number: usize) -> String {
    format!("{WORKER}{number}")
}

/// Runs all queries, one after the other, and counts the requests of each.
pub async fn run(server: &Server, context: &SessionContext, queries: &[u32]) -> Result<Vec<Ran>> {
    let mut now = server.stat().await?;
    let mut ran = Vec::new();
    for &query in queries {
        let rows = tpch::run(context, query).await.map_err(|error| format!("query {query}: {error}"))?;
        let then = std::mem::replace(&mut now, server.stat().await?);
        ran.push(Ran {
            query,
            seconds: rows.seconds,
            rows: rows.count,
            digest: rows.digest,
            server: now.of(WORKER) - then.of(WORKER),
            coordinator: now.of(COORDINATOR) - then.of(COORDINATOR),
        });
    }
    Ok(ran)
}

/// The figures of all workers, added up.
pub async fn stat(workers: impl Iterator<Item = &mut Process>) -> Result<WorkerStat> {
    let mut sum = WorkerStat::default();
    for worker in workers {
        let stat: WorkerStat = worker.ask("stat").await?;
        sum.cache.hit_bytes += stat.cache.hit_bytes;
        sum.cache.miss_bytes += stat.cache.miss_bytes;
        sum.cache.resident_bytes += stat.cache.resident_bytes;
        sum.resident_memory_bytes += stat.resident_memory_bytes;
    }
    Ok(sum)
}

/// What `count` workers measured in `passes`; `stat` is the server's, since the workers started.
pub fn report(
    stat: &ServerStat,
    count: usize,
    routing: Routing,
    room_bytes: u64,
    resident_memory_bytes: u64,
    passes: Vec<Pass>,
) -> ClusterReport {
    let workers = stat.clients.iter().filter(|(name, _)| name.starts_with(WORKER));
    ClusterReport {
        workers: count,
        routing: routing.name().to_owned(),
        room_bytes,
        copies_bytes: workers.map(|(_, client)| client.distinct_bytes).sum(),
        distinct_bytes: stat.distinct_bytes,
        resident_memory_bytes,
        passes,
    }
}
