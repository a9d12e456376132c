//! Block ids that are stable across snapshots, servers and restarts.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use crate::{Location, Snapshot};

/// Ids of the blocks of a snapshot. An id is a hash of the file's URL, its version and the row group indices.
#[derive(Debug)]
pub struct BlockIds {
    ids: Vec<u128>,
    blocks: HashMap<u128, u32>,
}

impl BlockIds {
    pub(crate) fn new(snapshot: &Snapshot, location: &Location) -> Self {
        let ids: Vec<u128> = snapshot
            .blocks()
            .iter()
            .map(|block| {
                let file = &snapshot.files()[block.file as usize];
                // A file with an invalid path cannot be read, but its blocks still need ids.
                let url = snapshot.locate(location, file).map_or_else(|_| file.path.clone(), |(_, url)| url);
                let mut hash = Xxh3::new();
                file.version.hash_into(&url, &mut hash);
                hash.update(&block.row_groups.start.to_le_bytes());
                hash.update(&block.row_groups.end.to_le_bytes());
                hash.digest128()
            })
            .collect();
        let blocks = ids.iter().enumerate().map(|(block, id)| (*id, block as u32)).collect();
        Self { ids, blocks }
    }

    /// Returns the id of a block of the snapshot.
    ///
    /// # Panics
    /// If the snapshot has no such block.
    pub fn id(&self, block: u32) -> u128 {
        self.ids[block as usize]
    }

    /// Returns the index of the block with this id; `None` if the snapshot has no such block.
    pub fn block(&self, id: u128) -> Option<u32> {
        self.blocks.get(&id).copied()
    }
}
