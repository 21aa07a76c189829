//! The bell that ends a driver's sleep: an eventfd, beside which the driver's queue waits for I/O.
//! A ring that finds the driver awake ends its next sleep. Models have a lock and a condition
//! instead.

#[cfg(not(shuttle))]
pub(crate) use real::Bell;

#[cfg(not(shuttle))]
mod real {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use octavo::Error;
    use rustix::event::{EventfdFlags, eventfd};

    #[derive(Debug)]
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        /// # Errors
        /// [`Error::Config`] if the system has no descriptor left.
        pub fn new() -> Result<Bell, Error> {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            made.map(Bell).map_err(|error| Error::Config(format!("cannot create an eventfd: {error}")))
        }

        pub fn ring(&self) {
            // It fails only if its counter is full, and then it is readable.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        /// Takes all rings so far.
        pub fn clear(&self) {
            // It fails if there was none.
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(shuttle)]
pub(crate) use model::Bell;

#[cfg(shuttle)]
mod model {
    use std::os::fd::{AsFd, BorrowedFd};

    use octavo::Error;

    use crate::sync::{Condvar, Mutex, lock};

    #[derive(Debug, Default)]
    pub(crate) struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        pub fn new() -> Result<Bell, Error> {
            Ok(Bell::default())
        }

        pub fn ring(&self) {
            *lock(&self.0) = true;
            self.1.notify_one();
        }

        pub fn clear(&self) {
            *lock(&self.0) = false;
        }

        /// Waits for a ring.
        #[cfg(test)]
        pub fn wait(&self) {
            let mut rung = lock(&self.0);
            while !*rung {
                rung = self.1.wait(rung).expect("no holder panics");
            }
        }
    }

    impl AsFd for Bell {
        fn as_fd(&self) -> BorrowedFd<'_> {
            unreachable!("models wait for the bell itself")
        }
    }
}
