use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::{EpochOrder, Fragment, Shuffle, Steps};

/// Division of the items of a snapshot into partitions of equal size, each of which has an order of its own. An item is a
/// row, or a group of rows with `group_by`.
///
/// Each step consists of items of partition 0, then of partition 1, and so on. A rank therefore reads the blocks of few
/// partitions, and of the same ones in every epoch.
///
/// Each block is assigned to the partition with the fewest items so far, in the order of the blocks. Partitions with too
/// many items then give the last items of their last block to partitions with too few. This splits at most one block for
/// each partition. Blocks that are added at the end of a snapshot do not change the assignment of the blocks before them.
///
/// A single partition contains all blocks. Partitions occupy 12 bytes per block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    /// Fragments of all partitions, one partition after the other, each sorted by block.
    fragments: Vec<Fragment>,
    /// First fragment of each partition, followed by the number of fragments.
    starts: Vec<usize>,
    items: u64,
}

impl Partitions {
    /// Divides blocks with these numbers of items into `count` partitions. 0 counts as 1.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1 blocks.
    #[must_use]
    pub fn new(items_per_block: &[u32], count: u32) -> Self {
        let count = count.max(1);
        let mut lists = vec![Vec::new(); count as usize];
        for (block, (&items, partition)) in
            items_per_block.iter().zip(deal(items_per_block, count)).enumerate()
        {
            let block = u32::try_from(block).expect("a snapshot has fewer than 2^32 blocks");
            lists[partition as usize].push(Fragment { block, first: 0, items });
        }
        let items = items_per_block.iter().map(|&items| u64::from(items)).sum();
        level(&mut lists, items);
        let mut starts = vec![0];
        starts.extend(lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        }));
        Self { fragments: lists.concat(), starts, items }
    }

    /// Number of partitions; at least 1.
    #[must_use]
    pub fn count(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// Number of items in all partitions.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Number of items in a partition.
    #[must_use]
    pub fn items_of(&self, partition: u32) -> u64 {
        let Range { start, end } = self.share(self.items, partition);
        end - start
    }

    /// Fragments of a partition, sorted by block. No two are of the same block.
    ///
    /// # Panics
    /// If `partition` is not below [`count`](Self::count).
    #[must_use]
    pub fn fragments(&self, partition: u32) -> &[Fragment] {
        let partition = partition as usize;
        &self.fragments[self.starts[partition]..self.starts[partition + 1]]
    }

    /// Returns the range of a partition in `items` consecutive items, which the partitions divide evenly in their order.
    #[must_use]
    pub fn share(&self, items: u64, partition: u32) -> Range<u64> {
        share(items, partition, self.count())
    }

    /// Returns the partitions that rank `rank` of `world_size` reads. They are the same in every step.
    ///
    /// The partitions and the ranks divide the items of a step evenly, in their order. A rank therefore needs the same
    /// partitions in a short last step as in a full one.
    #[must_use]
    pub fn of_rank(&self, rank: u32, world_size: u32) -> Range<u32> {
        let (rank, world_size) = (u64::from(rank), u64::from(world_size.max(1)));
        let count = u64::from(self.count());
        (rank * count / world_size) as u32..((rank + 1) * count).div_ceil(world_size) as u32
    }

    /// Returns the items that rank `rank` takes from `partition` in a step, as positions in the order of the partition. May
    /// be empty. `steps` must be those of an epoch of [`items`](Self::items) items, with a global batch that is a multiple
    /// of [`count`](Self::count).
    ///
    /// # Panics
    /// If `rank` is not below the world size.
    #[must_use]
    pub fn positions(&self, steps: &Steps, step: u64, rank: u32, partition: u32) -> Range<u64> {
        let (global, own) = (steps.global(step), steps.rank(step, rank));
        let offsets = own.start - global.start..own.end - global.start;
        let part = self.part(global.end - global.start, offsets, partition);
        let Range { start, end } = self.share(global.start, partition);
        let before = end - start;
        before + part.start..before + part.end
    }

    /// Returns the intersection of `offsets` in a step of `step_items` items with the part of `partition` in this step, as
    /// offsets from the start of this part. May be empty.
    #[must_use]
    pub fn part(&self, step_items: u64, offsets: Range<u64>, partition: u32) -> Range<u64> {
        let part = self.share(step_items, partition);
        let offset = |offset: u64| offset.clamp(part.start, part.end) - part.start;
        offset(offsets.start)..offset(offsets.end)
    }

    /// Computes the order of a partition in an epoch. `shuffle` applies to the whole epoch. The minimum size of the windows
    /// of a partition is that of `shuffle`, divided by the number of partitions.
    ///
    /// # Panics
    /// If `partition` is not below [`count`](Self::count).
    #[must_use]
    pub fn epoch(&self, partition: u32, shuffle: Shuffle, seed: u64, epoch: u64) -> EpochOrder {
        let shuffle = match shuffle {
            Shuffle::Window { rows, keep_block_order } => {
                Shuffle::Window { rows: rows.div_ceil(u64::from(self.count())), keep_block_order }
            }
            other => other,
        };
        EpochOrder::of_partition((partition, self.fragments(partition)), shuffle, seed, epoch)
    }
}

/// Returns the range of partition `k` of `count` in `items` consecutive items.
fn share(items: u64, k: u32, count: u32) -> Range<u64> {
    let start = |k: u64| (u128::from(k) * u128::from(items) / u128::from(count)) as u64;
    start(u64::from(k))..start(u64::from(k) + 1)
}

/// Returns the partition of each block: the one to which the blocks before contribute the fewest items. If there are several
/// such partitions, it is the first of them.
fn deal(items_per_block: &[u32], count: u32) -> impl Iterator<Item = u32> {
    let mut fewest: BinaryHeap<_> = (0..count).map(|partition| Reverse((0_u64, partition))).collect();
    items_per_block.iter().map(move |&items| {
        let mut partition = fewest.peek_mut().expect("there is at least one partition");
        let Reverse((sum, number)) = &mut *partition;
        *sum += u64::from(items);
        *number
    })
}

/// Moves items between the partitions, so that each has its exact size.
///
/// Each partition with too many items gives up the last items of its last block. When this block was assigned, no other
/// partition had fewer items, so that the block has at least as many items as the partition must give up. Each partition
/// with too few items takes the missing ones from these items. It takes the last items of a block first.
fn level(lists: &mut [Vec<Fragment>], items: u64) {
    let count = lists.len() as u32;
    let missing = |list: &[Fragment], partition: usize| {
        let Range { start, end } = share(items, partition as u32, count);
        let found: u64 = list.iter().map(|fragment| u64::from(fragment.items)).sum();
        i128::from(end - start) - i128::from(found)
    };
    let missing: Vec<i128> = lists.iter().enumerate().map(|(at, list)| missing(list, at)).collect();
    let mut surplus = VecDeque::new();
    for (list, &missing) in lists.iter_mut().zip(&missing) {
        if let Ok(excess) = u64::try_from(-missing)
            && excess > 0
        {
            let last = list.last_mut().expect("a partition has the items that it has in excess");
            surplus.push_back(cut_tail(last, excess));
            if last.items == 0 {
                list.pop();
            }
        }
    }
    for (list, &missing) in lists.iter_mut().zip(&missing) {
        let mut missing = u64::try_from(missing).unwrap_or(0);
        while missing > 0 {
            let next = surplus.front_mut().expect("the excess of some is what others miss");
            let tail = cut_tail(next, missing);
            if next.items == 0 {
                surplus.pop_front();
            }
            missing -= u64::from(tail.items);
            list.push(tail);
        }
        list.sort_unstable();
    }
}

/// Removes at most `items` items from the end of `fragment` and returns them.
fn cut_tail(fragment: &mut Fragment, items: u64) -> Fragment {
    let items = u64::from(fragment.items).min(items) as u32;
    fragment.items -= items;
    Fragment { block: fragment.block, first: fragment.first + fragment.items, items }
}

#[cfg(test)]
mod tests;
