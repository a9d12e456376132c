//! All rows of a snapshot, seen through one view and held in memory: what lookups are answered from.

use std::{fmt, sync::Arc};

use arrow_buffer::BooleanBuffer;
use forebay_cache::{Slabs, Weigh};
use forebay_storage::Snapshot;

use crate::{
    Aside, Assembling, Error, Frame, Job, RowRef, View, WireBatch, assemble::assemble_real, window::Windows,
};

/// The rows of a snapshot, ready to be gathered by their numbers. They stay in memory until it is dropped.
pub struct Resident {
    job: Job,
    /// Frames of the blocks, and behind them one row of nulls.
    frames: Vec<Arc<Frame>>,
    /// The number of the first row of each frame.
    starts: Vec<u64>,
    /// Which of its rows are there for lookups, if not all.
    kept: Option<Vec<BooleanBuffer>>,
    bytes: u64,
    slabs: Slabs,
    max_answer_bytes: u64,
    /// Given back after the frames, as fields are dropped in order.
    _aside: Aside,
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of snapshot {}, {} bytes",
            self.job.train().dataset,
            self.job.snapshot().id(),
            self.bytes
        )
    }
}

impl Resident {
    /// Loads all blocks of a job into the memory that is `aside`, and holds them. Of the rows of each block those are there that
    /// are `kept`.
    pub(crate) async fn load(
        job: Job,
        mut kept: Option<Vec<BooleanBuffer>>,
        windows: &Windows,
        mut aside: Aside,
        max_answer_bytes: u64,
    ) -> Result<Self, Error> {
        let (mut blocks, mut starts) = (Vec::new(), Vec::new());
        for (number, block) in job.snapshot().blocks().iter().enumerate().filter(|(_, block)| block.rows > 0)
        {
            blocks.push(number as u32);
            starts.push(block.first_row);
        }
        if let Some(kept) = &mut kept {
            *kept = blocks.iter().map(|block| kept[*block as usize].clone()).collect();
        }
        let kept_bytes = kept.iter().flatten().map(|kept| kept.len().div_ceil(8) as u64).sum::<u64>();
        let mut lacking = None;
        let raise = |bytes| lacking = (!aside.raise(bytes + kept_bytes)).then_some(bytes);
        let mut frames = windows.frames_of(&job, &blocks, u64::MAX, raise).await?;
        let bytes = frames.iter().map(|frame| frame.weight()).sum::<u64>() + kept_bytes;
        if lacking.is_some() {
            return Err(Error::TooLarge {
                what: format!("keeping '{}' in memory", job.train().dataset),
                needed: bytes,
                limit: job.snapshot_bytes(),
                advice: "raise --lookup-memory, or ask for fewer columns".into(),
            });
        }
        frames.push(Arc::new(Frame::of_nulls(job.view(), windows.slabs())?));
        let slabs = windows.slabs().clone();
        Ok(Self { job, frames, starts, kept, bytes, slabs, max_answer_bytes, _aside: aside })
    }

    /// The snapshot that the rows are of.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.job.snapshot()
    }

    /// What there is of a row: the columns and tensors that were asked for, and last `found` (uint8), whether the row is there.
    pub fn view(&self) -> &Arc<View> {
        self.job.view()
    }

    /// Bytes that a row takes in the mean.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.snapshot().rows().max(1)
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rows of these numbers, in this order; `None`, and what the snapshot has no row for or the filter does not keep, is a row
    /// of nulls, and in tensors of zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when the batch exceeds `max_answer_bytes`.
    pub fn gather(&self, rows: impl IntoIterator<Item = Option<u64>>) -> Result<WireBatch, Error> {
        let missing = RowRef { frame: self.frames.len() as u32 - 1, row: 0 };
        let place = |number: u64| {
            let frame = self.starts.partition_point(|start| *start <= number).checked_sub(1)?;
            let row = number - self.starts[frame];
            let is_kept = || self.kept.as_ref().is_none_or(|kept| kept[frame].value(row as usize));
            (row < self.frames[frame].rows() as u64 && is_kept())
                .then_some(RowRef { frame: frame as u32, row: row as u32 })
        };
        let rows: Vec<RowRef> =
            rows.into_iter().map(|number| number.and_then(place).unwrap_or(missing)).collect();
        let asked =
            Assembling { hash: false, max_bytes: self.max_answer_bytes, max_held_bytes: 0, least_rows: 0 };
        assemble_real(self.view(), &self.frames, &rows, missing.frame, asked, &self.slabs)
    }
}
