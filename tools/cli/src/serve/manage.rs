//! The verbs of the control protocol that change what is served.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::catalog::{Catalog, Refused};
use super::files;
use super::step::Change;
use crate::config::read;
use crate::config::{ExportSection, PartitionSection};
use crate::control::protocol::{Fault, Request, Verb};
use crate::error::Error;

/// Answers a request. `progress` gets the dirty bytes of the exports that are drained.
pub fn answer(
    catalog: &Catalog,
    verb: Verb,
    request: &Request,
    progress: &mut dyn FnMut(u64),
) -> Result<Value, Fault> {
    let progress = &mut |dirty_bytes| match dirty_bytes {
        0 => {}
        dirty_bytes => progress(dirty_bytes),
    };
    match verb {
        Verb::ExportAdd => add_export(catalog, request, false),
        Verb::ExportRemove => {
            let name = named(&request.object, "export")?;
            match catalog.remove_export(name, request.disconnect, progress) {
                Ok(()) => Ok(json!({"name": name})),
                Err(Refused { message, refusals }) => Err(Fault { message, objects: refusals }),
            }
        }
        Verb::ExportAbandon => {
            let name = named(&request.object, "export")?;
            let lost_bytes = catalog.abandon_export(name, request.confirmed)?;
            Ok(json!({"name": name, "lost_bytes": lost_bytes}))
        }
        Verb::ExportResize => {
            let name = named(&request.object, "export")?;
            let (former, now) = catalog.resize_export(name, request.bytes, request.shrink)?;
            Ok(json!({"name": name, "former_len_bytes": former, "len_bytes": now}))
        }
        Verb::PartitionAdd => {
            let name = named(&request.partition, "partition")?;
            let section: PartitionSection = section("partition", name, request)?;
            catalog.add_partition(section, request)?;
            Ok(json!({"name": name}))
        }
        Verb::PartitionRemove => {
            let name = named(&request.partition, "partition")?;
            catalog.remove_partition(name)?;
            Ok(json!({"name": name}))
        }
        Verb::Reload => {
            let file = catalog.file.clone();
            let changes = reload(catalog, request.disconnect, progress).map_err(lines)?;
            Ok(json!({"file": file, "changes": changes}))
        }
        Verb::Files => {
            let below = request.path()?;
            Ok(files::list(&catalog.cache, &catalog.mounts, below.as_deref())?)
        }
        Verb::FilesEvict => {
            let below = request.path()?.ok_or("the name of the file is missing".to_owned())?;
            Ok(files::evict(&catalog.mounts, &below)?)
        }
        _ => Err(Fault::from("this verb changes nothing that is served".to_owned())),
    }
}

/// Adds the export of a request. `was_served`: a server has served its file as a raw disk before.
pub fn add_export(catalog: &Catalog, request: &Request, was_served: bool) -> Result<Value, Fault> {
    let name = named(&request.object, "export")?;
    let section: ExportSection = section("export", name, request)?;
    let mut answer = json!({
        "name": name,
        "path": section.path.get_ref(),
        "read_only": section.read_only,
    });
    if let Some(share) = &section.share {
        answer["share"] = share.get_ref().as_str().into();
    }
    let (partition, len_bytes) = catalog.add_export(section, request, was_served)?;
    log::info!(event = "changed", export = name; "export \"{name}\" is added");
    answer["partition"] = partition.into();
    answer["len_bytes"] = len_bytes.into();
    Ok(answer)
}

/// Reloads the configuration, and logs what was changed or why it was refused.
pub fn reload(
    catalog: &Catalog,
    disconnect: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Change>, Error> {
    catalog.supervisor.reloading();
    let result = catalog.reload(disconnect, progress);
    let refused = if result.is_err() { "; the last reload failed" } else { "" };
    catalog.supervisor.ready(&(catalog.summary() + refused));
    match &result {
        Ok(changes) => {
            for change in changes {
                let Change { kind, name, change } = change;
                let name = name.as_str();
                match *kind {
                    "partition" => {
                        log::info!(event = "changed", partition = name; "reload: {kind} \"{name}\": {change}")
                    }
                    "export" => {
                        log::info!(event = "changed", export = name; "reload: {kind} \"{name}\": {change}")
                    }
                    _ => log::info!(event = "changed"; "reload: {kind} \"{name}\": {change}"),
                }
            }
            log::info!(event = "reload"; "reload: the configuration is in force");
        }
        Err(error) => {
            for line in error.lines() {
                log::error!(event = "reload"; "reload: {line}");
            }
        }
    }
    result
}

fn named<'r>(name: &'r Option<String>, what: &str) -> Result<&'r str, Fault> {
    name.as_deref().ok_or_else(|| format!("the name of the {what} is missing").into())
}

fn section<T: DeserializeOwned>(kind: &str, name: &str, request: &Request) -> Result<T, Fault> {
    read::section(kind, name, &request.values).map_err(|lines| lines.join("\n").into())
}

fn lines(error: Error) -> Fault {
    match error {
        Error::Config(lines) | Error::Failed(lines) => lines.join("\n").into(),
        other => other.lines().join("\n").into(),
    }
}
