//! Detects that standard output was closed when the program started (`octavo ctl stat >&-`).
//!
//! Before `main`, Rust's start-up code opens /dev/null in place of a standard descriptor that is
//! closed. All output would then be lost without an error. `look` therefore checks the descriptor
//! earlier, from `.init_array`.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls the functions of `.init_array` once, on the only thread, before `main`
// and before Rust's start-up code. `look` has the C ABI and may ignore its arguments. It uses
// nothing that Rust's start-up code sets up: it makes one system call and one store.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    // Relaxed: there is no other thread yet.
    IS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Whether standard output was closed.
pub fn standard_output() -> bool {
    // Relaxed: `look` wrote the flag before any other thread started.
    IS_CLOSED.load(Ordering::Relaxed)
}
