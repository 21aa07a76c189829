//! datafusion-distributed over workers that are processes: GETs and bytes with each routing, what
//! is cached where, hits with little room, and a worker that leaves and returns.

use std::collections::BTreeSet;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionContext;
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt};
use url::Url;

use crate::error::Result;
use crate::figures::{ClusterReport, Counts, LeaveReport, Pass};
use crate::measure::{self, WORKER, name_of};
use crate::processes::{Process, Server};
use crate::room::Room;
use crate::route::{Routing, Workers, owner};
use crate::server::COORDINATOR;
use crate::single::{session_config, state};
use crate::stores::{self, Kind};
use crate::tpch;
use crate::worker::WorkerStat;

/// Worker processes, and a session that plans for them.
pub struct Cluster {
    server: Server,
    room_bytes: u64,
    processes: Vec<Option<(Process, Url)>>,
    workers: Workers,
    context: SessionContext,
    routing: Routing,
}

impl Cluster {
    /// Starts workers, each with a cache of `room_bytes`, and makes the tables known.
    pub async fn start(server: &Server, count: usize, routing: Routing, room_bytes: u64) -> Result<Cluster> {
        let workers = Workers::new(routing, 1);
        let room = Room { memory_bytes: 0, disk_bytes: 0, directory: Default::default(), page_bytes: 0 };
        let opened = stores::open(Kind::Direct, server.port, COORDINATOR, &room).await?;
        let (desired, scale_up, route) = (workers.clone(), workers.clone(), workers.clone());
        let builder = SessionStateBuilder::new()
            .with_config(session_config())
            .with_distributed_worker_resolver(workers.clone())
            .with_distributed_planner()
            .with_distributed_desired_task_count_handler(
                move |event: datafusion_distributed::DesiredTaskCountEvent<'_>| desired.desired_tasks(&event),
            )
            .with_distributed_scale_up_leaf_node_handler(
                move |event: datafusion_distributed::ScaleUpLeafNodeEvent<'_>| scale_up.scale_up(&event),
            )
            .with_distributed_route_tasks_handler(
                move |event: datafusion_distributed::RouteTasksEvent<'_>| route.route(&event),
            );
        let context = SessionContext::from(state(builder, opened.store)?);
        let processes = (0..count).map(|_| None).collect();
        let mut cluster =
            Cluster { server: server.clone(), room_bytes, processes, workers, context, routing };
        for number in 0..count {
            cluster.join(number).await?;
        }
        tpch::register(&cluster.context).await?;
        Ok(cluster)
    }

    /// Starts a worker. Its cache is empty.
    pub async fn join(&mut self, number: usize) -> Result<()> {
        let arguments = [
            "worker",
            "--name",
            &name_of(number),
            "--port",
            &self.server.port.to_string(),
            "--memory",
            &self.room_bytes.to_string(),
        ];
        let mut process = Process::start(&arguments.map(str::to_owned))?;
        let port = process.line().await?;
        self.processes[number] = Some((process, Url::parse(&format!("http://127.0.0.1:{port}"))?));
        self.tell();
        Ok(())
    }

    /// Ends a worker.
    pub async fn leave(&mut self, number: usize) -> Result<()> {
        let process = self.processes[number].take();
        self.tell();
        match process {
            Some((process, _)) => process.end().await,
            None => Ok(()),
        }
    }

    /// Tells the planner which workers there are.
    fn tell(&self) {
        let present = self.processes.iter().enumerate();
        let present =
            present.filter_map(|(number, process)| Some((name_of(number), process.as_ref()?.1.clone())));
        self.workers.set(present.collect());
    }

    async fn worker_stats(&mut self) -> Result<WorkerStat> {
        measure::stat(self.processes.iter_mut().flatten().map(|(process, _)| process)).await
    }

    /// Runs all queries, one after the other.
    pub async fn pass(&mut self, name: &str, queries: &[u32]) -> Result<Pass> {
        let ran = measure::run(&self.server, &self.context, queries).await?;
        let cache = self.worker_stats().await?.cache;
        Ok(Pass { name: name.to_owned(), ran, before: Counts::default(), cache })
    }

    /// Ends all workers.
    pub async fn end(&mut self) -> Result<()> {
        for number in 0..self.processes.len() {
            self.leave(number).await?;
        }
        Ok(())
    }

    async fn report(&mut self, passes: Vec<Pass>) -> Result<ClusterReport> {
        let stat = self.server.stat().await?;
        let memory = self.worker_stats().await?.resident_memory_bytes;
        let count = self.processes.len();
        Ok(measure::report(&stat, count, self.routing, self.room_bytes, memory, passes))
    }
}

/// Runs the queries cold and warm with workers that have `room_bytes` each.
pub async fn measure(
    server: &Server,
    count: usize,
    routing: Routing,
    room_bytes: u64,
    queries: &[u32],
) -> Result<ClusterReport> {
    server.reset().await?;
    let mut cluster = Cluster::start(server, count, routing, room_bytes).await?;
    let mut passes = Vec::new();
    for name in ["cold", "warm"] {
        passes.push(cluster.pass(name, queries).await?);
    }
    let report = cluster.report(passes).await?;
    cluster.end().await?;
    Ok(report)
}

/// Lets the last of `count` workers leave and return.
pub async fn leave_and_return(
    server: &Server,
    count: usize,
    room_bytes: u64,
    queries: &[u32],
    files: &[String],
) -> Result<LeaveReport> {
    server.reset().await?;
    let last = count - 1;
    let mut cluster = Cluster::start(server, count, Routing::Affinity, room_bytes).await?;
    cluster.pass("cold", queries).await?;
    let mut passes = vec![cluster.pass("warm", queries).await?];
    server.reset().await?;
    cluster.leave(last).await?;
    passes.push(cluster.pass("away", queries).await?);
    let stat = server.stat().await?;
    let others = stat.clients.iter().filter(|(name, _)| name.starts_with(WORKER));
    let refetched_files = others.map(|(_, client)| client.files).sum();
    cluster.join(last).await?;
    passes.push(cluster.pass("returned", queries).await?);
    passes.push(cluster.pass("settled", queries).await?);
    cluster.end().await?;
    let names: Vec<String> = (0..count).map(name_of).collect();
    let moved: BTreeSet<&String> = files.iter().filter(|file| owner(&names, file) == last).collect();
    Ok(LeaveReport { workers: count, files: files.len(), moved_files: moved.len(), refetched_files, passes })
}
