//! A scheduler of Ballista: a process that plans queries and sends their tasks.
//!
//! Prints its port. Then answers a line with a number with how many executors have registered, as
//! soon as there are that many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::extension::{
    ballista_aggregate_functions, ballista_scalar_functions, ballista_window_functions,
};
use ballista_core::optimizer::ballista_default_optimizer_rules;
use ballista_core::utils::default_config_producer;
use ballista_scheduler::cluster::memory::{InMemoryClusterState, InMemoryJobState};
use ballista_scheduler::cluster::{BallistaCluster, ClusterState};
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use ballista_scheduler::scheduler_server::SessionBuilder;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use url::Url;

use super::files::FilePlanner;
use super::policy::ByFile;
use crate::error::Result;
use crate::room::Room;
use crate::route::Routing;
use crate::server::{BUCKET, COORDINATOR};
use crate::stores::{self, Kind};

/// How long executors may take to register: two cores may be busy with other programs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Schedules until the parent has gone.
pub async fn schedule(routing: Routing, port: u16) -> Result<()> {
    let executors = Arc::new(InMemoryClusterState::default());
    let task_distribution = match routing {
        Routing::Default => TaskDistributionPolicy::default(),
        _ => TaskDistributionPolicy::Custom(Arc::new(ByFile::new(routing, executors.clone()))),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let bound = listener.local_addr()?.port();
    let config = SchedulerConfig {
        // Executors report to this address.
        external_host: "127.0.0.1".to_owned(),
        bind_port: bound,
        task_distribution,
        ..SchedulerConfig::default()
    };
    let sessions = sessions(routing, port).await?;
    let jobs =
        InMemoryJobState::new(config.scheduler_id.clone(), sessions, Arc::new(default_config_producer));
    let cluster = BallistaCluster::new(executors.clone(), Arc::new(jobs));
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config))
        .await
        .map_err(|error| error.to_string())?;
    println!("{bound}");
    tokio::select! {
        ended = start_grpc_service_with_listener(listener, scheduler) => match ended {
            Ok(()) => Err("the scheduler stopped by itself".into()),
            Err(error) => Err(error.to_string().into()),
        },
        answered = answer(&executors) => answered,
    }
}

/// How to make the session of a query. All have one runtime, so that footers are read once.
async fn sessions(routing: Routing, port: u16) -> Result<SessionBuilder> {
    let room = Room { memory_bytes: 0, disk_bytes: 0, directory: Default::default(), page_bytes: 0 };
    let opened = stores::open(Kind::Direct, port, &format!("{COORDINATOR}-scheduler"), &room).await?;
    let runtime = RuntimeEnvBuilder::new().build_arc()?;
    runtime.register_object_store(&Url::parse(&format!("s3://{BUCKET}"))?, opened.store);
    Ok(Arc::new(move |config: SessionConfig| {
        let builder = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(runtime.clone())
            .with_optimizer_rules(ballista_default_optimizer_rules())
            .with_scalar_functions(ballista_scalar_functions())
            .with_aggregate_functions(ballista_aggregate_functions())
            .with_window_functions(ballista_window_functions());
        Ok(match routing {
            Routing::Default => builder.build(),
            _ => builder.with_query_planner(Arc::new(FilePlanner)).build(),
        })
    }))
}

async fn answer(executors: &InMemoryClusterState) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (wanted, since) = (line.parse::<usize>()?, Instant::now());
        let mut known = 0;
        while known < wanted && since.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
            known = executors.registered_executor_metadata().await.len();
        }
        println!("{known}");
    }
    Ok(())
}
