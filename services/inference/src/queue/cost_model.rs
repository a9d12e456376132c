//! Prediction of a batch's duration, learned from earlier batches.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // The clock is an argument; order is deterministic.

use std::time::Duration;

/// Number of bins. A bin spans half a power of two of rows.
const BINS: usize = 64;
/// Number of batches over which a bin averages.
const BIN_BATCHES: f64 = 32.0;
/// Factor by which the weights of all other bins decay per batch.
const WEIGHT_DECAY: f64 = 0.998;
/// Cap of a measured time, as a multiple of the prediction. A batch that was delayed once does not predict the next ones.
const MAX_OUTLIER_RATIO: f64 = 4.0;
/// Ridge regularization of `fixed`, `row` and `byte`. With little data, costs are attributed to `fixed`.
const RIDGE: [f64; 3] = [1e-7, 1e-4, 1e-4];

/// Time that a worker takes for a batch: `fixed + row * rows + byte * bytes` seconds.
///
/// Measurements are averaged in bins by the number of rows, so that a size that did not occur recently is still known. The bins
/// are fitted by least squares of the relative errors, with non-negative coefficients. An update takes a few microseconds.
#[derive(Debug, Clone)]
pub struct CostModel {
    bins: [Bin; BINS],
    coefficients: Coefficients,
    /// Mean absolute error of the predictions, in seconds.
    error: f64,
    observations: u64,
}

/// Coefficients of a [`CostModel`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Coefficients {
    /// Seconds per batch.
    pub fixed: f64,
    /// Seconds per row.
    pub row: f64,
    /// Seconds per byte of features.
    pub byte: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    weight: f64,
    rows: f64,
    bytes: f64,
    seconds: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            bins: [Bin::default(); BINS],
            coefficients: Coefficients::default(),
            error: 0.0,
            observations: 0,
        }
    }
}

impl CostModel {
    /// Predicts the time of a batch; 0 before the first observation.
    pub fn predict(&self, rows: u64, bytes: u64) -> Duration {
        let Coefficients { fixed, row, byte } = self.coefficients;
        seconds(fixed + row * rows as f64 + byte * bytes as f64)
    }

    /// Mean absolute error of the predictions.
    pub fn error(&self) -> Duration {
        seconds(self.error)
    }

    /// Current coefficients.
    pub fn coefficients(&self) -> Coefficients {
        self.coefficients
    }

    /// Number of observed batches.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Updates the model with the measured `time` of a batch.
    pub fn observe(&mut self, rows: u64, bytes: u64, time: Duration) {
        let expected = self.predict(rows, bytes).as_secs_f64();
        let mut took = time.as_secs_f64().max(1e-9);
        if self.observations > 0 {
            let off = (took - expected).abs();
            // A plain mean at first, so that the errors of an untrained model do not last.
            let share = 1.0 / (self.observations as f64).min(BIN_BATCHES);
            self.error += (off.min(took) - self.error) * share;
        }
        let bin = &mut self.bins[bin_of(rows)];
        if bin.weight >= BIN_BATCHES / 4.0 {
            took = took.min(MAX_OUTLIER_RATIO * expected);
        }
        let share = 1.0 / (bin.weight + 1.0).min(BIN_BATCHES);
        bin.rows += (rows as f64 - bin.rows) * share;
        bin.bytes += (bytes as f64 - bin.bytes) * share;
        bin.seconds += (took - bin.seconds) * share;
        let weight = (bin.weight + 1.0).min(BIN_BATCHES);
        self.bins.iter_mut().for_each(|bin| bin.weight *= WEIGHT_DECAY);
        self.bins[bin_of(rows)].weight = weight;
        self.observations += 1;
        self.coefficients = fit(&self.bins);
    }
}

fn bin_of(rows: u64) -> usize {
    ((rows.max(1) as f64).log2() * 2.0).round() as usize % BINS
}

/// Non-negative least squares of the relative errors. Solves for every subset of non-zero coefficients and takes the best.
fn fit(bins: &[Bin; BINS]) -> Coefficients {
    let filled = || bins.iter().filter(|bin| bin.weight > 0.0);
    let total: f64 = filled().map(|bin| bin.weight).sum();
    let mean = |of: fn(&Bin) -> f64| filled().map(|bin| bin.weight * of(bin)).sum::<f64>() / total;
    // Dividing by the means makes all unknowns about equally large.
    let (rows, bytes, time) =
        (mean(|bin| bin.rows).max(1.0), mean(|bin| bin.bytes).max(1.0), mean(|bin| bin.seconds));
    let (mut normal, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
    for bin in filled() {
        let target = bin.seconds / time;
        let weight = bin.weight / total / (target * target);
        let values = [1.0, bin.rows / rows, bin.bytes / bytes];
        for (i, left) in values.iter().enumerate() {
            right[i] += weight * left * target;
            for (j, other) in values.iter().enumerate() {
                normal[i][j] += weight * left * other;
            }
        }
    }
    for (i, ridge) in RIDGE.iter().enumerate() {
        normal[i][i] += ridge;
    }
    let loss = |x: &[f64; 3]| {
        let quadratic: f64 =
            (0..3).flat_map(|i| (0..3).map(move |j| (i, j))).map(|(i, j)| x[i] * normal[i][j] * x[j]).sum();
        quadratic - 2.0 * (0..3).map(|i| right[i] * x[i]).sum::<f64>()
    };
    let best = (1u8..8)
        .map(|chosen| solve(&normal, &right, chosen))
        .filter(|found| found.iter().all(|value| value.is_finite() && *value >= 0.0))
        .min_by(|one, other| loss(one).total_cmp(&loss(other)))
        .unwrap_or_default();
    Coefficients { fixed: best[0] * time, row: best[1] * time / rows, byte: best[2] * time / bytes }
}

/// Solves for the unknowns in the bit set `chosen`, with the others 0, by Gaussian elimination with pivoting.
fn solve(normal: &[[f64; 3]; 3], right: &[f64; 3], chosen: u8) -> [f64; 3] {
    let is_chosen = |i: usize| chosen >> i & 1 == 1;
    let mut rows = [[0.0; 4]; 3];
    for i in 0..3 {
        for j in 0..3 {
            let value = if is_chosen(i) && is_chosen(j) { normal[i][j] } else { 0.0 };
            rows[i][j] = if i == j && !is_chosen(i) { 1.0 } else { value };
        }
        rows[i][3] = if is_chosen(i) { right[i] } else { 0.0 };
    }
    for column in 0..3 {
        let pivot = (column..3).max_by(|&i, &j| rows[i][column].abs().total_cmp(&rows[j][column].abs()));
        rows.swap(column, pivot.unwrap_or(column));
        for row in 0..3 {
            if row != column {
                let factor = rows[row][column] / rows[column][column];
                let from = rows[column];
                rows[row].iter_mut().zip(from).for_each(|(value, from)| *value -= factor * from);
            }
        }
    }
    [0, 1, 2].map(|i| rows[i][3] / rows[i][i])
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
