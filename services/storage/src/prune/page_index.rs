//! Page indexes: minimum and maximum of each page of a column, stored near the end of a file.
//!
//! <https://github.com/apache/parquet-format/blob/master/PageIndex.md>

use std::{ops::Range, sync::Arc};

use arrow_array::{ArrayRef, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use futures::future::try_join_all;
use parquet::{
    arrow::arrow_reader::statistics::StatisticsConverter,
    errors::ParquetError,
    file::metadata::{
        ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
        RowGroupMetaData,
    },
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Error, Reader, Statistics,
    dataset::schema::unsupported_reason,
    prune::statistics::BlockMetadata,
    validate::{
        decoder_errors::catch_panics,
        footer::Footer,
        parquet_shapes::{COLUMN_INDEX, OFFSET_INDEX},
        thrift::{Shape, Walker},
    },
};

/// Maximum number of pages of a column in one block. Above it the row group statistics are used instead.
const MAX_PAGES: usize = 1 << 14;

/// Byte ranges of the column index and the offset index of a column chunk.
fn index_ranges(chunk: &ColumnChunkMetaData) -> Option<[Range<u64>; 2]> {
    let range = |offset: Option<i64>, length: Option<i32>| {
        let (offset, length) = (u64::try_from(offset?).ok()?, u64::try_from(length?).ok()?);
        Some(offset..offset.checked_add(length)?)
    };
    Some([
        range(chunk.column_index_offset(), chunk.column_index_length())?,
        range(chunk.offset_index_offset(), chunk.offset_index_length())?,
    ])
}

impl Reader {
    /// Returns the statistics of `columns` like [`statistics`](Self::statistics), but per page for columns with a page
    /// index. Reads the indexes from the file; a damaged index is ignored.
    ///
    /// # Errors
    /// Errors of reading a footer or the file.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn page_statistics(&self, block: usize, columns: &[usize]) -> Result<Vec<Statistics>, Error> {
        let file = self.snapshot().blocks()[block].file;
        let metadata = self.block_metadata(block, columns).await?;
        let each = columns.iter().map(|column| self.column_pages(file, *column, &metadata));
        try_join_all(each).await
    }

    async fn column_pages(
        &self,
        file: u32,
        column: usize,
        metadata: &BlockMetadata,
    ) -> Result<Statistics, Error> {
        let field = self.snapshot().schema().field(column).clone();
        let groups = match self.snapshot().partition(file, column) {
            // The null count of a leaf differs from that of the nested column.
            _ if field.data_type().is_nested() => None,
            _ if unsupported_reason(&field).is_some() => None,
            Some(_) => None,
            None => self.indexes(field.name(), metadata).await?,
        };
        let (this, metadata) = (self.clone(), metadata.clone());
        let compute = self.compute();
        let parse = move || {
            let pages = groups.and_then(|(indexes, _room)| {
                let indexes = indexes.into_iter().enumerate();
                let groups: Option<Vec<_>> =
                    indexes.map(|(group, index)| metadata.page_statistics(&field, group, &index)).collect();
                Statistics::concat(&groups?, field.data_type(), metadata.rows)
            });
            let pages = pages.filter(|pages| pages.ends.len() <= MAX_PAGES);
            Ok(pages
                .unwrap_or_else(|| this.row_group_statistics(file, column, metadata.rows, Some(&metadata))))
        };
        compute.run(parse).await
    }

    /// Reads the encoded column index and offset index of each row group; `None` if they are missing or too large. The permit is for the
    /// time until they are parsed.
    async fn indexes(
        &self,
        name: &str,
        metadata: &BlockMetadata,
    ) -> Result<Option<(Vec<(Bytes, Bytes)>, OwnedSemaphorePermit)>, Error> {
        let ranges = metadata.chunks(name).and_then(|chunks| chunks.into_iter().map(index_ranges).collect());
        let Some(ranges): Option<Vec<[Range<u64>; 2]>> = ranges else { return Ok(None) };
        let found = self.read_small(ranges.as_flattened(), &metadata.target).await?;
        let Some((mut found, room)) = found else { return Ok(None) };
        let pairs = found.chunks_exact_mut(2);
        let pairs = pairs.map(|pair| (std::mem::take(&mut pair[0]), std::mem::take(&mut pair[1])));
        Ok(Some((pairs.collect(), room)))
    }
}

impl BlockMetadata {
    /// Statistics of the pages of one row group; `None` if the page index is invalid.
    fn page_statistics(
        &self,
        field: &Field,
        group: usize,
        (values, offsets): &(Bytes, Bytes),
    ) -> Option<Statistics> {
        let name = field.name();
        check(values, &COLUMN_INDEX)?;
        check(offsets, &OFFSET_INDEX)?;
        let root = self.footer.schema().index_of(name).ok()?;
        let group = self.footer.metadata().row_group(self.groups.start + group);
        let read = || -> Result<_, ParquetError> {
            let metadata = single_column(&self.footer, root, group, values.len(), offsets.len())?;
            let schema = metadata.file_metadata().schema_descr_ptr();
            let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
                .with_page_index_policy(PageIndexPolicy::Required);
            // The reader requires a byte after the last index.
            reader.read_page_indexes(&Bytes::from([&values[..], &offsets[..], &[0]].concat()))?;
            let metadata = reader.finish()?;
            let missing = || ParquetError::General("no page index".to_owned());
            let (index, locations) =
                (metadata.column_index().ok_or_else(missing)?, metadata.offset_index().ok_or_else(missing)?);
            let pages = locations[0][0].page_locations().len();
            if pages > MAX_PAGES {
                return Err(ParquetError::General(format!("{pages} pages, expected at most {MAX_PAGES}")));
            }
            let delivered = Schema::new(vec![field.clone()]);
            let converter = StatisticsConverter::try_new(name, &delivered, &schema)?;
            let (min, max) = if self.has_known_order(name) {
                let min = converter.data_page_mins(index, locations, &[0])?;
                (min, converter.data_page_maxes(index, locations, &[0])?)
            } else {
                let none = new_null_array(field.data_type(), pages);
                (ArrayRef::clone(&none), none)
            };
            let starts = locations[0][0].page_locations().iter().map(|page| page.first_row_index);
            let nulls = (0..min.len()).map(|page| index[0][0].null_count(page));
            Ok((min, max, starts.collect::<Vec<_>>(), nulls.collect::<Vec<_>>()))
        };
        let (min, max, starts, nulls) = catch_panics(&self.target.url, read).ok()?;
        if starts.first() != Some(&0) {
            return None;
        }
        let ends = starts.into_iter().skip(1).chain([group.num_rows()]);
        let pages = Statistics {
            ends: ends.map(u32::try_from).collect::<Result<_, _>>().ok()?,
            null_counts: nulls.into_iter().map(|nulls| u64::try_from(nulls?).ok()).collect(),
            min,
            max,
        };
        let data_type: DataType = pages.min.data_type().clone();
        Statistics::concat(&[pages], &data_type, u32::try_from(group.num_rows()).ok()?)
    }
}

/// Returns the metadata of a synthetic file that consists of one column of one row group and begins with its page
/// index.
fn single_column(
    footer: &Footer,
    root: usize,
    group: &RowGroupMetaData,
    values: usize,
    offsets: usize,
) -> Result<ParquetMetaData, ParquetError> {
    let file = footer.metadata().file_metadata();
    let schema = Arc::new(footer.single_column(root)?);
    let chunk = group.column(footer.leaves(root).start).clone().into_builder();
    let chunk = chunk
        .set_column_index_offset(Some(0))
        .set_column_index_length(i32::try_from(values).ok())
        .set_offset_index_offset(i64::try_from(values).ok())
        .set_offset_index_length(i32::try_from(offsets).ok())
        .build()?;
    let group = RowGroupMetaData::builder(Arc::clone(&schema))
        .set_num_rows(group.num_rows())
        .set_column_metadata(vec![chunk])
        .build()?;
    let rows = group.num_rows();
    let file = FileMetaData::new(file.version(), rows, None, None, schema, None);
    Ok(ParquetMetaData::new(file, vec![group]))
}

fn check(bytes: &Bytes, shape: &Shape) -> Option<()> {
    Walker::new(bytes).conform(shape).ok()
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use futures::FutureExt;
    use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
    use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

    use super::*;
    use crate::{Config, Location, State, take_snapshot};

    #[tokio::test]
    async fn indexes_and_filters_wait_for_the_memory_of_footers() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        let batch = RecordBatch::try_from_iter([("id", numbers)]).unwrap();
        let properties = WriterProperties::builder().set_bloom_filter_enabled(true);
        let properties = properties.set_data_page_row_count_limit(1000).set_write_batch_size(1000).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        let (store, config) = (Arc::new(InMemory::new()), Config::default());
        store.put(&Path::from("data/a.parquet"), writer.into_inner().unwrap().into()).await.unwrap();
        let location = Location::with_store("memory://data", store, "data");
        let of_state = Location::with_store("memory://state", Arc::new(InMemory::new()), "");
        let state = State::open(of_state, None, &config);
        let snapshot = take_snapshot("d", &location, &state, &config, |_, _| {}).await.unwrap();
        let reader = Reader::new(Arc::new(snapshot), location.clone(), &state, config);

        let pages = || Box::pin(reader.page_statistics(0, &[0]));
        let filter = || Box::pin(reader.may_contain(0, 0, Arc::new(Int64Array::from(vec![5, 10_001]))));
        // The footer is in memory afterwards.
        pages().await.unwrap();
        let all = location.footer_room(u64::MAX).await;
        let (mut pages, mut filter) = (pages(), filter());
        for _ in 0..1000 {
            assert!(pages.as_mut().now_or_never().is_none() && filter.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        drop(all);
        let (pages, contained) = (pages.await.unwrap(), filter.await.unwrap());
        assert!(pages[0].ends.len() > 1, "statistics of pages");
        assert_eq!(contained, [true, false]);
        // All of it is free again.
        assert!(location.footer_room(u64::MAX).now_or_never().is_some());
    }
}
