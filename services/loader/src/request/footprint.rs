//! Memory that the blocks of a job take, estimated from the footers.

use forebay_plan::EpochOrder;
use forebay_storage::Snapshot;

use super::rows::JobRows;
use crate::{
    View,
    cpu::off_io::{LongWork, assert_off_io_threads},
};

/// Estimated sizes of the frames of a job.
#[derive(Debug)]
pub(crate) struct Footprint {
    frame_bytes: Vec<u64>,
    /// Size of the frames of all blocks, in bytes.
    pub(crate) snapshot_bytes: u64,
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
        Self { frame_bytes, snapshot_bytes }
    }

    /// Size of the frames of `blocks`, in bytes.
    pub(crate) fn bytes_of(&self, blocks: &[u32]) -> u64 {
        let bytes = blocks.iter().map(|block| self.frame_bytes[*block as usize]);
        bytes.fold(0, u64::saturating_add)
    }

    /// Size of the largest window of an order, in bytes.
    pub(crate) fn window_bytes(&self, order: &EpochOrder) -> u64 {
        assert_off_io_threads(LongWork::WindowSums);
        let windows = (0..order.windows()).map(|window| self.bytes_of(order.window(window).blocks));
        windows.max().unwrap_or(0)
    }
}
