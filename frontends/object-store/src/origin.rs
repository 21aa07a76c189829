//! An `ObjectStore` as an [`Origin`], and errors from one world to the other.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetResult, ObjectMeta, ObjectStore};
use octavo_objects::{Answer, Error, ErrorKind, Meta, Origin, Version};

/// What a read returns besides bytes.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub meta: ObjectMeta,
    pub attributes: Attributes,
}

/// A store as the cache asks it.
#[derive(Clone)]
pub struct StoreOrigin(Arc<dyn ObjectStore>);

impl StoreOrigin {
    /// Makes a store one that the cache can ask.
    pub fn new(store: Arc<dyn ObjectStore>) -> StoreOrigin {
        StoreOrigin(store)
    }
}

impl std::fmt::Debug for StoreOrigin {
    /// Shows the store by its name only: its `Debug` may have credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreOrigin").field(&self.0.to_string()).finish()
    }
}

impl Origin for StoreOrigin {
    fn head<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Meta, Error>> {
        async move {
            let options = GetOptions { head: true, ..GetOptions::default() };
            let told = self.0.get_opts(&location(path)?, options).await;
            Ok(meta_of(&told.map_err(|error| error_of(path, &error))?))
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        path: &'a str,
        range: Range<u64>,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        async move {
            let options = GetOptions {
                range: Some(range.into()),
                if_match: version.if_match().map(Into::into),
                ..GetOptions::default()
            };
            let told = self.0.get_opts(&location(path)?, options).await;
            let told = told.map_err(|error| error_of(path, &error))?;
            let (meta, range, path) = (meta_of(&told), told.range.clone(), path.to_owned());
            let body = told.into_stream().map(move |piece| {
                // What broke off may be whole the next time.
                piece.map_err(|error| match own_error(&error) {
                    Some(own) => own.clone().about(&path),
                    None => Error::new(ErrorKind::Unavailable, &path, text_of(&error)),
                })
            });
            Ok(Answer { meta, range, body: body.boxed() })
        }
        .boxed()
    }
}

fn location(path: &str) -> Result<Path, Error> {
    Path::parse(path).map_err(|error| Error::new(ErrorKind::Other, path, error))
}

fn meta_of(told: &GetResult) -> Meta {
    let details = Details { meta: told.meta.clone(), attributes: told.attributes.clone() };
    Meta { details: Some(Arc::new(details)), ..meta_of_listed(&told.meta) }
}

/// What a listing tells of an object.
pub fn meta_of_listed(meta: &ObjectMeta) -> Meta {
    let modified = SystemTime::from(meta.last_modified);
    let version = Version {
        e_tag: meta.e_tag.clone(),
        id: meta.version.clone(),
        // `object_store` puts the epoch in place of a date that is missing.
        modified: Some(modified).filter(|modified| *modified != SystemTime::UNIX_EPOCH),
    };
    Meta { size: meta.size, version, details: None }
}

/// An error's text with those of its sources, as long as they say more.
fn text_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}

/// An error of this family's own that came through the client library, such as from its transport.
fn own_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(own) = error.downcast_ref() {
            return Some(own);
        }
        next = error.source();
    }
    None
}

/// An error of `object_store` about the object at `path`. One of `octavo-objects` that came through
/// it keeps its kind.
pub fn error_of(path: &str, error: &object_store::Error) -> Error {
    use object_store::Error as Theirs;
    if let Some(own) = own_error(error) {
        return own.clone().about(path);
    }
    let kind = match error {
        Theirs::NotFound { .. } => ErrorKind::NotFound,
        Theirs::Precondition { .. } => ErrorKind::Changed,
        // No request of the cache has a condition that allows it.
        Theirs::NotModified { .. } => ErrorKind::Wrong,
        Theirs::PermissionDenied { .. } => ErrorKind::Denied,
        Theirs::Unauthenticated { .. } => ErrorKind::Unauthenticated,
        Theirs::NotSupported { .. } | Theirs::NotImplemented { .. } => ErrorKind::Unsupported,
        // Statuses of servers, resets, timeouts, and answers that the client refuses.
        Theirs::Generic { .. } => ErrorKind::Unavailable,
        _ => ErrorKind::Other,
    };
    match kind {
        // The server's text is about the condition of the request.
        ErrorKind::Changed => Error::new(kind, path, "has changed: the server no longer has this version"),
        ErrorKind::Wrong => Error::new(kind, path, "the server answered 304 Not Modified"),
        _ => Error::new(kind, path, text_of(error)),
    }
}

/// An error of a read as a user of `object_store` expects it.
pub(crate) struct Failed {
    pub error: object_store::Error,
    /// The object changed again and again while it was read.
    pub changed: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        use object_store::Error as Theirs;
        let path = error.path().to_owned();
        let kind = error.kind();
        let source = Box::new(error);
        let error = match kind {
            ErrorKind::NotFound => Theirs::NotFound { path, source },
            ErrorKind::Changed => Theirs::Precondition { path, source },
            ErrorKind::Denied => Theirs::PermissionDenied { path, source },
            ErrorKind::Unauthenticated => Theirs::Unauthenticated { path, source },
            ErrorKind::Unsupported => Theirs::NotSupported { source },
            _ => Theirs::Generic { store: "Octavo", source },
        };
        Failed { error, changed: kind == ErrorKind::Changed }
    }
}

impl From<object_store::Error> for Failed {
    fn from(error: object_store::Error) -> Failed {
        Failed { error, changed: false }
    }
}
