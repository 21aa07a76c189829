//! The whole demonstration: starts the server and all processes, measures, writes the tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::distributed;
use crate::error::Result;
use crate::figures::{ClusterReport, DemoReport, Pass, ProcessReport, SingleReport};
use crate::options::Options;
use crate::processes::{Process, Server};
use crate::report;
#[cfg(feature = "ballista")]
use crate::room::Room;
use crate::route::Routing;

/// Memory that holds all blocks of the queries at scale factor 1.
const AMPLE_BYTES: u64 = 512 << 20;

/// Memory that does not.
const SCARCE_BYTES: u64 = 128 << 20;

/// Files of a cache on disk.
const DISK_BYTES: u64 = 1 << 30;

/// Runs the parts that `--parts` names.
pub async fn demo(data: &Path, options: &Options) -> Result<()> {
    let queries = options.queries()?;
    let workers: Vec<usize> = options.list("workers", "1,2,4")?;
    let parts: Vec<String> = options.list("parts", "single,routing,room,leave")?;
    let wanted = |part: &str| parts.iter().any(|wanted| wanted == part);
    if wanted("ballista") && !cfg!(feature = "ballista") {
        return Err("--parts ballista: this program was built without Ballista; \
                    build it with --features ballista"
            .into());
    }
    let delay = Duration::from_millis(options.get("delay-ms", "30")?);
    let (server_process, server) = start_server(data).await?;
    let files = files_of(data)?;
    let mut report = DemoReport {
        files: files.len(),
        data_bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        delay_ms: delay.as_millis() as u64,
        queries: queries.clone(),
        ..DemoReport::default()
    };
    let paths: Vec<String> = files.into_iter().map(|(path, _)| path).collect();

    server.delay(delay).await?;
    // Also what the other parts are compared with.
    eprintln!("one process, no cache");
    report.single.push(single(&server, "direct", AMPLE_BYTES, &queries).await?);
    if wanted("single") {
        for memory_bytes in [AMPLE_BYTES, SCARCE_BYTES] {
            for kind in ["foyer", "octavo", "octavo-tier"] {
                eprintln!("one process, {kind}, {} MiB", memory_bytes >> 20);
                report.single.push(single(&server, kind, memory_bytes, &queries).await?);
                write(&mut report, options)?;
            }
        }
    }
    // Workers are compared by what they fetch, which does not depend on the delay.
    server.delay(Duration::ZERO).await?;
    if wanted("routing") {
        for &count in &workers {
            for routing in Routing::ALL {
                eprintln!("{count} workers, {}", routing.name());
                let measured = distributed::measure(&server, count, routing, AMPLE_BYTES, &queries).await?;
                report.clusters.push(measured);
                write(&mut report, options)?;
            }
        }
    }
    if wanted("room") {
        report.scarce = scarce(&server, &workers, &report.clusters, &queries).await?;
        write(&mut report, options)?;
    }
    if wanted("leave") {
        let count = workers.iter().copied().max().unwrap_or(1);
        eprintln!("{count} workers, of which one leaves and returns");
        let left = distributed::leave_and_return(&server, count, AMPLE_BYTES, &queries, &paths).await?;
        report.leave = Some(left);
        write(&mut report, options)?;
    }
    #[cfg(feature = "ballista")]
    if wanted("ballista") {
        let room = Room { memory_bytes: AMPLE_BYTES, ..options.room()? };
        for &count in &workers {
            for routing in Routing::ALL {
                eprintln!("{count} executors of Ballista, {}", routing.name());
                let measured = crate::ballista::measure(&server, count, routing, &room, &queries).await?;
                report.ballista.push(measured);
                write(&mut report, options)?;
            }
        }
    }
    server_process.end().await?;
    write(&mut report, options)?;
    if options.find("out").is_none() {
        print!("{}", report::text(&report)?);
    }
    match report.different.is_empty() {
        true => Ok(()),
        false => Err(format!("results differ: {}", report.different.join("; ")).into()),
    }
}

async fn start_server(data: &Path) -> Result<(Process, Server)> {
    let arguments = ["serve".to_owned(), "--data".to_owned(), data.display().to_string()];
    let mut process = Process::start(&arguments)?;
    let port = process.line().await?.parse()?;
    Ok((process, Server { port }))
}

/// The objects of all tables, with their lengths in bytes.
fn files_of(data: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for table in std::fs::read_dir(data)? {
        for file in std::fs::read_dir(table?.path())? {
            let file = file?;
            let path = file.path();
            let path = path.strip_prefix(data)?.display().to_string();
            files.push((path, file.metadata()?.len()));
        }
    }
    files.sort();
    Ok(files)
}

async fn single(server: &Server, kind: &str, memory_bytes: u64, queries: &[u32]) -> Result<SingleReport> {
    let directory = std::env::temp_dir().join(format!("octavo-scale-{}-{kind}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let run = async |passes: &str| {
        server.reset().await?;
        let queries: Vec<String> = queries.iter().map(u32::to_string).collect();
        let arguments = [
            "single".to_owned(),
            "--kind".to_owned(),
            kind.to_owned(),
            "--port".to_owned(),
            server.port.to_string(),
            "--memory".to_owned(),
            memory_bytes.to_string(),
            "--disk".to_owned(),
            DISK_BYTES.to_string(),
            "--directory".to_owned(),
            directory.display().to_string(),
            "--queries".to_owned(),
            queries.join(","),
            "--passes".to_owned(),
            passes.to_owned(),
        ];
        let mut process = Process::start(&arguments)?;
        let line = process.line().await?;
        process.end().await?;
        Result::Ok(serde_json::from_str::<ProcessReport>(&line)?)
    };
    let measured = async {
        let first = run("cold,warm").await?;
        let restarted = match kind {
            "foyer" | "octavo-tier" => Some(run("restarted").await?),
            _ => None,
        };
        Ok(SingleReport { kind: kind.to_owned(), memory_bytes, first, restarted })
    };
    let measured = measured.await;
    std::fs::remove_dir_all(&directory)?;
    measured
}

/// One big cache, and as much room in parts: 1.2 times the distinct bytes that the queries read.
async fn scarce(
    server: &Server,
    workers: &[usize],
    clusters: &[ClusterReport],
    queries: &[u32],
) -> Result<Vec<ClusterReport>> {
    let known = clusters.iter().find(|cluster| cluster.routing == Routing::Affinity.name());
    let distinct_bytes = match known {
        Some(cluster) => cluster.distinct_bytes,
        None => {
            let measured = distributed::measure(server, 1, Routing::Affinity, AMPLE_BYTES, queries).await?;
            measured.distinct_bytes
        }
    };
    let mut reports = Vec::new();
    for &count in workers {
        for routing in [Routing::Random, Routing::Affinity] {
            if count == 1 && routing == Routing::Random {
                continue;
            }
            let room_bytes = distinct_bytes * 12 / 10 / count as u64;
            eprintln!("{count} workers, {}, {} MiB each", routing.name(), room_bytes >> 20);
            reports.push(distributed::measure(server, count, routing, room_bytes, queries).await?);
        }
    }
    Ok(reports)
}

/// Compares the rows of every run with those of the first one, which had no cache.
fn compare(report: &mut DemoReport) {
    let mut passes: Vec<(String, &Pass)> = Vec::new();
    for single in &report.single {
        let restarted = single.restarted.iter().flat_map(|restarted| &restarted.passes);
        for pass in single.first.passes.iter().chain(restarted) {
            passes.push((format!("{}, {}", single.kind, pass.name), pass));
        }
    }
    for cluster in report.clusters.iter().chain(&report.scarce) {
        for pass in &cluster.passes {
            passes.push((format!("{} workers, {}, {}", cluster.workers, cluster.routing, pass.name), pass));
        }
    }
    for cluster in &report.ballista {
        for pass in &cluster.passes {
            let (count, routing) = (cluster.workers, &cluster.routing);
            passes.push((format!("{count} executors of Ballista, {routing}, {}", pass.name), pass));
        }
    }
    for pass in report.leave.iter().flat_map(|leave| &leave.passes) {
        passes.push((format!("a worker that leaves, {}", pass.name), pass));
    }
    let Some(((_, first), others)) = passes.split_first() else { return };
    let expected: BTreeMap<u32, _> =
        first.ran.iter().map(|ran| (ran.query, (ran.rows, &ran.digest))).collect();
    let (mut compared, mut different) = (0, Vec::new());
    for (name, pass) in others {
        for ran in &pass.ran {
            compared += 1;
            if expected.get(&ran.query) != Some(&(ran.rows, &ran.digest)) {
                different.push(format!("query {}: {name}", ran.query));
            }
        }
    }
    (report.compared, report.different) = (compared, different);
}

/// Writes what is known so far, as a run takes long.
fn write(report: &mut DemoReport, options: &Options) -> Result<()> {
    compare(report);
    if let Some(path) = options.find("json") {
        std::fs::write(path, serde_json::to_string_pretty(report)?)?;
    }
    if let Some(path) = options.find("out") {
        std::fs::write(path, report::text(report)?)?;
    }
    Ok(())
}
