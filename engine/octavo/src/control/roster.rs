//! The roster of a cache: its partitions in the order of creation, and their numbers by name, so
//! that neither a search nor a removal looks at all of them.
//!
//! Not here: what a name may be, and which groups a partition is in (`name.rs`).

use std::collections::BTreeMap;

use crate::name::groups_of;
use crate::state::partition::Lease;
use crate::sync::Arc;

/// The names of partitions, each with a number that grows with every partition.
pub(crate) type Names = BTreeMap<String, u64>;

/// Returns a name that excludes `name`: one of the two would be a group of the other, or they are
/// equal.
pub(crate) fn excluding<'n>(names: &'n Names, name: &str) -> Option<&'n str> {
    let group = groups_of(name).chain([name]).find_map(|above| names.get_key_value(above));
    let inside = format!("{name}/");
    let below = || names.range(inside.clone()..).next().filter(|(other, _)| other.starts_with(&inside));
    group.or_else(below).map(|(other, _)| other.as_str())
}

/// The partitions of a cache.
#[derive(Default)]
pub(super) struct Roster {
    by_number: BTreeMap<u64, Arc<Lease>>,
    names: Names,
    next: u64,
}

impl Roster {
    pub fn add(&mut self, lease: Arc<Lease>) {
        self.names.insert(lease.0.config.name.clone(), self.next);
        self.by_number.insert(self.next, lease);
        self.next += 1;
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Lease>> {
        self.by_number.get(self.names.get(name)?)
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(number) = self.names.remove(name) {
            self.by_number.remove(&number);
        }
    }

    /// Returns the partitions, in the order of creation.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.by_number.values()
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Takes all partitions out, in the order of creation.
    pub fn take(&mut self) -> Vec<Arc<Lease>> {
        std::mem::take(self).by_number.into_values().collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_excludes_itself_the_groups_above_it_and_the_names_below_it() {
        let names = ["host/vm1/disk0", "host-2", "web"];
        let names: Names = names.into_iter().map(str::to_owned).zip(0..).collect();
        assert_eq!(excluding(&names, "web"), Some("web"));
        assert_eq!(excluding(&names, "host"), Some("host/vm1/disk0"));
        assert_eq!(excluding(&names, "host/vm1"), Some("host/vm1/disk0"));
        assert_eq!(excluding(&names, "web/a/b"), Some("web"));
        for free in ["host/vm", "host/vm1/disk", "host/vm1/disk00", "host-", "we", "webs", "host-2x/y"] {
            assert_eq!(excluding(&names, free), None, "{free}");
        }
    }
}
