//! Reads the certificates of `[listen.tls]`, at the start and in every reload, so that renewed ones
//! need no restart.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use octavo_block::{Pem, Tls, TlsPart};
use time::OffsetDateTime;

use crate::config::Config;
use crate::config::source::Problem;
use crate::config::tls::File;
use crate::units::human_bytes;

/// The largest file that is read; a list of revoked certificates can be long.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The permissions of users other than the owner and the group.
const OF_OTHERS: u32 = 0o007;

/// Certificates that can be used.
pub struct Loaded {
    /// For the server.
    pub tls: Tls,
    /// Equal for equal files and settings.
    pub mark: u64,
    /// When the certificate expires.
    pub until: Option<SystemTime>,
}

/// Reads the certificates, if the configuration has any. Adds every problem, and logs what is
/// doubtful.
pub fn load(config: &Config, problems: &mut Vec<Problem>) -> Option<Loaded> {
    let section = config.tls.as_ref()?;
    let files = section.files();
    let count = problems.len();
    let mut contents: Vec<(&File<'_>, Vec<u8>)> = Vec::new();
    for file in &files {
        match content(file) {
            Ok(content) => contents.extend(content.map(|content| (file, content))),
            Err(why) => problems.push(problem(config, file, &why)),
        }
    }
    if problems.len() > count {
        return None;
    }
    let content = |part| contents.iter().find(|(file, _)| file.part == part).map(|(_, content)| &content[..]);
    let pem = Pem {
        // Checked to be given.
        certificate: content(TlsPart::Certificate).unwrap_or_default(),
        key: content(TlsPart::Key).unwrap_or_default(),
        client_ca: content(TlsPart::ClientCa),
        client_crl: content(TlsPart::ClientCrl),
    };
    let tls = match Tls::new(&pem, section.is_required()) {
        Ok(tls) => tls,
        Err(error) => {
            let file = match &error {
                octavo_block::Error::Tls { part, .. } => files.iter().find(|file| file.part == *part),
                _ => None,
            };
            let why = match &error {
                octavo_block::Error::Tls { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            problems.extend(file.or(files.first()).map(|file| problem(config, file, &why)));
            return None;
        }
    };
    for (file, why) in doubtful(config, &files, &tls) {
        log::warn!("{}", config.source.line(&problem(config, file, &why)));
    }
    let mut mark = DefaultHasher::new();
    (section.is_required(), section.verifies_clients()).hash(&mut mark);
    contents.iter().for_each(|(file, content)| (&file.path, content).hash(&mut mark));
    Some(Loaded { until: tls.validity().map(|validity| validity.until), tls, mark: mark.finish() })
}

/// A date such as 2026-11-23.
pub fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).date().to_string()
}

fn problem(config: &Config, file: &File<'_>, why: &str) -> Problem {
    config.source.problem(file.value.span().start, format!("\"{}\": {why}", file.path.display()))
}

/// Reads a file. None if it is missing and may be. The error is a sentence.
fn content(file: &File<'_>) -> Result<Option<Vec<u8>>, String> {
    match read(&file.path) {
        Ok(content) => Ok(Some(content)),
        Err((ErrorKind::NotFound, _)) if file.is_optional => Ok(None),
        Err((ErrorKind::NotFound, _)) => Err(format!("it does not exist; it has {}", file.part)),
        Err((_, why)) => Err(why),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, (ErrorKind, String)> {
    let unreadable = |error: std::io::Error| (error.kind(), format!("it cannot be read: {error}"));
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err((ErrorKind::InvalidInput, "it is not a file".into()));
    }
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err((ErrorKind::FileTooLarge, format!("it is larger than {}", human_bytes(FILE_BYTES_MAX))));
    }
    Ok(content)
}

/// Warnings about probable mistakes, each with its file.
fn doubtful<'f>(config: &Config, files: &'f [File<'f>], tls: &Tls) -> Vec<(&'f File<'f>, String)> {
    let mut doubts = Vec::new();
    let now = SystemTime::now();
    for file in files {
        match file.part {
            TlsPart::Certificate => doubts.extend(tls.validity().and_then(|validity| {
                let why = match () {
                    () if validity.until < now => {
                        format!("it expired on {}, and clients refuse it", date(validity.until))
                    }
                    () if validity.from > now => {
                        format!("it is not valid before {}, and clients refuse it", date(validity.from))
                    }
                    () => return None,
                };
                Some((file, why))
            })),
            TlsPart::Key => {
                let mode = std::fs::metadata(&file.path).map_or(0, |meta| meta.mode());
                if mode & OF_OTHERS != 0 {
                    let path = file.path.display();
                    doubts.push((file, format!("every user can read or write it; `chmod o= {path}`")));
                }
            }
            TlsPart::ClientCa | TlsPart::ClientCrl => {}
        }
    }
    let verifies = config.tls.as_ref().is_some_and(|section| section.verifies_clients());
    let is_remote = config.listen.nbd.0.iter().any(|nbd| nbd.get_ref().0.is_remote());
    if let (false, true, Some(file)) = (verifies, is_remote, files.first()) {
        let why = "verify_clients is false: everyone who reaches the server can read and write its exports";
        doubts.push((file, why.into()));
    }
    doubts
}
