//! The order for a recording of a partition: `octavo record` sends it to a server, and the server
//! reads it from its configuration (`record = ..`).

use std::path::{Path, PathBuf};

use clap::Args;
use octavo::recording::WHOLE;
use octavo_sim::recording::{Rotation, is_named_so};
use serde::{Deserialize, Serialize};

use crate::units::size_bytes;

/// What to record, where to, and for how long. The comments of its fields are the help of `octavo
/// record`.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The partition's name
    pub partition: String,
    /// The file, NAME.octr; with --rotate, files are numbered: NAME.00001.octr and so on
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    // Pages with sample numbers below this are recorded; 65536: all pages.
    /// Record all accesses to a share of the pages, such as 1/64 or 2%
    #[arg(long = "sample", value_name = "SHARE", value_parser = sample, default_value = "1")]
    #[serde(default = "whole")]
    pub sample_below: u32,
    /// Start another file when one reaches this size
    #[arg(long = "rotate", value_name = "SIZE", value_parser = size_bytes)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_bytes: Option<u64>,
    /// Keep the newest N files [default: all]
    #[arg(long, value_name = "N", requires = "rotate_bytes")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
    /// Stop after N seconds [default: at Ctrl-C]
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

fn whole() -> u32 {
    WHOLE
}

/// The smallest file that can be rotated, in bytes: one block, 64 KiB.
pub const ROTATE_BYTES_MIN: u64 = 64 << 10;

impl Order {
    /// Checks what can be checked without a server. The error is a sentence.
    pub fn check(&self) -> Result<(), String> {
        check_file(&self.file)?;
        if !(1..=WHOLE).contains(&self.sample_below) {
            return Err(format!(
                "invalid sample: {} of {WHOLE} pages; expected 1 to {WHOLE}",
                self.sample_below
            ));
        }
        if self.rotate_bytes.is_some_and(|bytes| bytes < ROTATE_BYTES_MIN) {
            return Err("files must be rotated at 64 KiB or more".into());
        }
        if self.seconds == Some(0) {
            return Err("the recording must take at least one second".into());
        }
        self.rotation().check()
    }

    /// When to start another file, and how many to keep.
    pub fn rotation(&self) -> Rotation {
        Rotation { file_bytes_max: self.rotate_bytes, keep: self.keep }
    }
}

/// Checks that a path can be a recording's. The error is a sentence.
pub fn check_file(path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err(format!("\"{}\" is not absolute; expected a path from the root", path.display()));
    }
    is_named_so(path)
}

/// How to write a sample, for messages.
pub const SAMPLE_SHAPE: &str = "a share of the pages such as \"1/64\", \"2%\" or \"1\"";

/// Parses a share of the pages, in parts of 65536. The error is a sentence.
pub fn sample(text: &str) -> Result<u32, String> {
    let wrong = || format!("\"{text}\" is no sample; expected {SAMPLE_SHAPE}");
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong());
    let share = match (text.split_once('/'), text.strip_suffix('%')) {
        (Some((part, of)), _) => number(part)? / number(of)?,
        (None, Some(percent)) => number(percent)? / 100.0,
        (None, None) => number(text)?,
    };
    // NaN fails both comparisons.
    if !(share > 0.0 && share <= 1.0) {
        return Err(format!("\"{text}\" is out of range; expected a share above 0 and at most 1"));
    }
    Ok(((share * f64::from(WHOLE)).round() as u32).max(1))
}

/// A sample for people: `1/64 of the pages`.
pub fn sample_text(below: u32) -> String {
    match below {
        WHOLE => "all pages".into(),
        0 => "no page".into(),
        below if WHOLE.is_multiple_of(below) => format!("1/{} of the pages", WHOLE / below),
        below => format!("{:.3} % of the pages", 100.0 * f64::from(below) / f64::from(WHOLE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_parsed_in_all_usual_forms() {
        for (text, below) in
            [("1", WHOLE), ("1/1", WHOLE), ("1/64", 1024), ("2 %", 1311), ("0.5", 32_768), ("1/1000000", 1)]
        {
            assert_eq!(sample(text), Ok(below), "{text}");
        }
        for text in ["", "0", "2", "1/0", "-1", "x", "1/2/3", "nan", "101%"] {
            assert!(sample(text).is_err(), "{text}");
        }
        assert_eq!(sample_text(1024), "1/64 of the pages");
    }

    #[test]
    fn invalid_orders_are_refused_with_a_reason() {
        let order = Order {
            partition: "p".into(),
            file: "/var/p.octr".into(),
            sample_below: WHOLE,
            rotate_bytes: None,
            keep: None,
            seconds: None,
        };
        assert_eq!(order.check(), Ok(()));
        let refused = |order: Order| order.check().unwrap_err();
        assert!(refused(Order { file: "p.octr".into(), ..order.clone() }).contains("from the root"));
        assert!(refused(Order { file: "/var/p.trace".into(), ..order.clone() }).contains(".octr"));
        assert!(refused(Order { file: "/var/.octr".into(), ..order.clone() }).contains(".octr"));
        assert!(refused(Order { sample_below: 0, ..order.clone() }).contains("sample"));
        assert!(refused(Order { rotate_bytes: Some(5), ..order.clone() }).contains("64 KiB"));
        assert!(refused(Order { keep: Some(2), ..order.clone() }).contains("rotated"));
        assert!(refused(Order { seconds: Some(0), ..order.clone() }).contains("one second"));
        let rotated = Order { rotate_bytes: Some(1 << 20), ..order };
        assert!(refused(Order { keep: Some(0), ..rotated }).contains("at least one file"));
    }
}
