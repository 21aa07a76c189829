//! TPC-H over objects, with and without Octavo's page cache: one process, and several.
//!
//! `scale demo` runs everything and writes the tables; the other commands are its parts.
//!
//! | file | idea |
//! |---|---|
//! | `demo.rs`, `report.rs` | the whole demonstration; its tables |
//! | `single.rs` | all queries in one process |
//! | `distributed.rs`, `worker.rs`, `route.rs` | datafusion-distributed; which worker reads what |
//! | `ballista/` | Ballista, with the feature `ballista` |
//! | `measure.rs` | what is measured of workers, whichever engine they belong to |
//! | `stores.rs`, `foyer_store.rs` | the stores that are compared |
//! | `server.rs` | an S3 server that counts |
//! | `tpch.rs` | tables and queries |
//! | `options.rs`, `error.rs` | the command line; errors |
//! | `processes.rs`, `figures.rs` | child processes; what they measure |

#[cfg(feature = "ballista")]
mod ballista;
mod demo;
mod distributed;
mod error;
mod figures;
mod foyer_store;
mod measure;
mod options;
mod processes;
mod report;
mod room;
mod route;
mod server;
mod single;
mod stores;
mod tpch;
mod worker;

use std::path::PathBuf;

use error::Result;
use options::{Options, USAGE};

async fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = words.split_first() else { return Err(USAGE.into()) };
    let options = Options::parse(rest)?;
    let data = PathBuf::from(options.get::<String>("data", "data/sf1")?);
    match command.as_str() {
        "serve" => server::serve(&data, options.delay("0")?).await,
        "single" => {
            let kind = options.get::<String>("kind", "octavo")?.parse()?;
            let passes: Vec<String> = options.list("passes", "cold,warm")?;
            single::single(kind, options.get("port", "")?, &options.room()?, &options.queries()?, &passes)
                .await
        }
        "worker" => {
            let kind = options.get::<String>("kind", "octavo")?.parse()?;
            let name: String = options.get("name", "worker-0")?;
            worker::work(&name, kind, options.get("port", "")?, &options.room()?).await
        }
        #[cfg(feature = "ballista")]
        "ballista-scheduler" | "ballista-executor" => ballista::run(command, &options).await,
        "demo" => demo::demo(&data, &options).await,
        "report" => {
            let json = std::fs::read(options.get::<String>("json", "target/results.json")?)?;
            print!("{}", report::text(&serde_json::from_slice(&json)?)?);
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("scale: {error}");
        std::process::exit(1);
    }
}
