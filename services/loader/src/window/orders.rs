//! Row orders of one partition of a dataset, for the epochs that one rank and lane uses.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use forebay_plan::{Cursor, EpochOrder};

use super::held::WindowId;
use crate::{Error, Job, Pool, Priority};

/// Maximum number of orders that are kept: one for the current window, and one for each of at most 8 prefetched windows.
const MAX_ORDERS: usize = 9;

/// Rows of one batch in one window.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) window: WindowId,
    pub(crate) positions: Range<u64>,
    pub(crate) order: Arc<EpochOrder>,
}

/// Orders of one partition of a dataset for one rank and lane.
pub(crate) struct Orders {
    job: Arc<Job>,
    partition: u32,
    rank: u32,
    lane: u32,
    /// Known orders, oldest first.
    known: VecDeque<(u64, Arc<EpochOrder>)>,
    pool: Pool,
}

impl Orders {
    pub(crate) fn new(job: Arc<Job>, partition: u32, (rank, lane): (u32, u32), pool: Pool) -> Self {
        Self { job, partition, rank, lane, known: VecDeque::new(), pool }
    }

    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Returns the order of `epoch`. Also computes the packs of the epoch.
    pub(crate) async fn order(&mut self, epoch: u64) -> Result<Arc<EpochOrder>, Error> {
        if let Some((_, order)) = self.known.iter().find(|(known, _)| *known == epoch) {
            return Ok(Arc::clone(order));
        }
        let (job, partition) = (Arc::clone(&self.job), self.partition);
        let compute = move || {
            job.packs(epoch);
            Ok(job.order.shared_epoch(partition, epoch))
        };
        let order = self.pool.run(Priority::Interactive, compute).await?;
        if self.known.len() >= MAX_ORDERS {
            self.known.pop_front();
        }
        self.known.push_back((epoch, Arc::clone(&order)));
        Ok(order)
    }

    /// Returns the rows of the batch at `cursor` in this partition, divided at the ends of windows. Only the last batch of an
    /// epoch can have none.
    pub(crate) async fn pieces(&mut self, cursor: Cursor) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::new();
        for (epoch, positions) in self.ranges(cursor).await? {
            let order = self.order(epoch).await?;
            let mut start = positions.start;
            while start < positions.end {
                let window = order.window_at(start);
                let end = order.window(window).positions.end.min(positions.end);
                let window = WindowId { partition: self.partition, epoch, window };
                pieces.push(Piece { window, positions: start..end, order: Arc::clone(&order) });
                start = end;
            }
        }
        Ok(pieces)
    }

    /// Returns the first batch of the lane, at or after `index`, that needs a window later than `window`. Returns `None` if
    /// there is no such batch.
    pub(crate) async fn batch_after(&mut self, window: WindowId, index: u64) -> Result<Option<u64>, Error> {
        let end = self.order(window.epoch).await?.window(window.window).positions.end;
        let count = self.job.batches(self.lane);
        let (mut low, mut high) = (index, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let cursor = self.job.cursor(self.lane, middle);
            let reaches_past = if self.job.is_packed() && cursor.epoch != window.epoch {
                // The packs of the epochs in between are not computed for this comparison.
                cursor.epoch > window.epoch
            } else {
                let ranges = self.job.ranges(self.partition, cursor, self.rank);
                ranges.last().is_some_and(|(epoch, range)| (*epoch, range.end) > (window.epoch, end))
            };
            if reaches_past { high = middle } else { low = middle + 1 }
        }
        // An empty batch is always the last of its epoch, so that of two consecutive batches one has rows.
        for index in low..count.min(low.saturating_add(2)) {
            let ranges = self.ranges(self.job.cursor(self.lane, index)).await?;
            let is_past = |(epoch, range): &(u64, Range<u64>)| {
                !range.is_empty() && (*epoch, range.end) > (window.epoch, end)
            };
            if ranges.iter().any(is_past) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Epochs and positions of the rows of a batch. Packs are computed on the pool, because that is slow.
    async fn ranges(&mut self, cursor: Cursor) -> Result<Vec<(u64, Range<u64>)>, Error> {
        if self.job.is_packed() {
            self.order(cursor.epoch).await?;
        }
        Ok(self.job.ranges(self.partition, cursor, self.rank))
    }
}
