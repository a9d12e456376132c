//! All rows of one view of a snapshot, held in memory for lookups.

use std::{fmt, sync::Arc};

use arrow_buffer::BooleanBuffer;
use forebay_cache::{Slabs, Weigh};
use forebay_storage::Snapshot;

use super::kept::KeptRows;
use crate::{
    AssembleOptions, Error, Frame, Job, LookupReservation, RowRef, View, WireBatch,
    batch::assemble::assemble_with_absent, window::windows::Windows,
};

/// Rows of a snapshot in memory, ready to be gathered by row number. The memory is released on drop.
pub struct LookupRows {
    job: Job,
    /// Frames of the blocks, followed by a frame with one row of nulls.
    frames: Vec<Arc<Frame>>,
    /// Row number of the first row of each frame.
    starts: Vec<u64>,
    /// Rows that the filter keeps, per frame; `None` if all rows are kept. A frame holds only these rows.
    kept: Option<Vec<KeptRows>>,
    bytes: u64,
    slabs: Slabs,
    max_answer_bytes: u64,
    /// Lookup memory reservation. Fields are dropped in order, so it is released after the frames.
    reservation: LookupReservation,
}

impl fmt::Debug for LookupRows {
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

impl LookupRows {
    /// Loads all blocks of a job into the lookup memory reserved by `reservation`. `kept` marks the rows of each block that
    /// the filter of the job keeps; `None` marks all rows.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the reservation cannot be raised to the bytes needed, and the error of the first
    /// block that cannot be read.
    pub(crate) async fn load(
        job: Job,
        kept: Option<Vec<BooleanBuffer>>,
        windows: &Windows,
        mut reservation: LookupReservation,
        max_answer_bytes: u64,
    ) -> Result<Self, Error> {
        let (mut blocks, mut starts) = (Vec::new(), Vec::new());
        for (number, block) in job.snapshot().blocks().iter().enumerate() {
            if job.is_needed(number as u32) {
                blocks.push(number as u32);
                starts.push(block.first_row);
            }
        }
        let kept: Option<Vec<KeptRows>> = kept
            .map(|kept| blocks.iter().map(|block| KeptRows::new(kept[*block as usize].clone())).collect());
        let kept_bytes = kept.iter().flatten().map(KeptRows::bytes).sum::<u64>();
        // A block beyond the reserved memory is not loaded.
        let room = reservation.room();
        let raise = |bytes: u64| match reservation.raise(bytes.saturating_add(kept_bytes)) {
            true => Ok(()),
            false => Err(Error::TooLarge {
                what: format!("keeping '{}' in memory", job.train().dataset),
                needed: bytes.saturating_add(kept_bytes),
                limit: room,
                advice: "raise --lookup-memory, or request fewer columns".into(),
            }),
        };
        let mut frames = windows.frames_of(&job, &blocks, Vec::new(), room, raise, |_| {}).await?;
        let bytes = frames.iter().map(|frame| frame.weight()).sum::<u64>() + kept_bytes;
        frames.push(Arc::new(Frame::of_nulls(job.view(), windows.slabs())?));
        let slabs = windows.slabs().clone();
        Ok(Self { job, frames, starts, kept, bytes, slabs, max_answer_bytes, reservation })
    }

    /// Snapshot that the rows belong to.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.job.snapshot()
    }

    /// View of a row: the requested columns and tensors, and last `found` (uint8), which is 1 if the row exists.
    pub fn view(&self) -> &Arc<View> {
        self.job.view()
    }

    /// Mean number of bytes per row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.job.epoch_rows().max(1)
    }

    /// Number of bytes that the rows occupy.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of bytes of the lookup memory that the rows take up: their estimate before they were loaded, or more.
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Gathers the rows with the given numbers, in the given order. A missing row is returned as nulls, and as zeros in
    /// tensors. A row is missing if its number is `None`, if the snapshot has no such row, or if the filter drops it.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the batch exceeds `max_answer_bytes`.
    pub fn gather(&self, rows: impl IntoIterator<Item = Option<u64>>) -> Result<WireBatch, Error> {
        let missing = RowRef { frame: self.frames.len() as u32 - 1, row: 0 };
        let place = |number: u64| {
            let frame = self.starts.partition_point(|start| *start <= number).checked_sub(1)?;
            let row = number - self.starts[frame];
            let row = match &self.kept {
                Some(kept) => kept[frame].position(usize::try_from(row).ok()?)?,
                None => u32::try_from(row).ok()?,
            };
            ((row as usize) < self.frames[frame].rows()).then_some(RowRef { frame: frame as u32, row })
        };
        let rows: Vec<RowRef> =
            rows.into_iter().map(|number| number.and_then(place).unwrap_or(missing)).collect();
        let options =
            AssembleOptions { hash: false, max_bytes: self.max_answer_bytes, max_held_bytes: 0, min_rows: 0 };
        assemble_with_absent(self.view(), &self.frames, &rows, missing.frame, options, &self.slabs)
    }
}
