//! Credentials are in no log, no error and no `Debug` output, however verbose.
//!
//! A test program of its own, because a process has one logger.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::cached::CachedStore;
use log::{LevelFilter, Log, Metadata, Record};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use octavo::{Cache, CacheConfig, PartitionConfig};
use octavo_objects::{Objects, ObjectsConfig};
use octavo_s3_stub::{Lie, Lies, Stub};

const KEY_ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "FwoGZXIvYXdzEXAMPLETOKEN/of/a/session";

/// Everything that anybody logs, with the values of structured records.
struct Captured(Mutex<String>);

static CAPTURED: Captured = Captured(Mutex::new(String::new()));

impl Log for Captured {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut line = format!("{} {}: {}", record.level(), record.target(), record.args());
        let mut pairs = Pairs(&mut line);
        let _ = record.key_values().visit(&mut pairs);
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(&line);
        text.push('\n');
    }

    fn flush(&self) {}
}

struct Pairs<'l>(&'l mut String);

impl<'kvs> log::kv::VisitSource<'kvs> for Pairs<'_> {
    fn visit_pair(
        &mut self,
        key: log::kv::Key<'kvs>,
        value: log::kv::Value<'kvs>,
    ) -> Result<(), log::kv::Error> {
        self.0.push_str(&format!(" {key}={value:?}"));
        Ok(())
    }
}

/// Checks that a text tells no credentials, nor what was signed with them.
fn check(what: &str, text: &str) {
    let parts = |word: &str| [word.to_owned(), word.replace('/', "%2F"), word[..12].to_owned()];
    for word in [KEY_ID, SECRET, TOKEN].into_iter().flat_map(parts) {
        assert!(!text.contains(&word), "{what} tells {word}: {}", around(text, &word));
    }
    for word in ["AWS4-HMAC-SHA256", "X-Amz-Signature", "x-amz-security-token", "Credential="] {
        let found = text.to_lowercase().contains(&word.to_lowercase());
        assert!(!found, "{what} tells {word}: {}", around(&text.to_lowercase(), &word.to_lowercase()));
    }
}

fn around(text: &str, word: &str) -> String {
    let at = text.find(word).unwrap_or_default();
    text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect::<String>() + word
}

fn check_error(what: &str, error: &object_store::Error) {
    check(what, &format!("{error} {error:?} {error:#?}"));
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        check(what, &format!("{inner} {inner:?}"));
        source = inner.source();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_in_no_log_no_error_and_no_debug_output() {
    log::set_logger(&CAPTURED).expect("the only logger");
    log::set_max_level(LevelFilter::Trace);
    let stub = Stub::start(Lies::none());
    // Fails only if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = AmazonS3Builder::new()
        .with_endpoint(stub.endpoint())
        .with_region("us-east-1")
        .with_bucket_name("bucket")
        .with_access_key_id(KEY_ID)
        .with_secret_access_key(SECRET)
        .with_token(TOKEN)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .build()
        .unwrap();
    let client: Arc<dyn ObjectStore> = Arc::new(client);
    let cache = Cache::new(CacheConfig { page_bytes: 16_384, ..CacheConfig::default() }).unwrap();
    let partition = cache.partition(PartitionConfig::new("objects")).unwrap();
    let config = ObjectsConfig {
        attempts_max: 2,
        patience: Duration::from_secs(1),
        deadline: Duration::from_secs(10),
        ..ObjectsConfig::default()
    };
    let objects = Objects::new(&cache, &partition, config).unwrap();
    let store = CachedStore::new(client, &objects, "scope");

    // The server sees the credentials, so there is something to leak.
    let seen = Arc::new(Mutex::new(false));
    let path = Path::from("dir/object");
    store.put(&path, vec![7; 100_000].into()).await.unwrap();
    let got = store.get(&path).await.unwrap();
    check("a result", &format!("{got:?} {got:#?}"));
    assert_eq!(got.bytes().await.unwrap().len(), 100_000);
    let signed = seen.clone();
    stub.set_lies(Lies::with(move |asked| {
        *signed.lock().unwrap() |= asked.authorization.is_some_and(|text| text.contains(KEY_ID));
        None
    }));
    store.head(&path).await.unwrap();
    assert!(*seen.lock().unwrap(), "requests are signed");

    for lie in [
        Lie::Status { code: 500, retry_after_s: None },
        Lie::Status { code: 403, retry_after_s: None },
        Lie::Status { code: 401, retry_after_s: None },
        Lie::Short,
        Lie::OtherRange,
        Lie::ResetInside,
        Lie::ResetBefore,
        Lie::StallBefore(Duration::from_secs(60)),
    ] {
        let always = lie.clone();
        stub.delete("bucket/dir/other");
        stub.put("bucket/dir/other", vec![1; 1000]);
        stub.set_lies(Lies::always(always.clone()));
        let error = store.get_range(&Path::from("dir/other"), 0..10).await.unwrap_err();
        check_error(&format!("an error after {lie:?}"), &error);
        stub.set_lies(Lies::with(move |_| Some(always.clone())));
        if let Err(error) = store.get_range(&Path::from("dir/other"), 0..10).await {
            check_error(&format!("an error after {lie:?} of everything"), &error);
        }
        if let Err(error) = store.put(&Path::from("dir/third"), vec![1; 10].into()).await {
            check_error(&format!("an error of a write after {lie:?}"), &error);
        }
    }
    stub.set_lies(Lies::none());
    let missing = store.get(&Path::from("missing")).await.unwrap_err();
    check_error("an error about a missing object", &missing);

    check("the cached store", &format!("{store} {store:?} {store:#?}"));
    check("the objects", &format!("{objects:?} {objects:#?} {:?}", objects.stat()));
    check("the cache", &format!("{cache:?} {:?} {partition:?} {:?}", cache.stat(), partition.stat()));
    drop((store, objects));
    let log = CAPTURED.0.lock().unwrap().clone();
    check("the log", &log);
    // The log is the verbose one: those of the cache and of the HTTP library are in it.
    for target in ["octavo_objects", "hyper_util"] {
        assert!(log.contains(target), "nothing from {target} in {} bytes of log", log.len());
    }
}
