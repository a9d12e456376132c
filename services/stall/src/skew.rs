//! Whether a label wanders from batch to batch more than chance makes it.

/// Batches of fewer rows say little, and are left out.
const LEAST_ROWS: u64 = 8;
/// So many batches are needed.
const LEAST_BATCHES: u64 = 32;
/// Batch means that vary so many times as much as those of random rows are flagged.
const FLAGGED: f64 = 3.0;

/// Mean and variance of a label over its dataset, as far as they are known beforehand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// The mean.
    pub mean: f64,
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
    rows: u64,
    sum: f64,
    squares: f64,
    /// The sum of `n * (batch mean - reference)^2`, and of `n * batch mean`, for which the reference is 0 until it is known.
    between: f64,
    known: Option<Known>,
}

impl Skew {
    /// Takes what is known of the whole dataset. Before that, batches are compared with one another.
    pub fn know(&mut self, known: Known) {
        if self.known.is_some() || !known.mean.is_finite() || !known.variance.is_finite() {
            return;
        }
        // The sum of n (m - k)^2 out of the sum of n m^2.
        let rows = self.rows as f64;
        self.between += rows * known.mean * known.mean - 2.0 * known.mean * self.sum;
        self.known = Some(known);
    }

    /// Adds a batch: how many labels it has that are not null, their sum and that of their squares.
    pub fn add(&mut self, rows: u64, sum: f64, squares: f64) {
        if rows < LEAST_ROWS || !sum.is_finite() || !squares.is_finite() {
            return;
        }
        let distance = sum / rows as f64 - self.known.map_or(0.0, |known| known.mean);
        self.batches += 1;
        self.rows += rows;
        self.sum += sum;
        self.squares += squares;
        self.between += rows as f64 * distance * distance;
    }

    /// Batches that were looked at.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Mean of the label over them; `None` without any.
    pub fn mean(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.sum / self.rows as f64)
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
        let (batches, rows, mean) = (self.batches as f64, self.rows as f64, self.sum / self.rows as f64);
        let seen = (self.squares / rows - mean * mean).max(0.0);
        let (variance, between) = match self.known {
            Some(known) => (known.variance.max(seen), self.between / batches),
            // Around their own mean, which takes one of them.
            None => (seen, (self.between - rows * mean * mean) / (batches - 1.0)),
        };
        (variance > f64::EPSILON * mean * mean).then(|| (between.max(0.0) / variance).sqrt())
    }

    /// Whether that is far more than chance makes it.
    pub fn is_skewed(&self) -> bool {
        self.spread().is_some_and(|spread| spread > FLAGGED)
    }
}

#[cfg(test)]
mod tests;
