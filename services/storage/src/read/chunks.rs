//! Column chunks of a block as a source of validated pages for the decoder.

use std::{collections::HashMap, ops::Range, sync::Arc, vec};

use parking_lot::Mutex;
use parquet::{
    arrow::arrow_reader::RowGroups,
    column::page::{Page, PageIterator, PageMetadata, PageReader},
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData},
        serialized_reader::SerializedPageReader,
    },
};

use crate::{
    read::ranges::Sparse,
    validate::{delta_lengths, footer::Footer},
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
    pub(crate) fn new(sparse: &Arc<Sparse>, chunk: &ColumnChunkMetaData) -> Result<Self, ParquetError> {
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

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        if let Some(page) = self.next.take() {
            return Ok(Some(page));
        }
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
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

/// Row groups of a block, with the pages of the requested leaf columns.
pub(crate) struct Chunks {
    footer: Arc<Footer>,
    groups: Range<usize>,
    /// Pages of each row group by leaf column, until the decoder takes them.
    pages: Mutex<HashMap<usize, Vec<Pages>>>,
}

impl Chunks {
    pub(crate) fn new(footer: Arc<Footer>, groups: Range<usize>) -> Self {
        Self { footer, groups, pages: Mutex::default() }
    }

    /// Adds the pages of a leaf column, one element per row group in order.
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
