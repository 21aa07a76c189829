//! [`Tls`]: the certificates of a server, and the clients that it accepts.
//!
//! Only TLS 1.3, with the cryptography of `ring`. Sessions are not resumed, so every connection
//! checks the client's certificate against the authorities and revocations in force. Not here:
//! records (`nbd/channel.rs`), files.

use crate::error::{Error, TlsPart};
use crate::validity::{self, Validity};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig, version};
use std::fmt;
use std::sync::Arc;

/// The contents of PEM files.
#[derive(Clone, Copy, Debug)]
pub struct Pem<'a> {
    /// The server's certificate, and after it the certificates of the authorities between it and
    /// the one that clients trust.
    pub certificate: &'a [u8],
    /// The private key of the certificate, not encrypted.
    pub key: &'a [u8],
    /// The authorities, one of which must have signed the certificate of every client. None:
    /// clients need no certificate, and every one that reaches the server can use its exports.
    pub client_ca: Option<&'a [u8]>,
    /// Lists of revoked certificates of clients.
    pub client_crl: Option<&'a [u8]>,
}

/// The TLS of a server: [`Server::set_tls`](crate::Server::set_tls).
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    validity: Option<Validity>,
    is_required: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        f.debug_struct("Tls").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificates. `is_required`: clients of loopback addresses must use TLS. Clients of
    /// other addresses must always use TLS, and clients of unix sockets need not.
    ///
    /// # Errors
    /// [`Error::Tls`], with the part of `pem` that is wrong.
    ///
    /// # Examples
    /// ```no_run
    /// # use octavo::{Cache, CacheConfig};
    /// # use octavo_block::{Limits, Pem, Server, Tls};
    /// # let server = Server::new(Cache::new(CacheConfig::default())?, Limits::default())?;
    /// let [certificate, key, ca] =
    ///     ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(std::fs::read);
    /// let (certificate, key, ca) = (certificate?, key?, ca?);
    /// let pem =
    ///     Pem { certificate: &certificate, key: &key, client_ca: Some(&ca), client_crl: None };
    /// server.set_tls(Some(Tls::new(&pem, true)?))?;
    /// server.listen(&["tcp:0.0.0.0:10809".parse()?])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(pem: &Pem<'_>, is_required: bool) -> Result<Tls, Error> {
        let chain = items::<CertificateDer<'_>>(pem.certificate, TlsPart::Certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(pem.key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                wrong(TlsPart::Key, "it has no private key in PEM that is not encrypted")
            }
            error => wrong(TlsPart::Key, format!("its PEM is damaged: {error}")),
        })?;
        let provider = Arc::new(ring::default_provider());
        if let Err(error) = provider.key_provider.load_private_key(key.clone_key()) {
            let known = "RSA from 2048 to 4096 bits, ECDSA with P-256 or P-384, and Ed25519";
            return Err(wrong(TlsPart::Key, format!("the key cannot be used ({error}); supported: {known}")));
        }
        let validity = chain.first().and_then(|first| validity::of(first));
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| wrong(TlsPart::Certificate, error))?;
        let builder = match pem.client_ca {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                builder.with_client_cert_verifier(verifier(authorities, pem.client_crl, provider.clone())?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong(TlsPart::Key, "it is not the key of the server's certificate")
            }
            rustls::Error::InvalidCertificate(error) => {
                wrong(TlsPart::Certificate, format!("it cannot be used: {}", flaw(&error)))
            }
            error => wrong(TlsPart::Certificate, error),
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls { config: Arc::new(config), validity, is_required })
    }

    /// Returns the time in which the server's certificate is valid. None if it cannot be read.
    pub fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// Returns whether clients of loopback addresses must use TLS.
    pub(crate) fn is_required(&self) -> bool {
        self.is_required
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

/// How a client's bytes are protected.
pub(crate) struct Security {
    /// The TLS that the client may start. None: the server has none.
    pub tls: Option<Tls>,
    /// Whether the client must start TLS before anything else.
    pub is_required: bool,
}

/// Returns what is wrong with a certificate, for people.
pub(crate) fn flaw(error: &CertificateError) -> String {
    // Several commands make certificates of version 1 unless they are asked for extensions. The
    // library has no name of its own for this error.
    match format!("{error:?}") {
        shown if shown.contains("UnsupportedCertVersion") => {
            "it is of X.509 version 1, and only version 3 is known, the one with extensions".into()
        }
        _ => error.to_string(),
    }
}

fn wrong(part: TlsPart, reason: impl fmt::Display) -> Error {
    Error::Tls { part, reason: reason.to_string() }
}

/// Returns all sections of one kind. There must be at least one.
fn items<T: PemObject>(text: &[u8], part: TlsPart, what: &str) -> Result<Vec<T>, Error> {
    let items: Result<Vec<T>, _> = T::pem_slice_iter(text).collect();
    let items = items.map_err(|error| wrong(part, format!("its PEM is damaged: {error}")))?;
    if items.is_empty() {
        return Err(wrong(part, format!("it has no {what} in PEM")));
    }
    Ok(items)
}

/// Returns the check of client certificates.
fn verifier(
    authorities: &[u8],
    revoked: Option<&[u8]>,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for authority in items::<CertificateDer<'_>>(authorities, TlsPart::ClientCa, "certificate")? {
        roots.add(authority).map_err(|error| wrong(TlsPart::ClientCa, error))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if let Some(revoked) = revoked {
        let what = "list of revoked certificates";
        let lists = items::<CertificateRevocationListDer<'_>>(revoked, TlsPart::ClientCrl, what)?;
        // A certificate of an authority without a list is valid.
        builder = builder.with_crls(lists).allow_unknown_revocation_status();
    }
    builder.build().map_err(|error| match error {
        VerifierBuilderError::InvalidCrl(error) => {
            wrong(TlsPart::ClientCrl, format!("it is not a usable list of revoked certificates: {error:?}"))
        }
        error => wrong(TlsPart::ClientCa, error),
    })
}
