//! Makes the server match a configuration: at the start, when it has nothing, and whenever the file
//! is read again.
//!
//! 1. The configuration is read and checked, and compared with what the server has: which exports
//!    and partitions to add, keep and remove. Keys that cannot change are refused.
//! 2. Certificates are read. Stores of new exports are opened as a rehearsal. Exports to be removed
//!    are retired, if no client uses them. (With `disconnect`, this waits for step 4.)
//! 3. What the engine can refuse is done in a way that can be undone (`step.rs`): limits and
//!    policies, new partitions and their recordings, new objects.
//! 4. Exports to be removed are drained.
//! 5. The rest cannot be refused: objects are closed, partitions removed, exports offered.
//!
//! A problem in the steps 1 to 4 undoes everything, and the error lists every problem of the step.
//! What `octavo ctl` has added is kept, unless the file has something else of that name.

use std::collections::HashSet;

use octavo::Object;
use octavo_block::Retired;

use super::catalog::{Catalog, Listed, State};
use super::mounts::{self, Mounted};
use super::step::{Change, Purpose, Step};
use super::tls;
use crate::config::mount::MountSection;
use crate::config::{Config, ExportSection, bytes, check};
use crate::control::drain;
use crate::error::Error;
use crate::logger;
use crate::units::human_bytes;

impl Catalog {
    /// Reads the file again, and makes the server match it. `progress` gets the dirty bytes of the
    /// exports that are drained.
    ///
    /// # Errors
    /// Every reason why it is refused. Nothing was changed then, except if the error says so.
    pub fn reload(&self, disconnect: bool, progress: &mut dyn FnMut(u64)) -> Result<Vec<Change>, Error> {
        let file = self.file.as_deref().ok_or_else(|| {
            Error::failed("the server was started without a configuration file that can be read again")
        })?;
        let config = Config::read(file)?;
        check::doubtful(&config);
        self.apply(config, Purpose::Reload { disconnect }, progress)
    }

    /// Makes the server match a configuration.
    ///
    /// # Errors
    /// Those of [`Catalog::reload`].
    pub fn apply(
        &self,
        config: Config,
        purpose: Purpose,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<Change>, Error> {
        let mut state = self.state().map_err(Error::failed)?;
        let disconnect = matches!(purpose, Purpose::Reload { disconnect: true });
        let open = purpose.opener(&self.remotes);
        let mut step = Step::new(self, &config);

        let mut plan = step.plan(&state);
        let tls = step.load_tls();
        step.rehearse_mounts(&plan);
        if matches!(purpose, Purpose::Reload { .. }) {
            step.rehearse(&plan);
        }
        let mut retired = if disconnect { Vec::new() } else { step.retire(&plan, false) };
        step.check()?;

        step.change_limits(&mut plan, &state);
        let made = step.make_partitions(&mut plan, &state, purpose);
        let (opened, later) = step.open(&plan, &state, &made, open);
        let mounted = match purpose {
            Purpose::Check => Vec::new(),
            _ => step.mount(&plan, &state, &made),
        };
        step.check()?;

        if disconnect {
            retired = step.retire(&plan, true);
            step.check()?;
        }
        let failed = self.drain(&retired, progress);
        if !failed.is_empty() {
            return Err(Error::Failed(failed));
        }

        // Step 5.
        step.keep();
        let mut left = self.close_all(retired, &mut state);
        left.extend(self.unmount_all(&plan.mounts_removed));
        let used: HashSet<String> = state.exports.iter().map(|export| export.partition.clone()).collect();
        for partition in &plan.partitions_removed {
            if used.contains(partition.name()) {
                left.push(format!("partition \"{}\" stays with its exports", partition.name()));
                continue;
            }
            if let Some(path) = self.mounts.user_of(partition.name()) {
                left.push(format!("partition \"{}\" stays with the files of {path}", partition.name()));
                continue;
            }
            self.remove_made(partition);
            state.partitions.remove(partition.name());
        }
        for (partition, section) in &plan.partitions_kept {
            let before = partition.stat().dirty_max_bytes;
            partition.set_dirty_max(bytes(&section.dirty_max));
            let after = partition.stat().dirty_max_bytes;
            if before != after {
                let change = format!("dirty_max {} -> {}", human_bytes(before), human_bytes(after));
                plan.changes.push(Change::new("partition", partition.name(), change));
            }
        }
        made.into_iter().for_each(|owned| state.partitions.push(owned));
        self.adopt_mounts(plan.mounts_kept, mounted, &state);
        let mut changes = plan.changes;
        changes.extend(self.adopt_tls(tls, &mut state));
        left.extend(self.offer_all(&config, opened, later, &mut state, purpose));
        changes.extend(self.adopt(config, &mut state));
        if !left.is_empty() {
            left.push("everything else of the configuration is in force".into());
            return Err(Error::Failed(left));
        }
        Ok(changes)
    }

    /// Step 4. Returns why exports cannot be removed.
    fn drain(&self, retired: &[Retired], progress: &mut dyn FnMut(u64)) -> Vec<String> {
        let objects: Vec<Object> = retired.iter().map(|retired| retired.object().clone()).collect();
        let refusals = drain::drain(objects, self.drain_timeout.get(), progress);
        let line = |refusal: drain::Refusal| {
            let (name, reason, dirty) = (refusal.name, refusal.reason, human_bytes(refusal.dirty_bytes));
            format!(
                "export \"{name}\" cannot be removed: {reason}; {dirty} are not in its store and stay in the cache; \
                 nothing was changed"
            )
        };
        refusals.into_iter().map(line).collect()
    }

    /// Remembers the mounts, and gives those that stay their new rules.
    fn adopt_mounts(&self, kept: Vec<(Mounted, &MountSection, bool)>, added: Vec<Mounted>, state: &State) {
        for (Mounted { served, .. }, section, is_new) in kept {
            let partition = |name: &str| state.partition(name).ok().cloned();
            if is_new && let Some(rules) = mounts::rules(section, partition) {
                served.change_rules(rules);
            }
            self.mounts.put(Mounted { section: section.clone(), served });
        }
        added.into_iter().for_each(|mounted| self.mounts.put(mounted));
    }

    /// Unmounts directories. Returns why some could not be written.
    fn unmount_all(&self, removed: &[Mounted]) -> Vec<String> {
        let mut left = Vec::new();
        for Mounted { served, .. } in removed {
            let path = served.path().display();
            match served.remove(self.drain_timeout.get()) {
                Some(lost) => {
                    left.extend(lost.into_iter().map(|why| format!("mount {path}: {why}")));
                    self.mounts.forget(served);
                }
                None => left.push(format!("mount {path}: its directory does not take all bytes")),
            }
        }
        left
    }

    /// Closes drained exports. Returns why some could not be closed.
    fn close_all(&self, retired: Vec<Retired>, state: &mut State) -> Vec<String> {
        let mut left = Vec::new();
        for retired in retired {
            let name = retired.name().to_owned();
            match self.close(&name, retired.object()) {
                Ok(()) => {
                    self.let_go(retired);
                    state.exports.remove(&name);
                }
                Err(error) => left.push(format!("export \"{name}\" is still served: {error}")),
            }
        }
        left
    }

    /// Offers the new exports. Those of `later` are opened first: a removed export had their store.
    fn offer_all(
        &self,
        config: &Config,
        opened: Vec<(ExportSection, Object)>,
        later: Vec<ExportSection>,
        state: &mut State,
        purpose: Purpose,
    ) -> Vec<String> {
        let mut left = Vec::new();
        let later = later.into_iter().map(|section| {
            let partition = state.partition(config.partition_of(&section).unwrap_or_default());
            let object =
                partition.and_then(|partition| self.open(&section, partition, purpose.opener(&self.remotes)));
            (section, object)
        });
        let all: Vec<_> =
            opened.into_iter().map(|(section, object)| (section, Ok(object))).chain(later).collect();
        for (section, object) in all {
            let offered = object.and_then(|object| {
                let len_bytes = object.len_bytes();
                match purpose {
                    // A server may be running that has the sockets of this configuration.
                    Purpose::Check => Ok(len_bytes),
                    _ => self.offer(&section, object).map(|()| len_bytes),
                }
            });
            let identity = check::identity(section.path.get_ref());
            match (offered, identity) {
                (Ok(len_bytes), Ok(identity)) => {
                    let partition = config.partition_of(&section).unwrap_or_default().to_owned();
                    state.exports.push(Listed { section, partition, len_bytes, identity, asked: None });
                }
                (Err(why), _) | (_, Err(why)) => {
                    left.push(format!("export \"{}\" is not served: {why}", section.name.get_ref()));
                }
            }
        }
        left
    }

    /// Gives new clients the new certificates. Returns the change, unless the server starts.
    fn adopt_tls(&self, loaded: Option<tls::Loaded>, state: &mut State) -> Option<Change> {
        let mark = loaded.as_ref().map(|loaded| loaded.mark);
        if mark == state.tls_mark {
            return None;
        }
        state.tls_mark = mark;
        let change = match loaded.as_ref().map(|loaded| loaded.until) {
            None => "removed".into(),
            Some(None) => "new certificates".into(),
            Some(Some(until)) => format!("new certificates, valid until {}", tls::date(until)),
        };
        if let Err(error) = self.server.set_tls(loaded.map(|loaded| loaded.tls)) {
            // The addresses cannot change, and were checked.
            log::error!("{error}");
        }
        state.config.is_some().then(|| Change::new("server", "listen.tls", change))
    }

    /// Remembers the new configuration, and changes the settings that nothing can refuse.
    fn adopt(&self, mut config: Config, state: &mut State) -> Vec<Change> {
        let mut changes = Vec::new();
        let timeout = config.drain_timeout();
        if state.config.is_some() && self.drain_timeout.get() != timeout {
            changes.push(Change::new("server", "serve.drain_timeout", format!("{timeout:?}")));
        }
        self.drain_timeout.set(timeout);
        let (settings, wishes) = &self.log;
        let wanted = config.log.wishes();
        if state.config.as_ref().is_some_and(|old| old.log.wishes() != wanted) {
            changes.push(Change::new("server", "log", "changed".into()));
        }
        logger::change(settings.of_server(wishes, &wanted));
        for section in std::mem::take(&mut config.partitions) {
            let name = section.name.get_ref();
            if let Some(owned) = state.partitions.get_mut(name) {
                (owned.section, owned.asked) = (section, None);
            }
        }
        for section in std::mem::take(&mut config.exports) {
            let export = state.exports.get_mut(section.name.get_ref());
            if let Some(export) = export.filter(|export| export.section.is_same(&section)) {
                (export.section, export.asked) = (section, None);
            }
        }
        state.config = Some(config);
        changes
    }
}
