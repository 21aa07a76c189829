//! The tables and queries of TPC-H, and how a query runs.

use std::ops::RangeInclusive;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::context::SessionContext;
use datafusion::prelude::ParquetReadOptions;
use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::server::BUCKET;

/// Numbers of the queries.
pub const QUERIES: RangeInclusive<u32> = 1..=22;

const TABLES: [&str; 8] =
    ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"];

macro_rules! texts {
    ($($number:literal),*) => {
        [$(include_str!(concat!("../queries/q", $number, ".sql"))),*]
    };
}

/// The text of each query, with the parameters that the specification uses for validation.
const TEXTS: [&str; 22] = texts!(
    "01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14", "15", "16", "17",
    "18", "19", "20", "21", "22"
);

/// The rows of a result, in an order of their own, so that two results can be compared.
#[derive(Debug)]
pub struct Rows {
    pub count: u64,
    pub digest: String,
    pub seconds: f64,
}

/// Makes the tables known: each is a folder of the bucket.
pub async fn register(context: &SessionContext) -> Result<()> {
    for table in TABLES {
        let url = format!("s3://{BUCKET}/{table}/");
        context.register_parquet(table, &url, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// Runs a query to its end.
pub async fn run(context: &SessionContext, query: u32) -> Result<Rows> {
    let start = Instant::now();
    let frame = context.sql(TEXTS[query as usize - 1]).await?;
    let batches = frame.collect().await?;
    let seconds = start.elapsed().as_secs_f64();
    let (count, digest) = digest_of(&batches)?;
    Ok(Rows { count, digest, seconds })
}

fn digest_of(batches: &[RecordBatch]) -> Result<(u64, String)> {
    let options = FormatOptions::default();
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
            rows.push(values.join("|"));
        }
    }
    rows.sort_unstable();
    let digest = Sha256::digest(rows.join("\n").as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((rows.len() as u64, digest))
}
