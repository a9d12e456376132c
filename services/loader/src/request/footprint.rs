//! Memory that the blocks of a job take, estimated from the footers.

use forebay_cache::Slabs;
use forebay_plan::EpochOrder;
use forebay_storage::Snapshot;

use super::rows::JobRows;
use crate::View;

/// Estimated sizes of the frames of a job.
#[derive(Debug)]
pub(crate) struct Footprint {
    frame_bytes: Vec<u64>,
    /// Maximum number of bytes by which the frame of each block exceeds its values.
    excess_bytes: Vec<u64>,
    /// Size of the frames of all blocks, in bytes.
    pub(crate) snapshot_bytes: u64,
}

impl Footprint {
    /// Estimates the frames of all blocks of `snapshot` in `view`.
    pub(crate) fn new(snapshot: &Snapshot, view: &View, rows: &JobRows) -> Self {
        let frame = |block: u32| {
            let bytes = rows
                .of_frame(block)
                .into_iter()
                .map(|rows| view.frame_bytes(snapshot, rows.block as usize, rows.rows.end - rows.rows.start));
            let offsets = (rows.groups_in(block) * size_of::<u32>()) as u64;
            bytes.fold(offsets, u64::saturating_add)
        };
        let frame_bytes: Vec<u64> = (0..rows.items.len() as u32).map(frame).collect();
        let excess = |block: u32| {
            let parts = rows.of_frame(block).into_iter();
            let rows: u64 = parts.map(|part| u64::from(part.rows.end - part.rows.start)).sum();
            Slabs::max_excess_bytes(rows.saturating_mul(view.stride as u64))
        };
        let excess_bytes = (0..rows.items.len() as u32).map(excess).collect();
        let snapshot_bytes = frame_bytes.iter().copied().fold(0, u64::saturating_add);
        Self { frame_bytes, excess_bytes, snapshot_bytes }
    }

    /// Size of the frames of `blocks`, in bytes.
    pub(crate) fn bytes_of(&self, blocks: &[u32]) -> u64 {
        let bytes = blocks.iter().map(|block| self.frame_bytes[*block as usize]);
        bytes.fold(0, u64::saturating_add)
    }

    /// Size of the largest window of an epoch, in bytes; with the unused ends of its buffers if `with_excess`.
    pub(crate) fn window_bytes(&self, order: &EpochOrder, with_excess: bool) -> u64 {
        let excess = |block: &u32| if with_excess { self.excess_bytes[*block as usize] } else { 0 };
        let bytes = |window| {
            let blocks = order.window(window).blocks;
            blocks.iter().map(excess).fold(self.bytes_of(blocks), u64::saturating_add)
        };
        (0..order.windows()).map(bytes).max().unwrap_or(0)
    }
}
