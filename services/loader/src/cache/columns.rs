//! Decoded columns of blocks: from the disk tier, from a concurrent decode, or from their file.
//!
//! A column of a block is decoded once for all concurrent requests, whatever their views. It is written to disk if
//! the frames of all streams exceed the memory, if several views read its block, or always, as configured.

mod align;
mod cached_rows;
mod failures;
mod section;
mod section_names;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use bytes::Bytes;
use cached_rows::{CachedRows, Chunks};
use dashmap::{DashMap, Entry};
use failures::Failures;
use forebay_cache::{Disk, Outcome};
use forebay_sql::array_bytes;
use forebay_stall::Stage;
use section_names::SectionNames;
use tokio_util::sync::CancellationToken;

use crate::{
    Config, DiskWrites, Error, Job,
    activity::Purpose,
    block_reader::{self, BlockColumns, BlockReader, DecodePermit, place_of},
    cache::forecast::NextUse,
    cpu::{fair_queue::Flow, turns::TurnClock},
    request::admission::with_margin,
    view::{
        compute, slices,
        source::{Reads, Source},
    },
};

/// Reads decoded columns from disk or decodes them.
pub(crate) struct Columns {
    disk: Option<Disk>,
    forecast: NextUse,
    blocks: BlockReader,
    memory_bytes: u64,
    config: Config,
    names: SectionNames,
    failures: Failures,
    /// Columns that are being read, decoded or written, by block and name.
    flights: Arc<DashMap<ColumnKey, Arc<Flight>>>,
}

/// A block and one of its columns, each identified by a 128-bit hash.
type ColumnKey = (u128, u128);

/// Requested columns of a block, with those found so far.
struct Wanted {
    block: u128,
    fields: Vec<Column>,
}

struct Column {
    source: Source,
    name: u128,
    data_type: DataType,
    found: Option<Chunks>,
}

impl Columns {
    pub(crate) fn new(
        disk: Option<Disk>,
        forecast: NextUse,
        blocks: BlockReader,
        memory_bytes: u64,
        config: Config,
    ) -> Self {
        let names = SectionNames::new();
        let (failures, flights) = (Failures::default(), Arc::default());
        Self { disk, forecast, blocks, memory_bytes, config, names, failures, flights }
    }

    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// True if at least one of the columns of a block is on disk, or if they are to be written there. Without a disk,
    /// true if the block is streamed through more than one view.
    pub(crate) fn are_kept(&self, job: &Job, block: u32) -> bool {
        let id = job.reader().block_ids().id(block);
        let is_on_disk = |disk: &Disk| disk.sections(id, &self.wanted(job, block).names()).contains(&true);
        match &self.disk {
            Some(disk) => self.must_keep(id) || is_on_disk(disk),
            None => self.forecast.is_shared(id),
        }
    }

    /// True if the columns are to be written to disk: always, or if they will be requested again and memory alone does
    /// not suffice.
    fn must_keep(&self, block: u128) -> bool {
        match self.config.disk_writes {
            DiskWrites::Always => true,
            DiskWrites::Needed => {
                self.forecast.frame_bytes() > self.memory_bytes || self.forecast.is_shared(block)
            }
        }
    }

    /// Returns the columns of one block that the job's view requires. `permit` covers their memory.
    ///
    /// Computed columns are computed for all rows of the block, whatever the filter, so that all views share them. If
    /// that fails or needs too much memory, and the job does not need all rows, the stored columns are returned, also by later calls.
    /// [`CachedRows::take`] then computes the rows that the job needs.
    ///
    /// # Errors
    /// Errors of fetching and decoding. If a concurrent decode fails, the requests that wait for it decode the columns
    /// themselves.
    pub(crate) async fn get(&self, job: &Job, block: u32, permit: DecodePermit) -> Result<CachedRows, Error> {
        let (place, keeps_all) = (place_of(job.snapshot(), block), job.keeps_all(block));
        let mut wanted = self.wanted(job, block);
        let mut must_compute = self.is_known_to_fail(job, &wanted);
        if !must_compute {
            match self.load(job, block, &mut wanted, &permit).await {
                Ok(()) => {}
                Err(Error::Row { .. } | Error::TooLarge { .. }) if skips_rows(job) => {
                    self.failures.note(wanted.block, job.view().key());
                    must_compute = true;
                }
                Err(error) => return Err(error),
            }
        }
        let mut stored = None;
        if must_compute {
            let positions = job.view().reads(keeps_all);
            let found = std::mem::replace(&mut wanted, self.wanted_stored(job, block, &positions));
            wanted.take_from(&found);
            self.load(job, block, &mut wanted, &permit).await?;
            let schema = job.snapshot().schema().project(&positions);
            let schema = schema.map_err(|error| Error::Internal(error.to_string()))?;
            stored = Some((positions, Arc::new(schema)));
        }
        let columns = wanted.fields.into_iter().filter_map(|column| column.found).collect();
        Ok(CachedRows { columns, stored, keeps_all, place })
    }

    /// True if the job may not need all rows, and a column of the view could not be computed for all rows of the block before.
    fn is_known_to_fail(&self, job: &Job, wanted: &Wanted) -> bool {
        let parts = wanted.fields.iter().map(|column| column.name).chain([job.view().key()]);
        skips_rows(job) && self.failures.contain(wanted.block, parts)
    }

    /// Finds all columns of `wanted`.
    async fn load(
        &self,
        job: &Job,
        block: u32,
        wanted: &mut Wanted,
        permit: &DecodePermit,
    ) -> Result<(), Error> {
        let keep = self.must_keep(wanted.block);
        loop {
            let (mut claim, waiting) = self.claim(wanted);
            metrics::counter!("forebay_cache_coalesced_loads_total", "tier" => "disk")
                .increment(waiting.len() as u64);
            // The lookup on disk follows the claim. Otherwise columns written in between would be decoded again.
            self.read(job.decode_flow, wanted, &mut claim, permit).await;
            if !claim.columns.is_empty() {
                let (load_time, failed) = self.decode(job, block, wanted, &claim, permit).await?;
                // The flight of a column that failed ends here, and not when the others are on disk.
                claim.retain(|column| wanted.fields[column.index].found.is_some());
                if keep && let Some(disk) = self.disk.clone() {
                    let (block_id, sections) = (wanted.block, sections(&claim, wanted));
                    // The write queue bounds the memory of what waits for the disk, which may hang.
                    tokio::spawn(async move {
                        disk.put(block_id, sections, load_time).await;
                        // Until this point, other requests find the columns in this flight.
                        drop(claim);
                    });
                }
                failed.map_or(Ok(()), Err)?;
            }
            wanted.share();
            // Waiting comes last, after this request has published its own results, because others may wait for them.
            for (index, flight) in waiting {
                flight.published.cancelled().await;
                if let Some(chunks) = flight.chunks.get() {
                    wanted.fields[index].found = Some(Arc::clone(chunks));
                }
            }
            if wanted.fields.iter().all(|column| column.found.is_some()) {
                return Ok(());
            }
        }
    }

    /// Writes the columns of the job's view of one block to disk, for a pinned block. Returns true when all are on
    /// disk, and false if there is no room. `bytes` is the expected size of the decoded columns.
    ///
    /// Waits for space in the write queue before it reserves memory for decoding, and releases that memory before the columns are
    /// written: a disk that hangs would otherwise stop decoding for all streams. If the caller is cancelled during the write, the write
    /// continues, and later calls wait for it.
    ///
    /// # Errors
    /// Like [`Self::get`], and [`Error::Unavailable`] if the disk fails.
    pub(crate) async fn pin(&self, job: &Job, block: u32, bytes: u64) -> Result<bool, Error> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let is_known = self.is_known_to_fail(job, &self.wanted(job, block));
        let mut stored: Option<Reads> = is_known.then(|| job.view().reads(job.keeps_all(block)));
        let mut space_bytes = bytes;
        loop {
            let mut wanted = match &stored {
                None => self.wanted(job, block),
                Some(stored) => self.wanted_stored(job, block, stored),
            };
            if disk.sections(wanted.block, &wanted.names()).iter().all(|is_present| *is_present) {
                return Ok(true);
            }
            let space = disk.write_space(space_bytes).await;
            let permit = self.blocks.permit(bytes, job.decode_flow, job.reader().source_id()).await?;
            let (mut claim, waiting) = self.claim(&wanted);
            claim.retain(|column| disk.sections(wanted.block, &[column.key.1]) == [false]);
            if claim.columns.is_empty() && waiting.is_empty() {
                return Ok(true);
            }
            if !claim.columns.is_empty() {
                let decoded = self.decode(job, block, &mut wanted, &claim, &permit).await;
                let (load_time, failed) = decoded.unwrap_or_else(|error| (Duration::ZERO, Some(error)));
                match failed {
                    Some(Error::Row { .. } | Error::TooLarge { .. })
                        if skips_rows(job) && stored.is_none() =>
                    {
                        // Streams compute such a column for the kept rows, from the stored columns.
                        self.failures.note(wanted.block, job.view().key());
                        stored = Some(job.view().reads(job.keeps_all(block)));
                        continue;
                    }
                    Some(error) => return Err(error),
                    None => {}
                }
                let (disk, block_id, sections) = (disk.clone(), wanted.block, sections(&claim, &wanted));
                space_bytes = Disk::file_bytes(&sections);
                drop((wanted, permit));
                let written = tokio::spawn(async move {
                    let outcome = disk.put_within(space, block_id, sections, load_time).await;
                    // Until this point, other requests find the columns in this flight.
                    drop(claim);
                    outcome
                });
                // The task fails only when the runtime shuts down.
                match written.await.unwrap_or(Outcome::Failing) {
                    // `Busy`: the write queue had too little space. The columns are decoded again once it has.
                    Outcome::Written | Outcome::Present | Outcome::Busy => {}
                    Outcome::NeededLater | Outcome::TooLarge => return Ok(false),
                    Outcome::Failing | Outcome::Recovering => {
                        return Err(Error::Unavailable("the disk of the cache fails".into()));
                    }
                }
            } else {
                drop((space, permit));
            }
            // When a flight ends, its columns are either on disk or not kept.
            for (_, flight) in waiting {
                flight.ended.cancelled().await;
            }
        }
    }

    fn wanted(&self, job: &Job, block: u32) -> Wanted {
        self.wanted_of(job, block, job.view().columns().iter().cloned())
    }

    fn wanted_stored(&self, job: &Job, block: u32, stored: &[usize]) -> Wanted {
        self.wanted_of(job, block, stored.iter().copied().map(Source::Stored))
    }

    fn wanted_of(&self, job: &Job, block: u32, sources: impl Iterator<Item = Source>) -> Wanted {
        let schema = job.snapshot().schema();
        let column = |source: Source| {
            let (name, data_type) = match &source {
                Source::Stored(position) => {
                    let field = schema.field(*position);
                    (self.names.stored(field), field.data_type().clone())
                }
                Source::Computed(expression) => {
                    (self.names.computed(expression.identity()), expression.field().data_type().clone())
                }
            };
            Column { source, name, data_type, found: None }
        };
        let fields = sources.map(column).collect();
        Wanted { block: job.reader().block_ids().id(block), fields }
    }

    /// Reads claimed columns from disk and publishes them to waiting requests.
    async fn read(&self, flow: Flow, wanted: &mut Wanted, claim: &mut Claim, permit: &DecodePermit) {
        let Some(disk) = &self.disk else { return };
        let names: Vec<u128> = claim.columns.iter().map(|column| column.key.1).collect();
        let working = self.blocks.activity().begin(Stage::Storage, Purpose::Window, wanted.block);
        let sections = disk.get(wanted.block, &names).await;
        working.add_output(sections.iter().flatten().map(|section| section.len() as u64).sum(), 0);
        drop(working);
        if sections.iter().all(Option::is_none) {
            return;
        }
        let indices = claim.columns.iter().map(|column| column.index);
        let found: Vec<_> = indices
            .zip(sections)
            .filter_map(|(index, section)| Some((index, section?, wanted.fields[index].data_type.clone())))
            .collect();
        // Decoding runs on the CPU pool, because it validates UTF-8.
        let decoded = self.blocks.decode(permit, Purpose::Window, wanted.block, flow, async move {
            let (mut turn, mut decoded) = (TurnClock::start(), Vec::with_capacity(found.len()));
            for (index, section, data_type) in found {
                turn.step().await;
                decoded.extend(section::decode(&section, &data_type).map(|chunks| (index, chunks)));
            }
            Ok(decoded)
        });
        for (index, chunks) in decoded.await.unwrap_or_default() {
            wanted.fields[index].found = Some(Arc::new(chunks));
        }
        claim.publish(wanted);
        claim.retain(|column| wanted.fields[column.index].found.is_none());
    }

    /// Number of columns that are being read, decoded or written.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Claims the missing columns that have no flight. Also returns the flights of the others, by position.
    fn claim(&self, wanted: &Wanted) -> (Claim, Vec<(usize, Arc<Flight>)>) {
        let mut claim = Claim { flights: Arc::clone(&self.flights), columns: Vec::new() };
        let (mut waiting, mut claimed) = (Vec::new(), HashSet::new());
        for index in wanted.missing() {
            let key = (wanted.block, wanted.fields[index].name);
            if claimed.contains(&key) {
                // Two fields of the view have the same column.
                continue;
            }
            match self.flights.entry(key) {
                Entry::Occupied(entry) => waiting.push((index, Arc::clone(entry.get()))),
                Entry::Vacant(entry) => {
                    let flight = Arc::<Flight>::default();
                    entry.insert(Arc::clone(&flight));
                    claimed.insert(key);
                    claim.columns.push(Claimed { index, key, flight });
                }
            }
        }
        (claim, waiting)
    }

    /// Decodes and computes the claimed columns and publishes them to waiting requests. Returns the time this took, and
    /// the error of the first column that has no value for some row; the other columns are found nevertheless.
    async fn decode(
        &self,
        job: &Job,
        block: u32,
        wanted: &mut Wanted,
        claim: &Claim,
        permit: &DecodePermit,
    ) -> Result<(Duration, Option<Error>), Error> {
        let started = Instant::now();
        let claimed: Vec<Source> =
            claim.columns.iter().map(|column| wanted.fields[column.index].source.clone()).collect();
        let positions = Reads::of(&claimed);
        let (columns, place) = (positions.clone(), place_of(job.snapshot(), block));
        let limit_bytes = with_margin(self.memory_bytes);
        let decode = move |chunks: block_reader::Chunks| async move {
            let mut turn = TurnClock::default();
            let mut computed: Vec<Result<Vec<ArrayRef>, Error>> =
                claimed.iter().map(|_| Ok(Vec::new())).collect();
            let mut bytes = 0;
            let is_computed = |source: &Source| matches!(source, Source::Computed(_));
            for chunk in chunks {
                let chunk = chunk?;
                // Stored columns are kept whole: a slice of a list refers to all items of its chunk.
                for (source, made) in
                    claimed.iter().zip(&mut computed).filter(|(source, _)| !is_computed(source))
                {
                    let source = std::slice::from_ref(source);
                    let array = compute(source, &columns, &chunk, &place, &mut turn).await?;
                    bytes += array.iter().map(array_bytes).sum::<u64>();
                    if let Ok(arrays) = made {
                        arrays.extend(array);
                    }
                }
                for chunk in slices(&claimed, &columns, chunk) {
                    let made = claimed.iter().zip(&mut computed);
                    for (source, made) in made.filter(|(source, _)| is_computed(source)) {
                        let Ok(arrays) = made else { continue };
                        let source = std::slice::from_ref(source);
                        match compute(source, &columns, &chunk, &place, &mut turn).await {
                            Ok(array) => {
                                bytes += array.iter().map(array_bytes).sum::<u64>();
                                arrays.extend(array);
                            }
                            Err(error @ Error::Row { .. }) => *made = Err(error),
                            Err(error) => return Err(error),
                        }
                    }
                    if bytes > limit_bytes {
                        return Err(Error::block_too_large(&place, bytes, limit_bytes));
                    }
                }
            }
            Ok(computed)
        };
        let what = BlockColumns { reader: job.reader(), block, columns: &positions };
        let decoded = self.blocks.read_within(permit, what, Purpose::Window, job.decode_flow, decode);
        let mut failed = None;
        for (column, made) in claim.columns.iter().zip(decoded.await?) {
            match made {
                Ok(chunks) => wanted.fields[column.index].found = Some(Arc::new(chunks)),
                Err(error) => {
                    self.failures.note(wanted.block, column.key.1);
                    failed = failed.or(Some(error));
                }
            }
        }
        claim.publish(wanted);
        Ok((started.elapsed(), failed))
    }
}

/// True if a frame of the job may need only some rows of a block: those that the filter keeps, or those of the groups that begin in the
/// frame's block.
fn skips_rows(job: &Job) -> bool {
    job.view().filter().is_some() || job.has_groups()
}

/// Encodes the columns of a claim that were found as sections for the disk tier.
fn sections(claim: &Claim, wanted: &Wanted) -> Vec<(u128, Vec<Bytes>)> {
    let found = claim.columns.iter().filter_map(|column| {
        let chunks = wanted.fields[column.index].found.as_ref()?;
        Some((column.key.1, section::encode(chunks)))
    });
    found.collect()
}

impl Wanted {
    fn names(&self) -> Vec<u128> {
        self.fields.iter().map(|column| column.name).collect()
    }

    /// Found columns by name.
    fn found(&self) -> HashMap<u128, Chunks> {
        let found = |column: &Column| Some((column.name, Arc::clone(column.found.as_ref()?)));
        self.fields.iter().filter_map(found).collect()
    }

    /// Copies found columns to missing ones with the same name.
    fn share(&mut self) {
        let found = self.found();
        for column in self.fields.iter_mut().filter(|column| column.found.is_none()) {
            column.found = found.get(&column.name).cloned();
        }
    }

    /// Takes columns that `other` has found.
    fn take_from(&mut self, other: &Self) {
        let found = other.found();
        for column in &mut self.fields {
            column.found = found.get(&column.name).cloned();
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let missing = |(index, column): (usize, &Column)| column.found.is_none().then_some(index);
        self.fields.iter().enumerate().filter_map(missing)
    }
}

/// Columns that this request reads or decodes. Dropping the claim ends its flights, so that other requests can claim
/// them.
struct Claim {
    flights: Arc<DashMap<ColumnKey, Arc<Flight>>>,
    columns: Vec<Claimed>,
}

/// A claimed column. Waiting requests are woken in the order in which they came.
#[derive(Default)]
struct Flight {
    chunks: OnceLock<Chunks>,
    /// Cancelled when the chunks are known, or never will be.
    published: CancellationToken,
    /// Cancelled when the claim is dropped.
    ended: CancellationToken,
}

struct Claimed {
    /// Position among the requested columns.
    index: usize,
    key: ColumnKey,
    flight: Arc<Flight>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.flight.published.cancel();
        self.flight.ended.cancel();
    }
}

impl Claim {
    /// Publishes found columns to the requests that wait for them.
    fn publish(&self, wanted: &Wanted) {
        for column in &self.columns {
            if let Some(chunks) = &wanted.fields[column.index].found {
                // The chunks of a column are published once.
                drop(column.flight.chunks.set(Arc::clone(chunks)));
                column.flight.published.cancel();
            }
        }
    }

    /// Releases the columns for which `predicate` returns false.
    fn retain(&mut self, predicate: impl Fn(&Claimed) -> bool) {
        self.columns.retain(|column| {
            let stays = predicate(column);
            if !stays {
                self.flights.remove(&column.key);
            }
            stays
        });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}
