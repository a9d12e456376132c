//! Footers: read from the end of a file, validated and parsed.

use std::{collections::HashSet, ops::Range, sync::Arc};

use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use parquet::{
    basic::Type as Physical,
    errors::ParquetError,
    file::metadata::{
        ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
    },
    schema::types::{SchemaDescriptor, Type},
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Config, Error, Location,
    dataset::{
        column_sizes::null_bytes,
        file_columns::{FileColumn, file_columns, single_column},
        schema::unsupported,
    },
    store::{request, target::Target},
    validate::{
        decoder_errors::catch_panics,
        footer_check::check_footer,
        foreign_columns::{ForeignColumns, readable},
    },
};

/// Size of the trailer of a file: the length of the footer and `PAR1`.
const TAIL: u64 = 8;
/// Size of the magic `PAR1` at the start of a file.
const HEAD: u64 = 4;
/// Size of the first read from the end of a file. Contains most footers completely.
const FIRST_READ: u64 = 64 << 10;

/// Parsed and validated footer. Only checks that need data pages remain.
#[derive(Debug)]
pub(crate) struct Footer {
    metadata: Arc<ParquetMetaData>,
    /// Top-level columns with the delivered types.
    schema: Schema,
    columns: Vec<FileColumn>,
}

impl Footer {
    pub(crate) fn metadata(&self) -> &Arc<ParquetMetaData> {
        &self.metadata
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Columns of [`schema`](Self::schema), in its order.
    pub(crate) fn columns(&self) -> &[FileColumn] {
        &self.columns
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.metadata.memory_size() + 512 * self.columns.len()
    }

    /// Returns the footer of a file that has only the columns `names` of this one, in the order of the file.
    ///
    /// # Errors
    /// If the columns cannot be a schema of their own.
    pub(crate) fn project(&self, names: &[&str]) -> Result<Self, ParquetError> {
        let file = self.metadata.file_metadata();
        let wanted: HashSet<&str> = names.iter().copied().collect();
        let fields = self.schema.fields().iter().enumerate();
        let roots: Vec<usize> = fields
            .filter(|(_, field)| wanted.contains(field.name().as_str()))
            .map(|(root, _)| root)
            .collect();
        let types = file.schema_descr().root_schema().get_fields();
        let types = roots.iter().map(|root| Arc::clone(&types[*root])).collect();
        let schema = Type::group_type_builder("schema").with_fields(types).build()?;
        let descriptor = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let leaves: Vec<usize> = roots.iter().flat_map(|root| self.leaves(*root)).collect();
        let group = |group: &RowGroupMetaData| {
            RowGroupMetaData::builder(Arc::clone(&descriptor))
                .set_num_rows(group.num_rows())
                .set_total_byte_size(group.total_byte_size())
                .set_column_metadata(leaves.iter().map(|leaf| group.column(*leaf).clone()).collect())
                .build()
        };
        let groups = self.metadata.row_groups().iter().map(group).collect::<Result<_, _>>()?;
        let orders =
            file.column_orders().map(|_| leaves.iter().map(|leaf| file.column_order(*leaf)).collect());
        let created_by = file.created_by().map(str::to_owned);
        let file = FileMetaData::new(
            file.version(),
            file.num_rows(),
            created_by,
            None,
            Arc::clone(&descriptor),
            orders,
        );
        let mut start = 0;
        let column = |root: &usize| {
            let column = self.columns[*root].clone();
            let leaves = start..start + column.leaves.len();
            start = leaves.end;
            FileColumn { leaves, ..column }
        };
        let columns = roots.iter().map(column).collect();
        let schema = self.schema.project(&roots)?;
        Ok(Self { metadata: Arc::new(ParquetMetaData::new(file, groups)), schema, columns })
    }

    /// Leaf columns of the top-level column `root`.
    pub(crate) fn leaves(&self, root: usize) -> Range<usize> {
        self.columns[root].leaves.clone()
    }

    /// Returns the Parquet schema of the column `root` alone, with intervals in their stored form.
    ///
    /// # Errors
    /// If the column cannot be a schema of its own.
    pub(crate) fn single_column(&self, root: usize) -> Result<SchemaDescriptor, ParquetError> {
        let schema = self.metadata.file_metadata().schema_descr();
        single_column(&schema.root_schema().get_fields()[root])
    }
}

/// Reads the bytes of the footer from the end of a file, when there is room for them. The room is occupied until the permit is
/// dropped.
///
/// # Errors
/// [`Error::Corrupt`] if the file has no valid trailer, [`Error::Limit`] for a footer over `max_footer_bytes`, and the
/// errors of reading the file.
pub(crate) async fn read_footer(
    location: &Location,
    target: &Target,
    config: &Config,
) -> Result<(Bytes, OwnedSemaphorePermit), Error> {
    let (url, size) = (&target.url, target.version.size);
    if size < HEAD + TAIL {
        return Err(Error::corrupt(url, format!("{size} bytes are too few for a Parquet file")));
    }
    let first = size.min(FIRST_READ);
    let end = request::read(location, target, size - first..size).await?;
    let length = footer_length(&end, url)?;
    if length > size - HEAD - TAIL {
        let detail = format!("the footer claims {length} bytes, but the file has {size}");
        return Err(Error::corrupt(url, detail));
    }
    if length > config.max_footer_bytes {
        let what = "size of the footer in bytes (max_footer_bytes)";
        return Err(Error::limit(url, what, config.max_footer_bytes, length));
    }
    let room = location.footer_room(length).await;
    request::count_requested(length + TAIL);
    if length + TAIL <= first {
        let start = (first - TAIL - length) as usize;
        return Ok((end.slice(start..start + length as usize), room));
    }
    let start = size - TAIL - length;
    Ok((request::read(location, target, start..start + length).await?, room))
}

fn footer_length(end: &Bytes, url: &str) -> Result<u64, Error> {
    let (_, tail) = end.split_last_chunk::<{ TAIL as usize }>().expect("at least the trailer was read");
    let (length, magic) = tail.split_first_chunk::<4>().expect("the trailer begins with a length");
    match magic {
        b"PAR1" => Ok(u64::from(u32::from_le_bytes(*length))),
        b"PARE" => Err(encrypted(url)),
        other => {
            let detail =
                format!("the file ends in {:?}, expected \"PAR1\"", other.escape_ascii().to_string());
            Err(Error::corrupt(url, detail))
        }
    }
}

fn encrypted(url: &str) -> Error {
    Error::unsupported(url, "the file is encrypted")
}

/// Validates and parses the footer of a file of `size` bytes. Never panics; allocations are proportional to the length
/// of `bytes`.
///
/// # Errors
/// [`Error::Corrupt`] for an invalid footer, [`Error::Unsupported`] for an encrypted file, [`Error::Limit`] for a row group of more than 2^32 - 1 rows and for a type whose null has more than
/// `max_block_bytes` bytes.
pub(crate) fn parse_footer(
    bytes: &Bytes,
    size: u64,
    url: &str,
    max_block_bytes: u64,
) -> Result<Footer, Error> {
    if check_footer(bytes).map_err(|malformed| Error::corrupt(url, malformed.to_string()))? {
        return Err(encrypted(url));
    }
    let decode = |bytes: &Bytes| {
        catch_panics(url, || without_zero_offsets(ParquetMetaDataReader::decode_metadata(bytes)?))
    };
    let (metadata, foreign) = match decode(bytes) {
        Ok(metadata) => (metadata, ForeignColumns::default()),
        Err(refused) => match readable(bytes) {
            Ok(Some((readable, foreign))) => (decode(&readable)?, foreign),
            Ok(None) | Err(_) => return Err(refused),
        },
    };
    check_ranges(&metadata, size - TAIL - bytes.len() as u64, url)?;
    let (mut schema, mut columns) = file_columns(metadata.file_metadata());
    let reasons = foreign.reasons(&metadata, &columns);
    if !reasons.is_empty() {
        let mut fields = schema.fields().to_vec();
        for (root, reason) in reasons {
            fields[root] = Arc::new(unsupported(fields[root].name(), &reason));
            columns[root].declared = DataType::Null;
        }
        schema = Schema::new(fields);
    }
    check_schema(&schema, url, max_block_bytes)?;
    Ok(Footer { metadata: Arc::new(metadata), schema, columns })
}

/// Removes dictionary page offsets of 0, which some writers store in place of none.
///
/// The pages of such a column chunk begin at its data page offset. The first of them may be a dictionary page.
fn without_zero_offsets(metadata: ParquetMetaData) -> Result<ParquetMetaData, ParquetError> {
    let is_zero = |column: &ColumnChunkMetaData| column.dictionary_page_offset() == Some(0);
    if !metadata.row_groups().iter().any(|group| group.columns().iter().any(is_zero)) {
        return Ok(metadata);
    }
    let mut builder = metadata.into_builder();
    let mut groups = builder.take_row_groups();
    for group in &mut groups {
        let mut columns = group.columns().to_vec();
        for column in columns.iter_mut().filter(|column| is_zero(column)) {
            *column = column.clone().into_builder().set_dictionary_page_offset(None).build()?;
        }
        *group = group.clone().into_builder().set_column_metadata(columns).build()?;
    }
    Ok(builder.set_row_groups(groups).build())
}

/// Checks that every count is plausible and that every column chunk is between the leading magic and the footer.
fn check_ranges(metadata: &ParquetMetaData, end: u64, url: &str) -> Result<(), Error> {
    let mut rows: i64 = 0;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let at = |detail: String| Error::corrupt(url, detail).at(Some(index), None);
        let count = group.num_rows();
        if count < 0 || group.total_byte_size() < 0 {
            return Err(at(format!("{count} rows in {} bytes", group.total_byte_size())));
        }
        rows = rows.checked_add(count).ok_or_else(|| at("too many rows".to_owned()))?;
        if u32::try_from(count).is_err() {
            let what = "number of rows in one row group";
            return Err(Error::limit(url, what, u32::MAX.into(), count as u64));
        }
        for column in group.columns() {
            let name = column.column_path().string();
            if column.file_path().is_some_and(|path| !path.is_empty()) {
                return Err(Error::unsupported(url, format!("column {name}: its data is in another file")));
            }
            check_chunk(column, group, end)
                .map_err(|detail| Error::corrupt(url, detail).at(Some(index), Some(&name)))?;
        }
    }
    // Some writers store no total. Blocks are made of the rows of row groups, so the total is not needed.
    let claimed = metadata.file_metadata().num_rows();
    if claimed != 0 && claimed != rows {
        let detail = format!("the footer claims {claimed} rows, but the row groups have {rows}");
        return Err(Error::corrupt(url, detail));
    }
    Ok(())
}

fn check_chunk(column: &ColumnChunkMetaData, group: &RowGroupMetaData, end: u64) -> Result<(), String> {
    let values = column.num_values();
    let nested = column.column_descr().max_rep_level() > 0;
    if values < 0 || (!nested && values != group.num_rows()) {
        return Err(format!("{values} values for {} rows", group.num_rows()));
    }
    if let Some(nulls) = column.statistics().and_then(parquet::file::statistics::Statistics::null_count_opt)
        && nulls > values.unsigned_abs()
    {
        return Err(format!("{nulls} nulls among {values} values"));
    }
    if column.uncompressed_size() < 0 {
        return Err(format!("uncompressed size of {}", column.uncompressed_size()));
    }
    if column.column_type() == Physical::FIXED_LEN_BYTE_ARRAY && column.column_descr().type_length() < 0 {
        return Err(format!("fixed length of {} bytes", column.column_descr().type_length()));
    }
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let length = column.compressed_size();
    let stop = start.checked_add(length).and_then(|stop| u64::try_from(stop).ok());
    let inside = start >= HEAD as i64 && length >= 0 && stop.is_some_and(|stop| stop <= end);
    let empty = start >= 0 && length == 0 && values == 0;
    if inside || empty {
        Ok(())
    } else {
        Err(format!("{length} bytes at offset {start} are outside of {HEAD}..{end}"))
    }
}

fn check_schema(schema: &Schema, url: &str, max_block_bytes: u64) -> Result<(), Error> {
    let fields = schema.fields();
    if fields.is_empty() {
        return Err(Error::unsupported(url, "the file has no columns"));
    }
    for field in fields {
        let bytes = null_bytes(field.data_type());
        if bytes > max_block_bytes {
            let what = "size of one value in bytes (max_block_bytes)";
            return Err(Error::limit(url, what, max_block_bytes, bytes).at(None, Some(field.name())));
        }
    }
    Ok(())
}
