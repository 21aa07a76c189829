//! The width of a processor's vectors, as copies are compiled for it. Not here: its choice.

/// What a caller knows of the processor's vectors. A caller that knows the width at compile time
/// saves the test in each of many copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Nothing. Also the width of a processor without the vectors below.
    Unknown,
    /// AVX2, BMI1 and BMI2.
    Avx2,
    /// AVX-512, AVX2, BMI1 and BMI2.
    Avx512,
}
