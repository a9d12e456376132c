//! Description of a window that a stream needs.

use std::sync::Arc;

use forebay_plan::EpochOrder;

use super::{
    held::{SourceWindow, WindowId, WindowKey},
    progress::LoadedBlocks,
};
use crate::Job;

/// One window that a stream needs.
#[derive(Clone)]
pub(crate) struct WantedWindow {
    pub(super) job: Arc<Job>,
    /// Index of the source in its stream.
    source: usize,
    id: WindowId,
    /// Blocks with rows, in the order of the window.
    pub(super) blocks: Vec<u32>,
    /// Estimated size of the frames, in bytes.
    pub(super) estimated_bytes: u64,
}

impl WantedWindow {
    /// Describes a window of `job`, whose partition and epoch have the given order.
    pub(crate) fn new(job: &Arc<Job>, (source, id): SourceWindow, order: &EpochOrder) -> Self {
        let blocks = order.window(id.window).blocks.iter().copied();
        // Blocks without a needed row have no frame.
        let blocks: Vec<u32> = blocks.filter(|block| job.is_needed(*block)).collect();
        let estimated_bytes = job.bytes_of(&blocks);
        Self { job: Arc::clone(job), source, id, blocks, estimated_bytes }
    }

    /// Source of the window, and its id there.
    pub(crate) fn id(&self) -> SourceWindow {
        (self.source, self.id)
    }

    /// Ids of the blocks.
    pub(crate) fn block_ids(&self) -> impl Iterator<Item = u128> {
        let ids = self.job.reader().block_ids();
        self.blocks.iter().map(|block| ids.id(*block))
    }

    /// Progress of the window before any block is loaded.
    pub(super) fn no_blocks(&self) -> LoadedBlocks {
        LoadedBlocks::none_of(self.blocks.len(), self.estimated_bytes)
    }

    /// Key under which the window is registered.
    pub(super) fn key(&self) -> WindowKey {
        WindowKey { order: self.job.order_key(), view: self.job.view().key(), id: self.id }
    }
}
