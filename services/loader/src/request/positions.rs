//! Rows of each batch: epochs, positions and sizes.

use std::{ops::Range, sync::Arc};

use forebay_plan::{Cursor, Packs};

use super::job::Job;

impl Job {
    /// Partitions that a rank reads of each dataset of the job, in every epoch. In the last, short step of an epoch it may
    /// take no rows from some of them.
    pub(crate) fn partitions_of(&self, rank: u32) -> Range<u32> {
        self.order.partitions.of_rank(rank, self.world_size())
    }

    /// Returns the epochs and positions of a partition of this dataset from which the rows of a batch of `rank` are taken, in
    /// order. There is one range, possibly empty, unless a partition of another dataset of a mixture reaches the end of
    /// an epoch: each of its partitions repeats on its own. With packs, the first call of an epoch takes O(groups).
    pub(crate) fn ranges(&self, partition: u32, at: Cursor, rank: u32) -> Vec<(u64, Range<u64>)> {
        let Some(steps) = self.mixture_steps else {
            return vec![(at.epoch, self.order.positions(partition, at, rank, || self.order_key()))];
        };
        let (partitions, global_batch) = (&self.order.partitions, self.global_batch());
        let offset = u64::from(rank) * self.own_batch_size();
        let part = partitions.part(global_batch, offset..offset + self.own_batch_size(), partition);
        let items = u128::from(partitions.items_of(partition));
        let per_step = u128::from(global_batch / u64::from(partitions.count()));
        let mut start = mixture_step(steps, at).wrapping_mul(per_step).wrapping_add(part.start.into());
        let mut left = u128::from(part.end - part.start);
        let mut ranges = Vec::new();
        while left > 0 {
            let (epoch, first) = (start / items, start % items);
            let taken = left.min(items - first);
            ranges.push((epoch as u64, first as u64..(first + taken) as u64));
            (start, left) = (start + taken, left - taken);
        }
        ranges
    }

    /// Number of rows of a dataset of a mixture before those of a batch, over all of its epochs.
    fn mixture_position(&self, steps: u64, at: Cursor, rank: u32) -> u128 {
        mixture_step(steps, at)
            .wrapping_mul(u128::from(self.global_batch()))
            .wrapping_add(u128::from(rank) * u128::from(self.own_batch_size()))
    }

    /// Position of a batch: in the epoch of its own dataset, and over all epochs of each other dataset.
    pub(crate) fn positions(&self, at: Cursor, rank: u32) -> (u64, Vec<u64>) {
        let of_mixed = |mixed: &Arc<Self>| {
            let steps = mixed.mixture_steps.unwrap_or(self.steps());
            mixed.mixture_position(steps, at, rank) as u64
        };
        (self.order.steps.rank(at.step, rank).start, self.mixed.iter().map(of_mixed).collect())
    }

    /// Number of consecutive rows of each dataset, its own first, in the repeating pattern of a batch. The numbers are
    /// the smallest that keep the fractions. Each rank has whole patterns, so the global batch is the same for any
    /// number of ranks.
    pub(crate) fn pattern(&self) -> Vec<usize> {
        let rows: Vec<u64> = self.parts().map(Self::own_batch_size).collect();
        let unit = rows.iter().copied().reduce(greatest_common_divisor).unwrap_or(1).max(1);
        rows.into_iter().map(|rows| (rows / unit) as usize).collect()
    }

    /// Number of rows, groups or packs that this dataset contributes to a batch of a rank.
    pub(crate) fn own_batch_size(&self) -> u64 {
        u64::from(self.order.steps.batch_size())
    }

    /// Size of a global batch of this dataset, in rows, groups or packs.
    pub(crate) fn global_batch(&self) -> u64 {
        self.order.steps.global_batch()
    }

    /// Approximate number of positions per step of all ranks in the order of a partition in an epoch.
    pub(crate) fn positions_per_step(&self) -> u64 {
        self.order.positions_per_step()
    }

    /// Returns the packs of an epoch, or `None` without packs. The first call for an epoch takes O(groups).
    pub(crate) fn packs(&self, epoch: u64) -> Option<Arc<Packs>> {
        self.order.packs(epoch, || self.order_key())
    }

    /// True if groups are packed, so that locating a batch requires the packs of its epoch.
    pub(crate) fn is_packed(&self) -> bool {
        self.order.packing.is_some()
    }

    /// Size of a full batch of a rank: in rows including padding, or in groups if groups are not packed.
    pub(crate) fn full_batch_size(&self) -> u64 {
        self.train().batch_size * self.order.packing.as_ref().map_or(1, |packing| packing.max_rows)
    }

    /// Minimum number of rows of every batch, including padding.
    pub(crate) fn min_rows(&self) -> usize {
        if self.order.is_padded() { self.full_batch_size() as usize } else { 0 }
    }

    /// Size of the batch at `at`, which may be the last of its epoch, in the unit of [`Self::full_batch_size`].
    pub(crate) fn size(&self, at: Cursor, rank: u32) -> u64 {
        let own = self.order.steps.rank(at.step, rank);
        let own = (own.end - own.start) * self.order.packing.as_ref().map_or(1, |packing| packing.max_rows);
        let others = self.mixed.iter().map(|mixed| mixed.own_batch_size()).sum::<u64>();
        (own + others).max(self.min_rows() as u64)
    }

    /// Mean size in bytes of one item counted by [`Self::size`], estimated from the footers.
    pub(crate) fn item_bytes(&self) -> u64 {
        let items = if self.is_packed() { self.epoch_rows() } else { self.rows.epoch_items };
        self.view().min_row_bytes().max(self.footprint.snapshot_bytes / items.max(1))
    }
}

/// Number of steps of a mixture before the one at `at`, over all epochs. Products with it wrap only beyond 2^64 epochs of both
/// datasets; the order then starts over.
fn mixture_step(steps: u64, at: Cursor) -> u128 {
    u128::from(at.epoch) * u128::from(steps) + u128::from(at.step)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
