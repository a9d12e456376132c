//! All rows of a snapshot, seen through one view and held in memory: what lookups are answered from.

use std::{fmt, sync::Arc};

use forebay_cache::{Slabs, Weigh};
use forebay_storage::Snapshot;

use crate::{
    Assembling, Error, Frame, Job, RowRef, View, WireBatch,
    assemble::assemble_real,
    window::{HeldWindow, Room, WindowId, Windows},
};

/// The rows of a snapshot, ready to be gathered by their numbers. They stay in memory until it is dropped.
pub struct Resident {
    job: Job,
    /// Frames of the blocks, and behind them one row of nulls.
    frames: Vec<Arc<Frame>>,
    /// The number of the first row of each frame.
    starts: Vec<u64>,
    bytes: u64,
    slabs: Slabs,
    max_batch_bytes: u64,
    /// Dropped last.
    _held: Arc<HeldWindow>,
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
    /// Loads all blocks of a job, and holds them.
    pub(crate) async fn load(job: Job, windows: &Windows, max_batch_bytes: u64) -> Result<Self, Error> {
        let blocks: Vec<u32> = (0..job.snapshot().blocks().len() as u32).collect();
        let all = WindowId { epoch: 0, window: 0 };
        let held = windows.acquire(&job, all, &blocks, Room::Wait).await?;
        let held = held.ok_or_else(|| Error::Internal("a window was waited for and is not there".into()))?;
        let starts =
            job.snapshot().blocks().iter().filter(|block| block.rows > 0).map(|block| block.first_row);
        let starts: Vec<u64> = starts.collect();
        let mut frames = held.window().frames.clone();
        let bytes = frames.iter().map(|frame| frame.weight()).sum();
        held.window().keep();
        frames.push(Arc::new(Frame::of_nulls(job.view(), windows.slabs())?));
        Ok(Self { job, frames, starts, bytes, slabs: windows.slabs().clone(), max_batch_bytes, _held: held })
    }

    /// The snapshot that the rows are of.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.job.snapshot()
    }

    /// What there is of a row: the columns and tensors that were asked for, and last `found` (uint8), whether the row is there.
    pub fn view(&self) -> &Arc<View> {
        self.job.view()
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rows of these numbers, in this order; `None`, and what the snapshot has no row for, is a row of nulls, and in tensors
    /// of zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when the batch exceeds `max_batch_bytes`.
    pub fn gather(&self, rows: impl IntoIterator<Item = Option<u64>>) -> Result<WireBatch, Error> {
        let missing = RowRef { frame: self.frames.len() as u32 - 1, row: 0 };
        let place = |number: u64| {
            let frame = self.starts.partition_point(|start| *start <= number).checked_sub(1)?;
            let row = number - self.starts[frame];
            (row < self.frames[frame].rows() as u64)
                .then_some(RowRef { frame: frame as u32, row: row as u32 })
        };
        let rows: Vec<RowRef> =
            rows.into_iter().map(|number| number.and_then(place).unwrap_or(missing)).collect();
        let asked =
            Assembling { hash: false, max_bytes: self.max_batch_bytes, max_held_bytes: 0, least_rows: 0 };
        assemble_real(self.view(), &self.frames, &rows, missing.frame, asked, &self.slabs)
    }
}
