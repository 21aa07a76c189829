//! Ballista over a scheduler and executors that are processes: GETs and bytes with each routing,
//! and what is cached where.
//!
//! | file | idea |
//! |---|---|
//! | `executor.rs` | an executor whose sessions all read through one cache |
//! | `scheduler.rs` | a scheduler that is told how to send tasks |
//! | `files.rs` | each file a partition, so that a task can have the files of one executor |
//! | `policy.rs` | the executor of each partition |

mod executor;
mod files;
mod policy;
mod scheduler;

use std::path::{Path, PathBuf};

use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::SessionConfig;

use crate::error::Result;
use crate::figures::{ClusterReport, Counts, Pass};
use crate::measure::{self, name_of};
use crate::options::Options;
use crate::processes::{Process, Server};
use crate::room::Room;
use crate::route::Routing;
use crate::server::COORDINATOR;
use crate::single::state;
use crate::stores::{self, Kind};
use crate::tpch;

/// Runs a process of a cluster.
pub async fn run(command: &str, options: &Options) -> Result<()> {
    let port = options.get("port", "")?;
    match command {
        "ballista-scheduler" => {
            let name: String = options.get("routing", Routing::Affinity.name())?;
            let known = Routing::ALL.into_iter().find(|routing| routing.name() == name);
            let routing = known.ok_or("--routing: affinity, random or 'as shipped' is needed")?;
            scheduler::schedule(routing, port).await
        }
        _ => {
            let kind = options.get::<String>("kind", "octavo")?.parse()?;
            let name: String = options.get("name", "worker-0")?;
            executor::execute(&name, kind, port, options.get("scheduler", "")?, &options.room()?).await
        }
    }
}

/// A scheduler and its executors.
struct Cluster {
    server: Server,
    routing: Routing,
    scheduler: Process,
    scheduler_port: u16,
    executors: Vec<Process>,
}

impl Cluster {
    /// Starts the processes. What the executors exchange is in `folder`.
    async fn start(
        server: &Server,
        count: usize,
        routing: Routing,
        room: &Room,
        folder: &Path,
    ) -> Result<Cluster> {
        let port = server.port.to_string();
        let arguments = ["ballista-scheduler", "--port", &port, "--routing", routing.name()];
        let mut scheduler = Process::start(&arguments.map(str::to_owned))?;
        let scheduler_port: u16 = scheduler.line().await?.parse()?;
        let mut executors = Vec::new();
        for number in 0..count {
            let name = name_of(number);
            let arguments = [
                "ballista-executor",
                "--name",
                &name,
                "--port",
                &port,
                "--scheduler",
                &scheduler_port.to_string(),
                "--memory",
                &room.memory_bytes.to_string(),
                "--page",
                &room.page_bytes.to_string(),
                "--directory",
                &folder.join(&name).display().to_string(),
            ];
            executors.push(Process::start(&arguments.map(str::to_owned))?);
        }
        let mut cluster = Cluster { server: server.clone(), routing, scheduler, scheduler_port, executors };
        // The files' owners are chosen among the executors that the scheduler knows.
        let known: usize = cluster.scheduler.ask(&count.to_string()).await?;
        match known == count {
            true => Ok(cluster),
            false => Err(format!("Ballista: {known} of {count} executors have registered").into()),
        }
    }

    /// A session of a client. Each one has runtimes of its own in the executors.
    async fn session(&self) -> Result<SessionContext> {
        let mut config = SessionConfig::new_with_ballista();
        if self.routing != Routing::Default {
            // Files are not cut. Nor does the adaptive planner make a table of many files one
            // partition, which every task of the stage that probes it would read: it asks for this
            // length, and not for `repartition_file_scans`.
            config.options_mut().optimizer.repartition_file_min_size = usize::MAX;
        }
        let room = Room { memory_bytes: 0, disk_bytes: 0, directory: PathBuf::new(), page_bytes: 0 };
        let opened = stores::open(Kind::Direct, self.server.port, COORDINATOR, &room).await?;
        let state = state(SessionStateBuilder::new().with_config(config), opened.store)?;
        let url = format!("http://127.0.0.1:{}", self.scheduler_port);
        let context = SessionContext::new_with_state(state.upgrade_for_ballista(url)?);
        tpch::register(&context).await?;
        Ok(context)
    }

    async fn pass(&mut self, name: &str, queries: &[u32]) -> Result<Pass> {
        let context = self.session().await?;
        let ran = measure::run(&self.server, &context, queries).await?;
        let cache = measure::stat(self.executors.iter_mut()).await?.cache;
        Ok(Pass { name: name.to_owned(), ran, before: Counts::default(), cache })
    }

    async fn end(self) -> Result<()> {
        for executor in self.executors {
            executor.end().await?;
        }
        self.scheduler.end().await
    }
}

/// Runs the queries cold and warm, each pass in a session of its own. Each executor has a cache
/// with the memory and the pages of `room`.
pub async fn measure(
    server: &Server,
    count: usize,
    routing: Routing,
    room: &Room,
    queries: &[u32],
) -> Result<ClusterReport> {
    server.reset().await?;
    let folder = std::env::temp_dir().join(format!("octavo-scale-{}-ballista", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = async {
        let mut cluster = Cluster::start(server, count, routing, room, &folder).await?;
        let mut passes = Vec::new();
        for name in ["cold", "warm"] {
            passes.push(cluster.pass(name, queries).await?);
        }
        let stat = server.stat().await?;
        let memory = measure::stat(cluster.executors.iter_mut()).await?.resident_memory_bytes;
        cluster.end().await?;
        Ok(measure::report(&stat, count, routing, room.memory_bytes, memory, passes))
    };
    let measured: Result<ClusterReport> = measured.await;
    let removed = std::fs::remove_dir_all(&folder);
    let report = measured?;
    removed?;
    Ok(report)
}
