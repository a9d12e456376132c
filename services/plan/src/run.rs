use crate::congruence::Solutions;
use crate::{Error, Steps};

/// A batch by its place in training; what a trainer remembers to go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// Epoch, as its number enters the keys.
    pub epoch: u64,
    /// Step in that epoch.
    pub step: u64,
}

/// The batches one rank gets, numbered `j` = 0, 1, ... from the first one sent, on across epochs. They are
/// the same for every rank.
///
/// Lane `l` of `k` carries the batches with `j` = `l` modulo `k`; taking one from each lane in turn, from
/// lane 0 on, restores the order.
///
/// Numbers beyond 2^64 - 1 saturate: no epoch has a higher number, and a run with more batches ends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    first: Cursor,
    /// Steps in an epoch.
    steps: u64,
    len: u64,
}

impl Run {
    /// The batches of `epochs` epochs from `epoch` on, from `start_step` of the first one on; with a `limit`,
    /// no more batches than that. A `start_step` of [`Steps::count`] is the start of the next epoch; if there
    /// is none the run is empty.
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

    /// Whether there is no batch to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Which batch the `j`-th is.
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

    /// Number of batches lane `lane` of `lanes` carries.
    ///
    /// # Panics
    /// If `lane` is not below `lanes`.
    #[must_use]
    pub fn lane_len(&self, lane: u32, lanes: u32) -> u64 {
        assert!(lane < lanes, "lane {lane} of {lanes}");
        self.len.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes))
    }

    /// The batches lane `lane` of `lanes` carries, in the order it carries them: `lane`, `lane + lanes`, ...
    ///
    /// # Panics
    /// If `lane` is not below `lanes`.
    pub fn lane(&self, lane: u32, lanes: u32) -> impl Iterator<Item = u64> + use<> {
        let batches = self.lane_len(lane, lanes);
        (0..batches).map(move |i| u64::from(lane) + i * u64::from(lanes))
    }

    /// Exactly how many rows lane `lane` of `lanes` delivers to rank `rank`, in time that depends neither on
    /// the epochs nor on the steps. `steps` are those the run was made from.
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

    /// Batches of the short step in a lane. In the run they are `steps` apart; in the lane are those that
    /// are `lane` modulo `lanes`.
    fn lane_short_batches(&self, steps: &Steps, lane: u32, lanes: u32) -> u64 {
        let Some(short_step) = steps.short_step() else { return 0 };
        // Where it starts in the epoch after, the first short step of the run is the one of that epoch.
        let first = if self.first.step <= short_step { short_step - self.first.step } else { short_step };
        if first >= self.len {
            return 0;
        }
        let count = (self.len - 1 - first) / self.steps + 1;
        Solutions::of(first, self.steps, lane, lanes).map_or(0, |solutions| solutions.below(count))
    }

    /// Batches the first epoch would have, if the run were not limited.
    fn first_epoch_len(&self) -> u64 {
        self.steps - self.first.step
    }
}

#[cfg(test)]
mod tests;
