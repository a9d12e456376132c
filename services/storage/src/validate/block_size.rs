//! Check of the decoded size of a block, before the block is decoded.

use std::{ops::Range, sync::Arc};

use arrow_schema::{DataType, Field};
use parquet::{basic::Type as Physical, column::page::Page, file::metadata::ColumnChunkMetaData};

use crate::{
    Config, Error,
    dataset::column_sizes::{fixed_bytes, leaf_types},
    read::{
        chunks::{Chunks, Pages},
        ranges::Sparse,
    },
    validate::{
        block_size::{
            fixed_lists::FixedLists,
            shared_values::{dictionary_lengths, shared_bytes},
        },
        decoder_errors::catch_panics,
        footer::Footer,
        int96,
        page_headers::{Limits, Rejection, StoredPage, Summary, walk_pages},
    },
};

mod fixed_lists;
mod shared_values;

/// Maximum size of the strings and binary values of a batch of several rows, in bytes. Together with the values of a dictionary they stay
/// below 2 GiB, which offsets of 32 bits can address.
const MAX_CHUNK_BYTES: u64 = 512 << 20;

/// Checks every page header of the columns `roots` of a block, and that their values are within `max_block_bytes`.
/// Returns the column chunks and the number of rows to decode at once, at most `batch_rows`. The byte arrays of these rows, which
/// can be in dictionaries, and their fixed-size lists, which can be null, have at most `batch_bytes` bytes, unless one row or two pages of
/// each column have more.
///
/// A page can store one long value and refer to it a million times. Such values are counted before decoding if a row
/// can hold any number of them. Other columns hold one value per row, so batches have fewer rows if the longest values
/// are long. Their size is checked during decoding, once per batch.
///
/// A null fixed-size list occupies the memory of all its items, but one definition level in a page. Such lists are counted in the
/// same way.
///
/// # Errors
/// [`Error::Corrupt`] for malformed pages, [`Error::Limit`] for a page over `max_page_bytes`, and for a block whose
/// values, or whose dictionaries and pages in memory at once, exceed `max_block_bytes`; [`Error::Unsupported`] for an INT96
/// timestamp outside of the range of its Arrow type.
pub(crate) fn check_block(
    url: &str,
    footer: &Arc<Footer>,
    groups: &Range<usize>,
    roots: &[RequestedRoot<'_>],
    sparse: Sparse,
    (batch_rows, batch_bytes): (usize, u64),
    config: &Config,
) -> Result<(Vec<Chunks>, usize), Error> {
    let sparse = Arc::new(sparse);
    let mut chunks: Vec<Chunks> =
        roots.iter().map(|_| Chunks::new(Arc::clone(footer), groups.clone())).collect();
    let (mut decoded, mut encoded) = (Total::decoded(url, config), Total::encoded(url, config));
    let (mut flat, mut repeated) = (Vec::new(), Vec::new());
    let (mut row_bytes, mut list_chunks) = (0_u64, Vec::new());
    for (chunks_of, RequestedRoot { root, field }) in roots.iter().enumerate() {
        let types = leaf_types(field.data_type()).into_iter().zip(FixedLists::of_leaves(field));
        for ((of_root, leaf), (leaf_type, lists)) in footer.leaves(*root).enumerate().zip(types) {
            row_bytes = row_bytes.saturating_add(lists.row_bytes);
            let lists = Arc::new(lists);
            let mut leaf_chunks = Vec::with_capacity(groups.len());
            let mut largest_page = 0;
            for group in groups.clone() {
                let chunk = footer.metadata().row_group(group).column(leaf);
                let place = |error: Error| error.at(Some(group), Some(&chunk.column_path().string()));
                let summary = check_chunk(url, chunk, &sparse, config).map_err(place)?;
                let rows = u64::try_from(footer.metadata().row_group(group).num_rows()).unwrap_or(0);
                let of_lists = rows.saturating_mul(lists.row_bytes);
                decoded.add(decoded_bytes(leaf_type, chunk, &summary).max(of_lists)).map_err(place)?;
                if lists.is_repeated {
                    let lists = Arc::clone(&lists);
                    list_chunks.push(ListChunk { group, chunk, values: summary.values, lists });
                }
                // The decoder holds one page of each leaf column. The dictionaries of all row groups can be in memory,
                // because they are read to find the longest value.
                let growth = summary.page_bytes.saturating_sub(largest_page);
                encoded.add(summary.dictionary_bytes.saturating_add(growth)).map_err(place)?;
                largest_page += growth;
                if chunk.column_type() == Physical::INT96 {
                    check_timestamps(url, chunk, &sparse, leaf_type).map_err(place)?;
                }
                let pages = catch_panics(url, || Pages::new(&sparse, chunk)).map_err(place)?;
                leaf_chunks.push(LeafChunk { group, chunk, pages, summary });
            }
            let descriptor = footer.metadata().file_metadata().schema_descr().column(leaf);
            let leaf = Leaf { of_root, chunks: leaf_chunks };
            match descriptor.physical_type() {
                Physical::BYTE_ARRAY if descriptor.max_rep_level() > 0 => repeated.push((chunks_of, leaf)),
                Physical::BYTE_ARRAY => flat.push((chunks_of, leaf)),
                _ => chunks[chunks_of].insert(of_root, leaf.into_pages()),
            }
        }
    }
    check_null_lists(url, &list_chunks, &sparse, &mut decoded)?;
    let of_repeated = repeated.iter_mut().flat_map(|(_, leaf)| &mut leaf.chunks);
    check_repeated(url, of_repeated.collect(), &sparse, decoded)?;
    let batch_bytes = batch_bytes.min(MAX_CHUNK_BYTES);
    let of_flat = flat.iter_mut().flat_map(|(_, leaf)| &mut leaf.chunks);
    let mut rows = rows_at_once(url, of_flat.collect(), row_bytes, batch_rows, batch_bytes)?;
    let stored = flat.iter().map(|(_, leaf)| leaf.stored_pages()).collect::<Vec<_>>();
    rows = rows_of_stored_values(&stored, rows, batch_bytes);
    for (_, leaf) in &mut repeated {
        // A row can hold any number of values, so that only the size of a single one is certain.
        if rows > 1 && exceeds_offsets(url, &mut leaf.chunks, &sparse)? {
            rows = 1;
        }
    }
    for (chunks_of, leaf) in flat.into_iter().chain(repeated) {
        chunks[chunks_of].insert(leaf.of_root, leaf.into_pages());
    }
    Ok((chunks, rows))
}

/// Requested top-level column of a file.
#[derive(Clone, Copy)]
pub(crate) struct RequestedRoot<'a> {
    /// Position in the file.
    pub(crate) root: usize,
    /// Field that is delivered.
    pub(crate) field: &'a Field,
}

/// Leaf column of a block.
struct Leaf<'a> {
    /// Position in the top-level column.
    of_root: usize,
    /// Column chunk of each row group.
    chunks: Vec<LeafChunk<'a>>,
}

impl Leaf<'_> {
    fn stored_pages(&self) -> Vec<StoredPage> {
        self.chunks.iter().flat_map(|chunk| chunk.summary.stored_pages.iter().copied()).collect()
    }

    fn into_pages(self) -> Vec<Pages> {
        self.chunks.into_iter().map(|chunk| chunk.pages).collect()
    }
}

/// Column chunk of a leaf column.
struct LeafChunk<'a> {
    group: usize,
    chunk: &'a ColumnChunkMetaData,
    pages: Pages,
    summary: Summary,
}

/// Column chunk with fixed-size lists of which a row can hold any number.
struct ListChunk<'a> {
    group: usize,
    chunk: &'a ColumnChunkMetaData,
    /// Number of values, including nulls.
    values: u64,
    lists: Arc<FixedLists>,
}

/// Size in bytes that must not exceed `max_block_bytes`.
#[derive(Clone, Copy)]
struct Total<'a> {
    url: &'a str,
    what: &'static str,
    bytes: u64,
    limit: u64,
}

impl<'a> Total<'a> {
    fn decoded(url: &'a str, config: &Config) -> Self {
        let what = "decoded size of one block's columns in bytes (max_block_bytes)";
        Self { url, what, bytes: 0, limit: config.max_block_bytes }
    }

    fn encoded(url: &'a str, config: &Config) -> Self {
        let what =
            "size of the dictionaries and largest pages of one block's columns in bytes (max_block_bytes)";
        Self { url, what, bytes: 0, limit: config.max_block_bytes }
    }

    fn add(&mut self, bytes: u64) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limit {
            return Err(Error::limit(self.url, self.what, self.limit, self.bytes));
        }
        Ok(())
    }

    /// Number of bytes that can be added.
    fn left(&self) -> u64 {
        self.limit - self.bytes
    }
}

fn check_chunk(
    url: &str,
    chunk: &ColumnChunkMetaData,
    sparse: &Sparse,
    config: &Config,
) -> Result<Summary, Error> {
    let (start, length) = chunk.byte_range();
    if length == 0 {
        return Ok(Summary::default());
    }
    let bytes = sparse.get(start..start + length).expect("every column chunk was fetched whole");
    let min_value_bytes = match chunk.column_type() {
        Physical::BOOLEAN => 1,
        Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
        Physical::INT64 | Physical::DOUBLE => 8,
        Physical::INT96 => 12,
        Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(chunk.column_descr().type_length()).unwrap_or(0),
    };
    let limits =
        Limits { codec: chunk.compression(), min_value_bytes, max_page_bytes: config.max_page_bytes };
    let summary = walk_pages(&bytes, limits).map_err(|rejection| match rejection {
        Rejection::Malformed(malformed) => Error::corrupt(
            url,
            format!("{} in the page at offset {}", malformed.detail, start + malformed.offset as u64),
        ),
        Rejection::TooLarge(found) => {
            let what = "uncompressed size of a page in bytes (max_page_bytes)";
            Error::limit(url, what, config.max_page_bytes, found)
        }
    })?;
    if summary.values != u64::try_from(chunk.num_values()).unwrap_or(0) {
        let detail =
            format!("the pages hold {} values, but the footer claims {}", summary.values, chunk.num_values());
        return Err(Error::corrupt(url, detail));
    }
    Ok(summary)
}

/// Checks that the INT96 timestamps of a chunk fit the type that they are decoded to.
fn check_timestamps(
    url: &str,
    chunk: &ColumnChunkMetaData,
    sparse: &Arc<Sparse>,
    leaf: &DataType,
) -> Result<(), Error> {
    let descriptor = chunk.column_descr_ptr();
    // The decoder needs the pages again.
    let found = catch_panics(url, || int96::out_of_range(Pages::new(sparse, chunk)?, &descriptor, leaf))?;
    found.map_or(Ok(()), |detail| Err(Error::unsupported(url, detail)))
}

/// Decoded size in bytes of fixed-width values, including the levels of nested values, and of the byte arrays that data
/// pages store themselves.
fn decoded_bytes(leaf: &DataType, chunk: &ColumnChunkMetaData, summary: &Summary) -> u64 {
    let levels = if chunk.column_descr().max_rep_level() > 0 { 2 * size_of::<i16>() as u64 } else { 0 };
    let stored = if chunk.column_type() == Physical::BYTE_ARRAY { summary.stored_bytes } else { 0 };
    let fixed = fixed_bytes(leaf, summary.values).saturating_add(summary.values.saturating_mul(levels));
    fixed.saturating_add(stored)
}

/// Adds the decoded size of null fixed-size lists of which a row can hold any number to `decoded`.
///
/// The pages are only read if the size could exceed the limit, assuming that every value is a null list.
fn check_null_lists(
    url: &str,
    chunks: &[ListChunk<'_>],
    sparse: &Arc<Sparse>,
    decoded: &mut Total<'_>,
) -> Result<(), Error> {
    let estimates = chunks.iter().map(|chunk| chunk.values.saturating_mul(chunk.lists.max_level_bytes()));
    if estimates.fold(0, u64::saturating_add) <= decoded.left() {
        return Ok(());
    }
    for ListChunk { group, chunk, lists, .. } in chunks {
        let descriptor = chunk.column_descr();
        let (max_rep_level, max_def_level) = (descriptor.max_rep_level(), descriptor.max_def_level());
        let limit = decoded.left();
        // The decoder needs the pages again.
        let bytes = catch_panics(url, || {
            lists.null_list_bytes(Pages::new(sparse, chunk)?, max_rep_level, max_def_level, limit)
        });
        bytes
            .and_then(|bytes| decoded.add(bytes))
            .map_err(|error| error.at(Some(*group), Some(&chunk.column_path().string())))?;
    }
    Ok(())
}

/// Checks the decoded size of byte arrays of which a row can hold any number. `decoded` is the size of all other
/// values.
///
/// The size is first estimated from the page headers, then from the longest value of each dictionary. Pages are only
/// read if both estimates exceed the limit.
fn check_repeated(
    url: &str,
    mut chunks: Vec<&mut LeafChunk<'_>>,
    sparse: &Arc<Sparse>,
    mut decoded: Total<'_>,
) -> Result<(), Error> {
    let estimates = chunks.iter().map(|chunk| chunk.summary.shared_bytes(chunk.summary.dictionary_bytes));
    if estimates.fold(0, u64::saturating_add) <= decoded.left() {
        return Ok(());
    }
    let mut estimate = 0_u64;
    for chunk in &mut chunks {
        let longest = chunk.longest_value(url)?;
        estimate = estimate.saturating_add(chunk.summary.shared_bytes(longest));
    }
    if estimate <= decoded.left() {
        return Ok(());
    }
    for chunk in chunks {
        decoded.add(chunk.shared_bytes(url, sparse, decoded.left())?).map_err(|error| chunk.place(error))?;
    }
    Ok(())
}

/// Number of rows that may be decoded at once, assuming that every row holds the longest value of every column. The fixed-size
/// lists of a row have `row_bytes` bytes.
///
/// At least one row. It fits, because a value is not longer than its dictionary or page, and the footer check limits the size of a
/// null.
fn rows_at_once(
    url: &str,
    mut chunks: Vec<&mut LeafChunk<'_>>,
    row_bytes: u64,
    batch_rows: usize,
    limit: u64,
) -> Result<usize, Error> {
    let rows = |longest: u64| usize::try_from(limit / longest.max(1)).unwrap_or(usize::MAX).max(1);
    let longest = chunks.iter().map(|chunk| chunk.summary.dictionary_bytes.max(chunk.summary.prefix_bytes));
    let at_least = rows(longest.fold(row_bytes, u64::saturating_add));
    if at_least >= batch_rows {
        return Ok(batch_rows);
    }
    // A large dictionary seldom consists of one value, so determine the longest value.
    let mut exact = row_bytes;
    for chunk in &mut chunks {
        let longest = chunk.longest_value(url)?;
        exact = exact.saturating_add(longest.max(chunk.summary.prefix_bytes));
    }
    Ok(rows(exact).min(batch_rows))
}

/// Number of rows that may be decoded at once, at most `batch_rows`, so that the values that the pages of these rows store themselves have
/// at most `limit` bytes, and those of one column at most [`MAX_CHUNK_BYTES`]. At least one row.
///
/// Any row of a page may hold almost all of its bytes, so that all pages with a row of a batch count. A single row may need a page of each
/// column. Twice that is permitted above the limit, so that rows of wide tables are decoded by pages. `columns` are the pages of each column;
/// a row has one value of each.
fn rows_of_stored_values(columns: &[Vec<StoredPage>], batch_rows: usize, limit: u64) -> usize {
    let of_a_row = columns.iter().map(|pages| pages.iter().map(|page| page.bytes).max().unwrap_or(0));
    let limit = of_a_row.fold(0, u64::saturating_add).saturating_mul(2).max(limit);
    let mut rows = batch_rows;
    while rows > 1 {
        let bytes = columns.iter().map(|pages| largest_stored_bytes(pages, rows as u64));
        let (sum, largest) =
            bytes.fold((0_u64, 0), |(sum, largest), bytes| (sum.saturating_add(bytes), bytes.max(largest)));
        if sum <= limit && largest <= MAX_CHUNK_BYTES {
            break;
        }
        rows = rows.div_ceil(2);
    }
    rows
}

/// Maximum size in bytes of consecutive pages, of which all but the first and the last have fewer than `rows` values together.
fn largest_stored_bytes(pages: &[StoredPage], rows: u64) -> u64 {
    let (mut start, mut bytes, mut values, mut largest) = (0, 0_u64, 0_u64, 0);
    for page in pages {
        // A batch that ends in this page begins in one of the `rows - 1` values before it.
        bytes = bytes.saturating_add(page.bytes);
        while start < pages.len() && values.saturating_sub(pages[start].values) >= rows.saturating_sub(1) {
            bytes = bytes.saturating_sub(pages[start].bytes);
            values -= pages[start].values;
            start += 1;
        }
        largest = largest.max(bytes);
        values = values.saturating_add(page.values);
    }
    largest
}

/// True if the values of a repeated leaf column may have more bytes than offsets of 32 bits can address.
///
/// The size is first estimated from the page headers, then from the longest value of each dictionary, as for [`check_repeated`].
fn exceeds_offsets(url: &str, chunks: &mut [LeafChunk<'_>], sparse: &Arc<Sparse>) -> Result<bool, Error> {
    const LIMIT: u64 = i32::MAX as u64;
    let bytes =
        |summary: &Summary, longest: u64| summary.stored_bytes.saturating_add(summary.shared_bytes(longest));
    let estimates = chunks.iter().map(|chunk| bytes(&chunk.summary, chunk.summary.dictionary_bytes));
    if estimates.fold(0, u64::saturating_add) <= LIMIT {
        return Ok(false);
    }
    let mut estimate = 0_u64;
    for chunk in &mut *chunks {
        let longest = chunk.longest_value(url)?;
        estimate = estimate.saturating_add(bytes(&chunk.summary, longest));
    }
    if estimate <= LIMIT {
        return Ok(false);
    }
    let mut exact = 0_u64;
    for chunk in chunks {
        let shared = chunk.shared_bytes(url, sparse, LIMIT)?;
        exact = exact.saturating_add(shared).saturating_add(chunk.summary.stored_bytes);
    }
    Ok(exact > LIMIT)
}

impl LeafChunk<'_> {
    /// Adds the row group and column to an error.
    fn place(&self, error: Error) -> Error {
        error.at(Some(self.group), Some(&self.chunk.column_path().string()))
    }

    /// Length in bytes of the longest value in the dictionary; 0 without a dictionary.
    fn longest_value(&mut self, url: &str) -> Result<u64, Error> {
        if self.summary.dictionary_bytes == 0 {
            return Ok(0);
        }
        let longest = catch_panics(url, || {
            let Some(Page::DictionaryPage { buf, .. }) = self.pages.peek()? else { return Ok(0) };
            Ok(dictionary_lengths(buf).max().unwrap_or(0))
        });
        longest.map(u64::from).map_err(|error| self.place(error))
    }

    /// Decoded size in bytes of the values that share stored bytes, or a part of it that exceeds `limit`.
    fn shared_bytes(&self, url: &str, sparse: &Arc<Sparse>, limit: u64) -> Result<u64, Error> {
        let descriptor = self.chunk.column_descr();
        let (max_rep_level, max_def_level) = (descriptor.max_rep_level(), descriptor.max_def_level());
        // The decoder needs the pages again, and all of them may not fit in memory at once.
        let bytes = catch_panics(url, || {
            shared_bytes(Pages::new(sparse, self.chunk)?, max_rep_level, max_def_level, limit)
        });
        bytes.map_err(|error| self.place(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pages(count: usize, values: u64, bytes: u64) -> Vec<StoredPage> {
        vec![StoredPage { values, bytes }; count]
    }

    #[test]
    fn rows_of_wide_tables_are_decoded_by_pages_not_one_by_one() {
        let columns = vec![pages(20, 50_000, MIB); 65];
        assert_eq!(rows_of_stored_values(&columns, 1 << 16, 64 * MIB), 1 << 15);
        assert_eq!(rows_of_stored_values(&columns, 1 << 16, 4096 * MIB), 1 << 16);
    }

    #[test]
    fn rows_of_large_pages_are_decoded_two_pages_at_once() {
        assert_eq!(rows_of_stored_values(&[pages(8, 1000, 100 * MIB)], 1 << 16, 64 * MIB), 512);
    }

    #[test]
    fn rows_of_one_column_stay_below_offsets_of_32_bits() {
        assert_eq!(rows_of_stored_values(&[pages(8, 1000, 400 * MIB)], 1 << 16, 4096 * MIB), 1);
        assert_eq!(rows_of_stored_values(&[pages(8, 1000, 200 * MIB)], 1 << 16, 4096 * MIB), 512);
    }

    #[test]
    fn rows_of_small_pages_are_decoded_up_to_the_limit() {
        assert_eq!(rows_of_stored_values(&[pages(100, 100, MIB)], 1 << 16, 10 * MIB), 512);
        assert_eq!(rows_of_stored_values(&[], 1 << 16, MIB), 1 << 16);
    }
}
