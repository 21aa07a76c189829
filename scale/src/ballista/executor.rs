//! An executor of Ballista: a process with one cache, which all sessions read through.

use std::sync::Arc;

use ballista_core::RuntimeProducer;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionConfig;
use tokio::net::TcpListener;
use url::Url;

use crate::error::Result;
use crate::room::Room;
use crate::server::BUCKET;
use crate::stores::{self, Kind};
use crate::worker;

/// Partitions that an executor runs at the same time.
const CORES: usize = 2;

/// Executes tasks until the parent has gone. `room.directory` gets what executors exchange.
pub async fn execute(name: &str, kind: Kind, port: u16, scheduler_port: u16, room: &Room) -> Result<()> {
    std::fs::create_dir_all(&room.directory)?;
    let opened = stores::open(kind, port, name, room).await?;
    let (store, bucket) = (opened.store.clone(), Url::parse(&format!("s3://{BUCKET}"))?);
    // Ballista asks for a runtime once a session. The footers that DataFusion keeps belong to the
    // runtime; the pages belong to the process.
    let runtimes: RuntimeProducer = Arc::new(move |_: &SessionConfig| {
        let runtime = RuntimeEnvBuilder::new().build_arc()?;
        runtime.register_object_store(&bucket, store.clone());
        Ok(runtime)
    });
    let (flight_port, grpc_port) = free_ports().await?;
    let config = ExecutorProcessConfig {
        executor_id: name.to_owned(),
        external_host: Some("127.0.0.1".to_owned()),
        port: flight_port,
        grpc_port,
        scheduler_host: "127.0.0.1".to_owned(),
        scheduler_port,
        vcores: CORES,
        work_dir: Some(room.directory.display().to_string()),
        override_runtime_producer: Some(runtimes),
        ..ExecutorProcessConfig::default()
    };
    tokio::select! {
        ended = start_executor_process(Arc::new(config)) => match ended {
            Ok(()) => Err("the executor stopped by itself".into()),
            Err(error) => Err(error.to_string().into()),
        },
        answered = worker::answer(&opened) => answered,
    }
}

/// Two ports that are free now. Ballista binds them itself, and reports port 0 as port 0. A port
/// that another program takes in between ends this process with an error.
async fn free_ports() -> Result<(u16, u16)> {
    let (one, other) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    Ok((one.local_addr()?.port(), other.local_addr()?.port()))
}
