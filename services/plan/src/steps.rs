use std::ops::Range;

use crate::Error;

/// Treatment of a last step with less than a global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remainder {
    /// The step is kept, and the ranks share it evenly. If it has fewer items than ranks, some ranks receive an empty
    /// batch.
    Short,
    /// The step is omitted.
    Drop,
    /// As [`Short`](Self::Short), but each rank's batch is padded, so that all batches have the same size.
    Pad,
}

/// Assignment of an epoch's positions to steps and ranks.
///
/// Step `s` covers the `s`-th global batch of positions, and rank `r` the `r`-th contiguous part of it. The batches of
/// all ranks therefore concatenate to the global batch for any number of ranks. Every rank has the same number of
/// steps. No position is repeated or lost, except for the last step with [`Remainder::Drop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Steps {
    items: u64,
    batch_size: u32,
    world_size: u32,
    remainder: Remainder,
}

impl Steps {
    /// Creates the steps of an epoch of `items` items, with `batch_size` items per rank and step.
    ///
    /// # Errors
    /// [`Error::Zero`] if `batch_size` or `world_size` is 0.
    pub fn new(items: u64, batch_size: u32, world_size: u32, remainder: Remainder) -> Result<Self, Error> {
        if batch_size == 0 {
            return Err(Error::Zero { field: "batch_size" });
        }
        if world_size == 0 {
            return Err(Error::Zero { field: "world_size" });
        }
        Ok(Self { items, batch_size, world_size, remainder })
    }

    /// Number of steps in an epoch, the same for every rank.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self.remainder {
            Remainder::Short | Remainder::Pad => self.items.div_ceil(self.global_batch()),
            Remainder::Drop => self.full_steps(),
        }
    }

    /// Number of items in a full step, over all ranks.
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.world_size)
    }

    /// Number of items per rank in a full step.
    #[must_use]
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Positions of a step, over all ranks. Empty past the last step.
    #[must_use]
    pub fn global(&self, step: u64) -> Range<u64> {
        let end = match self.remainder {
            Remainder::Short | Remainder::Pad => self.items,
            Remainder::Drop => self.full_steps() * self.global_batch(),
        };
        let start = step.saturating_mul(self.global_batch());
        let next = start.saturating_add(self.global_batch());
        start.min(end)..next.min(end)
    }

    /// Treatment of a last step with less than a global batch.
    #[must_use]
    pub fn remainder(&self) -> Remainder {
        self.remainder
    }

    /// Positions of rank `rank` in a step. Empty past the last step.
    ///
    /// # Panics
    /// If `rank` is not below `world_size`.
    #[must_use]
    pub fn rank(&self, step: u64, rank: u32) -> Range<u64> {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        let Range { start, end } = self.global(step);
        // In a full step the offset is rank * batch_size.
        let offset = |rank: u64| {
            let shares = u128::from(rank) * u128::from(end - start);
            (shares / u128::from(self.world_size)) as u64
        };
        start + offset(u64::from(rank))..start + offset(u64::from(rank) + 1)
    }

    /// Exact number of rows of rank `rank` in these steps of one epoch, including padding. Steps past the last have no
    /// rows.
    ///
    /// # Panics
    /// If `rank` is not below `world_size`.
    #[must_use]
    pub fn rank_rows(&self, steps: Range<u64>, rank: u32) -> u64 {
        let full_steps = self.full_steps();
        let full = steps.end.min(full_steps).saturating_sub(steps.start);
        let short = if steps.contains(&full_steps) { self.short_rows(rank) } else { 0 };
        full.saturating_mul(u64::from(self.batch_size)).saturating_add(short)
    }

    /// Index of the step with less than a global batch; `None` if there is no such step.
    pub(crate) fn short_step(&self) -> Option<u64> {
        (self.count() > self.full_steps()).then(|| self.full_steps())
    }

    /// Number of rows of rank `rank` in the short step, including padding; 0 if there is no short step.
    pub(crate) fn short_rows(&self, rank: u32) -> u64 {
        if self.remainder == Remainder::Pad {
            return if self.short_step().is_some() { u64::from(self.batch_size) } else { 0 };
        }
        let Range { start, end } = self.rank(self.full_steps(), rank);
        end - start
    }

    fn full_steps(&self) -> u64 {
        self.items / self.global_batch()
    }
}

#[cfg(test)]
mod tests;
