//! [`Client`]: a bucket, as one holder of credentials sees it.

use std::env;
use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{ClientOptions, RetryConfig};
use octavo::disk::Store;
use octavo_object_store_14::{StoreOrigin, error_of};
use octavo_objects::{Error, ErrorKind, Fetcher, Meta, Origin, Reading};

use crate::address::Address;
use crate::http::{Transport, WantsPage};
use crate::listing::Listing;
use crate::page::Page;
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
    /// Hosts to which a server may redirect, besides itself: `host` or `host:port`. They get no
    /// credentials. Default: none.
    pub redirect_hosts: Vec<String>,
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
        builder = builder.with_client_options(ClientOptions::new());
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
        let server = endpoint.unwrap_or_else(|| "aws".into());
        let holder = settings.profile.clone().or_else(|| env::var("AWS_PROFILE").ok()).unwrap_or_default();
        let scope = format!("s3://{bucket} at {server} as {holder:?}");
        Client::build(bucket, builder, settings, scope)
    }

    fn build(
        bucket: &str,
        builder: AmazonS3Builder,
        settings: &Settings,
        scope: String,
    ) -> Result<Client, Error> {
        let redirect_hosts = settings.redirect_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        // Each attempt is bounded, repeated and checked by the fetcher.
        let builder = builder
            .with_http_connector(Transport { redirect_hosts })
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        let store = builder.build().map_err(|error| Error::new(ErrorKind::Config, "", error))?;
        let store = Arc::new(store);
        let origin = Arc::new(StoreOrigin::new(store.clone()));
        Ok(Client { store, origin, bucket: bucket.into(), scope })
    }

    /// A client of a server of a test, which takes no settings from the environment.
    #[cfg(test)]
    pub(crate) fn of_test(bucket: &str, endpoint: &str, redirect_hosts: &[&str]) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_token("token");
        let redirect_hosts = redirect_hosts.iter().map(|&host| host.to_owned()).collect();
        let settings = Settings { redirect_hosts, ..Settings::default() };
        Client::build(bucket, builder, &settings, "test".into()).unwrap()
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

    /// Lists a directory: what is directly below a prefix. Waits for the server. `make_room` gives
    /// memory back to the cache, or returns false.
    pub(crate) fn list(
        &self,
        fetcher: &Fetcher,
        prefix: &str,
        make_room: &mut dyn FnMut() -> bool,
    ) -> Result<Listing, Error> {
        let below = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let mut listing = Listing::new(fetcher, prefix)?;
        let pages = async {
            let mut token = None;
            loop {
                let (page, _reading) = self.page(fetcher, prefix, &below, token.clone()).await?;
                listing.add(&below, &page, make_room)?;
                match &page.token {
                    None => return Ok(()),
                    next if *next == token => {
                        let text = "the server sends the same page of the listing again and again";
                        return Err(Error::new(ErrorKind::Other, prefix, text));
                    }
                    next => token = next.clone(),
                }
            }
        };
        fetcher.block_on(fetcher.within_deadline(prefix, pages))?;
        Ok(listing.finish())
    }

    /// Asks for one page of a listing. Its memory is charged as long as the [`Reading`] lives.
    async fn page(
        &self,
        fetcher: &Fetcher,
        path: &str,
        below: &str,
        token: Option<String>,
    ) -> Result<(Arc<Page>, Reading), Error> {
        let (store, asked, below) = (self.store.clone(), Arc::<str>::from(path), Arc::<str>::from(below));
        let ask = move |reading: Reading| {
            let (store, asked, below) = (store.clone(), asked.clone(), below.clone());
            let mut options = PaginatedListOptions {
                delimiter: Some("/".into()),
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            options.extensions.insert(WantsPage(reading.clone()));
            async move {
                let below = Some(&*below).filter(|below| !below.is_empty());
                let told = store.list_paginated(below, options).await;
                let told = told.map_err(|error| error_of(&asked, &error))?;
                let page = told.result.extensions.get::<Arc<Page>>().cloned();
                Ok((page.expect("the transport has parsed it"), reading))
            }
        };
        fetcher.read(path, ask).await
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
