//! Blocks that stay on disk.

use forebay_cache::Disk;

/// Pins of blocks, which are taken back when this is dropped before it is kept.
pub(crate) struct Pins {
    disk: Disk,
    blocks: Vec<u128>,
}

impl Pins {
    /// Pins `blocks`, what is on disk of them and what is to come.
    pub(crate) fn new(disk: Disk, blocks: Vec<u128>) -> Self {
        blocks.iter().for_each(|block| disk.pin(*block));
        Self { disk, blocks }
    }

    /// Leaves the pins in place.
    pub(crate) fn keep(mut self) {
        self.blocks.clear();
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|block| self.disk.unpin(*block));
    }
}
