//! The error of this crate, and the parsing of addresses, which returns it.

use crate::address::Address;
use std::fmt;
use std::str::FromStr;

/// The reason why a server did not start, or did not change its exports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot listen at this address.
    Address {
        /// The address, as it was given.
        address: String,
        /// What is wrong with the address.
        reason: String,
    },
    /// The system refused to listen at this address.
    Listen {
        /// The address.
        address: Address,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The server cannot serve this export.
    Export {
        /// The export's name.
        name: String,
        /// What is wrong with the export.
        reason: String,
    },
    /// Clients use the export.
    InUse {
        /// The export's name.
        name: String,
        /// The clients, by their numbers and addresses.
        clients: Vec<String>,
    },
    /// The server cannot work with these limits.
    Limits {
        /// The first wrong limit, and the bound that it breaks.
        reason: String,
    },
    /// The server cannot use these certificates.
    Tls {
        /// The wrong part.
        part: TlsPart,
        /// What is wrong with it; a sentence that begins with "it".
        reason: String,
    },
}

/// A part of a server's TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPart {
    /// The server's certificate.
    Certificate,
    /// The private key of the certificate.
    Key,
    /// The authorities of client certificates.
    ClientCa,
    /// The revoked client certificates.
    ClientCrl,
}

impl fmt::Display for TlsPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsPart::Certificate => "the certificate",
            TlsPart::Key => "the private key",
            TlsPart::ClientCa => "the authorities of clients",
            TlsPart::ClientCrl => "the revocations of clients",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address { address, reason } => write!(f, "address {address:?}: {reason}"),
            Error::Listen { address, source } => write!(f, "cannot listen at {address}: {source}"),
            Error::Export { name, reason } => write!(f, "export {name:?}: {reason}"),
            Error::InUse { name, clients } => {
                write!(f, "export {name:?} is in use by {}", clients.join(", "))
            }
            Error::Limits { reason } => write!(f, "limits: {reason}"),
            Error::Tls { part, reason } => write!(f, "TLS: {part}: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Listen { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |reason: &str| Error::Address { address: text.into(), reason: reason.into() };
        match text.split_once(':') {
            Some(("unix", "")) => Err(wrong("the path is empty; expected unix:<path>")),
            Some(("unix", path)) => Ok(Address::Unix(path.into())),
            Some(("tcp", tcp)) => {
                tcp.parse().map(Address::Tcp).map_err(|_| wrong("expected tcp:<IP address>:<port>"))
            }
            _ => Err(wrong("expected unix:<path> or tcp:<IP address>:<port>")),
        }
    }
}
