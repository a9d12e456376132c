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

    /// Size of the frames of `blocks`, in bytes, corrected by what was found in [`note_understated`](Self::note_understated).
    pub(crate) fn corrected_bytes_of(&self, blocks: &[u32]) -> u64 {
        self.corrected(self.bytes_of(blocks))
    }

    /// Corrects a size in bytes that was estimated from the footers.
    pub(crate) fn corrected(&self, estimated_bytes: u64) -> u64 {
        scaled(estimated_bytes, self.correction.load(Ordering::Relaxed))
    }

    /// Notes that a window of `estimated_bytes` has at least `found_bytes`, for which there was no memory. The correction grows by a
    /// quarter at least, so that a window of any size reserves enough after some attempts.
    pub(crate) fn note_understated(&self, estimated_bytes: u64, found_bytes: u64) {
        let found = found_bytes.saturating_mul(UNIT).div_ceil(estimated_bytes.max(1));
        let grown = |correction: u64| Some(found.max(correction.saturating_add(correction / 4)));
        // The update always succeeds.
        self.correction.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).ok();
    }

    /// Size of the largest window of an order, in bytes.
    pub(crate) fn window_bytes(&self, order: &EpochOrder) -> u64 {
        assert_off_io_threads(LongWork::WindowSums);
        let windows = (0..order.windows()).map(|window| self.bytes_of(order.window(window).blocks));
        windows.max().unwrap_or(0)
    }
}

/// `bytes` times `correction`, which is in units of 1/16.
fn scaled(bytes: u64, correction: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(correction) / u128::from(UNIT)).unwrap_or(u64::MAX)
}
