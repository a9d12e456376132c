//! Bloom filters, which rule out values that a column does not contain.
//!
//! <https://github.com/apache/parquet-format/blob/master/BloomFilter.md>

use std::ops::Range;

use arrow_array::{Array, ArrayRef, cast::AsArray, types::Int64Type};
use arrow_cast::cast;
use arrow_schema::{DataType, Field};
use parquet::{basic::Type as Physical, bloom_filter::Sbbf, file::metadata::ColumnChunkMetaData};

use crate::{
    Error, Reader,
    prune::statistics::BlockMetadata,
    read::ranges::Sparse,
    store::target::Target,
    validate::{decoder_errors::catch_panics, parquet_shapes::BLOOM_FILTER_HEADER, thrift::Walker},
};

/// Number of bytes read for a filter whose length is not recorded. A longer filter is ignored.
const UNKNOWN_LENGTH: u64 = 1 << 20;

impl Reader {
    /// Returns, for each of `values`, false if the column's bloom filters rule it out for the whole block, and true
    /// otherwise.
    ///
    /// Filters are used for integers, dates, strings and binary values of the column's own type. All results are true
    /// if a row group has no filter or a damaged one. Reads the filters from the file.
    ///
    /// # Errors
    /// Errors of reading a footer or the file.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn may_contain(
        &self,
        block: usize,
        column: usize,
        values: ArrayRef,
    ) -> Result<Vec<bool>, Error> {
        let all = vec![true; values.len()];
        let file = self.snapshot().blocks()[block].file;
        if self.snapshot().partition(file, column).is_some() {
            return Ok(all);
        }
        let metadata = self.block_metadata(block, &[column]).await?;
        let field = self.snapshot().schema().field(column).clone();
        let Some(ranges) = filter_ranges(&metadata, &field, values.data_type()) else { return Ok(all) };
        let Some((found, room)) = self.read_small(&ranges, &metadata.target).await? else { return Ok(all) };
        let check = move || {
            let _room = room;
            let mut contained = vec![false; values.len()];
            for ((chunk, range), bytes) in
                metadata.chunks(field.name()).unwrap_or_default().into_iter().zip(ranges).zip(found)
            {
                let filter =
                    Sparse { length: metadata.target.version.size, parts: vec![(range.start, bytes)] };
                let Some(group) = check_filter(chunk, &filter, &range, &values, &metadata.target) else {
                    return Ok(all);
                };
                contained.iter_mut().zip(group).for_each(|(any, one)| *any |= one);
            }
            Ok(contained)
        };
        self.compute().run(check).await
    }
}

/// Byte range of the filter of each row group; `None` unless every row group has a filter that applies to values of
/// this type.
fn filter_ranges(metadata: &BlockMetadata, field: &Field, values: &DataType) -> Option<Vec<Range<u64>>> {
    let physical = match values {
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::Date32 => Physical::INT32,
        DataType::Int64 => Physical::INT64,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
            Physical::BYTE_ARRAY
        }
        _ => return None,
    };
    let end = metadata.target.version.size;
    let range = |chunk: &ColumnChunkMetaData| {
        let start = u64::try_from(chunk.bloom_filter_offset()?).ok()?;
        let stop = match chunk.bloom_filter_length() {
            Some(length) => start.checked_add(u64::try_from(length).ok()?)?,
            None => start.checked_add(UNKNOWN_LENGTH)?.min(end),
        };
        (chunk.column_type() == physical && start < stop).then_some(start..stop)
    };
    (field.data_type() == values).then(|| metadata.chunks(field.name())?.into_iter().map(range).collect())?
}

/// Checks each value against one filter; `None` if the filter is invalid.
fn check_filter(
    chunk: &ColumnChunkMetaData,
    filter: &Sparse,
    range: &Range<u64>,
    values: &dyn Array,
    target: &Target,
) -> Option<Vec<bool>> {
    Walker::new(&filter.get(range.clone())?).conform(&BLOOM_FILTER_HEADER).ok()?;
    let check = || {
        let Some(filter) = Sbbf::read_from_column_chunk(chunk, filter)? else { return Ok(None) };
        // The format hashes integers in their stored width, and binary values without their length.
        Ok(Some(match values.data_type() {
            DataType::Int64 => {
                values.as_primitive::<Int64Type>().values().iter().map(|value| filter.check(value)).collect()
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
                let bytes = cast(values, &DataType::LargeBinary)?;
                bytes.as_binary::<i64>().iter().flatten().map(|value| filter.check(value)).collect()
            }
            _ => {
                let wide = cast(values, &DataType::Int64)?;
                let stored = wide.as_primitive::<Int64Type>().values().iter();
                stored.map(|value| filter.check(&(*value as i32))).collect()
            }
        }))
    };
    let contained: Vec<bool> = catch_panics(&target.url, check).ok()??;
    (contained.len() == values.len()).then_some(contained)
}
