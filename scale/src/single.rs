//! All queries in one process, through one kind of store.

use std::sync::Arc;

use datafusion::execution::context::SessionContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use url::Url;

use crate::error::Result;
use crate::figures::{Counts, Pass, ProcessReport, Ran, resident_memory};
use crate::processes::Server;
use crate::room::Room;
use crate::server::BUCKET;
use crate::stores::{self, Kind};
use crate::tpch;

/// The settings of every session here. Files are not cut, so that a file is read in one place.
pub fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(2);
    config.options_mut().optimizer.repartition_file_scans = false;
    config
}

/// A session that reads the bucket from `store`.
pub fn state(
    builder: SessionStateBuilder,
    store: Arc<dyn object_store::ObjectStore>,
) -> Result<SessionState> {
    let environment = Arc::new(RuntimeEnv::default());
    environment.register_object_store(&Url::parse(&format!("s3://{BUCKET}"))?, store);
    Ok(builder.with_runtime_env(environment).with_default_features().build())
}

/// Runs the queries `passes` times, and prints a [`ProcessReport`].
pub async fn single(kind: Kind, port: u16, room: &Room, queries: &[u32], passes: &[String]) -> Result<()> {
    const NAME: &str = "single";
    let server = Server { port };
    let opened = stores::open(kind, port, NAME, room).await?;
    let builder = SessionStateBuilder::new().with_config(session_config());
    let context = SessionContext::from(state(builder, opened.store.clone())?);
    let mut report = ProcessReport::default();
    for name in passes {
        let start = server.counts(NAME).await?;
        if report.passes.is_empty() {
            tpch::register(&context).await?;
        }
        let mut now = server.counts(NAME).await?;
        let before = now - start;
        let mut ran = Vec::new();
        for &query in queries {
            let rows = tpch::run(&context, query).await?;
            let then = std::mem::replace(&mut now, server.counts(NAME).await?);
            ran.push(Ran {
                query,
                seconds: rows.seconds,
                rows: rows.count,
                digest: rows.digest,
                server: now - then,
                coordinator: Counts::default(),
            });
        }
        report.passes.push(Pass { name: name.clone(), ran, before, cache: opened.figures() });
    }
    (report.resident_bytes, report.resident_peak_bytes) = resident_memory();
    opened.close().await?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
