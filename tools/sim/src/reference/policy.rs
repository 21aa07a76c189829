//! What every reference policy does.

/// A policy that does not know the future.
pub(super) trait Policy: Send {
    /// Accesses a page, which is resident afterwards. Returns whether it was resident before.
    fn access(&mut self, page: u64) -> bool;

    /// Returns the number of resident pages.
    fn resident_pages(&self) -> u64;

    /// Accesses pages in order and returns the misses.
    fn run(&mut self, pages: &[u64]) -> u64 {
        pages.iter().map(|page| u64::from(!self.access(*page))).sum()
    }
}
