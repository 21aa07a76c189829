//! `[listen.tls]`: the files of TLS, and the checks of their keys. Nothing is opened here.

use std::path::PathBuf;

use octavo_block::TlsPart;
use serde::Deserialize;
use toml::Spanned;

use super::source::{Problem, Source};

/// The section's name.
pub const NAME: &str = "listen.tls";

/// `[listen.tls]`: the certificates that NBD clients see, and those that they need.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [listen.tls]")]
pub struct TlsSection {
    /// A directory with the file names of QEMU.
    pub certificates: Option<Spanned<PathBuf>>,
    /// The server's certificate.
    certificate: Option<Spanned<PathBuf>>,
    /// Its key.
    key: Option<Spanned<PathBuf>>,
    /// The authorities of clients.
    client_ca: Option<Spanned<PathBuf>>,
    /// The revoked certificates of clients.
    client_crl: Option<Spanned<PathBuf>>,
    /// Whether clients need a certificate.
    verify_clients: Option<bool>,
    /// Whether clients of loopback addresses must use TLS.
    required: Option<bool>,
}

/// A file to read.
pub struct File<'c> {
    /// The part of TLS that the file contains.
    pub part: TlsPart,
    /// The path of the file.
    pub path: PathBuf,
    /// The configuration's value that names the file or its directory.
    pub value: &'c Spanned<PathBuf>,
    /// Whether the file may be missing.
    pub is_optional: bool,
}

impl TlsSection {
    /// Whether clients need a certificate.
    pub fn verifies_clients(&self) -> bool {
        self.verify_clients.unwrap_or(true)
    }

    /// Whether clients of loopback addresses must use TLS.
    pub fn is_required(&self) -> bool {
        self.required.unwrap_or(false)
    }

    /// The files of the section.
    pub fn files(&self) -> Vec<File<'_>> {
        let verifies = self.verifies_clients();
        let needed = |part: &TlsPart| verifies || matches!(part, TlsPart::Certificate | TlsPart::Key);
        if let Some(value) = &self.certificates {
            let named = [
                (TlsPart::Certificate, "server-cert.pem"),
                (TlsPart::Key, "server-key.pem"),
                (TlsPart::ClientCa, "ca-cert.pem"),
                (TlsPart::ClientCrl, "ca-crl.pem"),
            ];
            let files = named.into_iter().filter(|(part, _)| needed(part));
            let file = |(part, name): (TlsPart, &str)| File {
                part,
                path: value.get_ref().join(name),
                value,
                is_optional: part == TlsPart::ClientCrl,
            };
            return files.map(file).collect();
        }
        let files = self.given().into_iter().filter(|(part, _)| needed(part));
        let path = |value: &Spanned<PathBuf>| value.get_ref().clone();
        files.map(|(part, value)| File { part, path: path(value), value, is_optional: false }).collect()
    }

    /// The files that have keys of their own.
    fn given(&self) -> Vec<(TlsPart, &Spanned<PathBuf>)> {
        let keys = [
            (TlsPart::Certificate, &self.certificate),
            (TlsPart::Key, &self.key),
            (TlsPart::ClientCa, &self.client_ca),
            (TlsPart::ClientCrl, &self.client_crl),
        ];
        keys.into_iter().filter_map(|(part, path)| Some((part, path.as_ref()?))).collect()
    }

    /// Adds every problem of the section. A key that could not be read must not be reported as
    /// missing, unless `is_whole`.
    pub fn check(&self, source: &Source, is_whole: bool, problems: &mut Vec<Problem>) {
        let mut report = |value: &Spanned<PathBuf>, message: &str| {
            problems.push(source.problem(value.span().start, message));
        };
        let given = self.given();
        for value in self.certificates.iter().chain(given.iter().map(|(_, value)| *value)) {
            if !value.get_ref().is_absolute() {
                let path = value.get_ref().display();
                let example = "a path from the root such as \"/etc/octavo/tls\"";
                report(value, &format!("\"{path}\" is not absolute; expected {example}"));
            }
        }
        if self.certificates.is_some() {
            for (_, value) in &given {
                report(
                    value,
                    "certificates names a directory that has this file; remove one of the two keys",
                );
            }
            return;
        }
        if !self.verifies_clients() {
            for value in [&self.client_ca, &self.client_crl].into_iter().flatten() {
                report(value, "it has no effect, because verify_clients is false");
            }
        } else if let (Some(value), None, true) = (&self.certificate, &self.client_ca, is_whole) {
            report(
                value,
                "client_ca is missing, the authorities that sign the certificates of clients; clients without \
                 certificates are accepted with verify_clients = false",
            );
        }
        if is_whole && (self.certificate.is_none() || self.key.is_none()) {
            let offset = offset(source).unwrap_or(0);
            let message = "certificates is missing, for example certificates = \"/etc/octavo/tls\", a directory with \
                           server-cert.pem, server-key.pem and ca-cert.pem; or certificate and key";
            problems.push(Problem { offset, message: format!("{NAME}: {message}") });
        }
    }
}

/// Where the section begins in the file, if it is there.
pub fn offset(source: &Source) -> Option<usize> {
    source.keys.iter().find(|(_, key)| *key == NAME).map(|(offset, _)| *offset)
}
