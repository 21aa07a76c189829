//! Checks third-party crates: their licences, their sources, and duplicate versions.
//!
//! The check reads only the output of `cargo metadata`, for the two platforms that we build for, so
//! it runs wherever cargo does. [`layers`](crate::layers) checks which crate may depend on which.
//! Security advisories change without any commit here, so they are not a part of the gate: `cargo
//! xtask deny` checks them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};

/// The platforms whose dependencies are checked.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The licences that crates in a program under "Apache-2.0 OR MIT" may have.
const LICENCES: [&str; 8] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates of tests with another licence. They are in no program; the step `layers` checks that.
const TEST_LICENCES: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

/// The only allowed source of third-party crates.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that are allowed in several versions, each with the reason. An entry whose crate has only
/// one version is an error.
const DUPLICATES: &[(&str, &str)] = &[
    ("bitflags", "blkio, of the benchmarks and tests of vhost-user, has not moved to 2"),
    ("crypto-common", "crc-fast, below object_store 0.14, has not moved to 0.2"),
    ("digest", "crc-fast, below object_store 0.14, has not moved to 0.11"),
    ("getrandom", "ring, below rustls, has not moved to 0.4"),
    ("itertools", "ratatui and object_store 0.13 have not moved to 0.15"),
    ("linux-raw-sys", "rustix 0.38, below blkio"),
    ("object_store", "query engines need 0.13, others 0.14: there is a wrapper for each"),
    ("rustix", "blkio, of the benchmarks and tests of vhost-user, has not moved to 1"),
    ("signal-hook", "crossterm, below ratatui, has not moved to 0.4"),
    ("syn", "derive macros are moving from 2 to 3; they are not in the program"),
    ("synstructure", "derive macros, below rcgen and url; they are not in the program"),
    ("toml", "cbindgen, of a test, has not moved to 1"),
    ("toml_datetime", "toml 0.9, below cbindgen"),
    ("winnow", "toml 0.9, below cbindgen"),
];

/// Returns the output of `cargo metadata` with all dependencies. The error is a sentence.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version=1", "--locked"]).current_dir(root);
    for platform in PLATFORMS {
        cargo.args(["--filter-platform", platform]);
    }
    let output = cargo.output().map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Returns the problems of third-party crates, each as a sentence.
pub fn check(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    if packages.is_empty() {
        return vec!["cargo metadata lists no packages".into()];
    }
    let mut problems: Vec<String> = packages.iter().flat_map(of_package).collect();
    problems.extend(duplicates(packages));
    problems
}

fn of_package(package: &Value) -> Vec<String> {
    let name = format!(
        "{} {}",
        package["name"].as_str().unwrap_or_default(),
        package["version"].as_str().unwrap_or_default()
    );
    let mut problems = Vec::new();
    let Some(source) = package["source"].as_str() else {
        // One of our own crates: it must state the versions of its dependencies.
        let wanted = package["dependencies"].as_array().into_iter().flatten();
        let any = wanted.filter(|wanted| wanted["req"] == "*" && !wanted["path"].is_string());
        problems.extend(
            any.map(|wanted| format!("{name} accepts any version of {}: state a version", wanted["name"])),
        );
        return problems;
    };
    if source != REGISTRY {
        problems.push(format!("{name} comes from {source}; crates come from crates.io"));
    }
    let licence = package["license"].as_str().unwrap_or_default();
    let of_tests = TEST_LICENCES.iter().find(|(known, _)| package["name"] == *known);
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Err(_) => problems.push(format!("{name}: \"{licence}\" is not a valid licence expression")),
        Ok(expression) => {
            let allowed = |wanted: &str| {
                LICENCES.contains(&wanted) || of_tests.is_some_and(|(_, licence)| *licence == wanted)
            };
            if !expression.evaluate(|wanted| allowed(&wanted.to_string())) {
                problems.push(format!("{name}: the licence {licence} is not on the list of licences"));
            }
        }
    }
    problems
}

fn duplicates(packages: &[Value]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        versions.entry(word("name")).or_default().push(word("version"));
    }
    let is_known = |name: &str| DUPLICATES.iter().any(|(known, _)| *known == name);
    let mut problems = Vec::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        if !is_known(name) {
            problems.push(format!(
                "{name} has the versions {}: use only one of them, or add the crate and the reason to {}",
                versions.join(" and "),
                file!()
            ));
        }
    }
    for (name, _) in DUPLICATES {
        if versions.get(name).is_none_or(|versions| versions.len() < 2) {
            problems.push(format!("{name} no longer has several versions: remove it from {}", file!()));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the problems of one package that is added to the allowed duplicates.
    fn problems(package: Value) -> Vec<String> {
        let both = DUPLICATES.iter().flat_map(|(name, _)| [crate_of(name, "MIT"), crate_of(name, "MIT")]);
        let packages: Vec<Value> = both.chain([package]).collect();
        check(&json!({ "packages": packages }))
    }

    fn crate_of(name: &str, licence: &str) -> Value {
        json!({ "name": name, "version": "1.0.0", "source": REGISTRY, "license": licence })
    }

    #[test]
    fn the_dependencies_are_allowed() {
        assert_eq!(check(&metadata(&crate::root()).unwrap()), Vec::<String>::new());
    }

    #[test]
    fn a_licence_that_is_not_on_the_list_is_caught() {
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-2.0) AND Unicode-3.0"] {
            assert_eq!(problems(crate_of("a", good)), Vec::<String>::new(), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0", "Apache-2.0 WITH Classpath-exception-2.0"] {
            let found = problems(crate_of("a", bad));
            assert!(found.len() == 1 && found[0].contains("not on the list of licences"), "{bad}: {found:?}");
        }
        for none in ["", "my own"] {
            assert!(problems(crate_of("a", none))[0].contains("not a valid licence expression"), "{none}");
        }
    }

    #[test]
    fn a_crate_from_elsewhere_is_caught() {
        let mut stranger = crate_of("a", "MIT");
        stranger["source"] = json!("git+https://example.org/a");
        assert!(problems(stranger)[0].contains("comes from git+https://example.org/a"));
    }

    #[test]
    fn any_version_is_caught() {
        let own = |req: &str| {
            json!({ "name": "a", "version": "1.0.0", "source": null,
                    "dependencies": [{ "name": "b", "req": req }, { "name": "c", "req": "*", "path": "/c" }] })
        };
        assert!(problems(own("*"))[0].contains("any version of \"b\""));
        assert_eq!(problems(own("^1.0")), Vec::<String>::new());
    }

    #[test]
    fn a_second_version_is_caught_and_so_is_a_reason_without_one() {
        let packages = [crate_of("a", "MIT"), crate_of("a", "MIT")];
        let found = check(&json!({ "packages": packages }));
        assert!(found[0].contains("a has the versions 1.0.0 and 1.0.0"), "{found:?}");
        assert_eq!(found.len(), 1 + DUPLICATES.len());
        assert!(found[1].contains("no longer has several versions"), "{found:?}");
    }
}
