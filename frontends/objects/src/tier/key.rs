//! [`BlockKey`]: which block of which version of which object.

/// Names one version of one object: the SHA-256 of store, scope, path, version and size. No other
/// bytes may ever have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey(pub [u8; 32]);

/// Names a block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The version of the object.
    pub object: ObjectKey,
    /// The number of the block in the object, from 0.
    pub block: u64,
    /// Length of the block in bytes: `block_bytes`, or less for the last block of an object.
    pub len: u32,
}
