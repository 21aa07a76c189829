//! [`CachedStore`]: an `ObjectStore` whose reads are cached.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use octavo_objects::{Hint, Meta, Objects, Scope};

use crate::origin::{Details, Failed, StoreOrigin, meta_of_listed};
use crate::uncached;

/// Any store, with its reads cached. Cheap to clone.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
/// use octavo::{Cache, CacheConfig, PartitionConfig};
/// use octavo_objects::{Objects, ObjectsConfig};
#[doc = concat!("use ", env!("CARGO_CRATE_NAME"), "::CachedStore;")]
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Once in a process.
/// let cache = Cache::new(CacheConfig { page_bytes: 65_536, ..CacheConfig::default() })?;
/// let partition = cache.partition(PartitionConfig::new("objects"))?;
/// let objects = Objects::new(&cache, &partition, ObjectsConfig::default())?;
///
/// // Once for each store and its credentials.
/// let store = CachedStore::new(Arc::new(InMemory::new()), &objects, "memory");
///
/// let path = Path::from("warehouse/orders.parquet");
/// store.put(&path, vec![7; 1 << 20].into()).await?;
/// assert_eq!(store.get_range(&path, 4096..8192).await?, vec![7; 4096]);
/// assert_eq!(store.get_range(&path, 4096..8192).await?, vec![7; 4096]);
/// assert_eq!(objects.stat().gets, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CachedStore {
    inner: Arc<dyn ObjectStore>,
    scope: Scope,
}

impl CachedStore {
    /// Caches the reads of `inner` in `objects`. `scope` names the store together with the
    /// credentials that it uses: pages are shared by all stores of one scope, and by no others.
    pub fn new(inner: Arc<dyn ObjectStore>, objects: &Objects, scope: &str) -> CachedStore {
        let scope = objects.scope(scope, Arc::new(StoreOrigin::new(inner.clone())));
        CachedStore { inner, scope }
    }

    /// Returns the cache of all objects, which has the statistics.
    pub fn objects(&self) -> &Objects {
        self.scope.objects()
    }

    /// Reads an object or a part of it through the cache.
    async fn get_cached(&self, location: &Path, options: &GetOptions) -> Result<GetResult, Failed> {
        let hint = options.extensions.get::<Hint>().cloned().unwrap_or_default();
        let got = self.scope.get(location.as_ref(), &hint, |meta| choose(meta, location, options)).await?;
        let (meta, attributes) = details(&got.meta, location);
        let body = got.body.map_err(|error| Failed::from(error).error).boxed();
        Ok(crate::get_result(GetResultPayload::Stream(body), meta, got.range, attributes))
    }
}

/// Checks the conditions of a read, and returns its range.
fn choose(meta: &Meta, location: &Path, options: &GetOptions) -> Result<Range<u64>, Failed> {
    options.check_preconditions(&details(meta, location).0)?;
    match &options.range {
        Some(range) => bound(range, meta.size),
        None => Ok(0..meta.size),
    }
}

fn bound(range: &GetRange, size: u64) -> Result<Range<u64>, Failed> {
    let bounded = range.as_range(size);
    Ok(bounded.map_err(|error| object_store::Error::Generic { store: "Octavo", source: error.into() })?)
}

fn details(meta: &Meta, location: &Path) -> (ObjectMeta, Attributes) {
    let details = meta.details.as_ref().and_then(|details| details.downcast_ref::<Details>());
    match details {
        Some(details) => (details.meta.clone(), details.attributes.clone()),
        // Pages that another version of `object_store` brought into the cache.
        None => {
            let modified = meta.version.modified.unwrap_or(std::time::SystemTime::UNIX_EPOCH);
            let told = ObjectMeta {
                location: location.clone(),
                last_modified: modified.into(),
                size: meta.size,
                e_tag: meta.version.e_tag.clone(),
                version: meta.version.id.clone(),
            };
            (told, Attributes::default())
        }
    }
}

impl fmt::Display for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Octavo({})", self.inner)
    }
}

impl fmt::Debug for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedStore")
            .field("inner", &self.inner.to_string())
            .field("scope", &self.scope)
            .finish()
    }
}

#[async_trait]
impl ObjectStore for CachedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let put = self.inner.put_opts(location, payload, options).await;
        // Also after an error: the store may have taken the bytes.
        self.scope.forget(location.as_ref());
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(Upload { upload, scope: self.scope.clone(), location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() || options.head {
            return self.inner.get_opts(location, options).await;
        }
        match self.get_cached(location, &options).await {
            // Somebody writes it all the time: let the store find a moment between two versions.
            Err(Failed { changed: true, .. }) => uncached::get(&*self.inner, location, options).await,
            got => got.map_err(|failed| failed.error),
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let choose = |meta: &Meta| -> Result<Vec<Range<u64>>, Failed> {
            ranges.iter().map(|range| bound(&GetRange::Bounded(range.clone()), meta.size)).collect()
        };
        match self.scope.get_ranges(location.as_ref(), &Hint::default(), choose).await {
            Err(Failed { changed: true, .. }) => uncached::get_ranges(&*self.inner, location, ranges).await,
            read => read.map_err(|failed| failed.error),
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (scope, forgetful) = (self.scope.clone(), self.scope.clone());
        // Before, because an error does not name its object; after, because a reader may have come
        // between.
        let locations = locations.inspect_ok(move |location| forgetful.forget(location.as_ref())).boxed();
        let deleted = self.inner.delete_stream(locations);
        deleted.inspect_ok(move |location| scope.forget(location.as_ref())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (scope, asked) = (self.scope.clone(), Instant::now());
        let listed = self.inner.list(prefix);
        listed
            .inspect_ok(move |meta| scope.note(meta.location.as_ref(), &meta_of_listed(meta), asked))
            .boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.inner.copy_opts(from, to, options).await;
        self.scope.forget(to.as_ref());
        copied
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let renamed = self.inner.rename_opts(from, to, options).await;
        self.scope.forget(from.as_ref());
        self.scope.forget(to.as_ref());
        renamed
    }
}

/// An upload that forgets the old object when the new one is there.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    scope: Scope,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.upload.complete().await;
        self.scope.forget(self.location.as_ref());
        completed
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
