//! Applications: whole programs on a mounted directory, beside the same programs on the plain
//! directory with the kernel's page cache, with equal memory (`side.rs` says what is equal).
//!
//! | file | programs |
//! |---|---|
//! | `fio.rs` | fio: reads of one file |
//! | `rocksdb.rs` | RocksDB's db_bench |
//! | `filebench.rs`, `flows.rs` | four of Filebench's mixes |
//! | `sqlite.rs` | two SQLite databases, with a partition each |
//! | `compile.rs` | a kernel build, alone and beside a reader |
//! | `tree.rs` | `ls`, `git status`, `tar`: what a file system in user space costs |
//!
//! `contest.rs` lets the contestants take turns. A case whose programs or rights are missing has a
//! row that says so.

mod compile;
mod contest;
mod filebench;
mod fio;
pub mod flows;
mod rocksdb;
mod side;
mod sqlite;
mod tree;

use crate::stage::Driver;

pub const DRIVERS: [&Driver; 6] =
    [&fio::DRIVER, &rocksdb::DRIVER, &filebench::DRIVER, &sqlite::DRIVER, &tree::DRIVER, &compile::DRIVER];
