//! Which worker reads which file.
//!
//! **Rendezvous hashing**: each worker has a score for each file, and the highest wins. A worker
//! that leaves moves only its own files, and gets the same ones when it returns. The score is the
//! first 8 bytes, big-endian, of SHA-256 over the worker's name, a zero byte and the file's path;
//! of equal scores, the smaller name wins. The Python package uses the same function.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::memory::DataSourceExec;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, RouteTasksEvent,
    RouteTasksEventResponse, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, WorkerResolver,
};
use sha2::{Digest, Sha256};
use url::Url;

/// How files are assigned to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Each file to the worker with the highest score.
    Affinity,
    /// Each file to a random worker, another one in each scan.
    Random,
    /// As the engine does it without us. datafusion-distributed cuts files into equal ranges, and
    /// sends a stage's tasks to the workers in turn, beginning with a random one. Ballista deals
    /// groups of files to the executors with the most free cores.
    Default,
}

impl Routing {
    pub const ALL: [Routing; 3] = [Routing::Default, Routing::Random, Routing::Affinity];

    pub fn name(self) -> &'static str {
        match self {
            Routing::Affinity => "affinity",
            Routing::Random => "random",
            Routing::Default => "as shipped",
        }
    }
}

/// The score of a worker for a file.
pub fn score(worker: &str, key: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(worker.as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

/// The number of the worker that reads a file. `workers` is not empty.
pub fn owner(workers: &[String], key: &str) -> usize {
    let best = (0..workers.len()).max_by(|a, b| {
        let scores = score(&workers[*a], key).cmp(&score(&workers[*b], key));
        scores.then_with(|| workers[*b].cmp(&workers[*a]))
    });
    best.expect("there are workers")
}

/// The workers that are there now, with their addresses.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    routing: Routing,
    present: Mutex<Vec<(String, Url)>>,
    /// Seeds the random assignment of the next scan.
    scans: AtomicU64,
}

impl Workers {
    pub fn new(routing: Routing, seed: u64) -> Workers {
        Workers(Arc::new(Inner { routing, present: Mutex::default(), scans: AtomicU64::new(seed) }))
    }

    /// Says which workers there are.
    ///
    /// A plan with one task in each stage is not distributed: the coordinator would read all files
    /// itself. A single worker is therefore listed twice, and runs two tasks.
    pub fn set(&self, mut workers: Vec<(String, Url)>) {
        if let [only] = &workers[..] {
            workers.push(only.clone());
        }
        workers.sort();
        *self.0.present.lock().unwrap_or_else(PoisonError::into_inner) = workers;
    }

    fn present(&self) -> Vec<(String, Url)> {
        self.0.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every scan has a task for each worker.
    pub fn desired_tasks(
        &self,
        event: &DesiredTaskCountEvent<'_>,
    ) -> Option<Result<DesiredTaskCountEventResponse>> {
        scan_of(event.plan)?;
        Some(Ok(DesiredTaskCountEventResponse::desired(self.present().len())))
    }

    /// Assigns the files of a scan to its tasks.
    pub fn scale_up(&self, event: &ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
        let scan = scan_of(event.plan)?;
        let plain = scan.output_ordering.is_empty() && scan.output_partitioning.is_none();
        if self.0.routing == Routing::Default || !plain {
            return None;
        }
        let workers: Vec<String> = self.present().into_iter().map(|(name, _)| name).collect();
        let files = scan.file_groups.iter().flat_map(|group| group.files().iter().cloned());
        let tasks = match self.0.routing {
            Routing::Random => self.assign(files, event.task_count, |random, _| random as usize),
            _ => self.assign(files, event.task_count, |random, path| {
                let owner = owner(&workers, path);
                // A worker that is listed twice has two tasks, which share its files.
                match workers.iter().filter(|worker| **worker == workers[owner]).count() {
                    2.. => random as usize,
                    _ => owner,
                }
            }),
        };
        // All tasks have as many partitions.
        let partitions = event.session_config.target_partitions();
        let variants = tasks.into_iter().map(|files| {
            let mut groups = vec![Vec::new(); partitions];
            for (number, file) in files.into_iter().enumerate() {
                groups[number % partitions].push(file);
            }
            let mut scan = scan.clone();
            scan.file_groups = groups.into_iter().map(FileGroup::new).collect();
            DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>
        });
        let leaf = DistributedLeafExec::try_new(event.plan.clone(), variants);
        Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
    }

    /// Deals files to `tasks` tasks. `choose` gets a random number and the path.
    fn assign(
        &self,
        files: impl Iterator<Item = PartitionedFile>,
        tasks: usize,
        choose: impl Fn(u64, &str) -> usize,
    ) -> Vec<Vec<PartitionedFile>> {
        let mut dealt = vec![Vec::new(); tasks];
        // Relaxed: any number will do.
        let scan = self.0.scans.fetch_add(1, Ordering::Relaxed);
        for file in files {
            let path = file.object_meta.location.as_ref();
            let random = score(&scan.to_string(), path);
            dealt[choose(random, path) % tasks].push(file);
        }
        dealt
    }

    /// Sends task i of each stage to worker i.
    pub fn route(&self, event: &RouteTasksEvent<'_>) -> Option<Result<RouteTasksEventResponse>> {
        if self.0.routing == Routing::Default {
            return None;
        }
        let present = self.present();
        let urls = (0..event.task_count).map(|task| present[task % present.len()].1.clone());
        Some(Ok(RouteTasksEventResponse::new(urls.collect())))
    }
}

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.present().into_iter().map(|(_, url)| url).collect())
    }
}

/// The files that a leaf of a plan scans. `None` for other nodes.
pub fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("worker-{number}")).collect()
    }

    #[test]
    fn the_score_is_that_of_the_python_package() {
        // sha256(b"worker-0\0lineitem/lineitem.1.parquet")[:8], big-endian.
        assert_eq!(score("worker-0", "lineitem/lineitem.1.parquet"), 0xc565_8d35_e289_f2b1);
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_files() {
        let (all, fewer) = (names(4), names(3));
        for file in 0..1000 {
            let key = format!("lineitem/lineitem.{file}.parquet");
            let before = owner(&all, &key);
            if before < 3 {
                assert_eq!(owner(&fewer, &key), before);
            }
        }
    }
}
