//! Order of the items of an epoch, and its division into batches.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Weak},
};

use forebay_plan::{Cursor, EpochOrder, Packs, Partitions, Remainder, Run, Shuffle, Steps};
use forebay_storage::cache_key;
use parking_lot::Mutex;

use super::{packing::Packing, rows::JobRows};
use crate::cpu::off_io::{LongWork, assert_off_io_threads};

/// Order of a job: which items each batch takes, for any epoch.
#[derive(Debug)]
pub(crate) struct JobOrder {
    pub(crate) shuffle: Shuffle,
    seed: u64,
    /// Items of each partition; one partition has them all.
    pub(crate) partitions: Partitions,
    /// Number of items of each block.
    items: Arc<[u32]>,
    rows: u64,
    epoch_items: u64,
    pub(crate) steps: Steps,
    pub(crate) run: Run,
    pub(crate) packing: Option<Packing>,
    /// Text of everything that determines the order of an epoch.
    pub(crate) identity: String,
    /// Orders that streams hold, by partition and epoch.
    shared: Mutex<HashMap<(u32, u64), Weak<EpochOrder>>>,
}

impl JobOrder {
    /// Creates the order of `rows`. `prefix` and `selection` identify the snapshot, the plan version and the selected
    /// rows.
    pub(crate) fn new(
        rows: &JobRows,
        (shuffle, partitions, seed): (Shuffle, u32, u64),
        (steps, run): (Steps, Run),
        packing: Option<Packing>,
        (prefix, selection): (&str, &str),
    ) -> Self {
        let mut shuffled = match shuffle {
            Shuffle::Window { rows, keep_block_order: false } => format!("window {rows}"),
            Shuffle::Window { rows, keep_block_order: true } => format!("in_order {rows}"),
            Shuffle::Global => "global".to_owned(),
            Shuffle::None => "none".to_owned(),
        };
        if partitions > 1 {
            shuffled += &format!(" in {partitions} partitions");
        }
        let identity = format!("{prefix}/{seed}/{shuffled}{selection}");
        let (items, epoch_items, rows) = (Arc::clone(&rows.items), rows.epoch_items, rows.epoch_rows);
        let (partitions, shared) = (Partitions::new(&items, partitions), Mutex::default());
        Self { shuffle, seed, partitions, items, rows, epoch_items, steps, run, packing, identity, shared }
    }

    /// Key of the windows of an epoch of `dataset`. Jobs with the same key share windows.
    pub(crate) fn key(&self, dataset: &str) -> u128 {
        cache_key(format!("{dataset}/{}", self.identity).as_bytes())
    }

    /// Returns the order of a partition in `epoch`; O(blocks of the partition).
    pub(crate) fn epoch(&self, partition: u32, epoch: u64) -> EpochOrder {
        self.shuffled(self.shuffle, partition, epoch)
    }

    /// Returns the orders of all partitions in `epoch`; O(blocks).
    pub(crate) fn orders(&self, epoch: u64) -> impl Iterator<Item = EpochOrder> {
        (0..self.partitions.count()).map(move |partition| self.epoch(partition, epoch))
    }

    /// Returns the order of a partition in `epoch`, which all streams of the job share. O(blocks of the partition) unless
    /// a stream holds it.
    pub(crate) fn shared_epoch(&self, partition: u32, epoch: u64) -> Arc<EpochOrder> {
        let key = (partition, epoch);
        let known = || self.shared.lock().get(&key).and_then(Weak::upgrade);
        if let Some(order) = known() {
            return order;
        }
        let order = Arc::new(self.epoch(partition, epoch));
        let mut shared = self.shared.lock();
        if let Some(order) = shared.get(&key).and_then(Weak::upgrade) {
            return order;
        }
        shared.retain(|_, order| order.strong_count() > 0);
        shared.insert(key, Arc::downgrade(&order));
        order
    }

    /// Returns the order of a partition in `epoch` for the given shuffle. Windows are given in rows, even if the order counts
    /// groups.
    pub(crate) fn shuffled(&self, shuffle: Shuffle, partition: u32, epoch: u64) -> EpochOrder {
        assert_off_io_threads(LongWork::Order);
        let shuffle = match shuffle {
            Shuffle::Window { rows, keep_block_order } => {
                Shuffle::Window { rows: scaled(rows, self.epoch_items, self.rows), keep_block_order }
            }
            other => other,
        };
        self.partitions.epoch(partition, shuffle, self.seed, epoch)
    }

    /// Positions, in the order of `partition`, of its items in a batch of `rank`. With packs, the first call of an epoch
    /// takes O(groups).
    pub(crate) fn positions(
        &self,
        partition: u32,
        at: Cursor,
        rank: u32,
        key: impl FnOnce() -> u128,
    ) -> Range<u64> {
        // Groups are packed only without partitions.
        match self.packs(at.epoch, key) {
            Some(packs) => packs.groups(self.steps.rank(at.step, rank)),
            None => self.partitions.positions(&self.steps, at.step, rank, partition),
        }
    }

    /// Returns the packs of an epoch, or `None` without packs. The first call for an epoch takes O(groups).
    pub(crate) fn packs(&self, epoch: u64, key: impl FnOnce() -> u128) -> Option<Arc<Packs>> {
        self.packing.as_ref()?.of_epoch(epoch, key, &self.items, || self.epoch(0, epoch))
    }

    /// Approximate number of positions per step of all ranks in the order of a partition in an epoch.
    pub(crate) fn positions_per_step(&self) -> u64 {
        match &self.packing {
            Some(packing) => scaled(self.steps.global_batch(), self.epoch_items, packing.packs),
            None => self.steps.global_batch() / u64::from(self.partitions.count()),
        }
    }

    /// True if incomplete batches are padded.
    pub(crate) fn is_padded(&self) -> bool {
        self.steps.remainder() == Remainder::Pad
    }
}

/// Scales `count` by `to / from`, rounded up, at least 1.
pub(crate) fn scaled(count: u64, to: u64, from: u64) -> u64 {
    if to == from {
        return count;
    }
    let scaled = (u128::from(count) * u128::from(to)).div_ceil(u128::from(from.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(partitions: u32) -> JobOrder {
        let blocks: Arc<[u32]> = vec![10; 10].into();
        let rows = JobRows {
            kept: Arc::clone(&blocks),
            groups: None,
            items: blocks,
            epoch_rows: 100,
            epoch_items: 100,
        };
        let steps = Steps::new(100, 10, 1, Remainder::Short).unwrap();
        let run = Run::new(&steps, 0, 1, 0, None).unwrap();
        JobOrder::new(&rows, (Shuffle::Global, partitions, 7), (steps, run), None, ("snapshot", "/filter"))
    }

    #[test]
    fn streams_share_the_order_of_an_epoch_and_orders_that_no_stream_holds_are_dropped() {
        let order = order(1);
        let held: Vec<_> = (0..3).map(|epoch| order.shared_epoch(0, epoch)).collect();
        for (epoch, held) in (0..).zip(&held) {
            assert!(Arc::ptr_eq(held, &order.shared_epoch(0, epoch)), "epoch {epoch}");
        }
        assert_eq!(order.shared.lock().len(), 3);
        drop(held);
        let _next = order.shared_epoch(0, 3);
        assert_eq!(order.shared.lock().len(), 1);
    }

    #[test]
    fn the_identity_of_an_order_has_partitions_only_if_there_are_several() {
        assert_eq!(order(1).identity, "snapshot/7/global/filter");
        assert_eq!(order(2).identity, "snapshot/7/global in 2 partitions/filter");
    }

    #[test]
    fn counts_are_scaled_in_proportion_rounded_up_and_at_least_one() {
        assert_eq!(
            [(100, 30, 1000), (7, 10, 20), (3, 50, 10)].map(|(n, to, of)| scaled(n, to, of)),
            [3, 4, 15]
        );
        assert_eq!([(5, 9, 9), (1, 1, 1000), (0, 5, 10)].map(|(n, to, of)| scaled(n, to, of)), [5, 1, 1]);
        assert_eq!([(5, 10, 0), (u64::MAX, 4, 2)].map(|(n, to, of)| scaled(n, to, of)), [50, u64::MAX]);
    }
}
