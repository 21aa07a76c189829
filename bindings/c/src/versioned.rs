//! Structs that begin with their size, so that programs and libraries of different versions
//! understand each other.
//!
//! - V1. A caller sets `size` to the size of the struct that it was compiled with.
//! - V2. What an older caller lacks has its default: zeros.
//! - V3. What a newer caller has beyond the library's struct must be zeros: it asks for nothing
//!   that the library does not know.
//! - V4. A result is written up to the caller's size. The rest of the caller's struct is zeroed,
//!   and `size` stays.

use std::mem::MaybeUninit;

use crate::error::Failure;

/// A struct whose first member is its size.
///
/// # Safety
/// `repr(C)`, the first member is a `usize`, every bit pattern is valid, there is no padding, and
/// no version was shorter than `SIZE_MIN`.
pub unsafe trait Versioned: Copy {
    /// For messages.
    const NAME: &'static str;
    /// The size in the first version.
    const SIZE_MIN: usize;
}

/// The largest struct of a caller. Larger sizes are mistakes, such as a `size` that was not set.
const SIZE_MAX: usize = 4096;

/// The size that the caller has set (V1).
///
/// # Safety
/// `at` points to a `usize`.
unsafe fn size_of_callers<T: Versioned>(at: *const T) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<usize>().read() };
    if !(T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        let (name, is) = (T::NAME, size_of::<T>());
        return Err(Failure::invalid(format!(
            "the size of {name} is {size}; set it to sizeof({name}), {is}"
        )));
    }
    Ok(size)
}

/// Reads a struct of a caller (V2, V3). A null pointer stands for zeros.
///
/// # Safety
/// `from` is null, or points to as many bytes as its first member says.
pub unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !from.is_null() {
        // SAFETY: the caller's promise.
        let size = unsafe { size_of_callers(from) }?;
        let known = size.min(size_of::<T>());
        // SAFETY: the caller has `size` bytes there.
        let rest = unsafe { std::slice::from_raw_parts(from.cast::<u8>().wrapping_add(known), size - known) };
        if rest.iter().any(|byte| *byte != 0) {
            let name = T::NAME;
            return Err(Failure::invalid(format!(
                "{name} has members that this version of the library does not know; it is older than the header"
            )));
        }
        // SAFETY: both have `known` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    }
    // SAFETY: every bit pattern is valid.
    Ok(unsafe { value.assume_init() })
}

/// Writes a result into a struct of a caller (V4).
///
/// # Safety
/// `to` is null, or points to as many bytes as its first member says.
pub unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid(format!("the {} is a null pointer", T::NAME)));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_callers(to) }?;
    let first = size_of::<usize>();
    let known = size.min(size_of::<T>());
    let from = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both have `known` bytes, and `known` is at least `SIZE_MIN`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.wrapping_add(first),
            to.cast::<u8>().wrapping_add(first),
            known - first,
        )
    };
    // SAFETY: the caller has `size` bytes there.
    unsafe { to.cast::<u8>().wrapping_add(known).write_bytes(0, size - known) };
    Ok(())
}
