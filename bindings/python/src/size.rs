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

fn parse(text: &str) -> Result<u64> {
    octavo_sim::size::bytes(text).map_err(config)
}

/// Returns the number of bytes of a size such as "64MiB".
#[pyfunction]
pub fn bytes_of(size: Size) -> u64 {
    size.0
}
