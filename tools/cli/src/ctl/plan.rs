//! `octavo ctl plan`: the sizes that the reaper's plan aims at, and setting them.

use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::answer::{Json, show};
use super::connection::ask;
use super::tables::number;
use crate::control::protocol::{Request, Verb};
use crate::error::Error;
use crate::limits;
use crate::units::{aligned, human_bytes, human_count};

/// What to do with the plan.
#[derive(Args)]
pub struct Plan {
    /// Set each partition's max to the proposed size: of all partitions, or of none
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    json: Json,
}

impl Plan {
    /// Asks, and prints the answer.
    pub fn ask(&self, path: &Path) -> Result<(), Error> {
        let mut plan = ask(path, &Request::new(Verb::Plan))?;
        if self.apply {
            let partitions = plan["partitions"].as_array().into_iter().flatten();
            let size = |one: &Value| {
                (one["name"].as_str().unwrap_or_default().to_owned(), number(one, "proposed_bytes"))
            };
            let sizes: Vec<(String, u64)> = partitions.map(size).collect();
            if sizes.is_empty() {
                return Err(Error::failed("there is no partition whose size could be set"));
            }
            plan["applied"] = ask(path, &Request { sizes, ..Request::new(Verb::Resize) })?;
        }
        show(&self.json, &plan, table)
    }
}

/// The plan as a table.
fn table(plan: &Value) -> String {
    let titles = ["PARTITION", "MIN", "MAX", "NOW", "PROPOSED", "MISSES NOW", "THEN", "SAVED"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for one in plan["partitions"].as_array().into_iter().flatten() {
        let size = |key: &str| human_bytes(number(one, key));
        let misses = |key: &str| one[key].as_f64().unwrap_or(0.0);
        let (now, then) = (misses("misses_now"), misses("misses_proposed"));
        let sign = if now < then { "-" } else { "" };
        rows.push(vec![
            one["name"].as_str().unwrap_or_default().to_owned(),
            size("min_bytes"),
            if one["max_bytes"].is_null() { limits::NO_BOUND.into() } else { size("max_bytes") },
            size("current_bytes"),
            size("proposed_bytes"),
            human_count(now),
            human_count(then),
            format!("{sign}{}", human_count((now - then).abs())),
        ]);
    }
    let together = human_bytes(number(plan, "total_bytes"));
    let applied = &plan["applied"];
    let outcome = match (applied.is_null(), number(applied, "owed_bytes")) {
        (true, _) => String::new(),
        (false, 0) => "; each max is set to the proposed size".to_owned(),
        (false, owed) => format!(
            "; each max is set to the proposed size, {} are still to be given back (stores do not answer)",
            human_bytes(owed)
        ),
    };
    aligned(&rows, 1) + &format!("\nall together up to {together}{outcome}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_shows_what_each_partition_gives_or_gets() {
        let mut plan = json!({"total_bytes": 60 << 20, "partitions": [
            {"name": "a", "current_bytes": 40 << 20, "min_bytes": 0, "max_bytes": null,
             "proposed_bytes": 20 << 20, "misses_now": 10.0, "misses_proposed": 30.0},
            {"name": "b", "current_bytes": 20 << 20, "min_bytes": 1 << 20, "max_bytes": 50 << 20,
             "proposed_bytes": 40 << 20, "misses_now": 900.0, "misses_proposed": 100.0},
        ]});
        let text = table(&plan);
        assert!(
            text.contains("a            0 B     max  40 MiB    20 MiB          10    30    -20\n"),
            "{text}"
        );
        assert!(
            text.contains("b          1 MiB  50 MiB  20 MiB    40 MiB         900   100    800\n"),
            "{text}"
        );
        assert!(text.ends_with("\nall together up to 60 MiB\n"), "{text}");
        plan["applied"] = json!({"owed_bytes": 2 << 20, "held_up": ["a"]});
        assert!(table(&plan).contains("2 MiB are still to be given back"), "{}", table(&plan));
    }
}
