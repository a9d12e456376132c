//! How much a block can come to once it is decoded, found out before it is.

use std::{ops::Range, sync::Arc};

use arrow_schema::DataType;
use parquet::{basic::Type as Physical, column::page::Page, file::metadata::ColumnChunkMetaData};

use crate::{
    Config, Error,
    chunks::{Chunks, Pages},
    estimate::{fixed_bytes, is_variable, leaf_types},
    footer::{Footer, guarded},
    pages::{Limits, Refusal, Summary, walk},
    ranges::Sparse,
};

/// Checks every page header of a block's columns, and that their values fit `max_block_bytes`. The answer
/// is the block's chunks, and how many rows of them, at most `batch_rows`, may be decoded at once.
///
/// Values of variable width are counted as they are decoded, batch by batch. But a page can hold one long
/// value once and refer to it a million times: the fewer rows at once, the sooner that is noticed.
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
                pages.push((guarded(url, || Pages::new(&sparse, chunk)).map_err(place)?, summary));
            }
            if is_variable(leaf_type) {
                variable.push((leaf, pages));
            } else {
                chunks.insert(leaf, pages.into_iter().map(|(pages, _)| pages).collect());
            }
        }
    }
    if bytes > config.max_block_bytes {
        return Err(Error::Limit {
            location: url.to_owned(),
            what: "decoded bytes of one block's columns (max_block_bytes)",
            limit: config.max_block_bytes,
            found: bytes,
        });
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
    let width = match chunk.column_type() {
        Physical::BOOLEAN => 1,
        Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
        Physical::INT64 | Physical::DOUBLE => 8,
        Physical::INT96 => 12,
        Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(chunk.column_descr().type_length()).unwrap_or(0),
    };
    let limits = Limits {
        codec: chunk.compression(),
        width,
        max_page_bytes: config.max_page_bytes,
        max_block_bytes: config.max_block_bytes,
    };
    let summary = walk(&bytes, limits).map_err(|refusal| match refusal {
        Refusal::Malformed(malformed) => Error::corrupt(
            url,
            format!("{} of the page at offset {}", malformed.detail, start + malformed.offset as u64),
        ),
        Refusal::Large(found) => Error::Limit {
            location: url.to_owned(),
            what: "uncompressed bytes of a page (max_page_bytes)",
            limit: config.max_page_bytes,
            found,
        },
    })?;
    if summary.values != u64::try_from(chunk.num_values()).unwrap_or(0) {
        let detail =
            format!("its pages hold {} values, its footer says {}", summary.values, chunk.num_values());
        return Err(Error::corrupt(url, detail));
    }
    Ok(summary)
}

/// What values of known width come to, with the levels that say where nested ones begin.
fn decoded_bytes(leaf: &DataType, chunk: &ColumnChunkMetaData, summary: &Summary) -> u64 {
    let levels = if chunk.column_descr().max_rep_level() > 0 { 2 * size_of::<i16>() as u64 } else { 0 };
    fixed_bytes(leaf, summary.values).saturating_add(summary.values.saturating_mul(levels))
}

/// Rows that may be decoded at once if each had the longest value of every column.
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
    // A dictionary of a megabyte seldom is one value: look.
    let mut exact = 0_u64;
    for (pages, summary) in &mut chunks {
        let longest = if summary.dictionary_bytes > 0 { longest_value(url, pages)? } else { 0 };
        exact = exact.saturating_add(longest.max(summary.prefix_bytes));
    }
    Ok(rows(exact).min(batch_rows))
}

/// The length of the longest value in a chunk's dictionary.
fn longest_value(url: &str, pages: &mut Pages) -> Result<u64, Error> {
    let Some(Page::DictionaryPage { buf, .. }) = guarded(url, || pages.peek())? else { return Ok(0) };
    let (mut longest, mut rest) = (0, &buf[..]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        longest = longest.max(u64::from(length));
        rest = after.get(length as usize..).unwrap_or_default();
    }
    Ok(longest)
}
