//! [`Charge`]: memory of the caller's own that counts against the cache's limit, so that a front
//! end's tables are bounded by `memory_max` too.

use super::cache::Cache;
use crate::control;
use crate::error::Error;
use crate::memory;

/// Bytes of the caller's own memory that are charged to the cache, from [`Cache::charge`]. Dropping
/// the charge returns them.
pub struct Charge {
    cache: Cache,
    inner: memory::Charge,
    what: String,
}

impl std::fmt::Debug for Charge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Charge").field("what", &self.what).field("bytes", &self.bytes()).finish()
    }
}

impl Cache {
    /// Charges memory that the caller allocates itself, before it does. The bytes are taken from
    /// the share of buffers ([`CacheConfig::buffers_max_bytes`](crate::CacheConfig)). If pages have
    /// them, the call evicts these, as [`Cache::buffer`] does. `what` names the use in errors.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the share is used up, or stores do not take dirty pages within about
    /// a second; [`Error::Forked`].
    ///
    /// # Examples
    /// ```
    /// # use octavo::{Cache, CacheConfig};
    /// # let cache = Cache::new(CacheConfig::default())?;
    /// let before = cache.stat().buffers_used_bytes;
    /// let mut charge = cache.charge(64 << 10, "a table of files")?;
    /// charge.resize(128 << 10)?;
    /// assert_eq!(cache.stat().buffers_used_bytes, before + (128 << 10));
    /// drop(charge);
    /// assert_eq!(cache.stat().buffers_used_bytes, before);
    /// # Ok::<(), octavo::Error>(())
    /// ```
    pub fn charge(&self, bytes: u64, what: &str) -> Result<Charge, Error> {
        self.core().shared.check_process()?;
        let inner = self.charged(bytes, what)?;
        Ok(Charge { cache: self.clone(), inner, what: what.to_owned() })
    }

    fn charged(&self, bytes: u64, what: &str) -> Result<memory::Charge, Error> {
        let reserve = &self.core().shared.reserve;
        control::with_room(self.core(), bytes, || reserve.charge(bytes, what))
    }
}

impl Charge {
    /// The bytes that are charged.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// As [`Cache::charge`]; the charge is then unchanged.
    pub fn resize(&mut self, bytes: u64) -> Result<(), Error> {
        self.cache.core().shared.check_process()?;
        match bytes.checked_sub(self.bytes()) {
            Some(more) => self.inner.join(self.cache.charged(more, &self.what)?),
            None => self.inner.resize(bytes, &self.what)?,
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{CacheConfig, PartitionConfig};

    const MIB: u64 = 1 << 20;

    /// One of eight threads was refused a buffer although the share had room for all of them. It
    /// was not tried again if others had returned memory since, or had taken what it had made room
    /// for; the latter also kept all calls from memory of pages for the rest of the period.
    #[test]
    fn a_charge_that_others_overtake_is_tried_again() {
        let config = CacheConfig { memory_max_bytes: 64 * MIB, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let (core, reserve) = (cache.core(), &cache.core().shared.reserve);
        let mut refusals = 3;
        let tried = control::with_room(core, MIB, || {
            let refused = refusals > 0;
            refusals -= i32::from(refused);
            if refused { Err(()) } else { Ok(()) }
        });
        assert_eq!(tried, Ok(()), "there is room");

        // Pages have all that is left.
        let _partition = cache.partition(PartitionConfig::new("p")).unwrap();
        let all_there_is = || std::iter::from_fn(|| reserve.charge(64 << 10, "another buffer").ok());
        let mut others: Vec<_> = all_there_is().collect();
        let left = reserve.max_bytes() - reserve.used_bytes();
        assert!(left > 3 * MIB, "{left} bytes, which pages have");
        let mut attempts = 0;
        let charge = control::with_room(core, MIB, || {
            attempts += 1;
            // Other calls take what this one has made room for.
            if attempts == 2 {
                others.extend(all_there_is());
            }
            reserve.charge(MIB, "a buffer")
        });
        assert_eq!((charge.is_ok(), attempts), (true, 3));
    }
}
