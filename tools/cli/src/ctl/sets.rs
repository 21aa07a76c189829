//! `octavo ctl sets`: how full a partition's sets are, as bars.

use serde_json::Value;

use super::tables::number;
use crate::units::{aligned, percent};

/// The longest bar, in characters.
const BAR: f64 = 40.0;

/// The answer to `sets` as a bar for each number of ways.
pub fn chart(partition: &str, answer: &Value) -> String {
    let sampled = number(answer, "sampled");
    let counts = |key: &str| -> Vec<u64> {
        answer[key].as_array().into_iter().flatten().map(|count| count.as_u64().unwrap_or(0)).collect()
    };
    let (occupied, dirty) = (counts("occupancy"), counts("dirty"));
    let mut rows = vec![["WAYS", "SETS", "", "DIRTY", ""].map(String::from).to_vec()];
    for ways in 0..occupied.len() {
        let count = |counts: &[u64]| counts.get(ways).copied().unwrap_or(0);
        let bar = |count: u64| {
            let length = (count as f64 / sampled.max(1) as f64 * BAR).ceil() as usize;
            format!("{:<40}", "#".repeat(length))
        };
        let (occupied, dirty) = (count(&occupied), count(&dirty));
        rows.push(vec![
            ways.to_string(),
            percent(occupied, sampled),
            bar(occupied),
            percent(dirty, sampled),
            bar(dirty),
        ]);
    }
    format!(
        "\"{partition}\": {} ways a set, {} sets, {sampled} of them sampled\n{}",
        number(answer, "ways"),
        number(answer, "sets"),
        aligned(&rows, 0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_number_of_ways_has_a_bar_as_long_as_its_share_of_the_sets() {
        let answer = json!({"ways": 2, "sets": 80, "sampled": 8, "occupancy": [0, 2, 6], "dirty": [7, 1, 0]});
        let text = chart("p", &answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "\"p\": 2 ways a set, 80 sets, 8 of them sampled");
        let bars = |line: &str| line.split_whitespace().filter(|word| word.starts_with('#')).count();
        assert_eq!([2, 3, 4].map(|line| bars(lines[line])), [1, 2, 1], "{text}");
        assert!(lines[4].contains("75.0 %") && lines[4].contains(&"#".repeat(30)), "{text}");
    }
}
