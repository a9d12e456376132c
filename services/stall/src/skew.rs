//! Detection of labels whose batch means vary by more than chance explains.

use crate::moments::Moments;

/// Smallest number of non-null labels of a batch; smaller batches are ignored.
const LEAST_ROWS: u64 = 8;
/// Smallest number of batches for a result.
const LEAST_BATCHES: u64 = 32;
/// Ratio of standard deviations above which a label is flagged as skewed.
const FLAGGED: f64 = 3.0;

/// Standard errors of the dataset's mean that a stream's mean may differ without counting as a deviation.
const TRUSTED: f64 = 3.0;

/// Statistics of a label over its whole dataset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// Mean of the label.
    pub mean: f64,
    /// Standard error of the mean; 0 if it was computed from all rows.
    pub error: f64,
    /// Variance of the label of one row.
    pub variance: f64,
}

/// Compares the variance of batch means with that of independently drawn rows.
///
/// The mean of `n` independent rows has the variance of one row divided by `n`. The square root of the observed variance over
/// this expected variance is the [ratio of standard deviations](Self::std_ratio): 1 for shuffled rows, about the square root of
/// `n` for rows sorted by the label.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Skew {
    batches: u64,
    labels: Moments,
    /// Sum of `n * (batch mean - mean)^2` over all batches.
    between: f64,
    known: Option<Known>,
}

impl Skew {
    /// Sets the statistics of the whole dataset; later calls and values that are not finite are ignored. Without them, batches
    /// are only compared to each other.
    pub fn set_known(&mut self, known: Known) {
        if self.known.is_none()
            && [known.mean, known.error, known.variance].iter().all(|number| number.is_finite())
        {
            self.known = Some(known);
        }
    }

    /// Adds a batch by the moments of its labels that are not null.
    pub fn add(&mut self, batch: &Moments) {
        if batch.count < LEAST_ROWS || !batch.mean.is_finite() || !batch.squares.is_finite() {
            return;
        }
        let distance = batch.mean - self.labels.mean;
        self.batches += 1;
        self.labels.merge(batch);
        self.between += batch.count as f64 * distance * (batch.mean - self.labels.mean);
    }

    /// Returns the number of batches added.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the mean of the label over the added batches, `None` without labels.
    pub fn mean(&self) -> Option<f64> {
        (self.labels.count > 0).then_some(self.labels.mean)
    }

    /// Returns the mean of the label over the dataset, if known.
    pub fn dataset_mean(&self) -> Option<f64> {
        self.known.map(|known| known.mean)
    }

    /// Returns the standard deviation of the batch means divided by the standard deviation expected of random rows. `None` with
    /// fewer than 32 batches and for a constant label.
    pub fn std_ratio(&self) -> Option<f64> {
        if self.batches < LEAST_BATCHES {
            return None;
        }
        let (batches, rows, mean) = (self.batches as f64, self.labels.count as f64, self.labels.mean);
        let seen = self.labels.variance();
        // The variance around the stream's own mean, plus the distance of that mean from the dataset's: a stream may be stuck
        // in one part of the dataset.
        let wander = self.between / (batches - 1.0);
        let (variance, stuck) = self.known.map_or((seen, 0.0), |known| {
            let beyond = ((mean - known.mean).abs() - TRUSTED * known.error).max(0.0);
            (known.variance.max(seen), rows / batches * beyond * beyond)
        });
        let between = wander + stuck;
        let differs = self.known.is_some_and(|known| known.variance > 0.0) || !self.labels.are_alike();
        differs.then(|| (between.max(0.0) / variance).sqrt())
    }

    /// True if the ratio of standard deviations exceeds 3.
    pub fn is_skewed(&self) -> bool {
        self.std_ratio().is_some_and(|ratio| ratio > FLAGGED)
    }
}

#[cfg(test)]
mod tests;
