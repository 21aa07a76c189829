//! [`Looks`]: whether a thread that has handled a request reads the device again at once, or sleeps
//! until the kernel says that a request waits.
//!
//! A look that finds a request saves the sleep; one that finds nothing costs a system call. One
//! program that waits for each reply never has a second request, and many together always have one.
//! Each look that fails therefore doubles the looks that are left out, up to [`SKIPPED_MAX`], and
//! one that succeeds ends that.

/// The most looks that are left out after a failure.
const SKIPPED_MAX: u32 = 31;

/// Decides for one thread.
#[derive(Debug, Default)]
pub struct Looks {
    /// Looks that are still left out.
    skipped: u32,
    /// What the last failure gave `skipped`.
    penalty: u32,
}

impl Looks {
    /// Returns whether to look now.
    pub fn take(&mut self) -> bool {
        match self.skipped {
            0 => true,
            _ => {
                self.skipped -= 1;
                false
            }
        }
    }

    /// Notes what a look has found.
    pub fn note(&mut self, found: bool) {
        self.penalty = if found { 0 } else { (2 * self.penalty + 1).min(SKIPPED_MAX) };
        self.skipped = self.penalty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `turns` looked, of which `found` would have found something.
    fn looks(turns: u32, found: bool) -> u32 {
        let mut looks = Looks::default();
        let mut count = 0;
        for _ in 0..turns {
            if looks.take() {
                count += 1;
                looks.note(found);
            }
        }
        count
    }

    #[test]
    fn looks_that_find_nothing_become_rare_and_those_that_find_something_go_on() {
        assert_eq!(looks(1000, true), 1000);
        assert!(looks(1000, false) <= 40, "{}", looks(1000, false));
    }

    #[test]
    fn one_success_ends_the_caution() {
        let mut looks = Looks::default();
        (0..10).for_each(|_| looks.note(false));
        assert_eq!((0..).position(|_| looks.take()), Some(SKIPPED_MAX as usize));
        looks.note(true);
        assert!(looks.take());
    }
}
