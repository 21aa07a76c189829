//! An authority that signs certificates, and folders of them in QEMU's layout.

use octavo_block::{Pem, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rcgen::{CertificateRevocationListParams, KeyIdMethod, KeyUsagePurpose, RevokedCertParams, SerialNumber};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// A certificate in PEM, and its key.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
}

/// What a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Server,
    Client,
    /// A client, in a year that has passed.
    ExpiredClient,
}

const SERIAL: u64 = 4711;

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    pub fn sign(&self, purpose: Use) -> Certified {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "octavo");
        params.serial_number = Some(SerialNumber::from(SERIAL));
        params.extended_key_usages = vec![match purpose {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client | Use::ExpiredClient => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if purpose == Use::ExpiredClient {
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2002, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certified { certificate, key: key.serialize_pem() }
    }

    /// A list that revokes every certificate that `sign` has made.
    pub fn revocations(&self) -> String {
        let lists = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, 1),
            next_update: rcgen::date_time_ymd(2124, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(SERIAL),
                revocation_time: rcgen::date_time_ymd(2024, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        lists.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// The TLS of a server whose clients need a certificate of this authority.
    pub fn tls(&self, is_required: bool) -> Tls {
        let Certified { certificate, key } = self.sign(Use::Server);
        let pem = Pem {
            certificate: certificate.as_bytes(),
            key: key.as_bytes(),
            client_ca: Some(self.certificate.as_bytes()),
            client_crl: None,
        };
        Tls::new(&pem, is_required).unwrap()
    }

    /// The settings of a client that trusts this authority.
    pub fn client(&self, own: Option<&Certified>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        Arc::new(match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// Writes the files that a client of QEMU or libnbd reads.
    pub fn client_folder(&self, folder: &Path, own: Option<&Certified>) {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("ca-cert.pem"), &self.certificate).unwrap();
        if let Some(own) = own {
            std::fs::write(folder.join("client-cert.pem"), &own.certificate).unwrap();
            std::fs::write(folder.join("client-key.pem"), &own.key).unwrap();
        }
    }
}
