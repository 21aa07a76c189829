//! `octavo plan` as its users see it.

use octavo::{Cache, CacheConfig, PartitionConfig};

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

/// A server with the figures that `--fit` prints has frames for the working set.
#[test]
fn the_memory_that_fit_prints_holds_the_working_set() {
    for (size, partitions, page_bytes) in [(48 << 20, 1, 4096), (100 << 20, 3, 4096), (96 << 20, 2, 65536)] {
        let words = [size, partitions, page_bytes].map(|number: u64| number.to_string());
        let [size_word, partitions_word, page_word] = words.each_ref().map(String::as_str);
        let options = ["--fit", size_word, "--partitions", partitions_word, "--page-bytes", page_word];
        let text = octavo_succeeds(&[&["plan"][..], &options].concat());
        // From the text, because that is what people copy.
        let quoted = |before: &str| {
            let at = text.find(before).unwrap_or_else(|| panic!("{text}")) + before.len();
            let size = text[at..].split('"').next().unwrap();
            match size.strip_suffix("MiB") {
                Some(count) => count.parse::<u64>().unwrap() << 20,
                None => size.strip_suffix("KiB").unwrap().parse::<u64>().unwrap() << 10,
            }
        };
        let memory_max_bytes = quoted("memory_max = \"");
        let max_bytes = (partitions > 1).then(|| quoted(" max = \""));
        let page_bytes = page_bytes as u32;
        let config = CacheConfig { memory_max_bytes, page_bytes, ..CacheConfig::default() };
        let cache = Cache::new(config).unwrap();
        let partition = |number| {
            let config = PartitionConfig { max_bytes, ..PartitionConfig::new(&format!("p{number}")) };
            cache.partition(config).unwrap().stat().max_bytes
        };
        let frames_bytes: u64 = (0..partitions).map(partition).sum();
        assert!(frames_bytes >= size, "{frames_bytes} of {size}: {text}");
    }
}

#[test]
fn the_answer_of_fit_is_also_json_and_says_what_a_given_memory_holds() {
    let words = ["plan", "--fit", "1GiB", "--memory", "512MiB", "--json"];
    let lines = parsed(&octavo_succeeds(&words));
    assert_eq!((&lines[0]["answer"], &lines[1]["answer"]), (&"fit".into(), &"given".into()));
    for line in &lines {
        let of = |key: &str| line[format!("{key}_bytes")].as_u64().unwrap();
        let parts = ["frames", "metadata", "learning", "buffers", "rounding"].map(of);
        assert_eq!(parts.iter().sum::<u64>(), of("memory_max"), "{line}");
    }
    assert!(lines[0]["holds_bytes"].as_u64().unwrap() >= 1 << 30);
    assert_eq!(lines[1]["memory_max_bytes"], 512 << 20);
    let text = octavo_succeeds(&["plan", "--fit", "1GiB", "--memory", "512MiB"]);
    assert!(text.contains("memory_max = \"512MiB\" holds 4"), "{text}");
}

#[test]
fn sizes_that_no_cache_has_are_refused_with_a_reason() {
    for (words, word) in [
        ("--fit 0", "--fit 0 B: a working set of 0 bytes: less than 2097152 bytes, one segment"),
        ("--fit 1MiB", "one segment for each partition"),
        ("--fit 32MiB --page-bytes 1MiB --partitions 3", "less than 50331648 bytes"),
        ("--fit 1000TiB", "which the largest cache holds"),
        ("--fit 18446744073709551615", "is more than the largest size"),
        ("--fit 64MiB --page-bytes 5000", "page_bytes is 5000: a power of two"),
        ("--fit 64MiB --memory 1MiB", "--memory 1 MiB: memory_max_bytes is 1048576: too little"),
        ("--fit 64MiB --partitions 0", "0 is not in 1..=65535"),
        ("--fit 64MiB --trace a=gen:zipf:pages=10", "cannot be used with"),
        ("--partitions 2 --memory 8MiB --trace a=gen:zipf:pages=10", "cannot be used with"),
        ("--partitions 2 --memory 8MiB", "--fit <SIZE>"),
    ] {
        let output = octavo(&["plan"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{words}: {said}");
    }
}
