//! [`Numbers`]: the inode numbers that a mount shows. Programs take two files of one device and one
//! number for the same file, and a mount is one device. Files of the source's own file system keep
//! their numbers. Those of other file systems (mounted below the source later, subvolumes of btrfs,
//! layers of an overlay) have numbers that carry their device.
//!
//! A carried number has a number of the device in its bits 48 to 62, and the inode's number below.
//! An inode number that needs more bits is hashed with the device, and has bit 63. So two files can
//! get one number only if a file system has inode numbers of 48 bits or more, which those of a disk
//! reach at 16 PiB.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// The bits of an inode number that are carried as they are.
const INODE_BITS: u32 = 48;

/// Numbers of devices. Beyond that, devices share numbers.
const DEVICES: u64 = (1 << (63 - INODE_BITS)) - 1;

/// A device number, major and minor.
pub type DeviceNumber = (u32, u32);

/// The inode numbers of a mount.
pub struct Numbers {
    /// The device of the source.
    own: DeviceNumber,
    /// The numbers of other devices, from 1 up, in the order in which they were seen.
    others: RwLock<HashMap<DeviceNumber, u64>>,
}

impl Numbers {
    /// Those of a mount whose source is on this device.
    pub fn new(own: DeviceNumber) -> Numbers {
        Numbers { own, others: RwLock::default() }
    }

    /// The number to show for an inode of a device.
    pub fn shown(&self, device: DeviceNumber, inode: u64) -> u64 {
        if device == self.own {
            return inode;
        }
        if inode >> INODE_BITS > 0 {
            return mix(inode ^ mix(u64::from(device.0) << 32 | u64::from(device.1))) | 1 << 63;
        }
        self.number_of(device) << INODE_BITS | inode
    }

    fn number_of(&self, device: DeviceNumber) -> u64 {
        let known = self.others.read().unwrap_or_else(PoisonError::into_inner).get(&device).copied();
        known.unwrap_or_else(|| {
            let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
            let next = others.len() as u64 % DEVICES + 1;
            *others.entry(device).or_insert(next)
        })
    }
}

/// Spreads a number over all bits (the finalizer of SplitMix64), one to one.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_different_devices_have_different_numbers_that_stay() {
        let numbers = Numbers::new((8, 1));
        let mut seen = HashMap::new();
        for minor in 0..300 {
            for inode in [1, 2, 256, (1 << 48) - 1, 1 << 48, u64::MAX] {
                let shown = numbers.shown((8, minor), inode);
                assert_eq!(seen.insert(shown, (minor, inode)), None, "{minor} {inode}");
                assert_eq!(numbers.shown((8, minor), inode), shown);
            }
        }
        assert_eq!((numbers.shown((8, 1), 7), numbers.shown((8, 1), u64::MAX)), (7, u64::MAX));
        // Beyond the numbers of devices, numbers are still numbers.
        for minor in 300..DEVICES as u32 + 10 {
            assert!(numbers.shown((8, minor), 5) >> 63 == 0);
        }
    }
}
