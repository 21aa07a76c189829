//! Sizes as people write them: a number of bytes, or text such as "64MiB".

use pyo3::prelude::*;

use crate::error::{Result, config};

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Size> {
        match object.extract::<&str>() {
            Ok(text) => Ok(Size(parse(text)?)),
            Err(_) => object.extract().map(Size),
        }
    }
}

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tib", 1 << 40),
];

fn parse(text: &str) -> Result<u64> {
    let wrong = || config(format!("{text:?} is no size: write a number of bytes, or one such as 64MiB"));
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let scale = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(wrong)
}

/// Returns the number of bytes of a size such as "64MiB".
#[pyfunction]
pub fn bytes_of(size: Size) -> u64 {
    size.0
}
