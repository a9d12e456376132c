//! Whether a label wanders from batch to batch more than chance makes it.

use crate::Moments;

/// Batches of fewer rows say little, and are left out.
const LEAST_ROWS: u64 = 8;
/// So many batches are needed.
const LEAST_BATCHES: u64 = 32;
/// Batch means that vary so many times as much as those of random rows are flagged.
const FLAGGED: f64 = 3.0;

/// So many times its error the dataset's mean may be off before a stream is held to it.
const TRUSTED: f64 = 3.0;

/// What a label is like over its dataset, as far as that is known beforehand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// The mean.
    pub mean: f64,
    /// The standard error of that mean; 0 if all rows were looked at.
    pub error: f64,
    /// The variance of one row.
    pub variance: f64,
}

/// Compares the means of batches with what independent rows would give.
///
/// The mean of `n` rows drawn independently has the variance of one row divided by `n`. The ratio of what is seen to that, its
/// root taken, is the [spread](Self::spread): 1 for shuffled rows, about the root of `n` for rows sorted by the label.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Skew {
    batches: u64,
    labels: Moments,
    /// The sum of `n * (batch mean - mean)^2`.
    between: f64,
    known: Option<Known>,
}

impl Skew {
    /// Takes what is known of the whole dataset, once. Without it, batches are compared with one another alone.
    pub fn know(&mut self, known: Known) {
        if self.known.is_none()
            && [known.mean, known.error, known.variance].iter().all(|number| number.is_finite())
        {
            self.known = Some(known);
        }
    }

    /// Adds a batch, by those of its labels that are not null.
    pub fn add(&mut self, batch: &Moments) {
        if batch.count < LEAST_ROWS || !batch.mean.is_finite() || !batch.squares.is_finite() {
            return;
        }
        let distance = batch.mean - self.labels.mean;
        self.batches += 1;
        self.labels.merge(batch);
        self.between += batch.count as f64 * distance * (batch.mean - self.labels.mean);
    }

    /// Batches that were looked at.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Mean of the label over them; `None` without any.
    pub fn mean(&self) -> Option<f64> {
        (self.labels.count > 0).then_some(self.labels.mean)
    }

    /// Mean of the label over the dataset, if it is known.
    pub fn dataset_mean(&self) -> Option<f64> {
        self.known.map(|known| known.mean)
    }

    /// How many times as much the means of batches vary as those of random rows would; `None` with too few batches, and for a
    /// label that is always the same.
    pub fn spread(&self) -> Option<f64> {
        if self.batches < LEAST_BATCHES {
            return None;
        }
        let (batches, rows, mean) = (self.batches as f64, self.labels.count as f64, self.labels.mean);
        let seen = self.labels.variance();
        // Around their own mean, which takes one of them; and how far that is from the dataset's, for a stream may be stuck.
        let wander = self.between / (batches - 1.0);
        let (variance, stuck) = self.known.map_or((seen, 0.0), |known| {
            let beyond = ((mean - known.mean).abs() - TRUSTED * known.error).max(0.0);
            (known.variance.max(seen), rows / batches * beyond * beyond)
        });
        let between = wander + stuck;
        let differs = self.known.is_some_and(|known| known.variance > 0.0) || !self.labels.are_alike();
        differs.then(|| (between.max(0.0) / variance).sqrt())
    }

    /// Whether that is far more than chance makes it.
    pub fn is_skewed(&self) -> bool {
        self.spread().is_some_and(|spread| spread > FLAGGED)
    }
}

#[cfg(test)]
mod tests;
