//! [`Validity`]: the time in which a certificate is valid. rustls checks the rest of a certificate,
//! but does not report this time.

use der::asn1::{GeneralizedTime, UtcTime};
use der::{Reader, SliceReader, Tag, TagMode, TagNumber};
use std::time::SystemTime;

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: SystemTime,
    /// The last second.
    pub until: SystemTime,
}

/// Returns the validity of a certificate in DER (RFC 5280, section 4.1). None if the certificate is
/// malformed, or valid since before 1970.
pub fn of(certificate: &[u8]) -> Option<Validity> {
    SliceReader::new(certificate).ok()?.sequence(read_certificate).ok()
}

fn read_certificate(certificate: &mut SliceReader<'_>) -> der::Result<Validity> {
    let validity = certificate.sequence(read_body)?;
    skip(certificate)?;
    Ok(validity)
}

fn read_body(body: &mut SliceReader<'_>) -> der::Result<Validity> {
    body.context_specific::<u8>(TagNumber(0), TagMode::Explicit)?;
    // The serial number, the algorithm of the signature, and the issuer.
    for _ in 0..3 {
        body.tlv_bytes()?;
    }
    let validity = body.sequence(read_validity)?;
    skip(body)?;
    Ok(validity)
}

fn read_validity(times: &mut SliceReader<'_>) -> der::Result<Validity> {
    Ok(Validity { from: time(times)?, until: time(times)? })
}

/// Reads the rest of a sequence, which must not be left unread.
fn skip(rest: &mut SliceReader<'_>) -> der::Result<()> {
    while !rest.is_finished() {
        rest.tlv_bytes()?;
    }
    Ok(())
}

fn time(times: &mut SliceReader<'_>) -> der::Result<SystemTime> {
    Ok(match Tag::peek(times)? {
        Tag::UtcTime => times.decode::<UtcTime>()?.to_system_time(),
        _ => times.decode::<GeneralizedTime>()?.to_system_time(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn certificate(from: (i32, u8, u8), until: (i32, u8, u8)) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["a".into()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
        wanted.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        wanted.self_signed(&key).unwrap().der().to_vec()
    }

    /// A certificate has a UTCTime before 2050, and a GeneralizedTime from then on.
    #[test]
    fn both_forms_of_time_are_read() {
        for (from, until, seconds) in [
            ((1999, 12, 31), (2000, 2, 29), [946_598_400, 951_782_400]),
            ((1970, 1, 1), (2049, 12, 31), [0, 2_524_521_600]),
            ((2026, 11, 23), (2051, 1, 2), [1_795_392_000, 2_556_230_400]),
            ((2050, 1, 1), (9999, 12, 31), [2_524_608_000, 253_402_214_400]),
        ] {
            let [from_time, until_time] = seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            let expected = Validity { from: from_time, until: until_time };
            assert_eq!(of(&certificate(from, until)), Some(expected), "{from:?} {until:?}");
        }
    }

    #[test]
    fn a_cut_certificate_has_no_validity() {
        let whole = certificate((1999, 12, 31), (2051, 1, 2));
        for len in 0..whole.len() {
            assert_eq!(of(&whole[..len]), None, "{len} of {} bytes", whole.len());
        }
    }

    #[test]
    fn damaged_certificates_have_a_validity_or_none_and_never_panic() {
        let whole = certificate((1999, 12, 31), (2051, 1, 2));
        for at in 0..whole.len() {
            for byte in [0, 0x17, 0x18, 0x30, 0x7f, 0x80, 0x84, 0xa0, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                of(&damaged);
            }
        }
    }
}
