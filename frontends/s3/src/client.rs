//! [`Client`]: a bucket, as one holder of credentials sees it.

use std::env;
use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use octavo::disk::Store;
use octavo_object_store_14::{StoreOrigin, error_of, meta_of_listed};
use octavo_objects::{Error, ErrorKind, Fetcher, Meta, Origin};

use crate::address::Address;
use crate::profile::Profile;

/// How a server is reached. What is not set comes from the environment (`AWS_ENDPOINT_URL`,
/// `AWS_REGION`, `AWS_PROFILE`), then from the files of `~/.aws`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The server's URL, such as `http://127.0.0.1:9000`. Default: that of AWS.
    pub endpoint: Option<String>,
    /// The region. Default: `us-east-1`.
    pub region: Option<String>,
    /// The profile whose credentials are used, before those of the environment.
    pub profile: Option<String>,
}

/// A bucket, as one holder of credentials sees it.
///
/// Credentials are, in this order: those of [`Settings::profile`]; `AWS_ACCESS_KEY_ID` and
/// `AWS_SECRET_ACCESS_KEY`; those of the profile that `AWS_PROFILE` names, or of `default`; those
/// of the machine or container (web identity, ECS, EC2). `AWS_SKIP_SIGNATURE=true` sends none.
#[derive(Clone)]
pub struct Client {
    store: Arc<AmazonS3>,
    origin: Arc<dyn Origin>,
    bucket: String,
    scope: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// What a directory has.
pub(crate) enum Listed {
    /// A prefix, by the last part of its name.
    Directory(String),
    /// An object, by the last part of its key.
    Object(String, Meta),
}

impl Client {
    /// Prepares to ask for objects of a bucket. Asks nothing yet, but starts to look for
    /// credentials.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with a sentence: a profile or a setting that cannot be.
    pub fn new(bucket: &str, settings: &Settings) -> Result<Client, Error> {
        let wrong = |text: String| Error::new(ErrorKind::Config, "", text);
        // Fails only if the process has chosen its own provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let profile = Profile::read(settings.profile.as_deref()).map_err(wrong)?;
        let has_key = env::var_os("AWS_ACCESS_KEY_ID").is_some();
        let key = profile.credentials.filter(|_| settings.profile.is_some() || !has_key);
        let mut builder = from_environment(key.is_some()).with_bucket_name(bucket);
        if let Some((id, secret, token)) = key {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            builder = token.into_iter().fold(builder, AmazonS3Builder::with_token);
        }
        let has_region = builder.get_config_value(&AmazonS3ConfigKey::Region).is_some();
        let asked = settings.region.clone();
        if let Some(region) = asked.or(profile.region.filter(|_| !has_region)) {
            builder = builder.with_region(region);
        }
        let environment = || {
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
                .iter()
                .find_map(|name| env::var(name).ok())
        };
        let endpoint = settings.endpoint.clone().or_else(environment).or(profile.endpoint);
        // Each attempt is bounded, repeated and checked by the fetcher.
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_user_agent(concat!("octavo/", env!("CARGO_PKG_VERSION")).parse().expect("a valid header"));
        builder = builder
            .with_client_options(client)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        if let Some(endpoint) = &endpoint {
            let is_plain = endpoint.starts_with("http://");
            if !is_plain && !endpoint.starts_with("https://") {
                return Err(wrong(format!(
                    "the endpoint {:?} is no URL; expected https://host",
                    shown(endpoint)
                )));
            }
            if endpoint.contains('@') {
                return Err(wrong(
                    "the endpoint has credentials in its URL; put them into the environment".into(),
                ));
            }
            builder = builder.with_endpoint(endpoint.trim_end_matches('/')).with_allow_http(is_plain);
        }
        let store = Arc::new(builder.build().map_err(|error| wrong(error.to_string()))?);
        let server = endpoint.unwrap_or_else(|| "aws".into());
        let holder = settings.profile.clone().or_else(|| env::var("AWS_PROFILE").ok()).unwrap_or_default();
        Ok(Client {
            origin: Arc::new(StoreOrigin::new(store.clone())),
            store,
            bucket: bucket.into(),
            scope: format!("s3://{bucket} at {server} as {holder:?}"),
        })
    }

    /// Asks for the size and version of an object. Waits for the server.
    ///
    /// # Errors
    /// Those of [`Fetcher::head`].
    pub fn head(&self, fetcher: &Fetcher, key: &str) -> Result<Meta, Error> {
        fetcher.block_on(fetcher.head(&self.origin, key))
    }

    /// Returns a version of an object as a read-only store of the engine, named by its address.
    ///
    /// # Errors
    /// Those of [`Fetcher::store`].
    pub fn open(&self, fetcher: &Fetcher, key: &str, meta: Meta) -> Result<Store, Error> {
        let address = Address { bucket: self.bucket.clone(), key: key.into() };
        fetcher.store(&address.to_string(), &self.scope, &self.origin, key, meta)
    }

    /// Lists a directory: what is directly below a prefix. Waits for the server.
    pub(crate) fn list(&self, fetcher: &Fetcher, prefix: &str) -> Result<Vec<Listed>, Error> {
        let parsed = Path::parse(prefix).map_err(|error| Error::new(ErrorKind::Other, prefix, error))?;
        let (store, below) = (self.store.clone(), Some(parsed).filter(|_| !prefix.is_empty()));
        let asked: Arc<str> = prefix.into();
        let ask = move || {
            let (store, below, asked) = (store.clone(), below.clone(), asked.clone());
            async move {
                store.list_with_delimiter(below.as_ref()).await.map_err(|error| error_of(&asked, &error))
            }
        };
        let listed = fetcher.block_on(fetcher.ask(prefix, ask))?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let directories = listed.common_prefixes.iter().filter_map(|path| name(path).map(Listed::Directory));
        let objects = listed
            .objects
            .iter()
            .filter_map(|meta| name(&meta.location).map(|name| Listed::Object(name, meta_of_listed(meta))));
        Ok(directories.chain(objects).collect())
    }
}

/// An endpoint as messages show it: nothing before an `@`.
fn shown(endpoint: &str) -> &str {
    endpoint.rsplit('@').next().unwrap_or(endpoint)
}

/// The settings of the environment, without its credentials if others are used.
fn from_environment(without_credentials: bool) -> AmazonS3Builder {
    let credentials = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN"];
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    variables
        .filter(|(name, _)| name.starts_with("AWS_"))
        .filter(|(name, _)| !without_credentials || !credentials.contains(&name.as_str()))
        .filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok()?, value))
        })
        .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value))
}
