//! Models of a table.
