//! `[s3]`: how objects of S3 are reached and fetched, for exports and mounts whose paths begin with
//! `s3://`.

use std::path::PathBuf;

use octavo_objects::ObjectsConfig;
use octavo_objects::tier::TierConfig;
use octavo_s3::Settings;
use serde::Deserialize;
use toml::Spanned;

use super::values::Bytes;

type Size = Spanned<Bytes>;

fn bytes(size: &Option<Size>) -> Option<u64> {
    size.as_ref().map(|size| size.get_ref().0)
}

/// `[s3]`. Credentials come from the environment and the files of `~/.aws`, never from here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [s3]")]
pub struct S3Section {
    /// The server's URL.
    pub endpoint: Option<Spanned<String>>,
    /// The region.
    pub region: Option<Spanned<String>>,
    /// The profile whose credentials are used.
    pub profile: Option<Spanned<String>>,
    /// Hosts to which the server may redirect.
    pub redirect_hosts: Option<Vec<Spanned<String>>>,
    /// Bytes that a miss fetches.
    pub fill_bytes: Option<Size>,
    /// The directory of the file tier.
    pub tier: Option<Spanned<PathBuf>>,
    /// The most bytes of the file tier.
    pub tier_max: Option<Size>,
}

impl S3Section {
    /// How the server is reached.
    pub fn settings(&self) -> Settings {
        let text = |text: &Option<Spanned<String>>| text.as_ref().map(|text| text.get_ref().clone());
        let redirect_hosts = self.redirect_hosts.iter().flatten().map(|host| host.get_ref().clone());
        Settings {
            endpoint: text(&self.endpoint),
            region: text(&self.region),
            profile: text(&self.profile),
            redirect_hosts: redirect_hosts.collect(),
        }
    }

    /// How objects are fetched.
    pub fn objects(&self) -> ObjectsConfig {
        let defaults = ObjectsConfig::default();
        // What does not fit into 32 bits is refused by the largest value, too.
        let fill = bytes(&self.fill_bytes).map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let fill_bytes = fill.unwrap_or(defaults.fill_bytes);
        let tier = self.tier.as_ref().zip(bytes(&self.tier_max)).map(|(directory, max_bytes)| TierConfig {
            directory: directory.get_ref().clone(),
            max_bytes,
            block_bytes: fill_bytes,
        });
        ObjectsConfig { fill_bytes, tier, ..defaults }
    }

    /// What is wrong, with the byte offset where it is.
    pub fn problem(&self) -> Option<(usize, String)> {
        let at = |value: &Option<Size>| value.as_ref().map_or(0, |value| value.span().start);
        let is_host = |text: &str| !text.is_empty() && !text.contains(['/', '@', ' ']);
        if let Some(wrong) = self.redirect_hosts.iter().flatten().find(|host| !is_host(host.get_ref())) {
            let message = format!("{:?} is no host; expected \"host\" or \"host:port\"", wrong.get_ref());
            return Some((wrong.span().start, message));
        }
        match (&self.tier, &self.tier_max) {
            (Some(tier), _) if !tier.get_ref().is_absolute() => {
                let shown = tier.get_ref().display();
                Some((
                    tier.span().start,
                    format!("\"{shown}\" is not absolute; expected a path from the root"),
                ))
            }
            (Some(tier), None) => {
                let message = "its size is missing; for example tier_max = \"20GiB\"";
                Some((tier.span().start, message.into()))
            }
            (None, Some(max)) => {
                let message = "there is no file tier; for example tier = \"/var/cache/octavo\"";
                Some((max.span().start, message.into()))
            }
            _ => self.objects().validate().err().map(|error| (at(&self.fill_bytes), error.to_string())),
        }
    }
}
