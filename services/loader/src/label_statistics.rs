//! Estimated distribution of the label over a whole dataset.

use std::sync::Arc;

use arrow_array::{cast::AsArray, types::Float64Type};
use arrow_cast::CastOptions;
use arrow_schema::DataType;
use dashmap::DashMap;
use forebay_proto::v1;
use forebay_sql::cast;
use forebay_stall::{Known, Moments};
use tokio::sync::OnceCell;

use crate::{
    Error, Flow, Job, View,
    activity::Purpose,
    block_reader::{BlockColumns, BlockReader, Chunks, place_of},
    cpu::turns::TurnClock,
    view::kept_range::KeptRange,
};

/// Maximum number of blocks sampled, spread evenly over the dataset.
const SAMPLED_BLOCKS: usize = 16;
/// Number of cached estimates at which the cache is cleared.
const MAX_CACHED: usize = 256;

/// Snapshot id, label column and filter.
type Key = (String, String, String);

/// Estimates label statistics once for each snapshot, label column and filter, and caches them.
pub(crate) struct LabelStatistics {
    blocks: BlockReader,
    flow: Flow,
    known: DashMap<Key, Arc<OnceCell<Option<Known>>>>,
}

impl LabelStatistics {
    pub(crate) fn new(blocks: BlockReader) -> Self {
        Self { blocks, flow: Flow::new(), known: DashMap::new() }
    }

    /// Estimates mean and variance of the job's label from a sample of blocks. Returns `None` if the job has no label
    /// column or the sample does not support an estimate. Rows that the filter drops are not counted. Blocks are read
    /// one after another and are not cached.
    ///
    /// # Errors
    /// Returns the error of the first block that cannot be read.
    pub(crate) async fn of(&self, job: &Job) -> Result<Option<Known>, Error> {
        let train = job.train();
        if train.label_column.is_empty() {
            return Ok(None);
        }
        if self.known.len() >= MAX_CACHED {
            self.known.clear();
        }
        let key = (job.snapshot().id().to_owned(), train.label_column.clone(), train.filter.clone());
        let cell = Arc::clone(&self.known.entry(key).or_default());
        cell.get_or_try_init(|| self.estimate(job)).await.copied()
    }

    async fn estimate(&self, job: &Job) -> Result<Option<Known>, Error> {
        let train = job.train();
        let wanted = v1::Train {
            dataset: train.dataset.clone(),
            columns: vec![train.label_column.clone()],
            filter: train.filter.clone(),
            batch_size: 1,
            ..v1::Train::default()
        };
        let view = Arc::new(View::resolve(job.snapshot(), &wanted)?);
        let blocks: Vec<u32> = job.rows.kept_blocks().collect();
        let mut sampled = Vec::with_capacity(SAMPLED_BLOCKS);
        let step = blocks.len().div_ceil(SAMPLED_BLOCKS).max(1);
        // Takes the middle block of each interval: the first one would bias the mean in sorted data.
        for block in blocks.iter().skip(step / 2).step_by(step) {
            let keeps_all = job.keeps_all(*block);
            let read = view.reads(keeps_all);
            let (view, columns) = (Arc::clone(&view), read.clone());
            let place = place_of(job.snapshot(), *block);
            let add = move |chunks: Chunks| async move {
                let (mut seen, mut turn) = (Moments::default(), TurnClock::default());
                let mut range = KeptRange::new(0..u32::MAX);
                for chunk in chunks {
                    let rows =
                        view.rows_of(chunk?, &columns, keeps_all, &place, &mut range, &mut turn).await?;
                    let labels = cast(rows.column(0), &DataType::Float64, &CastOptions::default());
                    let labels = labels.map_err(|error| Error::Internal(error.to_string()))?;
                    let labels = labels.as_primitive::<Float64Type>();
                    let labels = labels.iter().flatten().filter(|label| !label.is_nan());
                    seen.merge(&Moments::of(labels));
                }
                Ok(seen)
            };
            let what = BlockColumns { reader: job.reader(), block: *block, columns: &read };
            sampled.push(self.blocks.read(what, Purpose::Label, self.flow, add).await?);
        }
        Ok(known(&sampled, blocks.len()))
    }
}

/// Estimates mean, standard error and variance of a label from sampled blocks, given in dataset order and evenly
/// spaced. Returns `None` if the blocks have no label, or if a partial sample has a single distinct value.
///
/// The error is that of a systematic sample, by successive differences (Wolter, Introduction to Variance Estimation,
/// 2007, ch. 8). In sorted data adjacent blocks are similar, so a few blocks give a small error. In data without order
/// the error is larger.
fn known(sampled: &[Moments], blocks: usize) -> Option<Known> {
    let mut all = Moments::default();
    sampled.iter().for_each(|block| all.merge(block));
    if all.count == 0 {
        return None;
    }
    let (mean, variance) = (all.mean, all.variance());
    let means: Vec<f64> = sampled.iter().filter(|block| block.count > 0).map(|block| block.mean).collect();
    let unsampled = 1.0 - sampled.len() as f64 / blocks as f64;
    if unsampled > 0.0 && all.are_alike() {
        // A sample with a single value gives no estimate of the variance of the other blocks.
        return None;
    }
    let error = if unsampled <= 0.0 {
        0.0
    } else if means.len() < 2 {
        variance.sqrt()
    } else {
        let differences: f64 = means.windows(2).map(|pair| (pair[0] - pair[1]).powi(2)).sum();
        let count = means.len() as f64;
        (differences / (2.0 * (count - 1.0)) / count * unsampled).sqrt()
    };
    Some(Known { mean, error, variance })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments of blocks of 1,000 rows with the given numbers of positive labels.
    fn blocks(positive: impl IntoIterator<Item = u64>) -> Vec<Moments> {
        let moments = |count: u64| {
            let mean = count as f64 / 1000.0;
            Moments { count: 1000, mean, squares: 1000.0 * mean * (1.0 - mean) }
        };
        positive.into_iter().map(moments).collect()
    }

    #[test]
    fn a_dataset_that_is_looked_at_as_a_whole_is_known_without_error() {
        let all = known(&blocks([0, 500, 1000, 500]), 4).unwrap();
        assert_eq!(all, Known { mean: 0.5, error: 0.0, variance: 0.25 });
        assert_eq!(known(&[Moments::default()], 3), None);
    }

    #[test]
    fn a_sample_of_sorted_blocks_tells_more_than_one_of_blocks_in_any_order() {
        let sorted = known(&blocks((0..16).map(|block| 1000 * u64::from(block >= 8))), 1000).unwrap();
        let mixed = known(&blocks((0..16).map(|block| 1000 * (block * 5 / 3 % 2))), 1000).unwrap();
        assert!(mixed.error > 2.0 * sorted.error, "{mixed:?} {sorted:?}");
        assert!(sorted.error < 0.05);
        let alike = known(&blocks([500; 16]), 1000).unwrap();
        assert_eq!((alike.mean, alike.error), (0.5, 0.0));
    }

    #[test]
    fn blocks_of_one_value_say_nothing_of_those_that_were_not_looked_at() {
        assert_eq!(known(&blocks([0; 16]), 1000), None);
        assert_eq!(known(&blocks([1000; 16]), 17), None);
        assert_eq!(known(&blocks([0; 16]), 16), Some(Known { mean: 0.0, error: 0.0, variance: 0.0 }));
    }

    #[test]
    fn the_error_is_computed_from_neighbouring_blocks_and_skips_blocks_without_labels() {
        let error = |blocks: &[Moments], of| known(blocks, of).unwrap().error;
        let three = blocks([100, 400, 200]);
        // The squares of 0.3 and 0.2, divided by twice the number of differences.
        let variance: f64 = (0.09 + 0.04) / (2.0 * 2.0);
        let expected = |unsampled: f64| (variance / 3.0 * unsampled).sqrt();
        assert!((error(&three, 10) - expected(0.7)).abs() < 1e-12);
        let with_empty = [three[0], Moments::default(), three[1], three[2]];
        assert!((error(&with_empty, 10) - expected(0.6)).abs() < 1e-12);
        let two = error(&blocks([100, 400]), 10);
        assert!((two - (0.09_f64 / 2.0 / 2.0 * 0.8).sqrt()).abs() < 1e-12, "{two}");
    }

    #[test]
    fn one_block_of_many_tells_next_to_nothing() {
        assert_eq!(known(&blocks([300]), 5).unwrap().error, (0.3 - 0.3 * 0.3_f64).sqrt());
    }
}
