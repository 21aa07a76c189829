//! Two SQLite databases at once: small transactions as in TPC-C on one, reports that read the other
//! from its beginning to its end. Each is in a directory of its own, so each has a partition if
//! there are partitions. Both are used by the program sqlite3, which gets SQL on its standard
//! input. <https://www.tpc.org/tpcc/>
//!
//! Of TPC-C there are: customers, stock and orders of one warehouse; the skew of items and
//! customers (NURand); new orders of ten items, payments, and queries of stock levels, in the
//! proportion 45 : 43 : 12. One client waits for each transaction. Commits are in a write-ahead
//! log, which is synced when it is copied to the database (`synchronous = NORMAL`).

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use octavo_random::{Random, mix};

use super::contest::{CONTESTANTS, Done, Files, Job, check, contest, files_bytes, hindrance, succeed};
use super::side::Side;
use crate::case::Case;
use crate::error::Error;
use crate::machine;
use crate::scratch::Running;
use crate::stage::Driver;

pub const DRIVER: Driver = Driver {
    name: "app-sqlite",
    purpose: "two SQLite databases on a mounted directory, beside the kernel's page cache",
    contestants: CONTESTANTS,
    scenery: &["memory", "files_percent"],
    check: |case| check(case, &["mix"]),
    memory: |needs| needs.frames * 2,
    set: |case, run| {
        let files = match hindrance(&[("sqlite3", "sqlite3"), ("stdbuf", "coreutils")]) {
            None => Ok(Files::new(case, run, |directory| fill(case, directory))?),
            Some(why) => Err(why),
        };
        Ok(Box::new(move |case, run| {
            let databases = Databases { sizes: Sizes::of(case), slices: AtomicU64::new(0) };
            contest(case, run, files.as_ref().map_err(String::clone), &databases)
        }))
    },
};

/// The directories of the databases, which have a partition each.
const DIRECTORIES: [&str; 2] = ["orders", "reports"];
const DATABASE: &str = "data.db";

/// Bytes of a row, with its share of its page.
const STOCK_BYTES: u64 = 330;
const CUSTOMER_BYTES: u64 = 530;
const SALE_BYTES: u64 = 120;

/// A report reads this part of its table. The next one continues there.
const REPORTS_PER_SCAN: u64 = 20;

/// Settings of each connection. SQLite's own cache has 2 MiB, its default.
const SETTINGS: &str = "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -2000;";

/// The numbers of rows.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    items: u64,
    customers: u64,
    sales: u64,
}

impl Sizes {
    /// A quarter of the bytes are the orders', the rest the reports'.
    fn of(case: &Case) -> Sizes {
        let bytes = files_bytes(case);
        let items = bytes / 8 / STOCK_BYTES;
        Sizes { items, customers: bytes / 8 / CUSTOMER_BYTES, sales: bytes / 4 * 3 / SALE_BYTES }
    }
}

fn fill(case: &Case, directory: &Path) -> Result<(), Error> {
    let sizes = Sizes::of(case);
    let rows =
        |count| format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
    let orders = format!(
        "PRAGMA journal_mode = WAL;
        CREATE TABLE stock (id INTEGER PRIMARY KEY, quantity INTEGER, data BLOB);
        {} INSERT INTO stock SELECT i, 100, randomblob(300) FROM n;
        CREATE TABLE customer (id INTEGER PRIMARY KEY, balance INTEGER, data BLOB);
        {} INSERT INTO customer SELECT i, 0, randomblob(500) FROM n;
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, items TEXT);
        CREATE TABLE history (customer INTEGER, amount INTEGER);",
        rows(sizes.items),
        rows(sizes.customers)
    );
    let reports = format!(
        "PRAGMA journal_mode = WAL;
        CREATE TABLE sales (id INTEGER PRIMARY KEY, region INTEGER, amount INTEGER, note BLOB);
        {} INSERT INTO sales SELECT i, i % 7, i % 1000, randomblob(100) FROM n;",
        rows(sizes.sales)
    );
    for (name, sql) in DIRECTORIES.into_iter().zip([orders, reports]) {
        let path = directory.join(name);
        std::fs::create_dir(&path).map_err(Error::at("a directory"))?;
        succeed(Command::new("sqlite3").arg(path.join(DATABASE)).arg(sql))?;
    }
    Ok(())
}

struct Databases {
    sizes: Sizes,
    /// Slices so far, for their seeds.
    slices: AtomicU64,
}

impl Job for Databases {
    fn rows(&self) -> &'static [&'static str] {
        &["_orders", "_reports"]
    }

    fn tenants(&self) -> &'static [&'static str] {
        &DIRECTORIES
    }

    fn run(&self, side: &Side, time: Duration) -> Result<Vec<Done>, Error> {
        // Relaxed: only for a new seed.
        let seed = mix(self.slices.fetch_add(1, Ordering::Relaxed));
        let (mut random, mut at) = (Random::new(seed), seed % REPORTS_PER_SCAN);
        let transaction = move || self.sizes.transaction(&mut random);
        let report = move || {
            at = (at + 1) % REPORTS_PER_SCAN;
            self.sizes.report(at)
        };
        let both = std::thread::scope(|scope| {
            let reports = scope.spawn(move || client(side, DIRECTORIES[1], time, report));
            let orders = client(side, DIRECTORIES[0], time, transaction);
            let panicked = |_| Err(Error::new("a thread that writes SQL has panicked"));
            (orders, reports.join().unwrap_or_else(panicked))
        });
        Ok(vec![both.0?, both.1?])
    }
}

/// Gives one statement after the other to sqlite3, until `time` has passed.
fn client(side: &Side, name: &str, time: Duration, mut next: impl FnMut() -> String) -> Result<Done, Error> {
    let stdbuf = machine::program("stdbuf").ok_or_else(|| Error::new("stdbuf is not installed"))?;
    let mut command = side.command(&stdbuf);
    // sqlite3 would keep its answers until many are there.
    command.args(["-oL", "sqlite3", "-bail"]).arg(side.path.join(name).join(DATABASE));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut child = Running(child.map_err(Error::at("sqlite3"))?);
    let (Some(mut to), Some(from)) = (child.0.stdin.take(), child.0.stdout.take()) else {
        return Err(Error::new("sqlite3 has no pipes"));
    };
    let mut from = BufReader::new(from);
    let mut ask = |sql: &str| -> std::io::Result<()> {
        to.write_all(format!("{sql} SELECT 'done';\n").as_bytes())?;
        let mut answer = String::new();
        while answer != "done\n" {
            answer.clear();
            if from.read_line(&mut answer)? == 0 {
                return Err(std::io::Error::other("it has ended"));
            }
        }
        Ok(())
    };
    ask(SETTINGS).map_err(Error::at("sqlite3"))?;
    let (begun, mut operations) = (Instant::now(), 0.0);
    while begun.elapsed() < time {
        ask(&next()).map_err(Error::at("sqlite3"))?;
        operations += 1.0;
    }
    let seconds = begun.elapsed().as_secs_f64();
    // The end of its input ends it, and lets it copy its log.
    drop(to);
    child.0.wait().map_err(Error::at("sqlite3"))?;
    Ok(Done { operations, seconds })
}

impl Sizes {
    /// TPC-C's skewed number, from 1 to `count`: some numbers come much more often.
    fn skewed(random: &mut Random, count: u64) -> u64 {
        let mask = (count / 12).next_power_of_two() - 1;
        ((random.below(mask + 1) | random.below(count)) + 42) % count + 1
    }

    fn transaction(&self, random: &mut Random) -> String {
        let customer = Self::skewed(random, self.customers);
        let kind = random.below(100);
        let mut items = |count| -> Vec<String> {
            (0..count).map(|_| Self::skewed(random, self.items).to_string()).collect()
        };
        match kind {
            0..45 => {
                let items = items(10);
                let mut sql = String::from("BEGIN IMMEDIATE;");
                let _ = write!(sql, " SELECT balance FROM customer WHERE id = {customer};");
                for item in &items {
                    let _ = write!(sql, " UPDATE stock SET quantity = quantity - 1 WHERE id = {item};");
                }
                let items = items.join(",");
                let _ = write!(sql, " INSERT INTO orders (customer, items) VALUES ({customer}, '{items}');");
                sql + " COMMIT;"
            }
            45..88 => format!(
                "BEGIN IMMEDIATE; UPDATE customer SET balance = balance - 5 WHERE id = {customer}; \
                 INSERT INTO history VALUES ({customer}, 5); COMMIT;"
            ),
            _ => {
                let items = items(20).join(",");
                format!("SELECT count(*) FROM stock WHERE id IN ({items}) AND quantity < 90;")
            }
        }
    }

    /// A report about a part of all sales.
    fn report(&self, part: u64) -> String {
        let rows = self.sales / REPORTS_PER_SCAN;
        let (from, to) = (part * rows, (part + 1) * rows);
        format!(
            "SELECT region, count(*), sum(amount) FROM sales WHERE id > {from} AND id <= {to} \
             GROUP BY region;"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { items: 1000, customers: 100, sales: 2000 };

    #[test]
    fn numbers_of_rows_are_valid_and_skewed() {
        let mut random = Random::new(1);
        let mut counts = [0; 1001];
        (0..100_000).for_each(|_| counts[Sizes::skewed(&mut random, 1000) as usize] += 1);
        assert_eq!(counts[0], 0);
        counts.sort_unstable();
        assert!(counts[900..].iter().sum::<u32>() > 25_000, "{}", counts[900..].iter().sum::<u32>());
    }

    #[test]
    fn transactions_have_three_kinds_and_reports_read_everything() {
        let mut random = Random::new(1);
        let all: Vec<String> = (0..200).map(|_| SIZES.transaction(&mut random)).collect();
        for words in ["INSERT INTO orders", "INSERT INTO history", "quantity < 90"] {
            assert!(all.iter().any(|sql| sql.contains(words)), "{words}");
        }
        assert!(SIZES.report(0).contains("id > 0 AND id <= 100"));
        assert!(SIZES.report(REPORTS_PER_SCAN - 1).contains("id > 1900 AND id <= 2000"));
    }
}
