//! [`Load`]: which suites run, and how long; [`Endings`]: how their tests ended.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// SQLite's permutations: its quick tests in rollback mode, with those of the log; then those that
/// run tests again with another journal or with mapped files.
const PERMUTATIONS: &[&str] = &["veryquick", "wal", "journaltest", "persistent_journal", "mmap"];

/// git's tests of the repository, the object store, the index, branches and the working tree.
const SCRIPTS: &[&str] = &["t0", "t1", "t2", "t3", "t7"];

/// How each test of a suite ended: its name, and a word.
pub type Endings = BTreeMap<String, String>;

/// Which suites run, and how long.
pub struct Load {
    /// Operations of fsx for each configuration.
    pub operations: u64,
    /// Seconds for each of stress-ng's stressors.
    pub seconds: u64,
    /// Only these suites run; if it is empty, all.
    pub only: Vec<String>,
    /// The source of SQLite, where its test program has been built.
    pub sqlite: Option<PathBuf>,
    /// SQLite's permutations that run, by their names.
    pub permutations: Vec<String>,
    /// The source of git, where it has been built.
    pub git: Option<PathBuf>,
    /// Beginnings of the names of git's tests that run.
    pub scripts: Vec<String>,
}

impl Default for Load {
    fn default() -> Load {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Load {
            operations: 20_000,
            seconds: 2,
            only: Vec::new(),
            sqlite: None,
            permutations: words(PERMUTATIONS),
            git: None,
            scripts: words(SCRIPTS),
        }
    }
}

impl Load {
    /// Whether the suite of this name shall run.
    pub fn includes(&self, suite: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == suite)
    }
}
