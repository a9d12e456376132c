//! Column chunks of a block as a source of validated pages for the decoder.

use std::{collections::HashMap, ops::Range, sync::Arc, vec};

use parking_lot::Mutex;
use parquet::{
    arrow::arrow_reader::RowGroups,
    basic::Encoding,
    column::page::{Page, PageIterator, PageMetadata, PageReader},
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData},
        serialized_reader::SerializedPageReader,
    },
};

use crate::{
    error::DamagedPage,
    read::ranges::Sparse,
    validate::{
        delta_lengths,
        footer::Footer,
        thrift::{Malformed, Walker},
    },
};

/// Pages of one column chunk. Each page is validated when it is read.
pub(crate) struct Pages {
    inner: SerializedPageReader<Sparse>,
    /// Page that was peeked at.
    next: Option<Page>,
    max_rep_level: i16,
    max_def_level: i16,
}

impl Pages {
    /// Creates a reader of the pages of `chunk`, after comparing every page to its checksum, if it has one.
    ///
    /// All pages of a block are compared before the first row is decoded. Therefore a block with a damaged page can be
    /// fetched again before anything was made of its rows.
    ///
    /// # Errors
    /// [`DamagedPage`] in [`ParquetError::External`] if a page does not match its checksum.
    pub(crate) fn new(sparse: &Arc<Sparse>, chunk: &ColumnChunkMetaData) -> Result<Self, ParquetError> {
        let (start, length) = chunk.byte_range();
        if let Some(bytes) = sparse.get(start..start + length) {
            check_checksums(&bytes, start)?;
        }
        // The number of rows is only used together with a page index.
        let inner = SerializedPageReader::new(Arc::clone(sparse), chunk, 0, None)?;
        let descriptor = chunk.column_descr();
        let (max_rep_level, max_def_level) = (descriptor.max_rep_level(), descriptor.max_def_level());
        Ok(Self { inner, next: None, max_rep_level, max_def_level })
    }

    /// Returns the next page without consuming it.
    pub(crate) fn peek(&mut self) -> Result<Option<&Page>, ParquetError> {
        if self.next.is_none() {
            self.next = self.get_next_page()?;
        }
        Ok(self.next.as_ref())
    }
}

/// Adds the width of the indices to a dictionary-encoded page without values, if its writer left it out. The decoder reads it even if all
/// values are null.
fn with_index_width(page: &mut Page, max_rep_level: i16, max_def_level: i16) {
    if !matches!(page.encoding(), Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY) {
        return;
    }
    let is_missing =
        delta_lengths::split(page, max_rep_level, max_def_level).is_some_and(|(_, values)| values.is_empty());
    if let Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } = page
        && is_missing
    {
        *buf = [&buf[..], &[0]].concat().into();
    }
}

/// Compares the pages of a column chunk at offset `start` of the file to the checksums in their headers.
fn check_checksums(chunk: &[u8], start: u64) -> Result<(), ParquetError> {
    let mut at = 0;
    while at < chunk.len() {
        let header = read_header(&chunk[at..]).map_err(|error| ParquetError::General(error.to_string()))?;
        let page = chunk.get(at + header.bytes..).and_then(|rest| rest.get(..header.compressed as usize));
        let page = page.ok_or_else(|| ParquetError::EOF(format!("a page of {} bytes", header.compressed)))?;
        if let Some(expected) = header.checksum {
            let found = crc32fast::hash(page);
            if found != expected {
                let damaged = DamagedPage { offset: start + at as u64, found, expected };
                return Err(ParquetError::External(Box::new(damaged)));
            }
        }
        at += header.bytes + page.len();
    }
    Ok(())
}

/// Parts of a page header that locate and identify the bytes of its page.
#[derive(Default)]
struct PageHeader {
    /// Size of the header in bytes.
    bytes: usize,
    /// Size of the page after the header in bytes.
    compressed: u32,
    /// CRC-32 of the page after the header; `None` if the writer stored none.
    checksum: Option<u32>,
}

fn read_header(bytes: &[u8]) -> Result<PageHeader, Malformed> {
    let mut header = PageHeader::default();
    let mut walker = Walker::new(bytes);
    walker.fields(|walker, field| match field.id {
        3 => walker.size("compressed page size").map(|size| header.compressed = size),
        // The format stores the checksum as a signed number with the same bits.
        4 => walker.int().map(|checksum| header.checksum = Some(checksum as u32)),
        _ => walker.skip(field.wire),
    })?;
    header.bytes = walker.offset();
    Ok(header)
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        if let Some(page) = self.next.take() {
            return Ok(Some(page));
        }
        let mut page = self.inner.get_next_page()?;
        if let Some(page) = &mut page {
            with_index_width(page, self.max_rep_level, self.max_def_level);
            delta_lengths::check_page(page, self.max_rep_level, self.max_def_level)
                .map_err(ParquetError::General)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        let Some(page) = &self.next else { return self.inner.peek_next_page() };
        let num_rows = match page {
            Page::DataPageV2 { num_rows, .. } => Some(*num_rows as usize),
            _ => None,
        };
        let num_levels = page.is_data_page().then(|| page.num_values() as usize);
        Ok(Some(PageMetadata { num_rows, num_levels, is_dict: page.is_dictionary_page() }))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        match self.next.take() {
            Some(_) => Ok(()),
            None => self.inner.skip_next_page(),
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Row groups of a block, with the pages of the leaf columns of one top-level column.
pub(crate) struct Chunks {
    footer: Arc<Footer>,
    groups: Range<usize>,
    /// Pages of each row group by leaf column of the top-level column, until the decoder takes them.
    pages: Mutex<HashMap<usize, Vec<Pages>>>,
}

impl Chunks {
    pub(crate) fn new(footer: Arc<Footer>, groups: Range<usize>) -> Self {
        Self { footer, groups, pages: Mutex::default() }
    }

    /// Adds the pages of a leaf column, one element per row group in order. `leaf` is its position in the top-level column.
    pub(crate) fn insert(&mut self, leaf: usize, pages: Vec<Pages>) {
        self.pages.get_mut().insert(leaf, pages);
    }
}

impl RowGroups for Chunks {
    fn num_rows(&self) -> usize {
        RowGroups::row_groups(self).map(|group| usize::try_from(group.num_rows()).unwrap_or(0)).sum()
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        let taken = self.pages.lock().remove(&leaf);
        let missing = || ParquetError::General(format!("leaf column {leaf} was not fetched"));
        Ok(Box::new(ByGroup(taken.ok_or_else(missing)?.into_iter())))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.footer.metadata().row_groups()[self.groups.clone()].iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.footer.metadata()
    }
}

/// Pages of one leaf column, one element per row group.
struct ByGroup(vec::IntoIter<Pages>);

impl Iterator for ByGroup {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|pages| Ok(Box::new(pages) as _))
    }
}

impl PageIterator for ByGroup {}
