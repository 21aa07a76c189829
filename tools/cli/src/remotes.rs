//! [`Remotes`]: the objects of S3 that exports and mounts serve.

use std::path::Path;
use std::sync::Mutex;

use octavo::{Cache, disk};
use octavo_objects::{Error, Fetcher};
use octavo_s3::{Address, Client};

use crate::config::s3::S3Section;
use crate::control::report::RemoteFigure;
use crate::lock::lock;
use crate::own;

/// Reaches objects of S3. Starts its threads when the first one is asked for.
pub struct Remotes {
    cache: Cache,
    section: S3Section,
    fetcher: Mutex<Option<Fetcher>>,
}

impl Remotes {
    /// Starts nothing yet.
    pub fn new(cache: &Cache, section: S3Section) -> Remotes {
        Remotes { cache: cache.clone(), section, fetcher: Mutex::default() }
    }

    /// What was asked of servers; nothing if none was.
    pub fn figures(&self) -> Vec<RemoteFigure> {
        let Some(fetcher) = &*lock(&self.fetcher) else { return Vec::new() };
        let stat = fetcher.stat();
        let figures = [
            ("gets", "GET requests to servers of S3, every attempt of its own", stat.gets),
            (
                "asks",
                "Requests for metadata and listings to servers of S3, every attempt of its own",
                stat.heads,
            ),
            ("fetched_bytes", "Bytes of objects that passed all checks", stat.fetched_bytes),
            ("retries", "Attempts after the first one", stat.retries),
            ("unavailable", "Attempts that a server of S3 did not answer, or not in time", stat.unavailable),
            ("wrong", "Answers of servers of S3 that contradicted their requests", stat.wrong),
            ("changed", "Objects of S3 that turned out to be another version", stat.changed),
            ("failed", "Requests to servers of S3 that failed for good", stat.failed),
            (
                "keys_left_out",
                "Keys in listings that cannot be names of files, and were left out",
                stat.keys_left_out,
            ),
        ];
        let tier = stat.tier.iter().flat_map(|tier| {
            [
                ("tier_hits", "Blocks that the file tier had", tier.hits),
                ("tier_misses", "Blocks that the file tier did not have", tier.misses),
                ("tier_written", "Blocks written to the file tier", tier.written),
                ("tier_evicted", "Blocks evicted from the file tier", tier.evicted),
                ("tier_corrupt", "Damaged blocks of the file tier, fetched again", tier.corrupt),
                ("tier_io_errors", "Failed reads and writes of the file tier", tier.io_errors),
            ]
        });
        let all = figures.into_iter().chain(tier);
        all.map(|(name, what, value)| RemoteFigure { name, what, value }).collect()
    }

    /// The address that a path is, if it is one. The error is a sentence.
    pub fn address(path: &Path) -> Option<Result<Address, String>> {
        let text = path.to_str()?;
        Address::parse(text).map(|address| address.map_err(|why| format!("\"{text}\" {why}")))
    }

    /// What asks the server, and the bucket. The error is a sentence.
    pub fn reach(&self, address: &Address) -> Result<(Fetcher, Client), String> {
        let told = |error: Error| format!("{address}: {error}");
        let client = Client::new(&address.bucket, &self.section.settings()).map_err(told)?;
        let mut fetcher = lock(&self.fetcher);
        let fetcher = match &*fetcher {
            Some(fetcher) => fetcher.clone(),
            None => {
                if let Some(tier) = &self.section.tier {
                    let tier = tier.get_ref();
                    own::check(tier).map_err(|why| format!("the file tier {} {why}", tier.display()))?;
                }
                let new =
                    Fetcher::new(&self.cache, self.section.objects()).map_err(|error| error.to_string())?;
                fetcher.insert(new).clone()
            }
        };
        Ok((fetcher, client))
    }

    /// Opens the present version of an object. The error is a sentence.
    pub fn open(&self, address: &Address) -> Result<disk::Store, String> {
        if address.key.is_empty() {
            return Err(format!("{address} names no object; expected s3://bucket/key"));
        }
        let (fetcher, client) = self.reach(address)?;
        let told = |error: Error| format!("s3://{}/{error}", address.bucket);
        let meta = client.head(&fetcher, &address.key).map_err(told)?;
        client.open(&fetcher, &address.key, meta).map_err(told)
    }
}
