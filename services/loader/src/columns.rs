//! Decoded columns of blocks: from the disk tier, from somebody who is decoding them now, or from their file.
//!
//! A column of a block is decoded once for all who ask meanwhile, whatever their views. It is kept on disk when
//! it will be asked for again and memory alone won't do.

mod section;

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, SchemaRef};
use dashmap::{DashMap, Entry};
use forebay_cache::Disk;
use tokio::sync::{OwnedSemaphorePermit, watch};
use xxhash_rust::xxh3::xxh3_128;

use crate::{Config, DiskWrites, Error, Job, Pool, Priority, forecast::Future};

/// Finds or makes decoded columns.
pub(crate) struct Columns {
    disk: Option<Disk>,
    future: Future,
    memory_bytes: u64,
    config: Config,
    pool: Pool,
    /// Columns that are being decoded or written, by block and name.
    flights: Arc<DashMap<ColumnKey, Flight>>,
}

/// A block and one of its columns, each by a complete hash.
type ColumnKey = (u128, u128);

/// The values of one column of a block, a few thousand rows at a time.
type Chunks = Arc<Vec<ArrayRef>>;

/// Where somebody's decoded column will be.
type Flight = watch::Receiver<Option<Chunks>>;

/// The columns of a block, as far as they were found.
struct Wanted {
    block: u128,
    fields: Vec<Column>,
}

struct Column {
    /// Position in the snapshot's schema.
    position: usize,
    name: u128,
    data_type: DataType,
    found: Option<Chunks>,
}

impl Columns {
    pub(crate) fn new(
        disk: Option<Disk>,
        future: Future,
        memory_bytes: u64,
        config: Config,
        pool: Pool,
    ) -> Self {
        Self { disk, future, memory_bytes, config, pool, flights: Arc::default() }
    }

    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Whether the columns of a block go by way of the disk tier, or of others who want them now.
    pub(crate) fn are_kept(&self, job: &Job, block: u32) -> bool {
        let id = job.reader().block_ids().id(block);
        let is_on_disk = |disk: &Disk| disk.sections(id, &self.wanted(job, block).names()).contains(&true);
        match &self.disk {
            Some(disk) => self.must_keep(id) || is_on_disk(disk),
            None => self.future.is_shared(id),
        }
    }

    /// Whether they will be asked for again and memory alone won't do.
    fn must_keep(&self, block: u128) -> bool {
        match self.config.disk_writes {
            DiskWrites::Always => true,
            DiskWrites::Needed => {
                self.future.frame_bytes() > self.memory_bytes || self.future.is_shared(block)
            }
        }
    }

    /// The columns of the job's view of one block, in its projection's order, a chunk of rows at a time.
    /// `permit` is for the memory that they take; it is held until they are on disk, too.
    ///
    /// # Errors
    /// Those of fetching and decoding. One who waits for somebody else's failure tries again by itself.
    pub(crate) async fn get(
        &self,
        job: &Job,
        block: u32,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<Vec<RecordBatch>, Error> {
        let mut wanted = self.wanted(job, block);
        self.read(&mut wanted).await;
        let keep = self.must_keep(wanted.block);
        self.complete(job, block, &mut wanted, &permit, keep).await?;
        self.chunks(job, wanted)
    }

    /// Brings the columns of the job's view of one block to disk, where they stay.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn pin(
        &self,
        job: &Job,
        block: u32,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<(), Error> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let mut wanted = self.wanted(job, block);
        disk.pin(wanted.block);
        let there = disk.sections(wanted.block, &wanted.names());
        let mut there = there.into_iter();
        wanted.fields.retain(|_| !there.next().unwrap_or(false));
        self.complete(job, block, &mut wanted, &permit, true).await
    }

    /// Decodes what is missing, or waits for those who do.
    async fn complete(
        &self,
        job: &Job,
        block: u32,
        wanted: &mut Wanted,
        permit: &Arc<OwnedSemaphorePermit>,
        keep: bool,
    ) -> Result<(), Error> {
        loop {
            let (claim, mut waiting) = self.claim(wanted);
            if self.came_to_disk(wanted.block, &claim) {
                drop(claim);
                self.read(wanted).await;
                continue;
            }
            if !claim.keys.is_empty() {
                self.decode(job, block, wanted, claim, keep.then(|| Arc::clone(permit))).await?;
            }
            // Whatever this one has to give is given: it may wait for others.
            for (index, flight) in &mut waiting {
                if let Ok(chunks) = flight.wait_for(Option::is_some).await {
                    wanted.fields[*index].found = chunks.clone();
                }
            }
            if wanted.missing().next().is_none() {
                return Ok(());
            }
            self.read(wanted).await;
        }
    }

    fn wanted(&self, job: &Job, block: u32) -> Wanted {
        let schema = job.snapshot().schema();
        let column = |position: &usize| Column {
            position: *position,
            name: self.name_of(schema.field(*position)),
            data_type: schema.field(*position).data_type().clone(),
            found: None,
        };
        let fields = job.view().projection().iter().map(column).collect();
        Wanted { block: job.reader().block_ids().id(block), fields }
    }

    /// Everything that decides the bytes of a section, besides the block.
    fn name_of(&self, field: &Field) -> u128 {
        let spelled =
            format!("column 1 {:?} {:?} {}", field.name(), field.data_type(), self.config.decode_rows);
        xxh3_128(spelled.as_bytes())
    }

    /// Looks on disk for what is missing.
    async fn read(&self, wanted: &mut Wanted) {
        let Some(disk) = &self.disk else { return };
        let missing: Vec<usize> = wanted.missing().collect();
        let names: Vec<u128> = missing.iter().map(|index| wanted.fields[*index].name).collect();
        if !disk.sections(wanted.block, &names).contains(&true) {
            return;
        }
        let sections = disk.get(wanted.block, &names).await;
        let found = missing.into_iter().zip(sections).filter_map(|(index, section)| Some((index, section?)));
        let found: Vec<_> =
            found.map(|(index, section)| (index, section, wanted.fields[index].data_type.clone())).collect();
        // Strings are checked to be UTF-8.
        let decoded = self.pool.run(Priority::Second, move || {
            let decode = |(index, section, data_type)| Some((index, section::decode(&section, &data_type)?));
            Ok(found.into_iter().filter_map(decode).collect::<Vec<_>>())
        });
        for (index, chunks) in decoded.await.unwrap_or_default() {
            wanted.fields[index].found = Some(Arc::new(chunks));
        }
    }

    /// Whether somebody has finished what was claimed since it was looked for.
    fn came_to_disk(&self, block: u128, claim: &Claim) -> bool {
        let names: Vec<u128> = claim.keys.iter().map(|(_, (_, name))| *name).collect();
        self.disk.as_ref().is_some_and(|disk| disk.sections(block, &names).contains(&true))
    }

    /// Claims what nobody is decoding; of the rest, the flights to wait for.
    fn claim(&self, wanted: &Wanted) -> (Claim, Vec<(usize, Flight)>) {
        let mut claim = Claim { flights: Arc::clone(&self.flights), keys: Vec::new(), senders: Vec::new() };
        let mut waiting = Vec::new();
        for index in wanted.missing() {
            let key = (wanted.block, wanted.fields[index].name);
            match self.flights.entry(key) {
                Entry::Occupied(entry) => waiting.push((index, entry.get().clone())),
                Entry::Vacant(entry) => {
                    let (sender, flight) = watch::channel(None);
                    entry.insert(flight);
                    claim.keys.push((index, key));
                    claim.senders.push(sender);
                }
            }
        }
        (claim, waiting)
    }

    /// Decodes what was claimed, hands it to those who wait, and has it written in the background if it is to
    /// be kept; the permit is then held until that is done.
    async fn decode(
        &self,
        job: &Job,
        block: u32,
        wanted: &mut Wanted,
        claim: Claim,
        keep: Option<Arc<OwnedSemaphorePermit>>,
    ) -> Result<(), Error> {
        let positions: Vec<usize> =
            claim.keys.iter().map(|(index, _)| wanted.fields[*index].position).collect();
        let encoded = job.reader().fetch(block as usize, &positions).await?;
        let decode_rows = self.config.decode_rows;
        let decoded = self.pool.run(Priority::Second, move || {
            let mut columns = vec![Vec::new(); positions.len()];
            for chunk in encoded.decode(decode_rows) {
                let chunk = chunk?;
                for (column, array) in columns.iter_mut().zip(chunk.columns()) {
                    column.push(Arc::clone(array));
                }
            }
            metrics::counter!("forebay_decode_columns_total").increment(columns.len() as u64);
            Ok(columns.into_iter().map(Arc::new).collect::<Vec<Chunks>>())
        });
        let decoded = decoded.await?;
        for (((index, _), sender), chunks) in claim.keys.iter().zip(&claim.senders).zip(&decoded) {
            wanted.fields[*index].found = Some(Arc::clone(chunks));
            sender.send_replace(Some(Arc::clone(chunks)));
        }
        if let Some(disk) = &self.disk
            && let Some(permit) = keep
        {
            let (disk, block) = (disk.clone(), wanted.block);
            tokio::spawn(async move {
                let names = claim.keys.iter().map(|(_, (_, name))| *name);
                let sections = names.zip(&decoded).map(|(name, chunks)| (name, section::encode(chunks)));
                disk.put(block, sections.collect()).await;
                // Until here others find the columns in this flight.
                drop((claim, permit));
            });
        }
        Ok(())
    }

    /// The columns side by side.
    fn chunks(&self, job: &Job, wanted: Wanted) -> Result<Vec<RecordBatch>, Error> {
        let schema: SchemaRef =
            Arc::new(job.snapshot().schema().project(job.view().projection()).map_err(internal)?);
        let columns: Vec<Chunks> = wanted.fields.into_iter().filter_map(|column| column.found).collect();
        let count = columns.first().map_or(0, |chunks| chunks.len());
        let chunk = |index: usize| {
            let arrays: Option<Vec<ArrayRef>> =
                columns.iter().map(|chunks| chunks.get(index).cloned()).collect();
            let arrays =
                arrays.ok_or_else(|| Error::Internal("columns of one block differ in chunks".into()))?;
            let rows = arrays.first().map(|array| array.len());
            let options = RecordBatchOptions::new().with_row_count(rows);
            RecordBatch::try_new_with_options(SchemaRef::clone(&schema), arrays, &options).map_err(internal)
        };
        (0..count).map(chunk).collect()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn internal(error: arrow_schema::ArrowError) -> Error {
    Error::Internal(error.to_string())
}

impl Wanted {
    fn names(&self) -> Vec<u128> {
        self.fields.iter().map(|column| column.name).collect()
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let missing = |(index, column): (usize, &Column)| column.found.is_none().then_some(index);
        self.fields.iter().enumerate().filter_map(missing)
    }
}

/// Columns that this one decodes. Dropping it lets others do so; those who wait find out.
struct Claim {
    flights: Arc<DashMap<ColumnKey, Flight>>,
    keys: Vec<(usize, ColumnKey)>,
    senders: Vec<watch::Sender<Option<Chunks>>>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        for (_, key) in &self.keys {
            self.flights.remove(key);
        }
    }
}
