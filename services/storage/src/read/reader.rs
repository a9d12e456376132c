//! Reader: fetches the encoded columns of blocks. This is the I/O part of reading.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use forebay_cache::SourceId;
use futures::future::{BoxFuture, try_join_all};
use tokio::sync::OwnedSemaphorePermit;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Block, BlockIds, Compute, Config, EncodedBlock, Error, Location, Snapshot, State,
    blocking::blocking,
    dataset::schema::column_position,
    read::{
        decoder::{Column, Encoded},
        ranges::{Sparse, coalesce, concat, split},
    },
    store::{generations::Generations, request, target::Target},
    validate::footer::Footer,
};

/// Maximum gap between ranges of a local file that are read at once, in bytes. Reading a longer gap from a local disk
/// takes more time than another request.
const MAX_LOCAL_GAP_BYTES: u64 = 64 << 10;

/// Maximum number of column chunks of a footer that is kept in memory as a whole, about 1 MiB. Of larger ones, the columns that are read are
/// kept.
const MAX_WHOLE_CHUNKS: usize = 2048;

/// Reads blocks of one snapshot. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    snapshot: Arc<Snapshot>,
    location: Location,
    state: State,
    config: Arc<Config>,
    pinned: Arc<OnceLock<Pinned>>,
}

/// Generations of the files of a reader, and the ids of its blocks, which depend on them.
#[derive(Debug)]
struct Pinned {
    /// Generations of local files; empty for other locations.
    generations: Generations,
    ids: Arc<BlockIds>,
}

/// Columns of a block, of which the column chunks are to be fetched.
pub struct Fetch {
    reader: Reader,
    /// Without column chunks.
    encoded: Encoded,
    /// `None` if all columns are partition columns.
    chunks: Option<Chunks>,
}

/// Column chunks of some row groups of a file.
struct Chunks {
    footer: Arc<Footer>,
    groups: Range<usize>,
    target: Target,
    /// Coalesced ranges, ascending.
    ranges: Vec<Range<u64>>,
}

impl Reader {
    /// Creates a reader of `snapshot`, whose files are at `location`.
    pub fn new(snapshot: Arc<Snapshot>, location: Location, state: &State, config: Config) -> Self {
        Self { snapshot, location, state: state.clone(), config: Arc::new(config), pinned: Arc::default() }
    }

    /// Returns a handle of this reader, whose footers, indexes and statistics are parsed by `compute`. Both share everything else.
    #[must_use]
    pub fn computed_by(&self, compute: Compute) -> Self {
        Self { state: self.state.computed_by(compute), ..self.clone() }
    }

    /// Pins the generations of local files, and computes the ids of the blocks on a blocking thread, so that no I/O thread computes them
    /// later. Generations that the file system does not return in time are not pinned.
    pub async fn prepare(&self) {
        if self.pinned.get().is_some() {
            return;
        }
        let generations = Generations::read(&self.location, &self.snapshot).await.unwrap_or_default();
        let this = self.clone();
        // The only possible error is that the runtime is stopping.
        let prepared: Result<(), Error> = blocking(move || {
            let ids = Arc::new(BlockIds::new(&this.snapshot, &this.location, &generations));
            this.pinned.get_or_init(|| Pinned { generations, ids });
            Ok(())
        })
        .await;
        drop(prepared);
    }

    /// Returns false if a local file was replaced since this reader was prepared. The reader then reads nothing more of this file.
    ///
    /// Snapshots pin local files by size and modification time, which another file can have, too.
    pub async fn reads_current_files(&self) -> bool {
        let Some(pinned) = self.pinned.get() else { return true };
        // A file system that does not answer has not shown another file.
        let found = Generations::read(&self.location, &self.snapshot).await;
        found.is_none_or(|found| found == pinned.generations)
    }

    /// Hash of the inodes and times of change of the local files, which differs after a file was replaced by one of equal size and time.
    /// `None` if the reader is not prepared, or its files are not local.
    pub fn pins(&self) -> Option<u64> {
        self.pinned.get()?.generations.hash()
    }

    /// True if both are clones of one reader.
    pub fn shares_pins_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pinned, &other.pinned)
    }

    /// Snapshot that the reader reads.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Id of the source of the blocks: the same for readers of the same URL.
    pub fn source_id(&self) -> SourceId {
        SourceId(xxh3_64(self.location.url().as_bytes()))
    }

    /// URL of a file of the snapshot, for messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its path is not valid in this store.
    ///
    /// # Panics
    /// If the snapshot has no such file.
    pub fn file_url(&self, file: u32) -> Result<String, Error> {
        self.snapshot.locate(&self.location, &self.snapshot.files()[file as usize]).map(|(_, url)| url)
    }

    /// Ids of the blocks. Blocks with the same file version and row groups have the same id in every snapshot. The ids of local files
    /// change when the file is replaced or written, also if its size and modification time stay.
    pub fn block_ids(&self) -> &Arc<BlockIds> {
        &self.pinned().ids
    }

    fn pinned(&self) -> &Pinned {
        self.pinned.get_or_init(|| {
            let generations = Generations::read_now(&self.location, &self.snapshot);
            let ids = Arc::new(BlockIds::new(&self.snapshot, &self.location, &generations));
            Pinned { generations, ids }
        })
    }

    /// Fetches `columns` of one block. `columns` are positions in the snapshot's schema, in any order, without
    /// duplicates.
    ///
    /// Their column chunks are read in coalesced and concurrent range requests, which are bound to the pinned version
    /// of the file. The gaps that are read with the column chunks are together at most as long as these. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file is no longer the pinned version; [`Error::PermissionDenied`] if the store refuses
    /// access; [`Error::Unavailable`] if the store fails after all retries; [`Error::Limit`] if the column chunks
    /// exceed `max_block_bytes`; errors of reading a footer.
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub fn fetch<'a>(
        &'a self,
        block: usize,
        columns: &'a [usize],
    ) -> BoxFuture<'a, Result<EncodedBlock, Error>> {
        Box::pin(async move { self.plan(block, columns).await?.fetch().await })
    }

    /// The first part of [`fetch`](Self::fetch), which reads at most a footer. The size of the column chunks is known after it.
    ///
    /// # Errors
    /// As for [`fetch`](Self::fetch).
    ///
    /// # Panics
    /// If the snapshot has no such block or column.
    pub fn plan<'a>(&'a self, block: usize, columns: &'a [usize]) -> BoxFuture<'a, Result<Fetch, Error>> {
        Box::pin(self.plan_inner(block, columns))
    }

    async fn plan_inner(&self, block: usize, columns: &[usize]) -> Result<Fetch, Error> {
        let Block { file, row_groups, rows, .. } = self.snapshot.blocks()[block].clone();
        let (_, url) = self.snapshot.locate(&self.location, &self.snapshot.files()[file as usize])?;
        let fields = self.snapshot.schema();
        let schema = Arc::new(fields.project(columns).expect("the snapshot has the columns"));

        for column in columns {
            self.snapshot.check_supported(*column, &url)?;
        }
        let from_file = columns.iter().any(|column| self.snapshot.partition(file, *column).is_none());
        let mut encoded = Encoded { url, rows, schema, columns: Vec::new(), data: None };
        if !from_file {
            let values = columns.iter().filter_map(|column| self.snapshot.partition(file, *column));
            encoded.columns = values.cloned().map(Column::Partition).collect();
            return Ok(Fetch { reader: self.clone(), encoded, chunks: None });
        }

        let (footer, target) = self.footer(file, columns).await?;
        let groups = row_groups.start as usize..row_groups.end as usize;
        check_rows(&footer, &groups, rows, &target)?;
        for column in columns {
            encoded.columns.push(match self.snapshot.partition(file, *column) {
                Some(value) => Column::Partition(value.clone()),
                None => Column::Root(self.root(&footer, *column, &target)?),
            });
        }
        let ranges = self.ranges(&footer, &groups, &encoded.columns, &target)?;
        Ok(Fetch { reader: self.clone(), encoded, chunks: Some(Chunks { footer, groups, target, ranges }) })
    }

    /// Footer of a file of the snapshot, with the columns at the positions `columns` of its schema or more.
    pub(crate) async fn footer(&self, file: u32, columns: &[usize]) -> Result<(Arc<Footer>, Target), Error> {
        let pinned = &self.snapshot.files()[file as usize];
        let (path, url) = self.snapshot.locate(&self.location, pinned)?;
        self.prepare().await;
        let generation = self.pinned().generations.of(file);
        let target = Target { path, url, version: pinned.version.clone(), generation };
        let (footers, compute) = (self.state.footers(), self.compute());
        let (location, config) = (&self.location, &self.config);
        let file_columns = self.snapshot.schema().fields().len() - self.snapshot.partition_columns();
        if file_columns.saturating_mul(pinned.row_groups.len()) <= MAX_WHOLE_CHUNKS {
            return Ok((footers.get(location, &target, config, compute).await?, target));
        }
        let fields = self.snapshot.schema().fields();
        let mut columns: Vec<usize> =
            columns.iter().copied().filter(|column| *column < file_columns).collect();
        columns.sort_unstable();
        let names: Vec<&str> = columns.iter().map(|column| fields[*column].name().as_str()).collect();
        Ok((footers.get_columns(location, &target, config, compute, &names).await?, target))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Executor of the CPU work on footers, indexes and statistics.
    pub(crate) fn compute(&self) -> &Compute {
        self.state.compute()
    }

    /// Durable state that the reader uses.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Position of a column in the file.
    fn root(&self, footer: &Footer, column: usize, target: &Target) -> Result<usize, Error> {
        let name = self.snapshot.schema().field(column).name();
        let found = column_position(footer.schema(), column, name);
        found.ok_or_else(|| target.changed(format!("no column {name}")))
    }

    /// Coalesced byte ranges of the column chunks of a block.
    fn ranges(
        &self,
        footer: &Footer,
        groups: &Range<usize>,
        columns: &[Column],
        target: &Target,
    ) -> Result<Vec<Range<u64>>, Error> {
        let mut ranges = Vec::new();
        let mut total = 0_u64;
        for group in groups.clone() {
            let group = footer.metadata().row_group(group);
            for column in columns {
                let Column::Root(root) = column else { continue };
                for leaf in footer.leaves(*root) {
                    let (start, length) = group.column(leaf).byte_range();
                    total = total.saturating_add(length);
                    if length > 0 {
                        ranges.push(start..start + length);
                    }
                }
            }
        }
        if total > self.config.max_block_bytes {
            let what = "encoded size of one block's columns in bytes (max_block_bytes)";
            return Err(Error::limit(&target.url, what, self.config.max_block_bytes, total));
        }
        request::count_requested(total);
        Ok(coalesce(ranges, self.max_gap_bytes()))
    }

    /// Maximum gap between ranges that are read at once, in bytes.
    fn max_gap_bytes(&self) -> u64 {
        let gap = self.config.coalesce_gap_bytes;
        if self.location.local_reads().is_some() { gap.min(MAX_LOCAL_GAP_BYTES) } else { gap }
    }

    /// Reads ranges of optional data (indexes and bloom filters). Returns `None` if a range is empty or outside of the
    /// file, or if their total size exceeds `max_footer_bytes`. Reads as many at a time as footers, until the returned permit is
    /// dropped, which the caller does after it has parsed the data.
    pub(crate) async fn read_small(
        &self,
        ranges: &[Range<u64>],
        target: &Target,
    ) -> Result<Option<(Vec<Bytes>, OwnedSemaphorePermit)>, Error> {
        let total = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        let inside = ranges.iter().all(|range| !range.is_empty() && range.end <= target.version.size);
        if !inside || total > self.config.max_footer_bytes {
            return Ok(None);
        }
        let room = self.location.footer_room(total).await;
        request::count_requested(total);
        let coalesced = coalesce(ranges.to_vec(), self.max_gap_bytes());
        let parts = try_join_all(coalesced.into_iter().map(|range| self.read(range, target))).await?;
        let sparse = Sparse { length: target.version.size, parts };
        let found: Option<Vec<Bytes>> = ranges.iter().map(|range| sparse.get(range.clone())).collect();
        Ok(found.map(|found| (found, room)))
    }

    async fn read(&self, range: Range<u64>, target: &Target) -> Result<(u64, Bytes), Error> {
        // A local file is read in one piece, because the parts of a split range have to be copied together.
        let limit =
            if self.location.local_reads().is_some() { u64::MAX } else { self.config.max_request_bytes };
        let start = range.start;
        let reads = split(range, limit).map(|part| request::read(&self.location, target, part));
        Ok((start, concat(try_join_all(reads).await?)))
    }
}

impl Fetch {
    /// Number of bytes that [`fetch`](Self::fetch) reads, with the gaps between column chunks.
    pub fn bytes(&self) -> u64 {
        let ranges = self.chunks.iter().flat_map(|chunks| &chunks.ranges);
        ranges.map(|range| range.end - range.start).fold(0, u64::saturating_add)
    }

    /// Reads the column chunks. Cancel-safe.
    ///
    /// # Errors
    /// As for [`Reader::fetch`].
    pub fn fetch(self) -> BoxFuture<'static, Result<EncodedBlock, Error>> {
        Box::pin(self.fetch_inner())
    }

    async fn fetch_inner(self) -> Result<EncodedBlock, Error> {
        let Self { reader, mut encoded, chunks } = self;
        if let Some(Chunks { footer, groups, target, ranges }) = chunks {
            let parts = try_join_all(ranges.into_iter().map(|range| reader.read(range, &target))).await?;
            let sparse = Sparse { length: target.version.size, parts };
            encoded.data = Some((footer, groups, sparse));
        }
        Ok(EncodedBlock::new(encoded, reader.config))
    }
}

/// Checks that the footer has the row groups and rows that the manifest lists.
fn check_rows(footer: &Footer, groups: &Range<usize>, rows: u32, target: &Target) -> Result<(), Error> {
    let Some(found) = footer.metadata().row_groups().get(groups.clone()) else {
        let found = footer.metadata().num_row_groups();
        return Err(target.changed(format!("{found} row groups")));
    };
    let found: i64 = found.iter().map(parquet::file::metadata::RowGroupMetaData::num_rows).sum();
    if found == i64::from(rows) {
        return Ok(());
    }
    Err(target.changed(format!("{found} rows in the block, expected {rows}")))
}
