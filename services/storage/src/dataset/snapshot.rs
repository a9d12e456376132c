//! Snapshot: an immutable, ordered list of files and their blocks.

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use chrono::{DateTime, Utc};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    Block, Error, Location, PartitionValue, Version,
    dataset::{
        block::{BLOCK_BYTES, BLOCK_ROWS, JoinLimits, join},
        memory::SnapshotMemory,
        schema,
    },
};

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path below the dataset's location. The file name, if the location is the file.
    pub path: String,
    /// Pinned version.
    #[serde(flatten)]
    pub version: Version,
    /// Values of the partition columns, in schema order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionValue>,
    /// Row groups, in file order.
    pub row_groups: Vec<RowGroup>,
}

impl File {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// ETag from the store; `None` for local files.
    pub fn etag(&self) -> Option<&str> {
        self.version.etag.as_deref()
    }

    /// Modification time.
    pub fn last_modified(&self) -> DateTime<Utc> {
        self.version.modified()
    }
}

/// One row group of a file, as described by its footer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowGroup {
    /// Number of rows.
    pub rows: u32,
    /// Uncompressed size of all columns in bytes.
    pub bytes: u64,
    /// Estimated decoded size of each file column in bytes, in schema order.
    pub columns: Vec<u64>,
}

/// Immutable list of pinned files, their blocks and the delivered schema.
#[derive(Debug)]
pub struct Snapshot {
    id: String,
    parts: Parts,
    blocks: Vec<Block>,
    rows: u64,
    uncompressed_bytes: u64,
    /// Decoded size of each column of the schema, in bytes.
    decoded_bytes: Vec<u64>,
    /// Memory of the snapshot, released when it is dropped.
    _memory: Option<SnapshotMemory>,
}

/// Stored part of a snapshot. The rest is derived from it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    pub(crate) folder: bool,
    /// File columns, then partition columns.
    #[serde(with = "schema::hex_message")]
    pub(crate) schema: SchemaRef,
    pub(crate) partition_columns: usize,
    /// Number of nulls in each file column; `None` if a footer does not record it.
    pub(crate) nulls: Vec<Option<u64>>,
    pub(crate) files: Vec<File>,
    /// Maximum decoded size of a block of several row groups, in bytes. `None` for snapshots to which it makes no difference, and for
    /// those of earlier versions, whose blocks must stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_joined_bytes: Option<u64>,
}

impl RowGroup {
    /// Number of rows, and an upper bound of the estimated sizes in bytes.
    fn size(&self) -> (u32, u64) {
        let decoded = self.columns.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        (self.rows, decoded.max(self.bytes))
    }
}

/// Memory of a block and its ids in bytes, those of readers included.
const BLOCK_MEMORY: usize = size_of::<Block>() + 64;
/// Memory of a field of the schema in bytes, roughly.
const FIELD_MEMORY: usize = 256;

/// Memory of the row groups of a file, and at most of their blocks, in bytes.
pub(crate) fn row_group_memory(row_groups: &[RowGroup]) -> u64 {
    let columns = row_groups.iter().map(|group| size_of_val(&group.columns[..])).sum::<usize>();
    (row_groups.len() * (size_of::<RowGroup>() + BLOCK_MEMORY) + columns) as u64
}

/// Memory of a file without its row groups in bytes, the generations that readers keep included.
fn file_memory(file: &File) -> usize {
    let texts = file.partitions.iter().map(|value| match value {
        PartitionValue::Utf8(text) => text.len(),
        PartitionValue::Null | PartitionValue::Int64(_) => 0,
    });
    let values = size_of_val(&file.partitions[..]) + texts.sum::<usize>();
    size_of::<File>() + 32 + file.path.len() + file.version.etag.as_ref().map_or(0, String::len) + values
}

/// Maximum decoded size of the blocks of new snapshots of these files; `None` if it makes no difference.
pub(crate) fn max_joined_bytes(files: &[File]) -> Option<u64> {
    let blocks = |file: &File, bytes: u64| {
        join(file.row_groups.iter().map(RowGroup::size), JoinLimits { rows: BLOCK_ROWS, bytes })
    };
    let differs = |file: &File| blocks(file, BLOCK_BYTES) != blocks(file, u64::MAX);
    files.iter().any(differs).then_some(BLOCK_BYTES)
}

impl Snapshot {
    /// Derives the blocks and totals.
    ///
    /// # Errors
    /// A description of the first inconsistency between the parts.
    pub(crate) fn new(mut parts: Parts) -> Result<Self, String> {
        // What is parsed from a manifest has up to twice the capacity.
        parts.files.shrink_to_fit();
        for file in &mut parts.files {
            file.row_groups.shrink_to_fit();
            file.row_groups.iter_mut().for_each(|group| group.columns.shrink_to_fit());
        }
        let Parts { schema, partition_columns, files, nulls, .. } = &parts;
        let file_columns = schema.fields().len().checked_sub(*partition_columns);
        if file_columns != Some(nulls.len()) {
            return Err(format!("{} null counts do not match the columns of the schema", nulls.len()));
        }
        let (mut blocks, mut rows, mut bytes) = (Vec::new(), 0_u64, 0_u64);
        let mut decoded_bytes = vec![0_u64; schema.fields().len()];
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        for (index, file) in files.iter().enumerate() {
            if file.partitions.len() != *partition_columns {
                return Err(format!(
                    "{} has {} partition values, expected {partition_columns}",
                    file.path,
                    file.partitions.len()
                ));
            }
            if file.row_groups.iter().any(|group| group.columns.len() != nulls.len()) {
                return Err(format!("the column sizes of {} do not match the schema", file.path));
            }
            let limits = JoinLimits { rows: BLOCK_ROWS, bytes: parts.max_joined_bytes.unwrap_or(u64::MAX) };
            for (row_groups, count) in join(file.row_groups.iter().map(RowGroup::size), limits) {
                for (column, value) in (nulls.len()..).zip(&file.partitions) {
                    let bytes = value.bytes(schema.field(column).data_type(), count.into());
                    add(&mut decoded_bytes[column], bytes);
                }
                let file = u32::try_from(index).map_err(|_| "more than 2^32 files".to_owned())?;
                blocks.push(Block { file, row_groups, rows: count, first_row: rows });
                rows += u64::from(count);
            }
            bytes = file.row_groups.iter().fold(bytes, |sum, group| sum.saturating_add(group.bytes));
            let columns = file.row_groups.iter().flat_map(|group| group.columns.iter().enumerate());
            columns.for_each(|(column, bytes)| add(&mut decoded_bytes[column], *bytes));
        }
        let id = snapshot_id(files.iter().map(|file| (file.path.as_str(), &file.version)));
        blocks.shrink_to_fit();
        Ok(Self { id, parts, blocks, rows, uncompressed_bytes: bytes, decoded_bytes, _memory: None })
    }

    /// Releases `memory` when the snapshot is dropped.
    pub(crate) fn charged_to(self, memory: SnapshotMemory) -> Self {
        Self { _memory: Some(memory), ..self }
    }

    /// Estimated size of the snapshot itself in memory, in bytes, with what its readers keep for each file and block.
    pub fn memory_bytes(&self) -> u64 {
        let files = self.files().iter().map(|file| {
            let columns = file.row_groups.iter().map(|group| size_of_val(&group.columns[..]));
            file_memory(file) + size_of_val(&file.row_groups[..]) + columns.sum::<usize>()
        });
        let schema = self.decoded_bytes.len() * FIELD_MEMORY;
        (files.sum::<usize>() + self.blocks.len() * BLOCK_MEMORY + schema) as u64
    }

    /// Snapshot id: 32 hexadecimal digits, a hash of the paths, sizes and versions of the files in order.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Files in bytewise order of their paths.
    pub fn files(&self) -> &[File] {
        &self.parts.files
    }

    /// Blocks in order of files and row groups. No block is empty.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Delivered schema: the columns of the first file in its order, then the partition columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.parts.schema
    }

    /// Number of partition columns, which are the last columns of the schema.
    pub fn partition_columns(&self) -> usize {
        self.parts.partition_columns
    }

    /// Number of rows in all blocks.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Uncompressed size in bytes of the pages of all columns, as recorded in the footers. The values in memory have another size: see
    /// [`Self::decoded_bytes`].
    pub fn uncompressed_bytes(&self) -> u64 {
        self.uncompressed_bytes
    }

    /// Estimated size in bytes of the values of all columns in memory.
    pub fn decoded_bytes(&self) -> u64 {
        self.decoded_bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Estimated size in bytes of the values of one column of the schema in memory.
    pub fn column_decoded_bytes(&self, column: usize) -> u64 {
        self.decoded_bytes[column]
    }

    /// Uncompressed size in bytes of all columns of one block.
    pub fn block_bytes(&self, block: usize) -> u64 {
        self.row_groups(block).iter().fold(0, |sum, group| sum.saturating_add(group.bytes))
    }

    /// Size of the files in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.files().iter().fold(0, |sum, file| sum.saturating_add(file.size()))
    }

    /// Checks that a column of the schema can be delivered.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the name of the column and the reason. `location` is the URL of the dataset or file.
    pub fn check_supported(&self, column: usize, location: &str) -> Result<(), Error> {
        let field = self.schema().field(column);
        let Some(reason) = schema::unsupported_reason(field) else { return Ok(()) };
        let detail = format!(
            "column {}: {reason}; request other columns, or write it in a supported form",
            field.name()
        );
        Err(Error::unsupported(location, detail))
    }

    /// Number of nulls in a column of the schema; `None` if a footer does not record it.
    pub fn nulls(&self, column: usize) -> Option<u64> {
        if let Some(nulls) = self.parts.nulls.get(column) {
            return *nulls;
        }
        let is_null = |block: &&Block| self.partition(block.file, column) == Some(&PartitionValue::Null);
        Some(self.blocks.iter().filter(is_null).map(|block| u64::from(block.rows)).sum())
    }

    /// Estimated decoded size in bytes of one column of one block.
    pub fn column_bytes(&self, block: usize, column: usize) -> u64 {
        let Block { file, rows, .. } = self.blocks[block];
        let Some(value) = self.partition(file, column) else {
            let groups = self.row_groups(block).iter();
            return groups.fold(0, |sum, group| sum.saturating_add(group.columns[column]));
        };
        value.bytes(self.schema().field(column).data_type(), rows.into())
    }

    /// Partition value of a file; `None` if `column` is not a partition column.
    pub(crate) fn partition(&self, file: u32, column: usize) -> Option<&PartitionValue> {
        let partition = column.checked_sub(self.parts.nulls.len())?;
        Some(&self.files()[file as usize].partitions[partition])
    }

    /// Path of a file in the store, and its URL for error messages.
    pub(crate) fn locate(&self, location: &Location, file: &File) -> Result<(Path, String), Error> {
        locate(location, self.parts.folder, &file.path)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    fn row_groups(&self, block: usize) -> &[RowGroup] {
        let Block { file, row_groups, .. } = &self.blocks[block];
        &self.files()[*file as usize].row_groups[row_groups.start as usize..row_groups.end as usize]
    }
}

/// Path of a file in the store, and its URL for error messages.
pub(crate) fn locate(location: &Location, folder: bool, path: &str) -> Result<(Path, String), Error> {
    if folder {
        return location.child(path);
    }
    Ok((location.root().clone(), location.url().to_owned()))
}

/// Computes a snapshot id from the paths and versions of the files in order.
pub(crate) fn snapshot_id<'a>(files: impl Iterator<Item = (&'a str, &'a Version)>) -> String {
    let mut hash = Xxh3::new();
    let mut bytes = Vec::new();
    for (path, version) in files {
        bytes.clear();
        version.append_to(path, &mut bytes);
        hash.update(&bytes);
    }
    format!("{:032x}", hash.digest128())
}

/// Returns the schema of a snapshot: the file `columns`, then the `partitions`.
pub(crate) fn delivered_schema(columns: Vec<Field>, partitions: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new([columns, partitions].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_snapshot_is_frozen() {
        let modified_ns = 1_750_000_000_123_456_789;
        let object = Version { size: 4096, etag: Some("\"33a64df5\"".into()), modified_ns };
        let local = Version { size: 1024, etag: None, modified_ns };
        let files = [("part-0.parquet", &object), ("year=2024/part-1.parquet", &local)];
        assert_eq!(snapshot_id(files.into_iter()), "3c392f4b696e1d8cb8d308d26a2c3527");
    }
}
