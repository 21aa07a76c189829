//! A worker of datafusion-distributed: a process with a cache of its own.
//!
//! Prints its port, then answers each line `stat` of its standard input with its figures.

use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion_distributed::Worker;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use url::Url;

use crate::error::Result;
use crate::figures::{CacheFigures, resident_memory};
use crate::room::Room;
use crate::server::BUCKET;
use crate::stores::{self, Kind, Opened};

/// What a worker answers.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStat {
    pub cache: CacheFigures,
    pub resident_memory_bytes: u64,
}

/// Works until the parent has gone. One runtime environment, and so one cache, serves all queries.
pub async fn work(name: &str, kind: Kind, port: u16, room: &Room) -> Result<()> {
    let opened = stores::open(kind, port, name, room).await?;
    let environment = RuntimeEnvBuilder::new().build_arc()?;
    environment.register_object_store(&Url::parse(&format!("s3://{BUCKET}"))?, opened.store.clone());
    let worker = Worker::default().with_runtime_env(Arc::clone(&environment));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let service = Server::builder().add_service(worker.into_worker_server());
    tokio::spawn(service.serve_with_incoming(TcpIncoming::from(listener)));
    answer(&opened).await
}

/// Answers each line of the standard input with this worker's figures, until the parent has gone.
pub async fn answer(opened: &Opened) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        let stat = WorkerStat { cache: opened.figures(), resident_memory_bytes: resident_memory().0 };
        println!("{}", serde_json::to_string(&stat)?);
    }
    Ok(())
}
