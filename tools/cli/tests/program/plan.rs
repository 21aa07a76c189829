//! `octavo plan` as its users see it.

use crate::server::{Directory, octavo, octavo_succeeds, parsed};

const PLAN: [&str; 4] =
    ["plan", "--trace", "few=gen:zipf:pages=3000,requests=60000", "scan=gen:loop:pages=50000,requests=60000"];

#[test]
fn plans_are_compared_in_a_table_in_json_and_on_a_page() {
    let directory = Directory::new();
    let (json, html) = (directory.join("plan.json"), directory.join("plan.html"));
    let mut words = PLAN.to_vec();
    words.extend(["--memory", "8MiB", "--chunks", "8", "--limit", "few:min=1MiB", "--json"]);
    words.extend([json.to_str().unwrap(), "--html", html.to_str().unwrap()]);
    octavo_succeeds(&words);
    let outcomes = parsed(&std::fs::read_to_string(json).unwrap());
    let ways: Vec<&str> = outcomes.iter().map(|outcome| outcome["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["unified", "equal", "utility", "hindsight"]);
    assert!(outcomes.iter().all(|outcome| outcome["requests"] == 120_000));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("Sizes over time") && page.contains("scan"));
}

/// What is printed for octavo.toml is taken by the server's own check.
#[test]
fn the_partitions_that_plan_prints_are_a_valid_configuration() {
    let directory = Directory::new();
    let mut words = PLAN.to_vec();
    words.extend(["--memory", "64MiB", "--chunks", "8"]);
    let text = octavo_succeeds(&words);
    let at = text.find("# Partitions").unwrap_or_else(|| panic!("{text}"));
    let store = directory.join("disk.raw");
    std::fs::write(&store, vec![0; 1 << 20]).unwrap();
    let (config, socket) = (directory.join("octavo.toml"), directory.join("nbd.sock"));
    let whole = format!(
        "[cache]\nmemory_max = \"96MiB\"\n{}[[export]]\nname = \"few\"\npath = \"{}\"\npartition = \"few\"\n\
        [listen]\nnbd = \"unix:{}\"\n",
        &text[at..],
        store.display(),
        socket.display()
    );
    std::fs::write(&config, &whole).unwrap();
    octavo_succeeds(&["serve", "--check", "--config", config.to_str().unwrap()]);
    assert!(whole.contains("name = \"few\"\nmin = ") && whole.contains("name = \"scan\""), "{whole}");
}

#[test]
fn invalid_tenants_are_refused_with_a_reason() {
    for (words, word) in [
        ("gen:zipf:pages=10 --memory 8MiB", "expected a name and a file"),
        ("a=gen:zipf:pages=10 a=gen:loop:pages=9 --memory 8MiB", "given twice"),
        ("a=gen:zipf:pages=10 --memory 8KiB", "at least"),
        ("a=gen:zipf:pages=10 --memory 8MiB --limit b:min=1", "no tenant is called"),
        ("a=gen:zipf:pages=10 --memory 8MiB --limit a:mn=1", "there is no limit \"mn\""),
        ("a=/nowhere/at/all.u64 --memory 8MiB", "/nowhere/at/all.u64"),
    ] {
        let output = octavo(&["plan", "--trace"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{words}: {said}");
    }
}
