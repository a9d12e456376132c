//! Page indexes: the least and the greatest value of each page of a column, kept near the end of a file.
//!
//! <https://github.com/apache/parquet-format/blob/master/PageIndex.md>

use std::{ops::Range, sync::Arc};

use arrow_schema::DataType;
use bytes::Bytes;
use futures::future::try_join_all;
use parquet::{
    arrow::arrow_reader::statistics::StatisticsConverter,
    errors::ParquetError,
    file::metadata::{
        ColumnChunkMetaData, FileMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
        RowGroupMetaData,
    },
    schema::types::{SchemaDescriptor, Type},
};

use crate::{
    Error, Reader, Statistics,
    blocking::blocking,
    footer::{Footer, guarded},
    grammar::{COLUMN_INDEX, OFFSET_INDEX},
    statistics::InFile,
    thrift::{Shape, Walker},
};

/// A column of so many pages in one block is told of by its row groups alone.
const MAX_PAGES: usize = 1 << 14;

/// Where the page index of a column chunk lies.
struct Place {
    values: Range<u64>,
    offsets: Range<u64>,
}

impl Place {
    fn of(chunk: &ColumnChunkMetaData) -> Option<Self> {
        let range = |offset: Option<i64>, length: Option<i32>| {
            let (offset, length) = (u64::try_from(offset?).ok()?, u64::try_from(length?).ok()?);
            Some(offset..offset.checked_add(length)?)
        };
        Some(Self {
            values: range(chunk.column_index_offset(), chunk.column_index_length())?,
            offsets: range(chunk.offset_index_offset(), chunk.offset_index_length())?,
        })
    }
}

impl Reader {
    /// As [`statistics`](Self::statistics), page by page for the columns of which the file has a page index. Reads these
    /// indexes; one that is damaged is as good as none.
    ///
    /// # Errors
    /// Those of reading a footer, and of reading of its file.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub async fn page_statistics(&self, block: usize, columns: &[usize]) -> Result<Vec<Statistics>, Error> {
        let file = self.snapshot().blocks()[block].file;
        let inside = self.in_file(block).await?;
        let each = columns.iter().map(|column| self.pages(file, *column, &inside));
        try_join_all(each).await
    }

    async fn pages(&self, file: u32, column: usize, inside: &InFile) -> Result<Statistics, Error> {
        let field = self.snapshot().schema().field(column).clone();
        let groups = match self.snapshot().partition(file, column) {
            // The nulls of a leaf are not those of what it is in.
            _ if field.data_type().is_nested() => None,
            Some(_) => None,
            None => self.indexes(field.name(), inside).await?,
        };
        let (this, inside) = (self.clone(), inside.clone());
        blocking(move || {
            let pages = groups.and_then(|indexes| {
                let indexes = indexes.into_iter().enumerate();
                let groups: Option<Vec<_>> =
                    indexes.map(|(group, index)| inside.pages(field.name(), group, &index)).collect();
                Statistics::joined(&groups?, field.data_type(), inside.rows)
            });
            let pages = pages.filter(|pages| pages.ends.len() <= MAX_PAGES);
            Ok(pages.unwrap_or_else(|| this.told(file, column, inside.rows, Some(&inside))))
        })
        .await
    }

    /// The encoded page index of a column, row group by row group; `None` if there is none, or a large one.
    async fn indexes(&self, name: &str, inside: &InFile) -> Result<Option<Vec<(Bytes, Bytes)>>, Error> {
        let places = inside.chunks(name).and_then(|chunks| chunks.into_iter().map(Place::of).collect());
        let Some(places): Option<Vec<Place>> = places else { return Ok(None) };
        let ranges: Vec<_> = places.into_iter().flat_map(|place| [place.values, place.offsets]).collect();
        let Some(mut found) = self.read_small(&ranges, &inside.target).await? else { return Ok(None) };
        let pairs = found.chunks_exact_mut(2);
        Ok(Some(pairs.map(|pair| (std::mem::take(&mut pair[0]), std::mem::take(&mut pair[1]))).collect()))
    }
}

impl InFile {
    /// What the page index of one row group says; `None` if it makes no sense.
    fn pages(&self, name: &str, group: usize, (values, offsets): &(Bytes, Bytes)) -> Option<Statistics> {
        check(values, &COLUMN_INDEX)?;
        check(offsets, &OFFSET_INDEX)?;
        let root = self.footer.schema().index_of(name).ok()?;
        let group = self.footer.metadata().row_group(self.groups.start + group);
        let read = || -> Result<_, ParquetError> {
            let metadata = alone(&self.footer, root, group, values.len(), offsets.len())?;
            let schema = metadata.file_metadata().schema_descr_ptr();
            let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
                .with_page_index_policy(PageIndexPolicy::Required);
            // The reader wants a byte behind the last.
            reader.read_page_indexes(&Bytes::from([&values[..], &offsets[..], &[0]].concat()))?;
            let metadata = reader.finish()?;
            let missing = || ParquetError::General("no page index".to_owned());
            let (index, locations) =
                (metadata.column_index().ok_or_else(missing)?, metadata.offset_index().ok_or_else(missing)?);
            let fields = self.footer.schema().project(&[root])?;
            let converter = StatisticsConverter::try_new(name, &fields, &schema)?;
            let least = converter.data_page_mins(index, locations, &[0])?;
            let greatest = converter.data_page_maxes(index, locations, &[0])?;
            let starts = locations[0][0].page_locations().iter().map(|page| page.first_row_index);
            let nulls = (0..least.len()).map(|page| index[0][0].null_count(page));
            Ok((least, greatest, starts.collect::<Vec<_>>(), nulls.collect::<Vec<_>>()))
        };
        let (least, greatest, starts, nulls) = guarded(&self.target.url, read).ok()?;
        if starts.first() != Some(&0) {
            return None;
        }
        let ends = starts.into_iter().skip(1).chain([group.num_rows()]);
        let pages = Statistics {
            ends: ends.map(u32::try_from).collect::<Result<_, _>>().ok()?,
            nulls: nulls.into_iter().map(|nulls| u64::try_from(nulls?).ok()).collect(),
            least,
            greatest,
        };
        let data_type: DataType = pages.least.data_type().clone();
        Statistics::joined(&[pages], &data_type, u32::try_from(group.num_rows()).ok()?)
    }
}

/// A file of this column and row group alone, which begins with the page index.
fn alone(
    footer: &Footer,
    root: usize,
    group: &RowGroupMetaData,
    values: usize,
    offsets: usize,
) -> Result<ParquetMetaData, ParquetError> {
    let file = footer.metadata().file_metadata();
    let column = Arc::clone(&file.schema_descr().root_schema().get_fields()[root]);
    let schema = Type::group_type_builder("schema").with_fields(vec![column]).build()?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
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
