//! loom models of the protocols (P1 to P12, R1 to R4).
