//! [`Validity`]: the time in which a certificate is valid, from its DER. Nothing else of the
//! certificate is examined: that is the work of rustls.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: SystemTime,
    /// The last second.
    pub until: SystemTime,
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Returns the validity of a certificate (RFC 5280, section 4.1). None if it is malformed.
pub fn of(certificate: &[u8]) -> Option<Validity> {
    let (body, _) = element(certificate, SEQUENCE)?;
    let (mut body, _) = element(body, SEQUENCE)?;
    if let Some((_, rest)) = element(body, VERSION) {
        body = rest;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        // The serial number, the algorithm of the signature, and the issuer.
        body = element(body, tag)?.1;
    }
    let (times, _) = element(body, SEQUENCE)?;
    let (from, times) = time(times)?;
    Some(Validity { from, until: time(times)?.0 })
}

/// Splits DER into the content of its first element, which has this tag, and the rest.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, bytes) = bytes.split_first()?;
    let (&length, mut bytes) = bytes.split_first()?;
    let mut len = usize::from(length);
    if length & 0x80 != 0 {
        let count = usize::from(length & 0x7f);
        let (digits, rest) = bytes.split_at_checked(count)?;
        if count > 4 {
            return None;
        }
        len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
        bytes = rest;
    }
    bytes.split_at_checked(len).filter(|_| found == tag)
}

/// Reads a UTCTime, `YYMMDDhhmmssZ`, or a GeneralizedTime, `YYYYMMDDhhmmssZ`.
fn time(bytes: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (text, rest, year_digits) = match (element(bytes, UTC_TIME), element(bytes, GENERALIZED_TIME)) {
        (Some((text, rest)), _) => (text, rest, 2),
        (_, Some((text, rest))) => (text, rest, 4),
        _ => return None,
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if text.len() != year_digits + 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let field = |at: usize, len: usize| text.get(at..at + len)?.parse::<i64>().ok();
    let year = match (year_digits, field(0, year_digits)?) {
        (2, year) if year < 50 => 2000 + year,
        (2, year) => 1900 + year,
        (_, year) => year,
    };
    let at = |index: usize| field(year_digits + 2 * index, 2);
    let (month, day) = (at(0)?, at(1)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + at(2)? * 3600 + at(3)? * 60 + at(4)?;
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    Some((time?, rest))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March, so
/// that a leap day is the last day of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    of_years + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn days_count_leap_years_and_centuries() {
        for (date, expected) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2026, 11, 23), 20_780),
            ((2100, 3, 1), 47_541),
        ] {
            assert_eq!(days(date.0, date.1, date.2), expected, "{date:?}");
        }
    }

    #[test]
    fn both_forms_of_time_are_read_and_others_refused() {
        let der = |tag: u8, text: &str| [&[tag, text.len() as u8], text.as_bytes(), b"rest"].concat();
        assert_eq!(time(&der(UTC_TIME, "700101000001Z")), Some((at(1), &b"rest"[..])));
        assert_eq!(time(&der(GENERALIZED_TIME, "20000229000000Z")), Some((at(951_782_400), &b"rest"[..])));
        assert_eq!(
            time(&der(UTC_TIME, "500101000000Z")).unwrap().0,
            UNIX_EPOCH - Duration::from_secs(631_152_000)
        );
        for wrong in
            ["", "Z", "700101000001", "70010100000Z", "7001010000011Z", "701301000000Z", "70010a000001Z"]
        {
            assert_eq!(time(&der(UTC_TIME, wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn the_validity_of_a_certificate_is_found_and_no_cut_one_panics() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["a".into()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(1999, 12, 31);
        wanted.not_after = rcgen::date_time_ymd(2051, 1, 2);
        let certificate = wanted.self_signed(&key).unwrap();
        let found = of(certificate.der());
        assert_eq!(found, Some(Validity { from: at(946_598_400), until: at(2_556_230_400) }));
        for len in 0..certificate.der().len() {
            assert_eq!(of(&certificate.der()[..len]), None);
        }
    }
}
