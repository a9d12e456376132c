//! What a label is like over its whole dataset.

use std::sync::Arc;

use arrow_array::{cast::AsArray, types::Float64Type};
use arrow_cast::cast;
use arrow_schema::DataType;
use dashmap::DashMap;
use forebay_proto::v1;
use forebay_stall::Known;
use tokio::sync::OnceCell;

use super::LabelSums;
use crate::{Config, Error, Job, Pool, Priority, View, window::place_of};

/// So many blocks are looked at, spread evenly over the dataset.
const SAMPLED_BLOCKS: usize = 16;
/// So many answers are remembered.
const REMEMBERED: usize = 256;

/// Snapshot, label and filter.
type Key = (String, String, String);

/// Finds out, once for each snapshot, label and filter.
pub(crate) struct KnownLabels {
    config: Config,
    pool: Pool,
    known: DashMap<Key, Arc<OnceCell<Option<Known>>>>,
}

impl KnownLabels {
    pub(crate) fn new(config: Config, pool: Pool) -> Self {
        Self { config, pool, known: DashMap::new() }
    }

    /// Mean and variance of the job's label, by some blocks of its dataset; `None` if it names none. Rows that its filter leaves
    /// out don't count. The blocks are read one after another, and not kept.
    ///
    /// # Errors
    /// Those of the first block that can't be read.
    pub(crate) async fn of(&self, job: &Job) -> Result<Option<Known>, Error> {
        let train = job.train();
        if train.label.is_empty() {
            return Ok(None);
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let key = (job.snapshot().id().to_owned(), train.label.clone(), train.filter.clone());
        let cell = Arc::clone(&self.known.entry(key).or_default());
        cell.get_or_try_init(|| self.look(job)).await.copied()
    }

    async fn look(&self, job: &Job) -> Result<Option<Known>, Error> {
        let train = job.train();
        let wanted = v1::Train {
            dataset: train.dataset.clone(),
            columns: vec![train.label.clone()],
            filter: train.filter.clone(),
            batch_size: 1,
            ..v1::Train::default()
        };
        let view = Arc::new(View::resolve(job.snapshot(), &wanted)?);
        let blocks: Vec<u32> = job.kept_blocks().collect();
        let mut sums = LabelSums::default();
        for block in blocks.iter().step_by(blocks.len().div_ceil(SAMPLED_BLOCKS).max(1)) {
            let keeps_all = job.keeps_all(*block);
            let read = view.reads(keeps_all);
            let encoded = job.reader().fetch(*block as usize, &read).await?;
            let (view, decode_rows) = (Arc::clone(&view), self.config.decode_rows);
            let place = place_of(job.snapshot(), *block);
            let add = move || {
                let mut sums = sums;
                for chunk in encoded.decode(decode_rows) {
                    let rows = view.rows_of(chunk?, &read, keeps_all, &place)?;
                    let labels = cast(rows.column(0), &DataType::Float64);
                    let labels = labels.map_err(|error| Error::Internal(error.to_string()))?;
                    let labels = labels.as_primitive::<Float64Type>();
                    labels.iter().flatten().filter(|label| !label.is_nan()).for_each(|label| sums.add(label));
                }
                Ok(sums)
            };
            sums = self.pool.run(Priority::Second, add).await?;
        }
        if sums.rows == 0 {
            return Ok(None);
        }
        let rows = sums.rows as f64;
        let mean = sums.sum / rows;
        Ok(Some(Known { mean, variance: (sums.squares / rows - mean * mean).max(0.0) }))
    }
}
