//! What a user of foyer writes: its hybrid cache behind an `ObjectStore`, in blocks.
//!
//! An object is known by its path and entity tag. A read asks for the blocks that it touches, each
//! of which is fetched once for all who wait (`get_or_fetch`). Metadata is kept for the life of the
//! process, as long as [`META_TTL`](crate::stores::META_TTL) is.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::figures::CacheFigures;
use crate::room::Room;

/// The unit of a fetch.
const BLOCK_BYTES: u64 = 512 << 10;

/// Blocks of one read that are fetched together.
const TOGETHER: usize = 8;

/// A store whose reads foyer caches. Cheap to clone.
#[derive(Clone)]
pub struct FoyerStore {
    inner: Arc<dyn ObjectStore>,
    cache: HybridCache<String, Bytes>,
    known: Arc<Mutex<HashMap<Path, ObjectMeta>>>,
    hit_bytes: Arc<AtomicU64>,
    miss_bytes: Arc<AtomicU64>,
}

impl FoyerStore {
    /// Opens the cache in `room.directory`, with what an earlier process left there.
    pub async fn open(inner: Arc<dyn ObjectStore>, room: &Room) -> crate::error::Result<FoyerStore> {
        let device = FsDeviceBuilder::new(&room.directory).with_capacity(room.disk_bytes as usize).build()?;
        let cache = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(room.memory_bytes as usize)
            .with_weighter(|key: &String, block: &Bytes| key.len() + block.len())
            .storage()
            .with_engine_config(BlockEngineConfig::new(device).with_buffer_pool_size(64 << 20))
            .build()
            .await?;
        Ok(FoyerStore {
            inner,
            cache,
            known: Arc::default(),
            hit_bytes: Arc::default(),
            miss_bytes: Arc::default(),
        })
    }

    pub fn figures(&self) -> CacheFigures {
        CacheFigures {
            hit_bytes: self.hit_bytes.load(Ordering::Relaxed),
            miss_bytes: self.miss_bytes.load(Ordering::Relaxed),
            resident_bytes: self.cache.memory().usage() as u64,
        }
    }

    /// Writes what is in flight to the directory.
    pub async fn close(&self) -> crate::error::Result<()> {
        Ok(self.cache.close().await?)
    }

    async fn meta(&self, location: &Path) -> Result<ObjectMeta> {
        if let Some(meta) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(location) {
            return Ok(meta.clone());
        }
        let meta = self.inner.head(location).await?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(location.clone(), meta.clone());
        Ok(meta)
    }

    /// One block of an object, from memory, from a file or from the server.
    async fn block(&self, meta: &ObjectMeta, block: u64) -> Result<Bytes> {
        let tag = meta.e_tag.clone().unwrap_or_default();
        let key = format!("{}\n{tag}\n{block}", meta.location);
        let range = block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(meta.size);
        let len = range.end - range.start;
        let counter = match self.cache.memory().contains(&key) {
            true => &self.hit_bytes,
            false => &self.miss_bytes,
        };
        counter.fetch_add(len, Ordering::Relaxed);
        let (inner, location) = (self.inner.clone(), meta.location.clone());
        let fetch = move || async move {
            let options =
                GetOptions { range: Some(range.into()), if_match: Some(tag), ..GetOptions::default() };
            let bytes = inner.get_opts(&location, options).await?.bytes().await?;
            Ok::<Bytes, object_store::Error>(bytes)
        };
        match self.cache.get_or_fetch(&key, fetch).await {
            Ok(entry) => Ok(entry.value().clone()),
            Err(error) => Err(object_store::Error::Generic { store: "foyer", source: error.into() }),
        }
    }

    async fn range(&self, meta: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let mut parts = stream::iter(blocks.clone()).map(|block| self.block(meta, block)).buffered(TOGETHER);
        let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
        let mut at = blocks.start * BLOCK_BYTES;
        while let Some(part) = parts.try_next().await? {
            let from = range.start.saturating_sub(at).min(part.len() as u64) as usize;
            let to = (range.end - at).min(part.len() as u64) as usize;
            if range.end - range.start == (to - from) as u64 {
                return Ok(part.slice(from..to));
            }
            whole.extend_from_slice(&part[from..to]);
            at += BLOCK_BYTES;
        }
        Ok(whole.freeze())
    }
}

impl fmt::Display for FoyerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "foyer({})", self.inner)
    }
}

impl fmt::Debug for FoyerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[async_trait]
impl ObjectStore for FoyerStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.inner.get_opts(location, options).await;
        }
        let meta = self.meta(location).await?;
        let range = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| object_store::Error::Generic { store: "foyer", source: error.into() })?,
            None => 0..meta.size,
        };
        let bytes = self.range(&meta, range.clone()).await?;
        let payload = GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes: Attributes::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let meta = self.meta(location).await?;
        let reads = stream::iter(ranges.to_vec()).map(|range| self.range(&meta, range));
        reads.buffered(TOGETHER).try_collect().await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
