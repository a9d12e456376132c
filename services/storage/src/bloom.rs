//! Bloom filters: which values a column certainly does not hold.
//!
//! <https://github.com/apache/parquet-format/blob/master/BloomFilter.md>

use std::ops::Range;

use arrow_array::{Array, ArrayRef, cast::AsArray, types::Int64Type};
use arrow_cast::cast;
use arrow_schema::DataType;
use parquet::{basic::Type as Physical, bloom_filter::Sbbf, file::metadata::ColumnChunkMetaData};

use crate::{
    Error, Reader, blocking::blocking, footer::guarded, footers::Target, grammar::BLOOM_FILTER_HEADER,
    ranges::Sparse, statistics::InFile, thrift::Walker,
};

/// Read of a filter whose writer did not note its length; a larger one is not asked.
const UNKNOWN_LENGTH: u64 = 1 << 20;

impl Reader {
    /// Of each of `values`, whether some row of the block may hold it, as far as the column's bloom filters tell: all may
    /// where there is none. Asked are integers, dates, strings and binary values of the column's own type. Reads the
    /// filters; one that is damaged is as good as none.
    ///
    /// # Errors
    /// Those of reading a footer, and of reading of its file.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn may_hold(&self, block: usize, column: usize, values: ArrayRef) -> Result<Vec<bool>, Error> {
        let all = vec![true; values.len()];
        let file = self.snapshot().blocks()[block].file;
        if self.snapshot().partition(file, column).is_some() {
            return Ok(all);
        }
        let inside = self.in_file(block).await?;
        let name = self.snapshot().schema().field(column).name().clone();
        let Some(ranges) = places(&inside, &name, values.data_type()) else { return Ok(all) };
        let Some(found) = self.read_small(&ranges, &inside.target).await? else { return Ok(all) };
        blocking(move || {
            let mut held = vec![false; values.len()];
            for ((chunk, range), bytes) in
                inside.chunks(&name).unwrap_or_default().into_iter().zip(ranges).zip(found)
            {
                let filter = Sparse { length: inside.target.version.size, parts: vec![(range.start, bytes)] };
                let Some(group) = ask(chunk, &filter, &range, &values, &inside.target) else {
                    return Ok(all);
                };
                held.iter_mut().zip(group).for_each(|(any, one)| *any |= one);
            }
            Ok(held)
        })
        .await
    }
}

/// Where the filter of each row group lies, if each has one and it can be asked for values of this type.
fn places(inside: &InFile, name: &str, values: &DataType) -> Option<Vec<Range<u64>>> {
    let own = inside.footer.schema().field_with_name(name).ok()?.data_type();
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
    let end = inside.target.version.size;
    let place = |chunk: &ColumnChunkMetaData| {
        let start = u64::try_from(chunk.bloom_filter_offset()?).ok()?;
        let stop = match chunk.bloom_filter_length() {
            Some(length) => start.checked_add(u64::try_from(length).ok()?)?,
            None => start.checked_add(UNKNOWN_LENGTH)?.min(end),
        };
        (chunk.column_type() == physical && start < stop).then_some(start..stop)
    };
    (own == values).then(|| inside.chunks(name)?.into_iter().map(place).collect())?
}

/// What one filter says of each value; `None` if it makes no sense.
fn ask(
    chunk: &ColumnChunkMetaData,
    filter: &Sparse,
    range: &Range<u64>,
    values: &dyn Array,
    target: &Target,
) -> Option<Vec<bool>> {
    Walker::new(&filter.get(range.clone())?).conform(&BLOOM_FILTER_HEADER).ok()?;
    let asked = || {
        let Some(filter) = Sbbf::read_from_column_chunk(chunk, filter)? else { return Ok(None) };
        // What the format hashes: integers as they are stored, and bytes without their length.
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
    let held: Vec<bool> = guarded(&target.url, asked).ok()??;
    (held.len() == values.len()).then_some(held)
}
