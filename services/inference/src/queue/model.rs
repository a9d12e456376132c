//! What a batch will take, learned from what batches took.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

/// Sizes are told apart in steps of half a power of two.
const BINS: usize = 64;
/// A bin remembers about so many batches.
const MEMORY: f64 = 32.0;
/// What other bins keep of their weight when a batch is seen.
const KEPT: f64 = 0.998;
/// A batch counts for at most so many times what was expected: one that was held up says little of the next ones.
const MAX_SURPRISE: f64 = 4.0;
/// What is not known to depend on the size is taken for fixed: how little is believed of `b`, `a` and `c` for want of data.
const DOUBT: [f64; 3] = [1e-7, 1e-4, 1e-4];

/// `T = b + a*rows + c*bytes`: the time that a worker is busy with a batch.
///
/// Batches are averaged in bins of their rows, so that sizes that were not seen for long are still known when they come again, and
/// fitted by least squares of relative errors with coefficients of 0 or more. Costs a few microseconds a batch.
#[derive(Debug, Clone)]
pub struct CostModel {
    bins: [Bin; BINS],
    coefficients: Coefficients,
    /// Mean absolute error of the predictions, in seconds.
    error: f64,
    seen: u64,
}

/// Of the model, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct Coefficients {
    /// A batch.
    pub fixed: f64,
    /// A row.
    pub row: f64,
    /// A byte.
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
        Self { bins: [Bin::default(); BINS], coefficients: Coefficients::default(), error: 0.0, seen: 0 }
    }
}

impl CostModel {
    /// The time of a batch of this size; 0 before any batch was seen.
    pub fn predict(&self, rows: u64, bytes: u64) -> Duration {
        let Coefficients { fixed, row, byte } = self.coefficients;
        seconds(fixed + row * rows as f64 + byte * bytes as f64)
    }

    /// How far predictions are off, in the mean.
    pub fn error(&self) -> Duration {
        seconds(self.error)
    }

    /// What is multiplied.
    pub fn coefficients(&self) -> Coefficients {
        self.coefficients
    }

    /// Batches that it has seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Learns from a batch of this size that took `time`.
    pub fn observe(&mut self, rows: u64, bytes: u64, time: Duration) {
        let expected = self.predict(rows, bytes).as_secs_f64();
        let mut took = time.as_secs_f64().max(1e-9);
        if self.seen > 0 {
            let off = (took - expected).abs();
            // The first errors are those of a model that knows nothing.
            let share = 1.0 / (self.seen as f64).min(MEMORY);
            self.error += (off.min(took) - self.error) * share;
        }
        let bin = &mut self.bins[bin_of(rows)];
        if bin.weight >= MEMORY / 4.0 {
            took = took.min(MAX_SURPRISE * expected);
        }
        let share = 1.0 / (bin.weight + 1.0).min(MEMORY);
        bin.rows += (rows as f64 - bin.rows) * share;
        bin.bytes += (bytes as f64 - bin.bytes) * share;
        bin.seconds += (took - bin.seconds) * share;
        let weight = (bin.weight + 1.0).min(MEMORY);
        self.bins.iter_mut().for_each(|bin| bin.weight *= KEPT);
        self.bins[bin_of(rows)].weight = weight;
        self.seen += 1;
        self.coefficients = fit(&self.bins);
    }
}

fn bin_of(rows: u64) -> usize {
    ((rows.max(1) as f64).log2() * 2.0).round() as usize % BINS
}

/// The coefficients of 0 or more with the least squares of relative errors: the best of all choices of which of them are 0.
fn fit(bins: &[Bin; BINS]) -> Coefficients {
    let filled = || bins.iter().filter(|bin| bin.weight > 0.0);
    let total: f64 = filled().map(|bin| bin.weight).sum();
    let mean = |of: fn(&Bin) -> f64| filled().map(|bin| bin.weight * of(bin)).sum::<f64>() / total;
    // In units of the means, all are about as large.
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
    for (i, doubt) in DOUBT.iter().enumerate() {
        normal[i][i] += doubt;
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

/// Solves for the `chosen` unknowns (bits), with the others 0, by Gaussian elimination with pivots.
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
