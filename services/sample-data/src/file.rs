//! Parquet files of generated data.

use std::{fs::File, path::Path};

use anyhow::Context;
use arrow_schema::SchemaRef;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

/// Rows per row group: small enough that a shuffle window mixes many, large enough to decode efficiently.
const ROW_GROUP_ROWS: usize = 65_536;

/// Creates a file for rows of this schema.
pub(crate) fn create(path: &Path, schema: SchemaRef) -> anyhow::Result<ArrowWriter<File>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
    Ok(ArrowWriter::try_new(file, schema, Some(properties))?)
}
