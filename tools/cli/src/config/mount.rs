//! `[[mount]]`: a directory as a file system, and the partitions of its files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use octavo_fuse::Coherence;
use octavo_s3::Address;
use serde::Deserialize;
use toml::Spanned;

use super::values::{Number, Parse, Parsed};
use crate::suggest;

/// `[[mount]]`: a directory that unmodified programs use through the cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[mount]]")]
pub struct MountSection {
    /// The directory whose files are cached.
    pub source: Spanned<PathBuf>,
    /// Where it is mounted.
    pub path: Spanned<PathBuf>,
    /// The name of the partition of files that no tenant's pattern matches.
    pub partition: Spanned<String>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether other users have access.
    pub allow_other: Option<bool>,
    /// What other programs may do to the source.
    pub coherence: Option<Parsed<Coherence>>,
    /// How long the kernel keeps names and attributes.
    pub attr_timeout: Option<Parsed<Duration>>,
    /// Its threads.
    pub threads: Option<Spanned<Number<1, 256>>>,
    /// Whether set-user-ID bits count.
    #[serde(default)]
    pub suid: bool,
    /// Whether device files can be opened.
    #[serde(default)]
    pub dev: bool,
    /// `[[mount.tenant]]`, in the file's order. The first whose pattern matches wins.
    #[serde(skip)]
    pub tenants: Vec<TenantSection>,
}

/// `[[mount.tenant]]`: the partition of the files whose paths match a pattern, and of those that no
/// pattern matches and that ask for it by an extended attribute.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[mount.tenant]]")]
pub struct TenantSection {
    /// The pattern. `None`: only files that ask for the partition get it.
    #[serde(rename = "match")]
    pub pattern: Option<Spanned<String>>,
    /// The name of the partition.
    pub partition: Spanned<String>,
}

impl MountSection {
    /// The prefix of a bucket that the source names, if it names one.
    pub fn address(&self) -> Option<Result<Address, String>> {
        self.source.get_ref().to_str().and_then(Address::parse)
    }

    /// The names of all its partitions.
    pub fn partitions(&self) -> impl Iterator<Item = &Spanned<String>> {
        std::iter::once(&self.partition).chain(self.tenants.iter().map(|tenant| &tenant.partition))
    }

    /// The first key, of those that cannot change while the directory is mounted, in which the
    /// sections differ.
    pub fn fixed_difference(&self, other: &MountSection) -> Option<&'static str> {
        let coherence = |section: &MountSection| section.coherence.as_ref().map(|mode| mode.0);
        let timeout = |section: &MountSection| section.attr_timeout.as_ref().map(|timeout| timeout.0);
        let threads = |section: &MountSection| section.threads.as_ref().map(|threads| threads.get_ref().0);
        let differ = [
            ("source", self.source.get_ref() != other.source.get_ref()),
            ("read_only", self.read_only != other.read_only),
            ("allow_other", self.allow_other != other.allow_other),
            ("coherence", coherence(self) != coherence(other)),
            ("attr_timeout", timeout(self) != timeout(other)),
            ("threads", threads(self) != threads(other)),
            ("suid", self.suid != other.suid),
            ("dev", self.dev != other.dev),
        ];
        differ.into_iter().find(|(_, differs)| *differs).map(|(key, _)| key)
    }

    /// Whether both give each file the same partition.
    pub fn has_same_rules(&self, other: &MountSection) -> bool {
        let rules = |section: &MountSection| -> Vec<(Option<String>, String)> {
            let pattern = |one: &TenantSection| one.pattern.as_ref().map(|text| text.get_ref().clone());
            let tenants = section.tenants.iter();
            let rules = tenants.map(|one| (pattern(one), one.partition.get_ref().clone()));
            rules.chain([(None, section.partition.get_ref().clone())]).collect()
        };
        rules(self) == rules(other)
    }
}

/// Which files a pattern matches, by their paths below the mounted directory.
#[derive(Clone, Debug)]
pub struct Pattern(GlobMatcher);

impl Pattern {
    /// Parses a pattern. As in .gitignore, one with a slash at its beginning or inside is a path
    /// below the directory, one without is the name of a file or directory anywhere, and one with a
    /// slash at its end matches everything below the directories that it names. The error is a
    /// sentence.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let bare = text.trim_end_matches('/');
        if bare.is_empty() && !text.starts_with('/') {
            return Err("a pattern cannot be empty; for all files, use the mount's partition".into());
        }
        let is_path = bare.contains('/');
        let inside = bare.trim_start_matches('/');
        let begin = if is_path || bare.is_empty() { "" } else { "**/" };
        let below = match (text.ends_with('/'), inside.is_empty()) {
            (true, true) => "**",
            (true, false) => "/**",
            _ => "",
        };
        let glob = GlobBuilder::new(&format!("{begin}{inside}{below}")).literal_separator(true).build();
        let glob = glob.map_err(|error| format!("\"{text}\" is no pattern: {}", error.kind()))?;
        Ok(Pattern(glob.compile_matcher()))
    }

    /// Whether a file's path, which begins with no slash, matches.
    pub fn matches(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }
}

impl Parse for Coherence {
    fn expected() -> String {
        "\"close-to-open\", \"lease\" or \"exclusive\"".into()
    }

    fn parse(text: &str) -> Result<Coherence, String> {
        match text {
            "close-to-open" => Ok(Coherence::CloseToOpen),
            "lease" => Ok(Coherence::Lease),
            "exclusive" => Ok(Coherence::Exclusive),
            _ => Err(format!(
                "unknown mode \"{text}\"; {}",
                suggest::of(text, &["close-to-open", "lease", "exclusive"])
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_coherence_have_names() {
        assert_eq!(Coherence::parse("lease"), Ok(Coherence::Lease));
        assert_eq!(Coherence::parse("close-to-open"), Ok(Coherence::default()));
        assert!(Coherence::parse("leases").unwrap_err().contains("lease"));
    }

    #[test]
    fn patterns_match_paths_names_and_everything_below() {
        for (pattern, yes, no) in [
            ("/home/*/", &["home/ann/x", "home/ann/a/b"][..], &["home/x", "x/home/ann/x"][..]),
            ("/db/*.sst", &["db/1.sst"], &["db/a/1.sst", "1.sst", "db/1.sst.tmp"]),
            ("db/wal", &["db/wal"], &["a/db/wal", "db/wal/1"]),
            ("*.sst", &["1.sst", "a/b/1.sst"], &["a/1.sst/x"]),
            ("cache/", &["cache/x", "a/cache/b/x"], &["cache", "a/cached/x"]),
            ("/a/**/z/", &["a/z/f", "a/b/c/z/f"], &["a/z"]),
            ("/[ab]/?", &["a/x", "b/y"], &["c/x", "a/xy"]),
            ("/", &["x", "a/b"], &[]),
        ] {
            let parsed = Pattern::parse(pattern).unwrap();
            assert!(yes.iter().all(|path| parsed.matches(Path::new(path))), "{pattern}: {yes:?}");
            assert!(!no.iter().any(|path| parsed.matches(Path::new(path))), "{pattern}: {no:?}");
        }
        for wrong in ["", "/a/[b", "{a"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
