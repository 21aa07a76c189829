//! The stores that queries read through: the server itself, or a cache before it.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use octavo::{Cache, CacheConfig, Partition, PartitionConfig};
use octavo_object_store_13::CachedStore;
use octavo_objects::tier::TierConfig;
use octavo_objects::{Objects, ObjectsConfig};

use crate::error::Result;
use crate::figures::CacheFigures;
use crate::foyer_store::FoyerStore;
use crate::room::Room;
use crate::server::{BUCKET, CLIENT};

/// How long metadata of objects is believed, by every cache here. Nothing changes them.
pub const META_TTL: Duration = Duration::from_secs(3600);

/// Which cache is before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None.
    Direct,
    /// Octavo, in memory.
    Octavo,
    /// Octavo, in memory and files.
    OctavoTier,
    /// foyer's hybrid cache, in memory and files.
    Foyer,
}

impl FromStr for Kind {
    type Err = crate::error::Error;

    fn from_str(name: &str) -> Result<Kind> {
        match name {
            "direct" => Ok(Kind::Direct),
            "octavo" => Ok(Kind::Octavo),
            "octavo-tier" => Ok(Kind::OctavoTier),
            "foyer" => Ok(Kind::Foyer),
            _ => Err(format!("{name}: direct, octavo, octavo-tier or foyer is needed").into()),
        }
    }
}

/// A store with what is needed to ask its cache for figures.
pub struct Opened {
    pub store: Arc<dyn ObjectStore>,
    octavo: Option<(Objects, Partition)>,
    foyer: Option<FoyerStore>,
}

/// Opens the server's bucket through a cache. `client` is the name that requests are counted for.
pub async fn open(kind: Kind, port: u16, client: &str, room: &Room) -> Result<Opened> {
    let remote = remote(port, client)?;
    match kind {
        Kind::Direct => Ok(Opened { store: remote, octavo: None, foyer: None }),
        Kind::Octavo => octavo(remote, room, None),
        Kind::OctavoTier => octavo(remote, room, Some(&room.directory)),
        Kind::Foyer => {
            let foyer = FoyerStore::open(remote, room).await?;
            Ok(Opened { store: Arc::new(foyer.clone()), octavo: None, foyer: Some(foyer) })
        }
    }
}

/// The server as `object_store` knows it. Caches retry by themselves.
fn remote(port: u16, client: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut headers = axum::http::HeaderMap::new();
    headers.insert(CLIENT, client.parse()?);
    let options = ClientOptions::new().with_allow_http(true).with_default_headers(headers);
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_endpoint(format!("http://127.0.0.1:{port}"))
        .with_region("local")
        .with_skip_signature(true)
        .with_client_options(options)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .build()?;
    Ok(Arc::new(store))
}

fn octavo(remote: Arc<dyn ObjectStore>, room: &Room, tier: Option<&Path>) -> Result<Opened> {
    let config = CacheConfig {
        memory_max_bytes: room.memory_bytes,
        page_bytes: room.page_bytes,
        ..CacheConfig::default()
    };
    let cache = Cache::new(config)?;
    let partition = cache.partition(PartitionConfig::new("objects"))?;
    let config = ObjectsConfig { meta_ttl: META_TTL, ..ObjectsConfig::default() };
    let tier = tier.map(|directory| TierConfig {
        directory: directory.to_owned(),
        max_bytes: room.disk_bytes,
        block_bytes: config.fill_bytes,
    });
    let config = ObjectsConfig { tier, ..config };
    let objects = Objects::new(&cache, &partition, config)?;
    let store = Arc::new(CachedStore::new(remote, &objects, BUCKET));
    Ok(Opened { store, octavo: Some((objects, partition)), foyer: None })
}

impl Opened {
    /// What the cache says about itself. All zero without one.
    pub fn figures(&self) -> CacheFigures {
        if let Some((objects, partition)) = &self.octavo {
            let stat = objects.stat();
            return CacheFigures {
                hit_bytes: stat.hit_bytes,
                miss_bytes: stat.miss_bytes,
                resident_bytes: partition.stat().resident_bytes,
            };
        }
        self.foyer.as_ref().map(FoyerStore::figures).unwrap_or_default()
    }

    /// Writes what is to be there after a restart.
    pub async fn close(&self) -> Result<()> {
        match &self.foyer {
            Some(foyer) => foyer.close().await,
            None => Ok(()),
        }
    }
}
