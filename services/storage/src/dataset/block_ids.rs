//! Block ids that are stable across snapshots and restarts, and for remote files across servers.

use std::collections::HashMap;

use crate::{Location, Snapshot, cache_key, store::generations::Generations};

/// Ids of the blocks of a snapshot. An id is a hash of the file's URL, its version, the row group indices and, for a
/// local file, its generation.
#[derive(Debug)]
pub struct BlockIds {
    ids: Vec<u128>,
    blocks: HashMap<u128, u32>,
}

impl BlockIds {
    pub(crate) fn new(snapshot: &Snapshot, location: &Location, generations: &Generations) -> Self {
        let ids: Vec<u128> = snapshot
            .blocks()
            .iter()
            .map(|block| {
                let file = &snapshot.files()[block.file as usize];
                // A file with an invalid path cannot be read, but its blocks still need ids.
                let url = snapshot.locate(location, file).map_or_else(|_| file.path.clone(), |(_, url)| url);
                let mut bytes = Vec::new();
                file.version.append_to(&url, &mut bytes);
                bytes.extend(block.row_groups.start.to_le_bytes());
                bytes.extend(block.row_groups.end.to_le_bytes());
                if let Some(generation) = generations.of(block.file) {
                    generation.append_to(&mut bytes);
                }
                location.append_scope(&mut bytes);
                cache_key(&bytes)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::Schema;
    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        Version,
        dataset::snapshot::{File, Parts, RowGroup},
    };

    #[test]
    fn the_id_of_a_block_is_frozen() {
        let modified_ns = 1_750_000_000_123_456_789;
        let file = |path: &str, size, etag: Option<&str>, groups: &[u32]| {
            let version = Version { size, etag: etag.map(str::to_owned), modified_ns };
            let groups = groups.iter().map(|&rows| RowGroup { rows, bytes: 1, columns: Vec::new() });
            File { path: path.to_owned(), version, partitions: Vec::new(), row_groups: groups.collect() }
        };
        let files = vec![
            file("part-0.parquet", 4096, Some("\"33a64df5\""), &[20_000, 100, 100]),
            file("year=2024/part-1.parquet", 1024, None, &[5]),
        ];
        let schema = Arc::new(Schema::empty());
        let parts = Parts {
            folder: true,
            schema,
            partition_columns: 0,
            nulls: Vec::new(),
            files,
            max_joined_bytes: None,
        };
        let snapshot = Snapshot::new(parts).unwrap();
        let location = Location::with_store("s3://bucket/flights", Arc::new(InMemory::new()), "flights");
        let ids = BlockIds::new(&snapshot, &location, &Generations::default());
        // Columns on disk are found by these ids. Small row groups of a file form one block.
        let found: Vec<String> = ids.ids.iter().map(|id| format!("{id:032x}")).collect();
        assert_eq!(
            found,
            [
                "62f71446845ae1e314f28fe9ea42fc6e",
                "0ec70d64f5a0b92db1adeca5c56d9ab4",
                "1e7f4c61326f41698dc9c52730777ba1"
            ]
        );
    }
}
