//! Check of the decoded size of a block, before the block is decoded.

use std::{ops::Range, sync::Arc};

use arrow_schema::DataType;
use parquet::{basic::Type as Physical, column::page::Page, file::metadata::ColumnChunkMetaData};

use crate::{
    Config, Error,
    dataset::column_sizes::{fixed_bytes, is_variable, leaf_types},
    read::{
        chunks::{Chunks, Pages},
        ranges::Sparse,
    },
    validate::{
        footer::{Footer, catch_panics},
        page_headers::{Limits, Rejection, Summary, walk_pages},
    },
};

/// Checks every page header of the columns `roots` of a block, and that their fixed-width values are within
/// `max_block_bytes`. Returns the column chunks and the number of rows to decode at once, at most `batch_rows`.
///
/// The size of variable-width values is checked during decoding, once per batch. A page can store one long value and
/// refer to it a million times, so batches have fewer rows if the longest values are long.
///
/// # Errors
/// [`Error::Corrupt`] for malformed pages, [`Error::Limit`] for a page over `max_page_bytes` or a block over
/// `max_block_bytes`.
pub(crate) fn check_block(
    url: &str,
    footer: &Arc<Footer>,
    groups: &Range<usize>,
    roots: &[usize],
    sparse: Sparse,
    batch_rows: usize,
    config: &Config,
) -> Result<(Chunks, usize), Error> {
    let sparse = Arc::new(sparse);
    let mut chunks = Chunks::new(Arc::clone(footer), groups.clone());
    let mut bytes = 0_u64;
    let mut variable = Vec::new();
    for root in roots {
        let types = leaf_types(footer.schema().field(*root).data_type());
        for (leaf, leaf_type) in footer.leaves(*root).zip(types) {
            let mut pages = Vec::with_capacity(groups.len());
            for group in groups.clone() {
                let chunk = footer.metadata().row_group(group).column(leaf);
                let place = |error: Error| error.at(Some(group), Some(&chunk.column_path().string()));
                let summary = check_chunk(url, chunk, &sparse, config).map_err(place)?;
                bytes = bytes.saturating_add(decoded_bytes(leaf_type, chunk, &summary));
                pages.push((catch_panics(url, || Pages::new(&sparse, chunk)).map_err(place)?, summary));
            }
            if is_variable(leaf_type) {
                variable.push((leaf, pages));
            } else {
                chunks.insert(leaf, pages.into_iter().map(|(pages, _)| pages).collect());
            }
        }
    }
    if bytes > config.max_block_bytes {
        let what = "decoded size of one block's columns in bytes (max_block_bytes)";
        return Err(Error::limit(url, what, config.max_block_bytes, bytes));
    }
    let all = variable.iter_mut().flat_map(|(_, pages)| pages);
    let rows = rows_at_once(url, all.collect(), batch_rows, config.max_block_bytes)?;
    for (leaf, pages) in variable {
        chunks.insert(leaf, pages.into_iter().map(|(pages, _)| pages).collect());
    }
    Ok((chunks, rows))
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
    let limits = Limits {
        codec: chunk.compression(),
        min_value_bytes,
        max_page_bytes: config.max_page_bytes,
        max_block_bytes: config.max_block_bytes,
    };
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

/// Decoded size in bytes of fixed-width values, including the levels of nested values.
fn decoded_bytes(leaf: &DataType, chunk: &ColumnChunkMetaData, summary: &Summary) -> u64 {
    let levels = if chunk.column_descr().max_rep_level() > 0 { 2 * size_of::<i16>() as u64 } else { 0 };
    fixed_bytes(leaf, summary.values).saturating_add(summary.values.saturating_mul(levels))
}

/// Number of rows that may be decoded at once, assuming that every row holds the longest value of every column.
fn rows_at_once(
    url: &str,
    mut chunks: Vec<&mut (Pages, Summary)>,
    batch_rows: usize,
    limit: u64,
) -> Result<usize, Error> {
    let rows = |longest: u64| usize::try_from(limit / longest.max(1)).unwrap_or(usize::MAX).max(1);
    let longest = chunks.iter().map(|(_, summary)| summary.dictionary_bytes.max(summary.prefix_bytes));
    let at_least = rows(longest.fold(0, u64::saturating_add));
    if at_least >= batch_rows {
        return Ok(batch_rows);
    }
    // A large dictionary seldom consists of one value, so determine the longest value.
    let mut exact = 0_u64;
    for (pages, summary) in &mut chunks {
        let longest = if summary.dictionary_bytes > 0 { longest_value(url, pages)? } else { 0 };
        exact = exact.saturating_add(longest.max(summary.prefix_bytes));
    }
    Ok(rows(exact).min(batch_rows))
}

/// Returns the length in bytes of the longest value in the dictionary of a column chunk.
fn longest_value(url: &str, pages: &mut Pages) -> Result<u64, Error> {
    let Some(Page::DictionaryPage { buf, .. }) = catch_panics(url, || pages.peek())? else { return Ok(0) };
    let (mut longest, mut rest) = (0, &buf[..]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        longest = longest.max(u64::from(length));
        rest = after.get(length as usize..).unwrap_or_default();
    }
    Ok(longest)
}
