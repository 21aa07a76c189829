//! `octavo._octavo`, the compiled part of the Python package `octavo`: caches, objects and pins of
//! the engine, clients of servers, and simulations.
//!
//! - A call that may wait does so without the interpreter's lock (the GIL), and looks at signals
//!   meanwhile (I1 to I4 in `wait.rs`). A read first tries to hit while it holds the GIL, because a
//!   hit takes less time than to release it.
//! - Fields that a child of `fork` must be able to lock are locked only with the GIL held: Python
//!   forks with the GIL held, so no thread that is missing in the child has locked them.
//!
//! Not here: what needs no Rust (`python/octavo`): files, file systems, the control socket.

mod analysis;
mod cache;
mod error;
mod fetch;
mod live;
mod memory;
mod nbd;
mod object;
mod pin;
mod remote;
mod size;
mod stat;
mod wait;

/// The module.
#[pyo3::pymodule]
mod _octavo {
    #[pymodule_export]
    use crate::analysis::{mrc, policies, simulate};
    #[pymodule_export]
    use crate::cache::{Cache, Partition};
    #[pymodule_export]
    use crate::object::Object;
    #[pymodule_export]
    use crate::pin::Pin;
    #[pymodule_export]
    use crate::remote::{Remote, exports};
    #[pymodule_export]
    use crate::size::bytes_of;
}
