//! Pinned blocks of the disk tier.

use forebay_cache::Disk;

/// Pins of blocks on disk. Dropping the value before [`keep`](Self::keep) unpins them.
pub(crate) struct Pins {
    disk: Disk,
    blocks: Vec<u128>,
}

impl Pins {
    /// Pins `blocks`, both the columns that are on disk and those that are written later.
    pub(crate) fn new(disk: Disk, blocks: Vec<u128>) -> Self {
        blocks.iter().for_each(|block| disk.pin(*block));
        Self { disk, blocks }
    }

    /// Keeps the blocks pinned after the value is dropped.
    pub(crate) fn keep(mut self) {
        self.blocks.clear();
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|block| self.disk.unpin(*block));
    }
}
