//! The Grafana dashboard and the alert rules in `share/` against the metrics of a running server:
//! every metric, label and label value that they use must exist.
//!
//! The reader of PromQL here knows only names, labels and parentheses. promtool checks the rest, if
//! it is installed, and also that each alert fires, and that none fires for a healthy server.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::clients;
use crate::metrics::{ask, scrape};
use crate::nbd_client::Client;
use crate::server::{self, Directory, Server, Setup};

const DASHBOARD: &str = include_str!("../../share/grafana/octavo.json");
const OPERATING: &str = include_str!("../../../../docs/OPERATING.md");
const RULES: &str = include_str!("../../share/prometheus/octavo.rules.yml");

/// Functions and operators that the expressions may use before parentheses.
const FUNCTIONS: [&str; 13] = [
    "changes",
    "count",
    "histogram_quantile",
    "increase",
    "label_values",
    "max",
    "min",
    "min_over_time",
    "rate",
    "sum",
    "vector",
    "and",
    "or",
];

/// Labels that a scrape adds.
const SCRAPED: [&str; 2] = ["instance", "job"];

/// Metrics by name: their labels, and the values of each.
type Known = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A metric that an expression names: its labels there, with the value if it must be equal.
type Use = (String, Vec<(String, Option<String>)>);

/// The names that an expression uses.
#[derive(Debug, Default, PartialEq)]
struct Uses {
    metrics: Vec<Use>,
    /// Labels after `by` and `on`.
    grouped: Vec<String>,
}

/// A text that is read from its beginning.
struct Reader<'t>(&'t str);

impl<'t> Reader<'t> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn take(&mut self, beginning: &str) -> bool {
        self.skip_space();
        self.0.strip_prefix(beginning).map(|rest| self.0 = rest).is_some()
    }

    fn word(&mut self) -> Option<&'t str> {
        self.skip_space();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let end = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        is_word.then(|| {
            self.0 = rest;
            word
        })
    }

    fn up_to(&mut self, end: char) -> Result<&'t str, String> {
        let (text, rest) = self.0.split_once(end).ok_or_else(|| format!("no {end} in {:?}", self.0))?;
        self.0 = rest;
        Ok(text)
    }

    /// The labels in braces, after `{`.
    fn matchers(&mut self) -> Result<Vec<(String, Option<String>)>, String> {
        let mut all = Vec::new();
        while !self.take("}") {
            let label = self.word().ok_or_else(|| format!("no label at {:?}", self.0))?;
            let is_pattern = self.take("=~") || self.take("!~");
            if !(is_pattern || self.take("=")) || !self.take("\"") {
                return Err(format!("no value of {label} at {:?}", self.0));
            }
            let value = self.up_to('"')?;
            all.push((label.to_owned(), (!is_pattern).then(|| value.to_owned())));
            self.take(",");
        }
        Ok(all)
    }

    /// The labels in parentheses.
    fn list(&mut self) -> Result<Vec<String>, String> {
        if !self.take("(") {
            return Err(format!("no parenthesis at {:?}", self.0));
        }
        let list = self.up_to(')')?;
        Ok(list.split(',').map(|label| label.trim().to_owned()).collect())
    }
}

/// Returns the names that an expression of PromQL uses. The error is a sentence.
fn uses(expression: &str) -> Result<Uses, String> {
    let (mut reader, mut found, mut depth) = (Reader(expression), Uses::default(), 0_i32);
    loop {
        match reader.word() {
            Some("by" | "on") => found.grouped.extend(reader.list()?),
            Some(word) if FUNCTIONS.contains(&word) => {}
            Some(word) if reader.take("(") => return Err(format!("{word} is not a known function")),
            Some(word) => {
                let labels = if reader.take("{") { reader.matchers()? } else { Vec::new() };
                found.metrics.push((word.to_owned(), labels));
            }
            None => {
                let Some(next) = reader.0.chars().next() else { break };
                reader.0 = &reader.0[next.len_utf8()..];
                match next {
                    '(' => depth += 1,
                    ')' if depth == 0 => return Err("a parenthesis is closed that is not open".into()),
                    ')' => depth -= 1,
                    '[' => drop(reader.up_to(']')?),
                    '0'..='9' | '.' | '+' | '-' | '*' | '/' | '<' | '>' | '=' | ',' => {}
                    other => return Err(format!("{other:?} is not expected")),
                }
            }
        }
    }
    if depth > 0 { Err("a parenthesis stays open".into()) } else { Ok(found) }
}

/// Why an expression does not agree with the metrics; empty if it does.
fn wrongs(expression: &str, known: &Known) -> Vec<String> {
    let found = match uses(expression) {
        Ok(found) => found,
        Err(why) => return vec![format!("{why}: {expression}")],
    };
    let mut wrongs = Vec::new();
    let mut labels: BTreeSet<&str> = SCRAPED.into();
    for (name, matchers) in &found.metrics {
        // Prometheus makes it itself.
        let Some(metric) = known.get(name) else {
            if name != "up" {
                wrongs.push(format!("there is no metric {name}: {expression}"));
            }
            continue;
        };
        labels.extend(metric.keys().map(|label| &**label));
        for (label, value) in matchers.iter().filter(|(label, _)| !SCRAPED.contains(&&**label)) {
            match metric.get(label) {
                None => wrongs.push(format!("{name} has no label {label}: {expression}")),
                Some(values) if value.as_ref().is_some_and(|value| !values.contains(value)) => {
                    wrongs.push(format!("no {name} has {label}={value:?}: {expression}"));
                }
                Some(_) => {}
            }
        }
    }
    let unknown = found.grouped.iter().filter(|label| !labels.contains(&***label));
    wrongs.extend(unknown.map(|label| format!("none of the metrics has the label {label}: {expression}")));
    wrongs
}

/// Every expression of the dashboard: its panels, its annotations and its variables.
fn of_dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let annotations = list(&dashboard["annotations"]["list"]);
    let queries = targets.chain(annotations).map(|one| one["expr"].as_str().unwrap().to_owned());
    let variables = list(&dashboard["templating"]["list"]);
    let variables = variables.iter().filter_map(|one| one["query"]["query"].as_str());
    // `label_values` has a metric and a label.
    let asked = variables.map(|query| {
        let inside = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (metric, label) = inside.rsplit_once(',').unwrap();
        format!("sum by ({label}) ({metric})")
    });
    queries.chain(asked).map(|query| query.replace("$__rate_interval", "5m")).collect()
}

/// The alerts with their expressions. The rules use only this part of YAML.
fn of_rules() -> Vec<(String, String)> {
    let mut alerts: Vec<(String, String)> = Vec::new();
    let mut is_expression = false;
    for line in RULES.lines() {
        let text = line.trim_start();
        if let Some(name) = text.strip_prefix("- alert: ") {
            alerts.push((name.to_owned(), String::new()));
        }
        let is_key = line.len() - text.len() == 8;
        is_expression = if is_key { text == "expr: >-" } else { is_expression };
        if is_expression && !is_key {
            alerts.last_mut().unwrap().1 += &format!("{text} ");
        }
    }
    alerts
}

#[test]
fn operating_md_explains_each_alert_with_its_severity() {
    let explained: Vec<(&str, &str)> = OPERATING
        .split("\n### ")
        .skip(1)
        .map(|section| {
            let (name, text) = section.split_once('\n').unwrap();
            (name, text.split('*').nth(1).unwrap().trim_end_matches('.'))
        })
        .collect();
    let severities = RULES.lines().filter_map(|line| line.trim_start().strip_prefix("severity: "));
    let rules = of_rules();
    let alerts: Vec<(&str, &str)> = rules.iter().map(|(name, _)| name.as_str()).zip(severities).collect();
    assert_eq!(explained, alerts);
}

/// A server that has had traffic of every kind.
fn busy() -> (Directory, Server) {
    let listen = "metrics = \"127.0.0.1:0\"\nmetrics_hosts = [\"octavo\"]";
    let (directory, server) = server::served(&Setup { listen, ..Setup::default() });
    server.ctl_succeed(&["set", "p", "max=8MiB"]);
    let mut client = Client::connect(&server.nbd, "disk").unwrap();
    client.write(4096, &[1; 4096]);
    client.read(1 << 20, 4096);
    client.read(1 << 20, 4096);
    assert_eq!(client.flush(), 0);
    (directory, server)
}

fn known() -> Known {
    let (_directory, server) = busy();
    let mut known = Known::new();
    for sample in scrape(&server.metrics_address()).into_keys() {
        let mut reader = Reader(&sample);
        let name = reader.word().unwrap().to_owned();
        let labels = if reader.take("{") { reader.matchers().unwrap() } else { Vec::new() };
        let metric = known.entry(name).or_default();
        for (label, value) in labels {
            metric.entry(label).or_default().insert(value.unwrap());
        }
    }
    known
}

#[test]
fn the_dashboard_and_the_alerts_use_only_metrics_and_labels_that_the_server_has() {
    let known = known();
    let (dashboard, rules) = (of_dashboard(), of_rules());
    assert!(dashboard.len() > 50 && rules.len() > 15, "{} and {}", dashboard.len(), rules.len());
    let expressions = dashboard.iter().chain(rules.iter().map(|(_, expression)| expression));
    let wrongs: Vec<String> = expressions.flat_map(|expression| wrongs(expression, &known)).collect();
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

#[test]
fn an_expression_that_does_not_agree_with_the_metrics_is_caught() {
    let class: BTreeMap<_, _> = [("class".to_owned(), BTreeSet::from(["hit".to_owned()]))].into();
    let known = Known::from([("m_total".to_owned(), class)]);
    let good =
        "sum by (instance, class) (rate(m_total{instance=~\"$i\",class=\"hit\"}[5m])) > 0.5 or vector(0)";
    assert_eq!(wrongs(good, &known), Vec::<String>::new());
    for (bad, why) in [
        ("rate(m[5m])", "there is no metric m"),
        ("m_total{export=\"a\"}", "m_total has no label export"),
        ("m_total{class=\"hits\"}", "no m_total has class=Some(\"hits\")"),
        ("sum by (export) (m_total)", "none of the metrics has the label export"),
        ("rat(m_total[5m])", "rat is not a known function"),
        ("sum(m_total", "a parenthesis stays open"),
        ("sum(m_total))", "a parenthesis is closed"),
        ("rate(m_total[5m)", "no ]"),
        ("m_total{class}", "no value of class"),
        ("m_total ! 1", "'!' is not expected"),
    ] {
        let found = wrongs(bad, &known);
        assert!(found.len() == 1 && found[0].starts_with(why), "{bad}: {found:?}");
    }
}

/// Runs promtool with a file of this content, beside the alert rules; `check metrics` reads it from
/// standard input. None if there is none: its Debian package starts a server, so `make packages`
/// does not install it.
fn promtool(words: &[&str], content: &str) -> Option<Output> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("promtool/usr/bin/promtool");
    let Some(program) = clients::find("promtool").or(Some(built).filter(|path| path.is_file())) else {
        println!("SKIP: there is no promtool; `make promtool` gets it");
        return None;
    };
    let directory = Directory::new();
    std::fs::write(directory.join("octavo.rules.yml"), RULES).unwrap();
    let file = directory.join("file.yml");
    std::fs::write(&file, content).unwrap();
    let input = std::fs::File::open(&file).unwrap();
    let file = Some(file).filter(|_| words != ["check", "metrics"]);
    Some(Command::new(program).args(words).args(file).stdin(input).output().unwrap())
}

/// What promtool says about its file: whether it is good, and its output.
fn verdict(output: &Output) -> (bool, String) {
    (output.status.success(), clients::text(&output.stdout) + &clients::text(&output.stderr))
}

/// promtool reads Prometheus's older format, where a counter is declared with its suffix.
fn in_older_format(page: &str) -> String {
    let declared: Vec<Vec<&str>> = page.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    let is_counter = |name: &str| declared.contains(&vec!["#", "TYPE", name, "counter"]);
    let lines = declared.iter().map(|words| match words[..] {
        ["#", "UNIT" | "EOF", ..] => String::new(),
        ["#", what, name, rest] if is_counter(name) => format!("# {what} {name}_total {rest}\n"),
        _ => words.join(" ") + "\n",
    });
    lines.collect()
}

#[test]
fn promtool_accepts_the_metrics_and_refuses_wrong_ones() {
    let (_directory, server) = busy();
    let answer = ask(&server.metrics_address(), "GET /metrics", "octavo");
    let page = in_older_format(answer.split_once("\r\n\r\n").unwrap().1);
    let Some(output) = promtool(&["check", "metrics"], &page) else { return };
    assert_eq!(verdict(&output), (true, String::new()));
    let wrong = promtool(&["check", "metrics"], &page.replace("_total", "")).unwrap();
    assert!(!wrong.status.success(), "{wrong:?}");
}

#[test]
fn promtool_accepts_every_expression_and_refuses_a_wrong_one() {
    let file = |expressions: &[String]| {
        let rule = |(number, expression)| json!({"record": format!("r{number}"), "expr": expression});
        let rules: Vec<Value> = expressions.iter().enumerate().map(rule).collect();
        json!({"groups": [{"name": "all", "rules": rules}]}).to_string()
    };
    let mut all = of_dashboard();
    all.extend(of_rules().into_iter().map(|(_, expression)| expression));
    let Some(output) = promtool(&["check", "rules"], &file(&all)) else { return };
    let (is_good, said) = verdict(&output);
    assert!(is_good && said.contains(&format!("{} rules found", all.len())), "{said}");
    let wrong = promtool(&["check", "rules"], &file(&["sum by (a) rate(m[5m])".to_owned()])).unwrap();
    assert!(!verdict(&wrong).0, "{wrong:?}");
    let (is_good, said) = verdict(&promtool(&["check", "rules"], RULES).unwrap());
    assert!(is_good && said.contains(&format!("{} rules found", of_rules().len())), "{said}");
}

/// The series of a healthy server, a sample a minute: names, and values in promtool's notation.
const HEALTHY: [(&str, &str); 27] = [
    ("up{SERVER}", "1x60"),
    ("process_start_time_seconds{SERVER}", "1000x60"),
    ("process_resident_memory_bytes{SERVER}", "1040000000x60"),
    ("process_open_fds{SERVER}", "100x60"),
    ("process_max_fds{SERVER}", "1024x60"),
    ("octavo_memory_max_bytes{SERVER}", "1000000000x60"),
    ("octavo_reaper_allowed_bytes{SERVER}", "1000000000x60"),
    ("octavo_reaper_held_up_partitions{SERVER}", "0x60"),
    ("octavo_buffers_used_bytes{SERVER}", "50x60"),
    ("octavo_buffers_max_bytes{SERVER}", "100x60"),
    ("octavo_draining{SERVER}", "0x60"),
    ("octavo_partition_read_errors_total{PARTITION}", "0x60"),
    ("octavo_partition_write_errors_total{PARTITION}", "0x60"),
    ("octavo_partition_sync_errors_total{PARTITION}", "0x60"),
    ("octavo_partition_objects_failed{PARTITION}", "0x60"),
    ("octavo_partition_objects_changed{PARTITION}", "0x60"),
    ("octavo_partition_dirty_bytes{PARTITION}", "4096x60"),
    ("octavo_partition_dirty_max_bytes{PARTITION}", "40960x60"),
    ("octavo_partition_writebacks_total{PARTITION}", "0+1x60"),
    ("octavo_export_requests_in_flight{EXPORT}", "3x60"),
    ("octavo_export_requests_total{EXPORT,kind=\"read\"}", "0+100x60"),
    ("octavo_export_requests_total{EXPORT,kind=\"write\"}", "0x60"),
    ("octavo_export_errors_total{EXPORT}", "0x60"),
    ("octavo_export_broken_total{EXPORT}", "0x60"),
    ("BUCKET{EXPORT,class=\"hit\",le=\"0.000016\"}", "0+99x60"),
    ("BUCKET{EXPORT,class=\"miss\",le=\"0.016384\"}", "0+99x60"),
    ("BUCKET{EXPORT,class=\"flush\",le=\"0.131072\"}", "0+99x60"),
];

/// For each alert, what differs from a healthy server.
const CASES: [(&str, &[(&str, &str)]); 19] = [
    ("OctavoDown", &[("up{SERVER}", "0x60")]),
    ("OctavoRestarts", &[("process_start_time_seconds{SERVER}", "1 2 3 4x60")]),
    ("OctavoMemoryBeyondLimit", &[("process_resident_memory_bytes{SERVER}", "1200000000x60")]),
    ("OctavoMemoryShort", &[("octavo_reaper_allowed_bytes{SERVER}", "700000000x60")]),
    ("OctavoBuffersFull", &[("octavo_buffers_used_bytes{SERVER}", "97x60")]),
    ("OctavoDescriptorsFull", &[("process_open_fds{SERVER}", "1000x60")]),
    ("OctavoStoreErrors", &[("octavo_partition_write_errors_total{PARTITION}", "0+1x60")]),
    ("OctavoExportFailed", &[("octavo_partition_objects_failed{PARTITION}", "1x60")]),
    ("OctavoStoreChanged", &[("octavo_partition_objects_changed{PARTITION}", "1x60")]),
    ("OctavoWritesStalled", &[("octavo_partition_writebacks_total{PARTITION}", "7x60")]),
    ("OctavoDirtyLimit", &[("octavo_partition_dirty_bytes{PARTITION}", "40960x60")]),
    (
        "OctavoDrainStuck",
        &[("octavo_draining{SERVER}", "1x60"), ("octavo_partition_writebacks_total{PARTITION}", "7x60")],
    ),
    ("OctavoResizeHeldUp", &[("octavo_reaper_held_up_partitions{SERVER}", "1x60")]),
    ("OctavoRequestsStuck", &[("octavo_export_requests_total{EXPORT,kind=\"read\"}", "9x60")]),
    ("OctavoHitsSlow", &[("BUCKET{EXPORT,class=\"hit\",le=\"0.000016\"}", "0+90x60")]),
    ("OctavoMissesSlow", &[("BUCKET{EXPORT,class=\"miss\",le=\"0.016384\"}", "0+90x60")]),
    ("OctavoFlushesSlow", &[("BUCKET{EXPORT,class=\"flush\",le=\"0.131072\"}", "0+90x60")]),
    ("OctavoGuestBroken", &[("octavo_export_broken_total{EXPORT}", "0x20 1x40")]),
    ("OctavoRequestErrors", &[("octavo_export_errors_total{EXPORT}", "0+1x60")]),
];

/// A test of promtool: which alerts fire after 25 minutes if these series differ.
fn fires(different: &[(&str, &str)], expected: &[&str]) -> Value {
    let mut series: HashMap<&str, &str> = HEALTHY.into();
    for (name, values) in different {
        assert!(series.insert(name, values).is_some(), "{name} is not a series of a healthy server");
    }
    let server = "job=\"octavo\",instance=\"h\"";
    let labelled = |name: &str| {
        name.replace("BUCKET", "octavo_export_request_duration_seconds_bucket")
            .replace("SERVER", server)
            .replace("PARTITION", &format!("{server},partition=\"p\""))
            .replace("EXPORT", &format!("{server},export=\"e\""))
    };
    let mut input: Vec<Value> =
        series.iter().map(|(name, values)| json!({"series": labelled(name), "values": values})).collect();
    for class in ["hit", "miss", "flush"] {
        for bound in ["16.777216", "+Inf"] {
            let name = labelled(&format!("BUCKET{{EXPORT,class=\"{class}\",le=\"{bound}\"}}"));
            input.push(json!({"series": name, "values": "0+99x60"}));
        }
    }
    let samples: Vec<Value> = expected
        .iter()
        .map(|name| json!({"labels": format!("{{alertname=\"{name}\"}}"), "value": 1}))
        .collect();
    let expression = "count by (alertname) (ALERTS{alertstate=\"firing\"})";
    json!({
        "interval": "1m", "input_series": input,
        "promql_expr_test": [{"expr": expression, "eval_time": "25m", "exp_samples": samples}],
    })
}

fn test_file(tests: &[Value]) -> String {
    json!({"rule_files": ["octavo.rules.yml"], "evaluation_interval": "1m", "tests": tests}).to_string()
}

#[test]
fn each_alert_fires_and_none_does_for_a_healthy_server() {
    let alerts: Vec<String> = of_rules().into_iter().map(|(name, _)| name).collect();
    assert_eq!(alerts, CASES.map(|(name, _)| name), "each alert has a case, in the same order");
    let mut tests = vec![fires(&[], &[])];
    tests.extend(CASES.iter().map(|(name, different)| {
        // A drain that is stuck does not write either.
        let also: &[&str] = if *name == "OctavoDrainStuck" { &["OctavoWritesStalled"] } else { &[] };
        fires(different, &[&[*name][..], also].concat())
    }));
    let Some(output) = promtool(&["test", "rules"], &test_file(&tests)) else { return };
    let (is_good, said) = verdict(&output);
    assert!(is_good, "{said}");
    for wrong in [fires(&[], &["OctavoDown"]), fires(&[("up{SERVER}", "0x60")], &[])] {
        let output = promtool(&["test", "rules"], &test_file(&[wrong])).unwrap();
        assert!(!output.status.success(), "{output:?}");
    }
}
