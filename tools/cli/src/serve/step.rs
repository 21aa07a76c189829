//! The part of a reload that can be undone (`reload.rs`, steps 1 to 3): what to add, keep and
//! remove, and the actions that the engine or a store can refuse.

use std::collections::{HashMap, HashSet};

use octavo::{Limits, Object, Partition, PolicyName};
use octavo_block::Retired;
use serde::Serialize;
use toml::Spanned;

use super::build::{self, Opener, Shares};
use super::catalog::{Catalog, GRACE, Listed, Owned, State};
use super::lists::Named;
use super::mounts::{self, Mounted};
use super::tls;
use crate::config::mount::MountSection;
use crate::config::source::Problem;
use crate::config::{Config, ExportSection, GroupSection, PartitionSection, check, fixed};
use crate::control::{keys, tree};
use crate::error::Error;
use crate::limits;
use crate::mount::place;
use crate::remotes::Remotes;
use crate::units::human_bytes;

/// Why a configuration is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The server starts.
    Start,
    /// The server starts with what another one has served.
    Succeed,
    /// Only to find what is wrong with it: stores are not claimed, and nothing is recorded.
    Check,
    /// The file was read again. Whether clients of removed exports may be disconnected.
    Reload { disconnect: bool },
}

impl Purpose {
    /// How stores are opened.
    pub fn opener(self, remotes: &Remotes) -> Opener<'_> {
        Opener { remotes, claims: self != Purpose::Check, was_served: self == Purpose::Succeed }
    }
}

/// One thing that a reload did or deliberately left.
#[derive(Debug, Serialize)]
pub struct Change {
    /// `export`, `mount`, `partition`, `group`, `share` or `server`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// What happened to it, in a few words.
    pub change: String,
}

impl Change {
    /// A change of something.
    pub fn new(kind: &'static str, name: &str, change: String) -> Change {
        Change { kind, name: name.into(), change }
    }
}

/// What to do; sections are the new configuration's.
#[derive(Default)]
pub struct Plan<'c> {
    /// Partitions to make.
    pub partitions_added: Vec<&'c PartitionSection>,
    /// Partitions that get the settings of their sections.
    pub partitions_kept: Vec<(Partition, &'c PartitionSection)>,
    /// Partitions to remove.
    pub partitions_removed: Vec<Partition>,
    /// Directories to mount.
    pub mounts_added: Vec<&'c MountSection>,
    /// Directories that stay mounted, and whether the partitions of their files change.
    pub mounts_kept: Vec<(Mounted, &'c MountSection, bool)>,
    /// Directories to unmount.
    pub mounts_removed: Vec<Mounted>,
    /// Exports to open.
    pub exports_added: Vec<&'c ExportSection>,
    /// Exports to remove: those that the file no longer has, and those whose section has changed,
    /// which are added again. Each with its section in the file, if there is one.
    exports_removed: Vec<(String, Option<&'c ExportSection>)>,
    /// Exports whose stores cannot be opened until another export is closed.
    waiting: Vec<&'c ExportSection>,
    /// What the plan does, in words.
    pub changes: Vec<Change>,
}

impl Plan<'_> {
    /// The names of the exports to remove.
    fn exports_gone(&self) -> HashSet<&str> {
        self.exports_removed.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// A reload in progress. Dropping it undoes what was done, unless [`Step::keep`] was called.
pub struct Step<'a> {
    catalog: &'a Catalog,
    config: &'a Config,
    problems: Vec<Problem>,
    /// Undone from the last to the first.
    undo: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Step<'a> {
    /// A reload that has done nothing yet.
    pub fn new(catalog: &'a Catalog, config: &'a Config) -> Step<'a> {
        Step { catalog, config, problems: Vec::new(), undo: Vec::new() }
    }

    /// Fails with all problems found so far.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(Error::Config(self.config.source.lines(std::mem::take(&mut self.problems)))),
        }
    }

    /// Keeps what was done.
    pub fn keep(mut self) {
        self.undo.clear();
    }

    fn report<T>(&mut self, value: &Spanned<T>, message: impl AsRef<str>) {
        self.problems.push(self.config.source.problem(value.span().start, message));
    }

    /// Reports a problem with something that the file no longer has.
    fn report_missing(&mut self, message: String) {
        self.problems.push(Problem { offset: 0, message });
    }

    /// Step 1: compares the configuration with what the server has.
    pub fn plan(&mut self, state: &State) -> Plan<'a> {
        let config = self.config;
        let mut plan = Plan::default();
        if let Some(old) = &state.config {
            fixed::of_the_server(old, config, &mut self.problems);
        }
        for section in &config.partitions {
            let name = section.name.get_ref();
            match state.partitions.get(name) {
                Some(owned) => {
                    fixed::of_a_partition(&owned.section, section, &mut self.problems);
                    plan.partitions_kept.push((owned.partition.clone(), section));
                }
                None => plan.partitions_added.push(section),
            }
        }
        for section in &config.exports {
            let name = section.name.get_ref();
            let listed = state.exports.get(name);
            let is_same = |listed: &Listed| {
                listed.section.is_same(section) && config.partition_of(section) == Some(&listed.partition)
            };
            if listed.is_some_and(is_same) {
                continue;
            }
            let change = if listed.is_some() { "changed: removed and added again" } else { "added" };
            plan.changes.push(Change::new("export", name, change.into()));
            plan.exports_added.push(section);
            if listed.is_some() {
                plan.exports_removed.push((name.clone(), Some(section)));
            }
        }
        self.plan_mounts(&mut plan);
        self.plan_what_the_file_lacks(&mut plan, state);
        self.plan_shares(&mut plan, state);
        self.plan_stores(&mut plan, state);
        plan
    }

    /// Finds exports that `octavo ctl` added to share groups that end or get another partition.
    fn plan_shares(&mut self, plan: &mut Plan<'a>, state: &State) {
        let config = self.config;
        let gone = plan.exports_gone();
        for export in state.exports.iter() {
            let name = export.section.name.get_ref();
            let Some(group) = &export.section.share else { continue };
            let is_kept = !gone.contains(name.as_str());
            if !is_kept || config.partition_of(&export.section) == Some(&export.partition) {
                continue;
            }
            let group = group.get_ref();
            self.report_missing(format!(
                "the share group \"{group}\" is no longer in the file, or has another partition, but \"{name}\", which \
                 `octavo ctl` added, is in it"
            ));
        }
        for old in state.config.iter().flat_map(|old| &old.shares) {
            let name = old.name.get_ref();
            if !config.shares.iter().any(|share| share.name.get_ref() == name) {
                plan.changes.push(Change::new("share", name, "removed".into()));
            }
        }
        for share in state.config.is_some().then_some(&config.shares).into_iter().flatten() {
            let (name, partition) = (share.name.get_ref(), share.partition.get_ref());
            let old = state.config.iter().flat_map(|old| &old.shares).find(|old| old.name.get_ref() == name);
            match old {
                None => plan.changes.push(Change::new("share", name, "added".into())),
                Some(old) if old.partition.get_ref() != partition => {
                    let change = format!("partition {} -> {partition}", old.partition.get_ref());
                    plan.changes.push(Change::new("share", name, change));
                }
                Some(_) => {}
            }
        }
    }

    fn plan_mounts(&mut self, plan: &mut Plan<'a>) {
        let config = self.config;
        let mounted = self.catalog.mounts.list();
        for section in &config.mounts {
            let path = section.path.get_ref();
            let shown = path.display().to_string();
            let found = mounted.iter().find(|mounted| mounted.section.path.get_ref() == path);
            let Some(found) = found.filter(|found| !found.served.has_ended()) else {
                plan.changes.push(Change::new("mount", &shown, "mounted".into()));
                plan.mounts_added.push(section);
                continue;
            };
            if let Some(key) = found.section.fixed_difference(section) {
                let message = format!(
                    "{key} has changed, which cannot change while it is mounted; remove the mount from the file, \
                     reload, and add it again"
                );
                self.report(&section.path, message);
            }
            let is_new = !found.section.has_same_rules(section);
            if is_new {
                let change = "other partitions, for files that are opened from now on";
                plan.changes.push(Change::new("mount", &shown, change.into()));
            }
            plan.mounts_kept.push((found.clone(), section, is_new));
        }
        for mounted in mounted {
            let path = mounted.section.path.get_ref();
            if !config.mounts.iter().any(|section| section.path.get_ref() == path) {
                plan.changes.push(Change::new("mount", &path.display().to_string(), "unmounted".into()));
                plan.mounts_removed.push(mounted);
            }
        }
    }

    /// Reports partitions that are to be removed, but may have files of mounts that stay.
    fn keep_partitions_of_mounts(&mut self, plan: &Plan<'a>) {
        for partition in &plan.partitions_removed {
            for (kept, ..) in &plan.mounts_kept {
                if kept.served.partitions().iter().any(|name| name == partition.name()) {
                    self.report_missing(format!(
                        "partition \"{}\" is no longer in the file, but {} was mounted with it, and may have \
                         files in it",
                        partition.name(),
                        kept.served.path().display()
                    ));
                }
            }
        }
    }

    /// Step 2: checks the directories of new mounts.
    pub fn rehearse_mounts(&mut self, plan: &Plan<'a>) {
        for section in &plan.mounts_added {
            if let Err(why) = place::rehearse(section.source.get_ref(), section.path.get_ref()) {
                let is_source = place::source(section.source.get_ref()).is_err();
                self.report(if is_source { &section.source } else { &section.path }, why);
            }
        }
    }

    /// Mounts the directories of new sections.
    pub fn mount(&mut self, plan: &Plan<'a>, state: &State, made: &[Owned]) -> Vec<Mounted> {
        let mut mounted = Vec::new();
        for section in &plan.mounts_added {
            // A partition that could not be made has been reported.
            let partition = |name: &str| {
                let new = made.iter().find(|owned| owned.name() == name);
                new.or_else(|| state.partitions.get(name)).map(|owned| owned.partition.clone())
            };
            let Some(rules) = mounts::rules(section, partition) else { continue };
            match mounts::start(section, &self.catalog.cache, &self.catalog.remotes, rules) {
                Ok(new) => {
                    let undone = new.served.clone();
                    self.undo.push(Box::new(move || drop(undone.remove(GRACE))));
                    mounted.push(new);
                }
                Err(why) => self.report(&section.path, why),
            }
        }
        mounted
    }

    fn plan_what_the_file_lacks(&mut self, plan: &mut Plan<'a>, state: &State) {
        let config = self.config;
        let in_file: HashSet<&str> =
            config.exports.iter().map(|section| section.name.get_ref().as_str()).collect();
        let is_missing = |export: &&Listed| !in_file.contains(export.name());
        for export in state.exports.iter().filter(is_missing) {
            let name = export.section.name.get_ref();
            let change = match export.asked.is_none() {
                true => "removed",
                false => "kept: it is not in the file; `octavo ctl` added it",
            };
            plan.changes.push(Change::new("export", name, change.into()));
            if export.asked.is_none() {
                plan.exports_removed.push((name.clone(), None));
            }
        }
        let in_file: HashSet<&str> =
            config.partitions.iter().map(|section| section.name.get_ref().as_str()).collect();
        let gone = plan.exports_gone();
        let staying = state.exports.iter().filter(|export| !gone.contains(export.name()));
        let mut users: HashMap<&str, &str> = HashMap::new();
        for export in staying {
            users.entry(export.partition.as_str()).or_insert(export.name());
        }
        for owned in state.partitions.iter() {
            let name = owned.partition.name();
            if in_file.contains(name) {
                continue;
            }
            match (owned.asked.is_none(), users.get(name)) {
                (false, _) => {
                    let change = "kept: it is not in the file; `octavo ctl` added it";
                    plan.changes.push(Change::new("partition", name, change.into()));
                }
                (true, Some(export)) => self.report_missing(format!(
                    "partition \"{name}\" is no longer in the file, but \"{export}\", which `octavo ctl` added, uses it"
                )),
                (true, None) => {
                    plan.changes.push(Change::new("partition", name, "removed".into()));
                    plan.partitions_removed.push(owned.partition.clone());
                }
            }
        }
        self.keep_partitions_of_mounts(plan);
        let asked = state.partitions.iter().filter(|owned| owned.asked.is_some());
        let asked: HashMap<_, &Owned> =
            asked.map(|owned| (tree::path_of(owned.partition.name()), owned)).collect();
        for section in &plan.partitions_added {
            if let Some(owned) = asked.get(&tree::path_of(section.name.get_ref())) {
                let other = owned.partition.name();
                let why = format!(
                    "this and \"{other}\", which `octavo ctl` added, would be one directory of control.fs"
                );
                self.report(&section.name, why);
            }
        }
    }

    /// Finds the stores that other exports have open: exports that stay, which is a problem, and
    /// exports that are removed.
    fn plan_stores(&mut self, plan: &mut Plan<'a>, state: &State) {
        let mut by_store: HashMap<(u64, u64), Vec<&Listed>> = HashMap::new();
        for listed in state.exports.iter() {
            by_store.entry(listed.identity).or_default().push(listed);
        }
        let gone: HashSet<String> = plan.exports_gone().into_iter().map(str::to_owned).collect();
        for section in plan.exports_added.clone() {
            // A path that leads nowhere has been reported.
            let Ok(identity) = check::identity(section.path.get_ref()) else { continue };
            let conflicts = by_store.get(&identity).into_iter().flatten();
            let conflicts = conflicts.filter(|listed| listed.conflicts_with(identity, section.read_only));
            let mut is_waiting = false;
            for listed in conflicts {
                let name = listed.section.name.get_ref();
                if gone.contains(name) {
                    is_waiting = true;
                } else if listed.asked.is_some() {
                    let shown = section.path.get_ref().display();
                    let why =
                        format!("\"{shown}\" is exported already, as \"{name}\", which `octavo ctl` added");
                    self.report(&section.path, why);
                }
            }
            if is_waiting {
                plan.waiting.push(section);
            }
        }
    }

    /// Step 2: reads the certificates.
    pub fn load_tls(&mut self) -> Option<tls::Loaded> {
        tls::load(self.config, &mut self.problems)
    }

    /// Step 2: opens the stores of new exports without claiming them.
    pub fn rehearse(&mut self, plan: &Plan<'a>) {
        for section in &plan.exports_added {
            let opener = Opener { remotes: &self.catalog.remotes, claims: false, was_served: false };
            if let Err(why) = build::store(section, opener) {
                self.report(&section.path, why);
            }
        }
    }

    /// Retires the exports that are to be removed.
    pub fn retire(&mut self, plan: &Plan<'a>, disconnect: bool) -> Vec<Retired> {
        let mut retired = Vec::new();
        for (name, section) in &plan.exports_removed {
            match (self.catalog.retire(name, disconnect), section) {
                (Ok(export), _) => retired.push(export),
                (Err(why), Some(section)) => self.report(&section.name, format!("has changed, but {why}")),
                (Err(why), None) => self.report_missing(format!("it is no longer in the file, but {why}")),
            }
        }
        retired
    }

    /// Step 3: changes groups, and the limits and policies of partitions. Guarantees fall before
    /// others rise, because their sum has a bound.
    pub fn change_limits(&mut self, plan: &mut Plan<'a>, state: &State) {
        for partition in plan.partitions_removed.clone() {
            // Its guarantee is free for others. It cannot be refused, and nothing is evicted.
            let limits = Limits { min_bytes: 0, ..partition.limits() };
            let _ = self.change_partition(&partition, limits, None);
        }
        self.change_groups(plan, state);
        let mut kept = plan.partitions_kept.clone();
        kept.sort_by_key(|(partition, section)| {
            build::partition(section, None).min_bytes > partition.limits().min_bytes
        });
        for (partition, section) in kept {
            let config = build::partition(section, None);
            let (before, after) = (partition.limits(), config.limits());
            let (policy_before, policy) = (partition.stat().policy, config.policy);
            let mut texts = differences(&before, &after);
            let policy = (policy.name() != policy_before).then_some(policy);
            texts.extend(policy.map(|policy| format!("policy {policy_before} -> {}", policy.name())));
            if texts.is_empty() {
                continue;
            }
            match self.change_partition(&partition, after, policy) {
                Ok(()) => plan.changes.push(Change::new("partition", partition.name(), texts.join(", "))),
                Err(why) => self.blame(section, &why),
            }
        }
    }

    fn change_partition(
        &mut self,
        partition: &Partition,
        limits: Limits,
        policy: Option<PolicyName>,
    ) -> Result<(), String> {
        let (before, policy_before) = (partition.limits(), policy.and(policy_of(partition)));
        let cache = &self.catalog.cache;
        keys::Changes::new(limits, policy).make(cache, partition)?;
        let partition = partition.clone();
        self.undo.push(Box::new(move || {
            if let Err(why) = keys::Changes::new(before, policy_before).make(cache, &partition) {
                log::warn!("partition \"{}\": its limits cannot be restored: {why}", partition.name());
            }
        }));
        Ok(())
    }

    fn change_groups(&mut self, plan: &mut Plan<'a>, state: &State) {
        let cache = &self.catalog.cache;
        let mut wanted: Vec<(&str, Limits, Option<&GroupSection>)> = Vec::new();
        for section in &self.config.groups {
            wanted.push((section.name.get_ref(), build::group_limits(section), Some(section)));
        }
        for section in state.config.iter().flat_map(|old| &old.groups) {
            let name = section.name.get_ref();
            if !wanted.iter().any(|(other, ..)| other == name) {
                wanted.push((name, Limits::default(), None));
            }
        }
        for (name, limits, section) in wanted {
            let found = cache.groups().into_iter().find(|(group, _)| group == name);
            let before = found.map(|(_, limits)| limits).unwrap_or_default();
            let texts = differences(&before, &limits);
            if texts.is_empty() && state.config.is_some() {
                continue;
            }
            match (cache.begin_group(name, limits), section) {
                (Ok(owed), _) => {
                    keys::go_on_with(&owed, cache);
                    plan.changes.push(Change::new("group", name, texts.join(", ")));
                    let name = name.to_owned();
                    self.undo.push(Box::new(move || drop(cache.begin_group(&name, before))));
                }
                (Err(error), Some(section)) => self.report(&section.name, error.to_string()),
                (Err(error), None) => self.report_missing(error.to_string()),
            }
        }
    }

    /// Reports a refusal of the engine at the key that it is most likely about.
    fn blame(&mut self, section: &PartitionSection, why: &str) {
        match (&section.node, &section.max, &section.min) {
            (Some(node), ..) if why.contains("node") => self.report(node, why),
            (.., Some(min)) if why.contains("min") => self.report(min, why),
            (_, Some(max), _) => self.report(max, why),
            (Some(node), ..) => self.report(node, why),
            _ => self.report(&section.name, why),
        }
    }

    /// Makes the new partitions, and starts their recordings before anything is opened, so that
    /// they have every access.
    pub fn make_partitions(&mut self, plan: &mut Plan<'a>, state: &State, purpose: Purpose) -> Vec<Owned> {
        let is_first = state.partitions.is_empty();
        let shares = is_first.then(|| Shares::new(&self.catalog.cache, &self.config.partitions));
        let added = plan.partitions_added.clone();
        let configs = added.iter().map(|section| build::partition(section, shares.as_ref())).collect();
        let created = self.catalog.cache.create(configs);
        let mut made = Vec::new();
        for (section, created) in added.into_iter().zip(created) {
            let partition = match created {
                Ok(partition) => partition,
                Err(error) => {
                    self.blame(section, &error.to_string());
                    continue;
                }
            };
            let (catalog, undone) = (self.catalog, partition.clone());
            self.undo.push(Box::new(move || catalog.remove_made(&undone)));
            if purpose != Purpose::Check
                && let Err(why) = catalog.record(section, &partition)
                && let Some(file) = &section.record
            {
                self.report(file, why);
            }
            plan.changes.push(Change::new("partition", partition.name(), "added".into()));
            made.push(Owned { section: section.clone(), partition, asked: None });
        }
        made
    }

    /// Opens the objects of new exports. Returns them, and the exports whose stores another export
    /// has open that is to be removed.
    pub fn open(
        &mut self,
        plan: &Plan<'a>,
        state: &State,
        made: &[Owned],
        opener: Opener<'_>,
    ) -> (Vec<(ExportSection, Object)>, Vec<ExportSection>) {
        let new: HashMap<&str, &Owned> = made.iter().map(|owned| (owned.name(), owned)).collect();
        let waiting: HashSet<&str> =
            plan.waiting.iter().map(|section| section.name.get_ref().as_str()).collect();
        let mut opened = Vec::new();
        let mut later = Vec::new();
        for section in &plan.exports_added {
            if waiting.contains(section.name.get_ref().as_str()) {
                later.push((*section).clone());
                continue;
            }
            let name = self.config.partition_of(section).unwrap_or_default();
            let owned = new.get(name).copied().or_else(|| state.partitions.get(name));
            // A partition that could not be made has been reported.
            let Some(owned) = owned else { continue };
            let catalog = self.catalog;
            match catalog.open(section, &owned.partition, opener) {
                Ok(object) => {
                    let undone = (section.name.get_ref(), object.clone());
                    self.undo.push(Box::new(move || drop(catalog.close(undone.0, &undone.1))));
                    opened.push(((*section).clone(), object));
                }
                Err(why) => self.report(&section.path, why),
            }
        }
        (opened, later)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        while let Some(action) = self.undo.pop() {
            action();
        }
    }
}

fn policy_of(partition: &Partition) -> Option<PolicyName> {
    let name = partition.stat().policy;
    PolicyName::ALL.into_iter().find(|policy| policy.name() == name)
}

/// How limits differ, such as `max 32 MiB -> 64 MiB`.
fn differences(before: &Limits, after: &Limits) -> Vec<String> {
    let shown = |limits: &Limits, name: &str| {
        let text = limits::text(limits, name).unwrap_or_default();
        let is_size = name != "weight";
        text.parse().ok().filter(|_| is_size).map_or(text, human_bytes)
    };
    let names = limits::NAMES.into_iter();
    let differ = names.filter(|name| limits::text(before, name) != limits::text(after, name));
    differ.map(|name| format!("{name} {} -> {}", shown(before, name), shown(after, name))).collect()
}
