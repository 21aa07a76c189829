//! [`Crossings`]: the names that lead from a directory to another file system. To look one up asks
//! that file system, which may hang, so the request counts as one of its own (`stores.rs`, B6).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{PoisonError, RwLock};

use crate::stores::Device;

/// Names in directories, by the directory's node.
#[derive(Default)]
pub struct Crossings(RwLock<HashMap<u64, HashMap<OsString, Device>>>);

impl Crossings {
    /// The file system to which a name leads, if it is another one as far as is known.
    pub fn find(&self, directory: u64, name: &OsStr) -> Option<Device> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&directory)?.get(name).copied()
    }

    /// Notes to which file system a name leads: to that of its directory, or to another one.
    pub fn note(&self, (directory, own): (u64, Device), name: &OsStr, device: Device) {
        if device == own && self.find(directory, name).is_none() {
            return;
        }
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if device != own {
            names.entry(directory).or_default().insert(name.to_owned(), device);
        } else if let Some(of_directory) = names.get_mut(&directory) {
            of_directory.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_another_file_system_until_it_is_unmounted() {
        let crossings = Crossings::default();
        let own = (8, 1);
        let name = OsStr::new("disk");
        crossings.note((1, own), name, own);
        assert_eq!(crossings.find(1, name), None);
        crossings.note((1, own), name, (8, 2));
        assert_eq!(crossings.find(1, name), Some((8, 2)));
        assert_eq!(crossings.find(2, name), None);
        crossings.note((1, own), name, own);
        assert_eq!(crossings.find(1, name), None);
    }
}
