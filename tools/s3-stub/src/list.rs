//! Answers to ListObjectsV2.

use std::time::SystemTime;

use crate::contents::Contents;
use crate::reply::Reply;
use crate::request::Request;

/// The most entries of one answer, as in S3.
const KEYS_MAX: usize = 1000;

/// Answers a listing of a bucket.
pub(crate) fn answer(request: &Request, contents: &Contents) -> Reply {
    let prefix = request.query("prefix").unwrap_or_default();
    let delimiter = request.query("delimiter").filter(|delimiter| !delimiter.is_empty());
    // A token is the last entry before it: a key, or a common prefix.
    let after = request.query("continuation-token").or(request.query("start-after")).unwrap_or_default();
    let most = request.query("max-keys").and_then(|most| most.parse().ok()).unwrap_or(KEYS_MAX);
    let most = most.min(KEYS_MAX);
    let (mut text, mut last, mut count, mut is_truncated) = (String::new(), String::new(), 0, false);
    for (key, version) in contents.list(&request.bucket) {
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        let common = delimiter.and_then(|delimiter| {
            let at = rest.find(delimiter)?;
            Some(&key[..prefix.len() + at + delimiter.len()])
        });
        let entry = common.unwrap_or(&key);
        if entry <= after || entry == last {
            continue;
        }
        if count == most {
            is_truncated = true;
            break;
        }
        count += 1;
        match common {
            Some(common) => {
                let common = escape(common);
                text.push_str(&format!("<CommonPrefixes><Prefix>{common}</Prefix></CommonPrefixes>"));
            }
            None => text.push_str(&format!(
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
                 <StorageClass>STANDARD</StorageClass></Contents>",
                escape(&key),
                iso_8601(version.modified),
                escape(&version.e_tag),
                version.size
            )),
        }
        last = entry.to_owned();
    }
    if is_truncated {
        text.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", escape(&last)));
    }
    let head = format!(
        "<Name>{}</Name><Prefix>{}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>{most}</MaxKeys>\
         <IsTruncated>{is_truncated}</IsTruncated>",
        escape(&request.bucket),
        escape(prefix)
    );
    Reply::xml(200, &format!("<ListBucketResult>{head}{text}</ListBucketResult>"))
}

/// Answers a listing of `count` keys that are made up. A token is the number of its first key.
pub(crate) fn made_up(request: &Request, count: u64) -> Reply {
    let prefix = request.query("prefix").unwrap_or_default();
    let first: u64 = request.query("continuation-token").and_then(|token| token.parse().ok()).unwrap_or(0);
    let end = first.saturating_add(KEYS_MAX as u64).min(count);
    let mut text = String::new();
    for number in first..end {
        let key = escape(&format!("{prefix}file-{number:012}"));
        let tag = format!("&quot;{number:032x}&quot;");
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-27T00:00:00.000Z</LastModified>\
             <ETag>{tag}</ETag><Size>5</Size></Contents>"
        ));
    }
    page(&text, (end < count).then(|| end.to_string()).as_deref())
}

/// Answers a listing with one key and the token of the same page.
pub(crate) fn same_page(request: &Request) -> Reply {
    let key = escape(&format!("{}same", request.query("prefix").unwrap_or_default()));
    let date = "2026-11-27T00:00:00.000Z";
    let text = format!(
        "<Contents><Key>{key}</Key><LastModified>{date}</LastModified><ETag>e</ETag><Size>5</Size></Contents>"
    );
    page(&text, Some("same"))
}

/// A page of a listing, with the token of the next one.
fn page(text: &str, token: Option<&str>) -> Reply {
    let next = token.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    let (is_truncated, next) = (token.is_some(), next.unwrap_or_default());
    let head = format!("<IsTruncated>{is_truncated}</IsTruncated>{next}");
    Reply::xml(200, &format!("<ListBucketResult>{head}{text}</ListBucketResult>"))
}

/// The characters that XML does not allow in a text, and what stands for them.
const ESCAPED: [(&str, &str); 5] =
    [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&apos;")];

fn escape(text: &str) -> String {
    ESCAPED.iter().fold(text.to_owned(), |text, (plain, escaped)| text.replace(plain, escaped))
}

pub(crate) fn unescape(text: &str) -> String {
    ESCAPED.iter().rev().fold(text.to_owned(), |text, (plain, escaped)| text.replace(escaped, plain))
}

/// Returns a time such as `2026-11-24T00:10:28.000Z`.
pub(crate) fn iso_8601(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns the year, month and day of a number of days since 1970 (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| iso_8601(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(at(1_795_478_399_000), "2026-11-23T23:59:59.000Z");
    }

    #[test]
    fn escaped_text_comes_back() {
        let text = "a&amp;b<c>\"d'&lt;";
        assert_eq!(unescape(&escape(text)), text);
    }
}
