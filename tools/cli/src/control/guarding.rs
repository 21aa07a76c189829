//! The socket at which a server that hands over says so (`serve/guard.rs`). It lies beside the
//! control socket, which the successor makes anew.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The path of that socket.
pub fn path(control: &Path) -> PathBuf {
    let mut path = OsString::from(control);
    path.push(".handing-over");
    path.into()
}
