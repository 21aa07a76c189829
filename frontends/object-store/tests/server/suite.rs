//! object_store's own integration suite, through the cache and over HTTP.
//!
//! `OCTAVO_S3_ENDPOINT` and `OCTAVO_S3_BUCKET` name a server and an empty bucket, in place of a
//! server of the test's own; each test then empties the bucket. `OCTAVO_S3_KEY` and
//! `OCTAVO_S3_SECRET` are the credentials.

use futures_util::TryStreamExt;
use object_store::{Error, integration};
use tokio::sync::{Mutex, MutexGuard};

use super::*;

/// Held by the test that uses the server of the environment.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A store in front of an empty bucket.
struct Bucket {
    store: CachedStore,
    _stub: Option<Stub>,
    _alone: Option<MutexGuard<'static, ()>>,
}

async fn bucket() -> Bucket {
    let variable = |name: &str| std::env::var(name).ok();
    let objects = objects(64 << 20, ObjectsConfig::default());
    let Some(endpoint) = variable("OCTAVO_S3_ENDPOINT") else {
        let stub = Stub::start(Lies::none());
        let client = client(&stub.endpoint(), "bucket", "key", "secret");
        let store = CachedStore::new(client, &objects, "scope");
        return Bucket { store, _stub: Some(stub), _alone: None };
    };
    let alone = ALONE.lock().await;
    let bucket = variable("OCTAVO_S3_BUCKET").expect("OCTAVO_S3_BUCKET names a bucket");
    let (key, secret) = (variable("OCTAVO_S3_KEY"), variable("OCTAVO_S3_SECRET"));
    let text = |value: Option<String>| value.unwrap_or_else(|| "octavo".into());
    let client = client(&endpoint, &bucket, &text(key), &text(secret));
    let listed: Vec<_> = client.list(None).try_collect().await.unwrap();
    for meta in listed {
        client.delete(&meta.location).await.unwrap();
    }
    Bucket { store: CachedStore::new(client, &objects, "scope"), _stub: None, _alone: Some(alone) }
}

/// Defines a test for each function of the suite.
macro_rules! suite {
    ($($name:ident($($argument:expr),*);)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let bucket = bucket().await;
                integration::$name(&bucket.store $(, $argument)*).await;
            }
        )*
    };
}

suite! {
    put_get_delete_list();
    list_with_offset_exclusivity();
    get_opts();
    list_uses_directories_correctly();
    list_with_delimiter();
    rename_and_copy();
    copy_if_not_exists();
    copy_rename_nonexistent_object();
    stream_get();
    put_opts(true);
    put_get_attributes();
    multipart_race_condition(true);
    multipart_out_of_order();
}

#[tokio::test(flavor = "multi_thread")]
async fn get_nonexistent_object() {
    let bucket = bucket().await;
    let path = Some(Path::from("nonexistent"));
    let error = integration::get_nonexistent_object(&bucket.store, path).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}
