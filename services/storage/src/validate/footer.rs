//! Footers: read from the end of a file, validated and parsed.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow_schema::{FieldRef, Schema};
use bytes::Bytes;
use parquet::{
    arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions},
    basic::{Compression, Type as Physical},
    errors::ParquetError,
    file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData},
};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    Config, Error, Location,
    dataset::{
        column_sizes::null_bytes,
        schema::{delivered, undeliverable},
        time_zones::{embedded_schema, with_zones},
    },
    error::Source,
    store::{request, target::Target},
    validate::footer_check::check_footer,
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
    /// Parquet metadata and the Arrow schema with the delivered types.
    pub(crate) reader: ArrowReaderMetadata,
    /// Range of leaf columns of each top-level column.
    leaves: Vec<Range<usize>>,
}

impl Footer {
    pub(crate) fn metadata(&self) -> &Arc<ParquetMetaData> {
        self.reader.metadata()
    }

    pub(crate) fn schema(&self) -> &Schema {
        self.reader.schema()
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.metadata().memory_size() + 256 * self.schema().fields().len()
    }

    /// Leaf columns of the top-level column `root`.
    pub(crate) fn leaves(&self, root: usize) -> Range<usize> {
        self.leaves[root].clone()
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
/// [`Error::Corrupt`] for an invalid footer, [`Error::Unsupported`] for an encrypted file or an unsupported type or
/// codec, [`Error::Limit`] for a row group of more than 2^32 - 1 rows and for a type whose null has more than
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
    let metadata =
        catch_panics(url, || without_zero_offsets(ParquetMetaDataReader::decode_metadata(bytes)?))?;
    check_ranges(&metadata, size - TAIL - bytes.len() as u64, url)?;
    let reader = catch_panics(url, || delivered_reader(Arc::new(metadata)))?;
    check_schema(reader.schema(), &reader, url, max_block_bytes)?;
    let leaves = leaves_by_root(&reader);
    Ok(Footer { reader, leaves })
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

/// Returns the range of leaf columns of each top-level column.
fn leaves_by_root(reader: &ArrowReaderMetadata) -> Vec<Range<usize>> {
    let descriptor = reader.parquet_schema();
    let mut leaves = Vec::with_capacity(reader.schema().fields().len());
    let mut start = 0;
    for root in 0..reader.schema().fields().len() {
        let below = (start..descriptor.num_columns())
            .take_while(|leaf| descriptor.get_column_root_idx(*leaf) == root)
            .count();
        leaves.push(start..start + below);
        start += below;
    }
    leaves
}

/// Returns reader metadata whose Arrow schema has the delivered types.
fn delivered_reader(metadata: Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata, ParquetError> {
    let inferred = ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new())?;
    let embedded = embedded_schema(metadata.file_metadata());
    let delivered = |field: &FieldRef| {
        let as_embedded = embedded.as_ref().and_then(|schema| schema.field_with_name(field.name()).ok());
        delivered(&as_embedded.map_or_else(|| Arc::clone(field), |embedded| with_zones(field, embedded)))
    };
    let schema = Arc::new(Schema::new(inferred.schema().fields().iter().map(delivered).collect::<Vec<_>>()));
    ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new().with_schema(schema))
}

/// Runs decoder code and converts a panic in it to [`Error::Corrupt`].
pub(crate) fn catch_panics<T>(url: &str, run: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(decoder_error(url, error)),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(Error::corrupt(url, format!("the decoder panicked: {message}")))
        }
    }
}

/// Converts an error of the decoder.
fn decoder_error(url: &str, error: ParquetError) -> Error {
    if let ParquetError::NYI(detail) = error {
        return Error::unsupported(url, detail);
    }
    let detail = match &error {
        ParquetError::External(cause) => cause.to_string(),
        other => other.to_string(),
    };
    let source: Source = Arc::new(error);
    Error::Corrupt { file: url.to_owned(), row_group: None, column: None, detail, source: Some(source) }
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
            check_chunk(column, group, end)
                .map_err(|detail| Error::corrupt(url, detail).at(Some(index), Some(&name)))?;
            if matches!(column.compression(), Compression::LZO) {
                return Err(Error::unsupported(url, format!("column {name} is compressed with LZO")));
            }
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
    if column.uncompressed_size() < 0 {
        return Err(format!("uncompressed size of {}", column.uncompressed_size()));
    }
    if column.column_type() == Physical::FIXED_LEN_BYTE_ARRAY && column.column_descr().type_length() < 0 {
        return Err(format!("fixed length of {} bytes", column.column_descr().type_length()));
    }
    if column.file_path().is_some_and(|path| !path.is_empty()) {
        return Err("the column data is in another file".to_owned());
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

fn check_schema(
    schema: &Schema,
    reader: &ArrowReaderMetadata,
    url: &str,
    max_block_bytes: u64,
) -> Result<(), Error> {
    let fields = schema.fields();
    if fields.is_empty() {
        return Err(Error::unsupported(url, "the file has no columns"));
    }
    if fields.len() != reader.parquet_schema().root_schema().get_fields().len() {
        return Err(Error::unsupported(url, "a column of the file has no Arrow type"));
    }
    let mut names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::unsupported(url, format!("two columns are named {}", twice[0])));
    }
    for field in fields {
        if let Some(inner) = undeliverable(field.data_type()) {
            return Err(Error::unsupported(url, format!("column {} holds {inner}", field.name())));
        }
        let bytes = null_bytes(field.data_type());
        if bytes > max_block_bytes {
            let what = "size of one value in bytes (max_block_bytes)";
            return Err(Error::limit(url, what, max_block_bytes, bytes).at(None, Some(field.name())));
        }
    }
    Ok(())
}
