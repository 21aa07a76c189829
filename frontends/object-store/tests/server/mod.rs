//! The cached store in front of a server that counts, and that lies when it is told to.

mod lies;
mod random;
mod sharing;
mod suite;
mod twin;

use std::sync::Arc;
use std::time::Duration;

use crate::cached::CachedStore;
use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut, S3CopyIfNotExists};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, Result, RetryConfig};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_objects::{Objects, ObjectsConfig};
use octavo_random::Random;
use octavo_s3_stub::{Lies, Stub};

/// The unit of fills in these tests.
const UNIT: u64 = 64 << 10;

/// The longest time that an answer may take under any lie: two deadlines for each of HEAD and GET,
/// and the client's own time out for the read past the cache.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Settings with which silent servers cost little time. A busy machine is silent, too: only tests
/// that stall servers use them.
fn impatient() -> ObjectsConfig {
    let (patience, deadline) = (Duration::from_millis(800), Duration::from_secs(8));
    ObjectsConfig { patience, deadline, ..patient() }
}

/// Settings with which a busy machine does not look like a silent server.
fn patient() -> ObjectsConfig {
    ObjectsConfig {
        fill_bytes: UNIT as u32,
        attempts_max: 3,
        patience: Duration::from_secs(20),
        deadline: Duration::from_secs(30),
        ..ObjectsConfig::default()
    }
}

fn objects(memory_max_bytes: u64, config: ObjectsConfig) -> Objects {
    let cache =
        Cache::new(CacheConfig { page_bytes: 16_384, memory_max_bytes, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("objects")).unwrap();
    Objects::new(&cache, &partition, config).unwrap()
}

/// A client of S3 that tries nothing again: the cache does.
fn client(endpoint: &str, bucket: &str, key_id: &str, secret: &str) -> Arc<dyn ObjectStore> {
    // Fails only if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(key_id)
        .with_secret_access_key(secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_client_options(
            ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(15)),
        );
    Arc::new(builder.build().unwrap())
}

/// A server with a cached client.
struct Server {
    stub: Stub,
    client: Arc<dyn ObjectStore>,
    objects: Objects,
    store: CachedStore,
}

impl Server {
    fn new(config: ObjectsConfig) -> Server {
        Server::with_memory(64 << 20, config)
    }

    fn with_memory(memory_max_bytes: u64, config: ObjectsConfig) -> Server {
        let stub = Stub::start(Lies::none());
        let client = client(&stub.endpoint(), "bucket", "key", "secret");
        let objects = objects(memory_max_bytes, config);
        let store = CachedStore::new(client.clone(), &objects, "scope");
        Server { stub, client, objects, store }
    }

    /// Creates or replaces an object behind the cache's back.
    fn put(&self, path: &str, bytes: &Bytes) -> String {
        self.stub.put(&format!("bucket/{path}"), bytes.clone())
    }

    /// Reads a whole object through the cache.
    async fn read(&self, path: &str) -> Result<Bytes> {
        self.store.get(&Path::from(path)).await?.bytes().await
    }

    /// GETs of the object at the server.
    fn gets(&self, path: &str) -> u64 {
        self.stub.counts().path(&format!("bucket/{path}")).gets
    }
}

fn pattern(len: usize, seed: u64) -> Bytes {
    Random::new(seed).bytes(len).into()
}

/// Waits until something is so, which must not take long.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within ten seconds: {what}");
}
