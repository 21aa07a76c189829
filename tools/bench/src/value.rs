//! The value of a key or of a figure, and what can become one.
//!
//! Not here: which keys there are (`case.rs`).

use std::fmt;

use serde::Serialize;

/// The value of a key or of a figure, as it appears in rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Count(u64),
    /// Another number.
    Number(f64),
    /// A word.
    Text(String),
}

impl Value {
    /// Returns the value as a number, for the axes of charts.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Flag(_) | Value::Text(_) => None,
            Value::Count(count) => Some(*count as f64),
            Value::Number(number) => Some(*number),
        }
    }
}

/// Conversions to a value.
macro_rules! values {
    ($($kind:ty: |$from:ident| $value:expr;)*) => {
        $(impl From<$kind> for Value {
            fn from($from: $kind) -> Value {
                $value
            }
        })*
    };
}

values! {
    bool: |flag| Value::Flag(flag);
    u64: |count| Value::Count(count);
    usize: |count| Value::Count(count as u64);
    f64: |number| Value::Number(number);
    &str: |text| Value::Text(text.into());
    String: |text| Value::Text(text);
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            Value::Count(count) => write!(f, "{count}"),
            Value::Number(number) => write!(f, "{number:.4}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}
