//! Credentials and settings in the files of AWS's own tools: `~/.aws/credentials` and
//! `~/.aws/config`.

use std::env;
use std::path::PathBuf;

use configparser::ini::{Ini, IniDefault};

/// What the files say of a profile. It has no `Debug`: it holds a secret.
#[derive(Default)]
pub(crate) struct Profile {
    /// The key's id, the secret, and the token of a session.
    pub credentials: Option<(String, String, Option<String>)>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
}

/// Ways to get credentials that this program does not know.
const UNKNOWN: [&str; 4] = ["role_arn", "sso_session", "sso_start_url", "credential_process"];

impl Profile {
    /// Reads a profile: `wanted`, or the one that `AWS_PROFILE` names, or `default`. A missing
    /// profile is an error only if it was named. The error is a sentence.
    pub fn read(wanted: Option<&str>) -> Result<Profile, String> {
        let named = wanted.map(str::to_owned).or_else(|| env::var("AWS_PROFILE").ok());
        let name = named.as_deref().unwrap_or("default");
        let mut profile = Profile::default();
        let mut found = false;
        let mut unknown = None;
        for (variable, file, prefix) in [
            ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", ""),
            ("AWS_CONFIG_FILE", ".aws/config", "profile "),
        ] {
            let Some((path, ini)) = load(variable, file)? else { continue };
            let sections = [format!("{prefix}{name}"), name.to_owned()];
            let get = |key: &str| {
                let values = sections.iter().filter_map(|section| ini.get(section, key));
                values.map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
            };
            found |= sections.iter().any(|section| ini.sections().contains(section));
            unknown = unknown.or_else(|| UNKNOWN.into_iter().find(|key| get(key).is_some()));
            let token = get("aws_session_token");
            match (get("aws_access_key_id"), get("aws_secret_access_key")) {
                (Some(id), Some(secret)) => {
                    profile.credentials.get_or_insert((id, secret, token));
                }
                (None, None) => {}
                _ => return Err(format!("{}: profile {name:?} has only half of a key", path.display())),
            }
            profile.region = profile.region.or_else(|| get("region"));
            profile.endpoint = profile.endpoint.or_else(|| get("endpoint_url"));
        }
        match (&named, &profile.credentials, unknown) {
            (Some(name), ..) if !found => Err(format!("there is no profile {name:?} in the files of ~/.aws")),
            (Some(name), None, Some(key)) => Err(format!(
                "profile {name:?} gets its credentials by {key}, which is not supported; put those of \
                 `aws configure export-credentials --format env` into the environment"
            )),
            _ => Ok(profile),
        }
    }
}

/// Reads a file; `None` if there is none.
fn load(variable: &str, file: &str) -> Result<Option<(PathBuf, Ini)>, String> {
    let named = env::var_os(variable).map(PathBuf::from);
    let usual = || env::var_os("HOME").map(|home| PathBuf::from(home).join(file));
    let Some(path) = named.or_else(usual) else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    // Secrets may have any character: no comments after values, and only `=` ends a key.
    let mut rules = IniDefault::default();
    rules.delimiters = vec!['='];
    rules.enable_inline_comments = false;
    rules.case_sensitive = true;
    let mut ini = Ini::new_from_defaults(rules);
    // The parser's own message may quote a line, which may be a secret.
    ini.read(text).map_err(|_| format!("{}: is not an INI file", path.display()))?;
    Ok(Some((path, ini)))
}
