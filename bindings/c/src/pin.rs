//! Pins: pages without a copy.

use std::ffi::{c_int, c_void};

use octavo::OwnedPin;

use crate::call::{call, given, quietly};
use crate::error::Failure;
use crate::object::octavo_object;

/// A page that does not change and does not leave while the pin is held, whatever is written or
/// closed meanwhile. Any thread may use it, and free it.
#[derive(Debug)]
pub struct octavo_pin(OwnedPin);

fn pin(
    object: Option<&octavo_object>,
    pin: Option<&mut *mut octavo_pin>,
    get: impl FnOnce(&octavo_object) -> Result<Option<OwnedPin>, octavo::Error>,
) -> c_int {
    call(|| {
        let pin = given(pin, "pin")?;
        *pin = std::ptr::null_mut();
        let page = get(given(object, "object")?)?.ok_or_else(Failure::again)?;
        *pin = Box::into_raw(Box::new(octavo_pin(page)));
        Ok(())
    })
}

/// Pins the page of `offset`, and reads it first if it must. On success, `*pin` is the caller's to
/// release.
///
/// Errors: `OCTAVO_EAGAIN` if the page's set has no room at the moment: read instead.
/// `OCTAVO_EPASTEND`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_pin_page(
    object: Option<&octavo_object>,
    offset: u64,
    pinned: Option<&mut *mut octavo_pin>,
) -> c_int {
    pin(object, pinned, |object| object.0.pin_owned(offset))
}

/// Pins the page of `offset`, if it is in the cache. Never waits for a store.
///
/// Errors: `OCTAVO_EAGAIN` if it is not; those of `octavo_pin_page`.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_try_pin_page(
    object: Option<&octavo_object>,
    offset: u64,
    pinned: Option<&mut *mut octavo_pin>,
) -> c_int {
    pin(object, pinned, |object| object.0.try_pin_owned(offset))
}

/// Returns the first byte of the page: the object's byte at the multiple of the page size below the
/// offset. `*len` (may be null) becomes the number of bytes, which is less than a page at the
/// object's end. Valid until the pin is released.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_pin_bytes(pin: Option<&octavo_pin>, len: Option<&mut usize>) -> *const c_void {
    let bytes: &[u8] = pin.map_or(&[], |pin| &pin.0);
    if let Some(len) = len {
        *len = bytes.len();
    }
    if pin.is_none() { std::ptr::null() } else { bytes.as_ptr().cast() }
}

/// Releases a pin.
#[unsafe(no_mangle)]
pub extern "C" fn octavo_unpin(pin: Option<Box<octavo_pin>>) {
    quietly(|| drop(pin));
}
