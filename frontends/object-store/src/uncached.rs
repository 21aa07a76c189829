//! Reads past the cache, of objects that change while the cache fetches them. The store finds a
//! moment between two versions; its answer is checked as far as one answer can be.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore, Result,
};

fn wrong(location: &Path, text: String) -> Error {
    Error::Generic { store: "Octavo", source: format!("{location}: {text}").into() }
}

/// Reads an object or a part of it with one request. The body has exactly the range that the answer
/// tells, and that is the one that was asked for.
pub(crate) async fn get(store: &dyn ObjectStore, location: &Path, options: GetOptions) -> Result<GetResult> {
    // With a range the server tells the size of the object, by which a short body is noticed.
    let wanted = options.range.clone().unwrap_or(GetRange::Offset(0));
    let is_whole = options.range.is_none();
    let asked = GetOptions { range: Some(wanted.clone()), ..options.clone() };
    let got = match store.get_opts(location, asked).await {
        // An object without bytes has no range.
        Err(error) if is_whole && !matches!(error, Error::NotFound { .. } | Error::Precondition { .. }) => {
            let got = store.get_opts(location, options).await?;
            if got.meta.size != 0 {
                return Err(error);
            }
            got
        }
        got => got?,
    };
    let size = got.meta.size;
    let expected = if size == 0 {
        0..0
    } else {
        wanted.as_range(size).map_err(|why| wrong(location, why.to_string()))?
    };
    if got.range != expected {
        let told = &got.range;
        return Err(wrong(
            location,
            format!("asked for bytes {expected:?} of {size}, the answer has {told:?}"),
        ));
    }
    let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
    let body = exactly(location.clone(), range.end - range.start, got.into_stream());
    Ok(crate::get_result(GetResultPayload::Stream(body.boxed()), meta, range, attributes))
}

/// Reads several ranges, all of one version.
pub(crate) async fn get_ranges(
    store: &dyn ObjectStore,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let mut first: Option<ObjectMeta> = None;
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        if range.is_empty() {
            parts.push(Bytes::new());
            continue;
        }
        let if_match =
            first.as_ref().and_then(|meta| meta.e_tag.clone()).filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions { range: Some(range.clone().into()), if_match, ..GetOptions::default() };
        let got = get(store, location, options).await?;
        let meta = first.get_or_insert_with(|| got.meta.clone());
        if (&meta.e_tag, meta.size, meta.last_modified)
            != (&got.meta.e_tag, got.meta.size, got.meta.last_modified)
        {
            let source = format!("{location}: changed between two ranges").into();
            return Err(Error::Precondition { path: location.to_string(), source });
        }
        let mut whole = BytesMut::new();
        let mut body = got.into_stream();
        while let Some(piece) = body.try_next().await? {
            whole.extend_from_slice(&piece);
        }
        parts.push(whole.freeze());
    }
    Ok(parts)
}

/// Ends a body with an error unless it has exactly `len` bytes.
fn exactly(
    location: Path,
    len: u64,
    body: impl Stream<Item = Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    let end = stream::once(async { Ok(Bytes::new()) });
    let mut left = Some(len);
    body.map(|piece| (piece, false)).chain(end.map(|piece| (piece, true))).map(move |(piece, is_end)| {
        let piece = piece?;
        left = left.and_then(|left| left.checked_sub(piece.len() as u64));
        match left {
            Some(left) if !is_end || left == 0 => Ok(piece),
            Some(left) => Err(wrong(&location, format!("{left} of {len} bytes are missing"))),
            None => Err(wrong(&location, format!("asked for {len} bytes, the body has more"))),
        }
    })
}
