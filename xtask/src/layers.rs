//! Checks the dependencies of each crate: our own crates point in one direction, and third-party
//! crates come from a list.
//!
//! `recording` -> `table`; `octavo` -> `recording`, `table`, `share`, `disk`, `message`; front ends
//! and bindings -> `octavo`; `examples` -> `octavo`, the front ends, the bindings; `sim` ->
//! `recording`, `table`, `share`; `bench` -> `octavo`, `table`, `disk`, the front ends and `sim`;
//! `python` -> `octavo`, `sim`; `cli` -> `bench`, `sim`, `web`, the front ends and most of the
//! engine. `random`, `draw` and `web` depend on nothing. The lists of third-party crates keep
//! protocols, command lines and vendors of metrics out of the engine. A new crate needs a line
//! here, so that its place is decided on purpose.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The crates that one crate of the workspace may depend on.
struct Layer {
    name: &'static str,
    /// Allowed crates of the workspace.
    own: &'static [&'static str],
    /// Allowed third-party crates.
    others: &'static [&'static str],
    /// Allowed third-party crates, in tests only.
    tests: &'static [&'static str],
}

/// All crates of the workspace. loom and shuttle are dependencies only under their `--cfg`.
const LAYERS: &[Layer] = &[
    Layer { name: "octavo-random", own: &[], others: &[], tests: &[] },
    Layer { name: "octavo-table", own: &["octavo-random"], others: &["libc", "loom", "shuttle"], tests: &[] },
    Layer { name: "octavo-recording", own: &["octavo-table", "octavo-random"], others: &[], tests: &[] },
    Layer { name: "octavo-share", own: &["octavo-random"], others: &[], tests: &[] },
    Layer {
        name: "octavo-disk",
        own: &["octavo-random"],
        others: &["libc", "log", "io-uring", "rustix", "shuttle"],
        tests: &["tempfile"],
    },
    Layer { name: "octavo-message", own: &[], others: &["loom", "shuttle"], tests: &[] },
    Layer {
        name: "octavo",
        own: &[
            "octavo-random",
            "octavo-table",
            "octavo-recording",
            "octavo-share",
            "octavo-disk",
            "octavo-message",
        ],
        others: &["libc", "log", "rustix", "shuttle", "slab", "twox-hash"],
        tests: &[],
    },
    Layer {
        name: "octavo-async",
        own: &["octavo", "octavo-random"],
        others: &["bytes", "futures-io", "log", "rustix", "shuttle", "tokio"],
        tests: &["libc"],
    },
    Layer {
        name: "octavo-block",
        own: &["octavo", "octavo-random"],
        others: &[
            "der",
            "libc",
            "log",
            "rustix",
            "rustls",
            "vhost",
            "virtio-bindings",
            "virtio-queue",
            "vm-memory",
        ],
        tests: &["blkio", "rcgen", "tempfile", "vmm-sys-util"],
    },
    Layer {
        name: "octavo-fuse",
        own: &["octavo", "octavo-random"],
        others: &["libc", "log", "rustix", "zerocopy"],
        tests: &["tempfile"],
    },
    Layer {
        name: "octavo-objects",
        own: &["octavo", "octavo-async", "octavo-random", "octavo-table"],
        others: &["bytes", "futures-util", "log", "lru", "rustix", "sha2", "tokio", "twox-hash"],
        tests: &["tempfile"],
    },
    Layer {
        name: "octavo-object-store-13",
        own: &["octavo", "octavo-objects", "octavo-random"],
        others: &["async-trait", "bytes", "futures-util", "object_store"],
        tests: &["tempfile", "tokio"],
    },
    Layer {
        name: "octavo-object-store-14",
        own: &["octavo", "octavo-objects", "octavo-random", "octavo-s3-stub"],
        others: &["async-trait", "bytes", "futures-util", "object_store"],
        tests: &["log", "reqwest", "rustls", "tempfile", "tokio", "tracing"],
    },
    Layer {
        name: "octavo-s3",
        own: &["octavo", "octavo-objects", "octavo-object-store-14", "octavo-s3-stub"],
        others: &[
            "async-trait",
            "chrono",
            "configparser",
            "fuser",
            "futures-util",
            "log",
            "lru",
            "object_store",
            "quick-xml",
            "reqwest",
            "rustix",
            "rustls",
        ],
        tests: &["tempfile"],
    },
    Layer {
        name: "octavo-s3-stub",
        own: &["octavo-random"],
        others: &["bytes", "http-body-util", "httpdate", "hyper", "hyper-util", "tokio"],
        tests: &["tempfile"],
    },
    Layer { name: "octavo-c", own: &["octavo"], others: &["libc", "log"], tests: &["cbindgen", "tempfile"] },
    Layer {
        name: "octavo-python",
        own: &["octavo", "octavo-sim"],
        others: &["libc", "pyo3"],
        tests: &["tempfile"],
    },
    Layer { name: "octavo-draw", own: &[], others: &[], tests: &[] },
    Layer {
        name: "octavo-bench",
        own: &[
            "octavo-random",
            "octavo-draw",
            "octavo-table",
            "octavo-disk",
            "octavo",
            "octavo-block",
            "octavo-fuse",
            "octavo-sim",
        ],
        others: &["blkio", "hdrhistogram", "libc", "lru", "rustix", "serde", "serde_json", "toml"],
        tests: &[],
    },
    Layer {
        name: "octavo-examples",
        own: &["octavo", "octavo-async", "octavo-block", "octavo-random"],
        others: &["tempfile", "tokio"],
        tests: &[],
    },
    Layer {
        name: "octavo-sim",
        own: &["octavo-random", "octavo-draw", "octavo-table", "octavo-recording", "octavo-share"],
        others: &["crc32fast", "csv", "flate2", "serde", "serde_json", "tempfile", "zstd"],
        tests: &[],
    },
    Layer {
        name: "octavo-web",
        own: &[],
        others: &[
            "bytes",
            "form_urlencoded",
            "futures-util",
            "http-body-util",
            "hyper",
            "hyper-util",
            "log",
            "rustix",
            "serde",
            "serde_json",
            "subtle",
            "tokio",
        ],
        tests: &["tempfile"],
    },
    Layer {
        name: "octavo-cli",
        own: &[
            "octavo-random",
            "octavo-draw",
            "octavo-table",
            "octavo-share",
            "octavo-disk",
            "octavo",
            "octavo-block",
            "octavo-fuse",
            "octavo-objects",
            "octavo-s3",
            "octavo-s3-stub",
            "octavo-bench",
            "octavo-sim",
            "octavo-web",
        ],
        others: &[
            "clap",
            "clap_complete",
            "fuser",
            "globset",
            "httparse",
            "libc",
            "log",
            "prometheus-client",
            "ratatui",
            "rustix",
            "serde",
            "serde_json",
            "signal-hook",
            "strsim",
            "time",
            "toml",
        ],
        tests: &["blkio"],
    },
    Layer { name: "octavo-instructions", own: &["octavo"], others: &[], tests: &[] },
    Layer { name: "xtask", own: &[], others: &["proc-macro2", "serde_json", "spdx", "syn"], tests: &[] },
];

/// The model checkers: crates that may be dependencies only under their own `--cfg`.
const UNDER_CFG: [&str; 2] = ["loom", "shuttle"];

/// Returns the output of `cargo metadata`. The error is a sentence.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Returns the problems of the workspace's dependencies, each as a sentence.
pub fn check(metadata: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    if packages.is_empty() {
        problems.push("cargo metadata lists no packages".into());
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            problems.push(format!(
                "{name}: this crate is not in the list of layers; add it in xtask/src/layers.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            problems.extend(layer.wrong(dependency).map(|what| format!("{name}: {what}")));
        }
    }
    problems
}

impl Layer {
    fn wrong(&self, dependency: &Value) -> Option<String> {
        let name = dependency["name"].as_str().unwrap_or_default();
        let own = dependency["path"].is_string();
        let dev = dependency["kind"].as_str() == Some("dev");
        if own {
            // A crate's tests may depend on the crate itself, with another feature.
            let allowed = self.own.contains(&name) || (dev && name == self.name);
            return (!allowed).then(|| {
                format!("must not depend on {name}: its layer does not allow that (xtask/src/layers.rs)")
            });
        }
        let allowed = self.others.contains(&name) || (dev && self.tests.contains(&name));
        if !allowed {
            return Some(format!("{name} is not on its list of third-party crates (xtask/src/layers.rs)"));
        }
        let conditional = dependency["target"].as_str().is_some_and(|target| target.contains(name));
        if UNDER_CFG.contains(&name) && !conditional && !dev {
            return Some(format!("{name} belongs under [target.\"cfg({name})\".dependencies]"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(package: &str, dependency: Value) -> Vec<String> {
        check(&json!({ "packages": [{ "name": package, "dependencies": [dependency] }] }))
    }

    #[test]
    fn the_workspace_keeps_its_layers() {
        let metadata = metadata(&crate::root()).unwrap();
        assert_eq!(check(&metadata), Vec::<String>::new());
        assert!(metadata["packages"].as_array().unwrap().len() >= LAYERS.len());
    }

    #[test]
    fn a_crate_that_looks_up_is_caught() {
        let up = problems("octavo-table", json!({ "name": "octavo", "path": "/r/engine/octavo" }));
        assert!(up[0].contains("must not depend on octavo"), "{up:?}");
        let beside = problems("octavo-block", json!({ "name": "octavo-fuse", "path": "/r/frontends/fuse" }));
        assert!(beside[0].contains("must not depend on octavo-fuse"), "{beside:?}");
        let past = problems("octavo-block", json!({ "name": "octavo-table", "path": "/r/engine/table" }));
        assert!(past[0].contains("must not depend on octavo-table"), "{past:?}");
        assert!(problems("octavo", json!({ "name": "octavo-table", "path": "/r/engine/table" })).is_empty());
    }

    #[test]
    fn a_protocol_or_a_command_line_in_the_engine_is_caught() {
        let clap = problems("octavo", json!({ "name": "clap" }));
        assert!(clap[0].contains("clap is not on its list"), "{clap:?}");
        let in_tests = problems("octavo-table", json!({ "name": "serde", "kind": "dev" }));
        assert!(in_tests[0].contains("serde is not on its list"), "{in_tests:?}");
        assert!(problems("octavo-cli", json!({ "name": "clap" })).is_empty());
    }

    #[test]
    fn a_model_checker_in_the_product_is_caught() {
        let always = problems("octavo-table", json!({ "name": "loom" }));
        assert!(always[0].contains("cfg(loom)"), "{always:?}");
        assert!(problems("octavo-table", json!({ "name": "loom", "target": "cfg(loom)" })).is_empty());
    }

    #[test]
    fn a_crate_without_a_layer_is_caught() {
        let stranger = check(&json!({ "packages": [{ "name": "octavo-util", "dependencies": [] }] }));
        assert!(stranger[0].contains("not in the list of layers"), "{stranger:?}");
    }
}
