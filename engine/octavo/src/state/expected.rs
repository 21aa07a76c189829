//! [`Expected`]: what a partition has in common with one of another process, whose pages it will
//! take in (`evacuation/`, E5).

use std::collections::HashMap;

use octavo_disk::Identity;
use octavo_recording::Secret;

/// A partition whose pages are expected.
pub(crate) struct Expected {
    pub secret: Secret,
    /// The numbers of the stores' objects there. A store can be open several times.
    pub objects: Vec<(Identity, u64)>,
}

impl Expected {
    /// The numbers by their stores, the lowest last. Only those that `reserve` could set aside.
    pub fn numbers(&self, mut reserve: impl FnMut(u64) -> bool) -> HashMap<Identity, Vec<u64>> {
        let mut numbers: HashMap<Identity, Vec<u64>> = HashMap::new();
        for (identity, id) in self.objects.iter().filter(|(_, id)| reserve(*id)) {
            numbers.entry(identity.clone()).or_default().push(*id);
        }
        numbers.values_mut().for_each(|ids| ids.sort_unstable_by(|one, other| other.cmp(one)));
        numbers
    }
}
