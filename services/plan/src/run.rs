use crate::congruence::Solutions;
use crate::{Error, Steps};

/// Position of a batch in training. A trainer saves it to resume from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// Epoch number, which is part of the keys.
    pub epoch: u64,
    /// Step in the epoch.
    pub step: u64,
}

/// The batches of one rank, numbered `j` = 0, 1, ... from the first one sent, across epochs. The numbering is the same
/// for every rank.
///
/// Lane `l` of `k` carries the batches with `j` = `l` modulo `k`. Taking one batch from each lane in turn, beginning
/// with lane 0, restores the order.
///
/// Epochs and batches beyond number 2^64 - 1 are not part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    first: Cursor,
    /// Number of steps in an epoch.
    steps: u64,
    len: u64,
}

impl Run {
    /// Creates the run of `epochs` epochs from `epoch`, beginning with `start_step` of the first one, and of at most
    /// `limit` batches. A `start_step` of [`Steps::count`] is the start of the next epoch; without a next epoch the
    /// run is empty.
    ///
    /// # Errors
    /// [`Error::StartStepPastEnd`] if `start_step` is more than [`Steps::count`].
    pub fn new(
        steps: &Steps,
        epoch: u64,
        epochs: u64,
        start_step: u64,
        limit: Option<u64>,
    ) -> Result<Self, Error> {
        let steps = steps.count();
        if start_step > steps {
            return Err(Error::StartStepPastEnd { start_step, steps });
        }
        let epochs = epochs.min((u64::MAX - epoch).saturating_add(1));
        let len = match epochs.checked_sub(1) {
            Some(later) => (steps - start_step).saturating_add(later.saturating_mul(steps)),
            None => 0,
        };
        let len = limit.map_or(len, |limit| limit.min(len));
        Ok(Self { first: Cursor { epoch, step: start_step }, steps, len })
    }

    /// Number of batches.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are no batches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the position of the `j`-th batch.
    ///
    /// # Panics
    /// If `j` is not below [`len`](Self::len).
    #[must_use]
    pub fn cursor(&self, j: u64) -> Cursor {
        assert!(j < self.len, "batch {j} of a run of {}", self.len);
        let Cursor { epoch, step } = self.first;
        let Some(later) = j.checked_sub(self.first_epoch_len()) else {
            return Cursor { epoch, step: step + j };
        };
        Cursor { epoch: epoch + 1 + later / self.steps, step: later % self.steps }
    }

    /// Number of batches that lane `lane` of `lanes` carries.
    ///
    /// # Panics
    /// If `lane` is not below `lanes`.
    #[must_use]
    pub fn lane_len(&self, lane: u32, lanes: u32) -> u64 {
        assert!(lane < lanes, "lane {lane} of {lanes}");
        self.len.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes))
    }

    /// Iterates over the batches that lane `lane` of `lanes` carries, in order: `lane`, `lane + lanes`, ...
    ///
    /// # Panics
    /// If `lane` is not below `lanes`.
    pub fn lane(&self, lane: u32, lanes: u32) -> impl Iterator<Item = u64> + use<> {
        let batches = self.lane_len(lane, lanes);
        (0..batches).map(move |i| u64::from(lane) + i * u64::from(lanes))
    }

    /// Exact number of rows that lane `lane` of `lanes` delivers to rank `rank`, computed in constant time. `steps`
    /// must be those of [`new`](Self::new).
    ///
    /// # Panics
    /// If `lane` is not below `lanes`, or `rank` not below the world size.
    #[must_use]
    pub fn lane_rows(&self, steps: &Steps, rank: u32, lane: u32, lanes: u32) -> u64 {
        debug_assert_eq!(steps.count(), self.steps, "the steps of another run");
        let batch_size = u64::from(steps.batch_size());
        let short = self.lane_short_batches(steps, lane, lanes);
        let full = self.lane_len(lane, lanes) - short;
        full.saturating_mul(batch_size).saturating_add(short.saturating_mul(steps.short_rows(rank)))
    }

    /// Number of batches of the short step in a lane. In the run these batches are `steps` apart; the lane carries
    /// those whose number is `lane` modulo `lanes`.
    fn lane_short_batches(&self, steps: &Steps, lane: u32, lanes: u32) -> u64 {
        let Some(short_step) = steps.short_step() else { return 0 };
        // A run that starts after the short step has its first short step in the next epoch.
        let first = if self.first.step <= short_step { short_step - self.first.step } else { short_step };
        if first >= self.len {
            return 0;
        }
        let count = (self.len - 1 - first) / self.steps + 1;
        Solutions::new(first, self.steps, lane, lanes).map_or(0, |solutions| solutions.below(count))
    }

    /// Number of batches of the first epoch in an unlimited run.
    fn first_epoch_len(&self) -> u64 {
        self.steps - self.first.step
    }
}

#[cfg(test)]
mod tests;
