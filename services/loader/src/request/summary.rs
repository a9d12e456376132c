//! Summary of a plan, and what a rank reads of it.

use std::collections::BTreeSet;

use forebay_plan::{EpochOrder, Shuffle};
use forebay_proto::v1;

use super::job::Job;

impl Job {
    /// Summary of the plan for the caller.
    pub fn summary(&self) -> v1::PlanSummary {
        let orders: Vec<EpochOrder> = self.order.orders(self.train().epoch).collect();
        let blocks = orders
            .iter()
            .flat_map(|order| (0..order.windows()).map(|window| order.window(window).blocks.len()));
        let is_partitioned = orders.len() > 1;
        v1::PlanSummary {
            snapshot: self.train().snapshot.clone(),
            plan_version: self.train().plan_version,
            plan_hash: format!("{:016x}", self.plan_hash()),
            rows: self.epoch_rows(),
            steps: self.steps(),
            window_rows: match self.order.shuffle {
                Shuffle::Window { rows, .. } => Some(rows),
                Shuffle::Global => Some(self.epoch_rows()),
                Shuffle::None => None,
            },
            windows: orders.iter().map(|order| order.windows() as u64).sum(),
            blocks_per_window: blocks.min().unwrap_or(0) as u64,
            window_bytes: self.held_bytes(|job, partition| {
                job.footprint.window_bytes(&job.order.epoch(partition, job.train().epoch))
            }),
            batch_size: self.train().batch_size,
            world_size: u64::from(self.world_size()),
            remainder: self.train().remainder,
            groups: self.rows.groups.as_ref().map(|_| self.rows.epoch_items),
            mixed_rows: self.mixed.iter().map(|mixed| mixed.own_batch_size()).sum(),
            packs: self.order.packing.as_ref().map(|packing| packing.packs),
            max_pack_rows: self.train().max_pack_rows,
            partitions: is_partitioned.then_some(orders.len() as u64),
            rank_blocks: is_partitioned.then(|| self.rank_blocks(&orders)),
            same_blocks_every_epoch: is_partitioned,
            unfiltered_rows: (self.epoch_rows() != self.snapshot().rows()).then(|| self.snapshot().rows()),
            empty_reason: self.empty_reason().unwrap_or_default(),
        }
    }

    /// Reason why an epoch has no step; `None` if it has steps.
    fn empty_reason(&self) -> Option<String> {
        if self.steps() > 0 {
            return None;
        }
        let (rows, stored) = (self.epoch_rows(), self.snapshot().rows());
        if rows == 0 {
            return Some(match stored {
                0 => "the dataset has no rows".to_owned(),
                stored => format!("the filter keeps none of {stored} rows"),
            });
        }
        let (items, name) = match (&self.order.packing, &self.rows.groups) {
            (Some(packing), _) => (packing.packs, "packs"),
            (None, Some(_)) => (self.rows.epoch_items, "groups"),
            (None, None) => (rows, "rows"),
        };
        let step = self.global_batch();
        Some(format!("{items} {name} are fewer than the {step} of one step, and remainder is DROP"))
    }

    /// Number of rows of this dataset that are decoded for an epoch of `ranks` if every block is decoded once: the kept
    /// rows of each block with an item in a partition of one of the ranks. The same in every epoch.
    ///
    /// # Panics
    /// If a rank is not below the world size.
    pub fn decoded_rows(&self, ranks: impl IntoIterator<Item = u32>) -> u64 {
        let partitions: BTreeSet<u32> = ranks.into_iter().flat_map(|rank| self.partitions_of(rank)).collect();
        let fragments =
            partitions.into_iter().flat_map(|partition| self.order.partitions.fragments(partition));
        let blocks: BTreeSet<u32> = fragments.filter(|part| part.items > 0).map(|part| part.block).collect();
        let rows = blocks.into_iter().flat_map(|block| self.rows.of_frame(block));
        rows.map(|rows| rows.rows.len() as u64).sum()
    }

    /// Memory for the windows that one stream holds, in bytes: of each dataset, one window of each partition that its rank reads. The
    /// maximum over the ranks, for windows of `bytes` of a dataset and partition.
    pub(crate) fn held_bytes(&self, bytes: impl Fn(&Self, u32) -> u64) -> u64 {
        let of_partition =
            |partition| self.parts().map(|job| bytes(job, partition)).fold(0, u64::saturating_add);
        let bytes: Vec<u64> = (0..self.order.partitions.count()).map(of_partition).collect();
        let held = |rank| self.partitions_of(rank).map(|partition| bytes[partition as usize]);
        (0..self.world_size()).map(|rank| held(rank).fold(0, u64::saturating_add)).max().unwrap_or(0)
    }

    /// Mean number of blocks in the windows from which a rank takes the rows of a batch, one window of each of its partitions.
    fn rank_blocks(&self, orders: &[EpochOrder]) -> f64 {
        let per_window = |order: &EpochOrder| {
            let blocks = (0..order.windows()).flat_map(|window| order.window(window).blocks);
            let blocks = blocks.filter(|block| self.is_needed(**block)).count();
            blocks as f64 / order.windows().max(1) as f64
        };
        let per_window: Vec<f64> = orders.iter().map(per_window).collect();
        let ranks = 0..self.world_size();
        let mixed: f64 = ranks
            .flat_map(|rank| self.partitions_of(rank))
            .map(|partition| per_window[partition as usize])
            .sum();
        mixed / f64::from(self.world_size())
    }
}
