//! Memory that the blocks of a job take, estimated from the footers.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_plan::EpochOrder;
use forebay_storage::Snapshot;

use super::rows::JobRows;
use crate::{
    View,
    cpu::off_io::{LongWork, assert_off_io_threads},
};

/// Correction of 1.
const UNIT: u64 = 16;

/// Estimated sizes of the frames of a job.
#[derive(Debug)]
pub(crate) struct Footprint {
    frame_bytes: Vec<u64>,
    /// Size of the frames of all blocks, in bytes.
    pub(crate) snapshot_bytes: u64,
    /// Factor by which windows were larger than estimated, in units of 1/16, at least 16.
    correction: AtomicU64,
}

impl Footprint {
    /// Estimates the frames of all blocks of `snapshot` in `view`.
    pub(crate) fn new(snapshot: &Snapshot, view: &View, rows: &JobRows) -> Self {
        assert_off_io_threads(LongWork::FrameSizes);
        let frame = |block: u32| {
            let bytes = rows
                .of_frame(block)
                .into_iter()
                .map(|rows| view.frame_bytes(snapshot, rows.block as usize, rows.rows.end - rows.rows.start));
            let offsets = (rows.groups_in(block) * size_of::<u32>()) as u64;
            bytes.fold(offsets, u64::saturating_add)
        };
        let frame_bytes: Vec<u64> = (0..rows.items.len() as u32).map(frame).collect();
        let snapshot_bytes = frame_bytes.iter().copied().fold(0, u64::saturating_add);
        Self { frame_bytes, snapshot_bytes, correction: AtomicU64::new(UNIT) }
    }

    /// Size of the frames of `blocks`, in bytes.
    pub(crate) fn bytes_of(&self, blocks: &[u32]) -> u64 {
        let bytes = blocks.iter().map(|block| self.frame_bytes[*block as usize]);
        bytes.fold(0, u64::saturating_add)
    }

    /// Current correction of estimates.
    pub(crate) fn correction(&self) -> Correction {
        Correction(self.correction.load(Ordering::Relaxed))
    }

    /// Corrects a size in bytes that was estimated from the footers.
    pub(crate) fn corrected(&self, estimated_bytes: u64) -> u64 {
        self.correction().of(estimated_bytes)
    }

    /// Notes that a window of `estimated_bytes`, which was reserved with the correction `used`, has at least `found_bytes`, for which
    /// there was no memory. The correction grows to 5/4 of `used` at least, so that a window of any size reserves enough after some
    /// attempts. Windows that were reserved with the same correction raise it only once.
    pub(crate) fn note_understated(&self, estimated_bytes: u64, found_bytes: u64, used: Correction) {
        let found = found_bytes.saturating_mul(UNIT).div_ceil(estimated_bytes.max(1));
        let grown = found.max(used.0.saturating_add(used.0 / 4));
        self.correction.fetch_max(grown, Ordering::Relaxed);
    }

    /// Size of the largest window of an order, in bytes.
    pub(crate) fn window_bytes(&self, order: &EpochOrder) -> u64 {
        assert_off_io_threads(LongWork::WindowSums);
        let windows = (0..order.windows()).map(|window| self.bytes_of(order.window(window).blocks));
        windows.max().unwrap_or(0)
    }
}

/// Factor by which estimated sizes are multiplied, in units of 1/16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Correction(u64);

impl Correction {
    /// Corrects a size in bytes.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        u64::try_from(u128::from(bytes) * u128::from(self.0) / u128::from(UNIT)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_fail_at_the_same_time_raise_the_correction_once() {
        let footprint =
            Footprint { frame_bytes: vec![], snapshot_bytes: 0, correction: AtomicU64::new(UNIT) };
        let used = footprint.correction();
        for _ in 0..16 {
            footprint.note_understated(1000, 1001, used);
        }
        assert_eq!(footprint.corrected(1000), 1250);
        footprint.note_understated(1000, 1001, footprint.correction());
        assert_eq!(footprint.corrected(1000), 1562);
        // More was found.
        footprint.note_understated(1000, 3000, used);
        assert_eq!(footprint.corrected(1000), 3000);
        footprint.note_understated(1000, 2000, used);
        assert_eq!(footprint.corrected(1000), 3000, "it does not fall");
    }
}
