//! Description of a window that a stream needs.

use std::sync::Arc;

use forebay_plan::EpochOrder;

use super::held::{WindowId, WindowKey};
use crate::Job;

/// One window that a stream needs.
#[derive(Clone)]
pub(crate) struct WantedWindow {
    pub(super) job: Arc<Job>,
    id: WindowId,
    /// Blocks with rows, in the order of the window.
    pub(super) blocks: Vec<u32>,
    /// Estimated size of the frames, in bytes.
    pub(super) estimated_bytes: u64,
}

impl WantedWindow {
    /// Describes window `id` of `job`, whose epoch has the given order.
    pub(crate) fn new(job: &Arc<Job>, id: WindowId, order: &EpochOrder) -> Self {
        let blocks = order.window(id.window).blocks.iter().copied();
        // Blocks without a needed row have no frame.
        let blocks: Vec<u32> = blocks.filter(|block| job.is_needed(*block)).collect();
        let estimated_bytes = job.bytes_of(&blocks);
        Self { job: Arc::clone(job), id, blocks, estimated_bytes }
    }

    /// Id of the window in its order.
    pub(crate) fn id(&self) -> WindowId {
        self.id
    }

    /// Ids of the blocks.
    pub(crate) fn block_ids(&self) -> impl Iterator<Item = u128> {
        let ids = self.job.reader().block_ids();
        self.blocks.iter().map(|block| ids.id(*block))
    }

    /// Key under which the window is registered.
    pub(super) fn key(&self) -> WindowKey {
        WindowKey { order: self.job.order_key(), view: self.job.view().key(), id: self.id }
    }
}
