//! [`ByFile`]: the executor of each partition, by the file that it reads.
//!
//! Ballista calls a [`DistributionPolicy`] whenever a stage or an executor becomes ready, with the
//! executors that have free cores. A partition whose executor has none stays in the stage's queue:
//! the next call, at the latest when that executor's task has ended, finds it there.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::config::BallistaConfig;
use ballista_core::execution_plans::{RangeShuffleReaderExec, ShuffleReaderExec};
use ballista_core::serde::protobuf::AvailableVcores;
use ballista_core::serde::scheduler::TaskKey;
use ballista_scheduler::cluster::memory::InMemoryClusterState;
use ballista_scheduler::cluster::{BoundTask, ClusterState, DistributionPolicy};
use ballista_scheduler::state::execution_graph::{TaskDescription, create_task_info};
use ballista_scheduler::state::execution_stage::RunningStage;
use ballista_scheduler::state::task_manager::JobInfoCache;
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::files::file_of;
use crate::route::{Routing, owner, score};

/// Sends each partition that reads a file to the executor that the routing gives the file to, and
/// every other one to the executor with the most free cores.
pub struct ByFile {
    routing: Routing,
    /// A call tells only of executors with free cores; owners are chosen among all.
    executors: Arc<InMemoryClusterState>,
}

impl fmt::Debug for ByFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ByFile({})", self.routing.name())
    }
}

#[async_trait]
impl DistributionPolicy for ByFile {
    async fn bind_tasks(
        &self,
        mut budgets: Vec<&mut AvailableVcores>,
        running_jobs: Arc<HashMap<JobId, JobInfoCache>>,
    ) -> Result<Vec<BoundTask>> {
        let executors = self.executors.registered_executor_metadata().await;
        let mut executors: Vec<String> = executors.into_iter().map(|executor| executor.id).collect();
        executors.sort();
        let mut bound = Vec::new();
        for (job, info) in running_jobs.iter() {
            let mut graph = info.execution_graph.write().await;
            let session = graph.session_id().to_owned();
            let mut seen = Vec::new();
            while let Some(stage) = graph.fetch_running_stage(&seen) {
                seen.push(stage.stage_id);
                let chosen = self.choose(job, stage, &executors, &mut budgets);
                bound.extend(chosen.into_iter().map(|share| start(job, &session, stage, share)));
            }
        }
        Ok(bound)
    }

    fn name(&self) -> &str {
        self.routing.name()
    }
}

/// What one task runs.
struct Share {
    executor: String,
    partitions: Vec<usize>,
    cores: u32,
}

impl ByFile {
    pub fn new(routing: Routing, executors: Arc<InMemoryClusterState>) -> ByFile {
        ByFile { routing, executors }
    }

    /// Takes partitions from the stage's queue, and cores from the budgets.
    fn choose(
        &self,
        job: &JobId,
        stage: &mut RunningStage,
        executors: &[String],
        budgets: &mut [&mut AvailableVcores],
    ) -> Vec<Share> {
        let waiting = stage.pending.next_slice(usize::MAX);
        let mut shares: Vec<Share> = Vec::new();
        if is_whole(&stage.plan) {
            let first = waiting.first().copied();
            let wanted = first.and_then(|first| self.executor_of(job, stage, first, executors));
            match budget_of(budgets, wanted) {
                Some(budget) if first.is_some() => {
                    budget.vcores -= 1;
                    let executor = budget.executor_id.clone();
                    shares.push(Share { executor, partitions: waiting, cores: 1 });
                }
                _ => stage.pending.reschedule(waiting),
            }
            return shares;
        }
        let partitions_max = partitions_max(stage);
        let mut left = Vec::new();
        for partition in waiting {
            let wanted = self.executor_of(job, stage, partition, executors);
            let Some(budget) = budget_of(budgets, wanted) else {
                left.push(partition);
                continue;
            };
            budget.vcores -= 1;
            let open = shares.iter_mut().find(|share| {
                share.executor == budget.executor_id && share.partitions.len() < partitions_max
            });
            match open {
                Some(share) => {
                    share.partitions.push(partition);
                    share.cores += 1;
                }
                None => shares.push(Share {
                    executor: budget.executor_id.clone(),
                    partitions: vec![partition],
                    cores: 1,
                }),
            }
        }
        stage.pending.reschedule(left);
        shares
    }

    /// The executor that must run a partition. `None` if any may.
    fn executor_of<'e>(
        &self,
        job: &JobId,
        stage: &RunningStage,
        partition: usize,
        executors: &'e [String],
    ) -> Option<&'e str> {
        if executors.is_empty() {
            return None;
        }
        let file = file_of(&stage.plan, partition)?;
        let chosen = match self.routing {
            // Another one in each scan of each query.
            Routing::Random => score(&format!("{job}/{}", stage.stage_id), file) as usize % executors.len(),
            _ => owner(executors, file),
        };
        Some(&executors[chosen])
    }
}

/// The budget of an executor, or else the greatest one. `None` if it has no core left.
fn budget_of<'b>(
    budgets: &'b mut [&mut AvailableVcores],
    executor: Option<&str>,
) -> Option<&'b mut AvailableVcores> {
    let budgets = budgets.iter_mut().filter(|budget| budget.vcores > 0);
    let budget = match executor {
        Some(executor) => budgets.into_iter().find(|budget| budget.executor_id == executor),
        None => budgets.max_by_key(|budget| budget.vcores),
    };
    budget.map(|budget| &mut **budget)
}

/// The most partitions of a task, as the session is configured.
fn partitions_max(stage: &RunningStage) -> usize {
    let config = stage.session_config.options().extensions.get::<BallistaConfig>();
    match config.map_or(0, BallistaConfig::max_partitions_per_task) {
        0 => usize::MAX,
        most => most,
    }
}

/// Whether one task must run all partitions of a stage, because some node of it has a single one:
/// `stage_has_input_collapse` of Ballista's own policies, which is private.
fn is_whole(writer: &Arc<dyn ExecutionPlan>) -> bool {
    let mut node = writer;
    while let [child] = node.children()[..] {
        let reads_stage = child.downcast_ref::<ShuffleReaderExec>().is_some()
            || child.downcast_ref::<RangeShuffleReaderExec>().is_some();
        if reads_stage {
            return false;
        }
        if child.output_partitioning().partition_count() == 1 {
            return true;
        }
        node = child;
    }
    false
}

/// Enters a task into its stage: `bind_one` of Ballista's own policies, which is private.
fn start(job: &JobId, session: &str, stage: &mut RunningStage, share: Share) -> BoundTask {
    let task_id = stage.task_infos.len();
    let failures = share.partitions.iter().map(|partition| stage.task_failure_numbers[*partition]);
    let task_attempt = failures.max().unwrap_or(0);
    let mut info = create_task_info(share.executor.clone(), task_id);
    info.global_input_partition_ids = share.partitions.clone();
    info.vcores_consumed = share.cores;
    stage.task_infos.push(info);
    let task = TaskDescription {
        session_id: session.to_owned(),
        key: TaskKey { job_id: job.clone(), stage_id: stage.stage_id, task_id },
        stage_attempt_num: stage.stage_attempt_num,
        task_attempt,
        global_input_partition_ids: share.partitions,
        vcores_consumed: share.cores,
        plan: stage.plan.clone(),
        session_config: stage.session_config.clone(),
    };
    (share.executor, task)
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
    use datafusion::physical_plan::limit::LocalLimitExec;
    use datafusion::prelude::SessionConfig;

    use super::super::files::tests::scan;
    use super::*;

    const FILES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

    fn executors() -> Vec<String> {
        vec!["worker-0".to_owned(), "worker-1".to_owned()]
    }

    /// A stage over `input` whose partitions all wait.
    fn stage(input: Arc<dyn ExecutionPlan>) -> RunningStage {
        let partitions = FILES.len();
        let plan = Arc::new(LocalLimitExec::new(input, 1));
        let config = Arc::new(SessionConfig::new());
        RunningStage::new(1, 0, plan, partitions, Vec::new(), HashMap::new(), config)
    }

    fn files() -> Arc<dyn ExecutionPlan> {
        let each: Vec<[&str; 1]> = FILES.iter().map(|file| [*file]).collect();
        scan(&each.iter().map(|file| &file[..]).collect::<Vec<_>>())
    }

    fn choose(stage: &mut RunningStage, budgets: &[(&str, u32)]) -> Vec<Share> {
        let policy = ByFile::new(Routing::Affinity, Arc::default());
        let budgets = budgets.iter().copied();
        let mut budgets: Vec<AvailableVcores> =
            budgets.map(|(name, vcores)| AvailableVcores { executor_id: name.to_owned(), vcores }).collect();
        let mut budgets: Vec<&mut AvailableVcores> = budgets.iter_mut().collect();
        policy.choose(&JobId::new("job"), stage, &executors(), &mut budgets)
    }

    #[test]
    fn each_file_goes_to_its_owner() {
        let mut stage = stage(files());
        let shares = choose(&mut stage, &[("worker-0", 8), ("worker-1", 8)]);
        let mut sent = Vec::new();
        for share in &shares {
            for &partition in &share.partitions {
                assert_eq!(executors()[owner(&executors(), FILES[partition])], share.executor);
                sent.push(partition);
            }
        }
        sent.sort_unstable();
        assert_eq!(sent, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(shares.len(), 2, "both executors own files, and get one task each");
    }

    #[test]
    fn a_file_waits_for_its_owner_while_another_executor_is_free() {
        let mut stage = stage(files());
        let shares = choose(&mut stage, &[("worker-1", 8)]);
        let sent: usize = shares.iter().map(|share| share.partitions.len()).sum();
        assert!(sent > 0 && shares.iter().all(|share| share.executor == "worker-1"));
        let waiting = stage.pending.next_slice(usize::MAX);
        assert_eq!(waiting.len(), FILES.len() - sent);
        assert!(waiting.iter().all(|file| owner(&executors(), FILES[*file]) == 0), "{waiting:?}");
    }

    #[test]
    fn a_task_takes_no_more_cores_than_its_executor_has() {
        let mut stage = stage(files());
        let shares = choose(&mut stage, &[("worker-0", 1), ("worker-1", 2)]);
        let cores: Vec<u32> = shares.iter().map(|share| share.cores).collect();
        assert_eq!(cores.iter().sum::<u32>(), 3);
        assert_eq!(stage.pending.remaining(), FILES.len() - 3);
    }

    /// Two tasks would each have a part of what the single partition must gather.
    #[test]
    fn one_task_runs_all_partitions_of_a_stage_that_gathers_them() {
        let mut stage = stage(Arc::new(CoalescePartitionsExec::new(files())));
        let shares = choose(&mut stage, &[("worker-0", 2), ("worker-1", 2)]);
        assert_eq!(shares.len(), 1);
        assert_eq!((shares[0].partitions.len(), shares[0].cores), (FILES.len(), 1));
        assert!(stage.pending.is_empty());
    }
}
