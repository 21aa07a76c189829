//! Each file a partition of its scan, and back: which file a partition of a stage reads.
//!
//! Ballista sends partitions, and DataFusion groups files into partitions by their order in the
//! listing, before anybody knows where they go. A policy can therefore send files to their owners
//! only if no partition has files of two owners.
//!
//! This is a query planner because the scheduler's adaptive planner, which is on by default, drops
//! the physical optimizer rules of the session (`AdaptivePlanner::create_session_state`). It keeps
//! the query planner, whose plan it then optimizes itself.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::catalog::memory::DataSourceExec;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::Distribution;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::route::scan_of;

/// Plans as DataFusion does, with each file a partition of its scan.
#[derive(Debug)]
pub struct FilePlanner;

#[async_trait]
impl QueryPlanner for FilePlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await?;
        each_file_alone(plan)
    }
}

/// Gives each file of each scan a partition of its own. Scans whose partitions have a meaning stay
/// as they are.
fn each_file_alone(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|node| {
        let Some(scan) = scan_of(&node) else { return Ok(Transformed::no(node)) };
        if !scan.output_ordering.is_empty() || scan.output_partitioning.is_some() {
            return Ok(Transformed::no(node));
        }
        let files = scan.file_groups.iter().flat_map(|group| group.files().iter().cloned());
        let mut scan = scan.clone();
        scan.file_groups = files.map(|file| FileGroup::new(vec![file])).collect();
        Ok(Transformed::yes(DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(plan.data)
}

/// The file that a partition of a stage reads, or the first one of several. `None` for a partition
/// that reads what other stages wrote.
pub fn file_of(plan: &Arc<dyn ExecutionPlan>, partition: usize) -> Option<&str> {
    if let Some(scan) = scan_of(plan) {
        let file = scan.file_groups.get(partition)?.files().first()?;
        return Some(file.object_meta.location.as_ref());
    }
    if plan.downcast_ref::<UnionExec>().is_some() {
        let mut partition = partition;
        for child in plan.children() {
            let count = child.output_partitioning().partition_count();
            if partition < count {
                return file_of(child, partition);
            }
            partition -= count;
        }
        return None;
    }
    // An input that every task reads whole, such as the build side of a join, has no say in where a
    // partition of the others is read.
    let wanted = plan.input_distribution_requirements();
    let whole =
        wanted.per_child_distributions().map(|wanted| matches!(wanted, Distribution::SinglePartition));
    let (whole, parted): (Vec<_>, Vec<_>) =
        plan.children().into_iter().zip(whole).partition(|(_, whole)| *whole);
    parted.into_iter().chain(whole).find_map(|(child, _)| file_of(child, partition))
}

#[cfg(test)]
pub mod tests {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::JoinType;
    use datafusion::datasource::listing::PartitionedFile;
    use datafusion::datasource::object_store::ObjectStoreUrl;
    use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetSource};
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode};

    use super::*;

    /// A scan with a partition for each list of files.
    pub fn scan(partitions: &[&[&str]]) -> Arc<dyn ExecutionPlan> {
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
        let url = ObjectStoreUrl::parse("s3://tpch").expect("this is a URL");
        let groups = partitions
            .iter()
            .map(|files| FileGroup::new(files.iter().map(|file| PartitionedFile::new(*file, 1)).collect()));
        let scan = FileScanConfigBuilder::new(url, Arc::new(ParquetSource::new(schema)));
        DataSourceExec::from_data_source(scan.with_file_groups(groups.collect()).build())
    }

    #[test]
    fn each_file_becomes_a_partition_of_its_scan() {
        let plan = each_file_alone(scan(&[&["a", "b"], &["c"]])).expect("scans can be changed");
        assert_eq!(plan.output_partitioning().partition_count(), 3);
        let files: Vec<_> = (0..3).map(|partition| file_of(&plan, partition)).collect();
        assert_eq!(files, [Some("a"), Some("b"), Some("c")]);
    }

    /// The first partition of each probed table went to the owner of the small table before it.
    #[test]
    fn a_partition_of_a_join_is_one_of_the_probed_side() {
        let key = || Arc::new(Column::new("key", 0)) as Arc<dyn PhysicalExpr>;
        let join = HashJoinExecBuilder::new(
            scan(&[&["small"]]),
            scan(&[&["a"], &["b"]]),
            vec![(key(), key())],
            JoinType::Inner,
        );
        let join = join.with_partition_mode(PartitionMode::CollectLeft).build();
        let join: Arc<dyn ExecutionPlan> = Arc::new(join.expect("the keys have one type"));
        assert_eq!([file_of(&join, 0), file_of(&join, 1)], [Some("a"), Some("b")]);
    }

    #[test]
    fn a_partition_of_a_union_is_one_of_one_input() {
        let union = UnionExec::try_new(vec![scan(&[&["a"], &["b"]]), scan(&[&["c"]])]);
        let union = union.expect("the schemas are equal");
        let files: Vec<_> = (0..4).map(|partition| file_of(&union, partition)).collect();
        assert_eq!(files, [Some("a"), Some("b"), Some("c"), None]);
    }
}
