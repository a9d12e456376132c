//! Checks that a job fits in memory.

use forebay_plan::Shuffle;

use super::job::Job;
use crate::Error;

/// Maximum number of epochs whose windows are checked against the memory before a job starts. A window of a later epoch may
/// exceed the memory by one eighth.
const CHECKED_EPOCHS: u64 = 1024;
/// Maximum number of blocks, summed over the checked epochs, for that check. Takes about 0.1 s.
const CHECKED_BLOCKS: u64 = 1 << 23;

/// Maximum size of a window for memory of `memory_bytes` bytes. Footers can understate sizes a little, and the windows of late
/// epochs are not checked.
pub(crate) fn with_margin(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_add(memory_bytes / 8)
}

impl Job {
    /// Checks that a batch fits in `max_batch_bytes` by its fixed-width columns alone, and that the largest window fits
    /// in `memory_bytes`.
    ///
    /// # Errors
    /// [`Error::TooLarge`], with the largest window that fits, if any.
    pub(crate) fn check_fits(&self, memory_bytes: u64, max_batch_bytes: u64) -> Result<(), Error> {
        self.check_batch(max_batch_bytes)?;
        let needed = self.held_bytes(Self::largest_window);
        if needed <= memory_bytes {
            return Ok(());
        }
        let advice = match self.max_window_rows(memory_bytes) {
            Some(rows) => {
                format!("the largest shuffle.window_rows that fits is {rows}; or raise cache_memory")
            }
            None => {
                "no window fits: raise cache_memory, request fewer columns or write smaller row groups".into()
            }
        };
        let what = format!("the largest shuffle window of '{}'", self.train().dataset);
        Err(Error::TooLarge { what, needed, limit: memory_bytes, advice })
    }

    fn check_batch(&self, max_batch_bytes: u64) -> Result<(), Error> {
        let (rows, row_bytes) = (self.rows_per_batch(), self.view().min_row_bytes());
        let batch = rows.saturating_mul(row_bytes);
        if batch > max_batch_bytes {
            return Err(Error::batch_too_large(rows, batch, max_batch_bytes));
        }
        let Some(groups) = &self.rows.groups else { return Ok(()) };
        let needed = groups.longest.saturating_mul(row_bytes.max(1));
        if needed > max_batch_bytes || u32::try_from(groups.longest).is_err() {
            let what = format!("the longest group, of {} rows,", groups.longest);
            let advice = "group by columns with shorter groups, or exclude such rows by a filter".into();
            return Err(Error::TooLarge { what, needed, limit: max_batch_bytes, advice });
        }
        Ok(())
    }

    /// Mean number of rows of a full batch of a rank.
    fn rows_per_batch(&self) -> u64 {
        let (train, rows) = (self.train(), &self.rows);
        if self.is_packed() {
            return self.full_batch_size().min(rows.epoch_rows.max(self.min_rows() as u64));
        }
        if rows.groups.is_none() {
            return train.batch_size;
        }
        let groups = u128::from(train.batch_size.min(rows.epoch_items));
        (groups * u128::from(rows.epoch_rows) / u128::from(rows.epoch_items.max(1))) as u64
    }

    /// Size of the largest window of a partition in the first epochs, in bytes.
    fn largest_window(&self, partition: u32) -> u64 {
        let differ = matches!(self.order.shuffle, Shuffle::Window { keep_block_order: false, .. });
        let most = if differ { CHECKED_EPOCHS } else { 1 };
        let epochs = (CHECKED_BLOCKS / (self.rows.items.len() as u64 + 1)).clamp(1, most);
        let (first, count) = (self.train().epoch, self.train().epochs.unwrap_or(1).min(epochs));
        let largest = |epoch| self.footprint.window_bytes(&self.order.epoch(partition, epoch));
        (first..=first.saturating_add(count - 1)).map(largest).max().unwrap_or(0)
    }

    /// Largest `shuffle.window_rows` with windows of at most `memory_bytes` bytes.
    fn max_window_rows(&self, memory_bytes: u64) -> Option<u64> {
        let keep_block_order = matches!(self.order.shuffle, Shuffle::Window { keep_block_order: true, .. });
        let fits = |rows: u64| {
            let shuffle = Shuffle::Window { rows, keep_block_order };
            let largest = |job: &Self, partition| {
                let order = job.order.shuffled(shuffle, partition, self.train().epoch);
                job.footprint.window_bytes(&order)
            };
            self.held_bytes(largest) <= memory_bytes
        };
        // The size of a window does not grow strictly with its rows, so the result is a value that was tested.
        let (mut low, mut high) = (1, self.epoch_rows());
        let mut best = fits(low).then_some(low)?;
        while low <= high {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                best = middle;
                low = middle + 1;
            } else {
                high = middle - 1;
            }
        }
        Some(best)
    }
}
