//! Decoded columns of blocks: from the disk tier, from somebody who is decoding them now, or from their file.
//!
//! A column of a block is decoded once for all who ask meanwhile, whatever their views. It is kept on disk when
//! it will be asked for again and memory alone won't do.

mod align;
mod section;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use dashmap::{DashMap, Entry};
use forebay_cache::{Disk, Outcome};
use forebay_sql::Expression;
use forebay_stall::Stage;
use tokio::sync::{OwnedSemaphorePermit, watch};
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    Config, DiskWrites, Error, Job, Pool, Priority, activity::Activity, compute, cpu::Flow,
    forecast::Outlook, view::Source, window::place_of,
};

/// Finds or makes decoded columns.
pub(crate) struct Columns {
    disk: Option<Disk>,
    outlook: Outlook,
    activity: Arc<Activity>,
    memory_bytes: u64,
    config: Config,
    pool: Pool,
    /// Columns that are being read, decoded or written, by block and name.
    flights: Arc<DashMap<ColumnKey, Flight>>,
}

/// A block and one of its columns, each by a complete hash.
type ColumnKey = (u128, u128);

/// The values of one column of a block, a few thousand rows at a time.
type Chunks = Arc<Vec<ArrayRef>>;

/// The columns of a block, as far as they were found.
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
        outlook: Outlook,
        activity: Arc<Activity>,
        memory_bytes: u64,
        config: Config,
        pool: Pool,
    ) -> Self {
        Self { disk, outlook, activity, memory_bytes, config, pool, flights: Arc::default() }
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
            None => self.outlook.is_shared(id),
        }
    }

    /// Whether they will be asked for again and memory alone won't do.
    fn must_keep(&self, block: u128) -> bool {
        match self.config.disk_writes {
            DiskWrites::Always => true,
            DiskWrites::Needed => {
                self.outlook.frame_bytes() > self.memory_bytes || self.outlook.is_shared(block)
            }
        }
    }

    /// The columns that the job's view of one block is made of, a chunk of rows at a time, without those that its filter leaves
    /// out.
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
        let keep = self.must_keep(wanted.block);
        loop {
            let (mut claim, mut waiting) = self.claim(&wanted);
            metrics::counter!("forebay_cache_single_flight_joins_total", "tier" => "disk")
                .increment(waiting.len() as u64);
            // Only now, lest somebody's columns are written between a look and a claim, and are decoded again.
            self.read(job.decoding(), &mut wanted, &mut claim).await;
            if !claim.columns.is_empty() {
                let (decoded, made_in) = self.decode(job, block, &mut wanted, &claim).await?;
                if keep && let Some(disk) = self.disk.clone() {
                    let (permit, block_id) = (Arc::clone(&permit), wanted.block);
                    tokio::spawn(async move {
                        disk.put(block_id, sections(&claim, &decoded), made_in).await;
                        // Until here others find the columns in this flight.
                        drop((claim, permit));
                    });
                }
            }
            wanted.share();
            // Whatever this one has to give is given: it may wait for others.
            for (index, flight) in &mut waiting {
                if let Ok(chunks) = flight.wait_for(Option::is_some).await {
                    wanted.fields[*index].found = chunks.clone();
                }
            }
            if wanted.fields.iter().all(|column| column.found.is_some()) {
                return chunks(job, &wanted);
            }
        }
    }

    /// Brings the columns of the job's view of one block to disk, whose block is pinned. When this returns they
    /// are there, unless the answer is false: then there is no room.
    ///
    /// # Errors
    /// As [`Self::get`], and [`Error::Unavailable`] when the disk fails.
    pub(crate) async fn pin(
        &self,
        job: &Job,
        block: u32,
        _permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<bool, Error> {
        let Some(disk) = &self.disk else { return Ok(false) };
        loop {
            let mut wanted = self.wanted(job, block);
            let (mut claim, waiting) = self.claim(&wanted);
            claim.retain(|column| disk.sections(wanted.block, &[column.key.1]) == [false]);
            if claim.columns.is_empty() && waiting.is_empty() {
                return Ok(true);
            }
            if !claim.columns.is_empty() {
                let (decoded, made_in) = self.decode(job, block, &mut wanted, &claim).await?;
                match disk.put_in_turn(wanted.block, sections(&claim, &decoded), made_in).await {
                    Outcome::Written | Outcome::Present => {}
                    Outcome::Bypassed | Outcome::TooLarge => return Ok(false),
                    Outcome::Busy | Outcome::Failing => {
                        return Err(Error::Unavailable("the cache's disk fails".into()));
                    }
                }
            }
            // Before the wait: those who are waited for may wait for these.
            drop(claim);
            // Others have written theirs when their flights end, or don't keep them.
            for (_, mut flight) in waiting {
                while flight.changed().await.is_ok() {}
            }
        }
    }

    fn wanted(&self, job: &Job, block: u32) -> Wanted {
        let schema = job.snapshot().schema();
        let column = |source: &Source| {
            let (name, data_type) = match source {
                Source::Stored(position) => {
                    let field = schema.field(*position);
                    (self.name_of(field), field.data_type().clone())
                }
                Source::Computed(made) => (self.name_of_computed(made), made.field().data_type().clone()),
            };
            Column { source: source.clone(), name, data_type, found: None }
        };
        let fields = job.view().columns().iter().map(column).collect();
        Wanted { block: job.reader().block_ids().id(block), fields }
    }

    /// Everything that decides the bytes of a section, besides the block.
    fn name_of(&self, field: &Field) -> u128 {
        let spelled =
            format!("column 1 {:?} {:?} {}", field.name(), field.data_type(), self.config.decode_rows);
        xxh3_128(spelled.as_bytes())
    }

    /// ... and of one that is computed: the expression has its inputs' types in it.
    fn name_of_computed(&self, made: &Expression) -> u128 {
        xxh3_128(format!("computed 1 {:032x} {}", made.identity(), self.config.decode_rows).as_bytes())
    }

    /// Looks on disk for what was claimed, and hands it to those who wait.
    async fn read(&self, flow: Flow, wanted: &mut Wanted, claim: &mut Claim) {
        let Some(disk) = &self.disk else { return };
        let names: Vec<u128> = claim.columns.iter().map(|column| column.key.1).collect();
        let working = self.activity.begin(Stage::Storage, wanted.block);
        let sections = disk.get(wanted.block, &names).await;
        working.made(sections.iter().flatten().map(|section| section.len() as u64).sum(), 0);
        drop(working);
        if sections.iter().all(Option::is_none) {
            return;
        }
        let indices = claim.columns.iter().map(|column| column.index);
        let found: Vec<_> = indices
            .zip(sections)
            .filter_map(|(index, section)| Some((index, section?, wanted.fields[index].data_type.clone())))
            .collect();
        // Strings are checked to be UTF-8.
        let (activity, block) = (Arc::clone(&self.activity), wanted.block);
        let decoded = self.pool.run_for(flow, Priority::Second, move || {
            let _working = activity.begin(Stage::Decode, block);
            let decode = |(index, section, data_type)| Some((index, section::decode(&section, &data_type)?));
            Ok(found.into_iter().filter_map(decode).collect::<Vec<_>>())
        });
        for (index, chunks) in decoded.await.unwrap_or_default() {
            wanted.fields[index].found = Some(Arc::new(chunks));
        }
        claim.hand_out(wanted);
        claim.retain(|column| wanted.fields[column.index].found.is_none());
    }

    /// Claims what is missing and nobody has claimed; of the rest, the flights to wait for.
    fn claim(&self, wanted: &Wanted) -> (Claim, Vec<(usize, Flight)>) {
        let mut claim = Claim { flights: Arc::clone(&self.flights), columns: Vec::new() };
        let mut waiting = Vec::new();
        for index in wanted.missing() {
            let key = (wanted.block, wanted.fields[index].name);
            if claim.columns.iter().any(|column| column.key == key) {
                // Wanted twice, by two names.
                continue;
            }
            match self.flights.entry(key) {
                Entry::Occupied(entry) => waiting.push((index, entry.get().clone())),
                Entry::Vacant(entry) => {
                    let (sender, flight) = watch::channel(None);
                    entry.insert(flight);
                    claim.columns.push(Claimed { index, key, sender });
                }
            }
        }
        (claim, waiting)
    }

    /// Decodes and computes what was claimed, and hands it to those who wait. Also says how long that took.
    async fn decode(
        &self,
        job: &Job,
        block: u32,
        wanted: &mut Wanted,
        claim: &Claim,
    ) -> Result<(Vec<Chunks>, Duration), Error> {
        let started = Instant::now();
        let claimed: Vec<Source> =
            claim.columns.iter().map(|column| wanted.fields[column.index].source.clone()).collect();
        let positions = compute::reads(&claimed);
        let working = self.activity.begin(Stage::Storage, wanted.block);
        let encoded = job.reader().fetch(block as usize, &positions).await?;
        working.made(encoded.bytes() as u64, 0);
        drop(working);
        let (activity, id, delays) = (Arc::clone(&self.activity), wanted.block, self.config.delays);
        let (decode_rows, place) = (self.config.decode_rows, place_of(job.snapshot(), block));
        let decoded = self.pool.run_for(job.decoding(), Priority::Second, move || {
            let _working = activity.begin(Stage::Decode, id);
            delays.before_decode();
            let mut columns = vec![Vec::new(); claimed.len()];
            for chunk in encoded.decode(decode_rows) {
                let arrays = compute::compute(&claimed, &positions, &chunk?, &place)?;
                for (column, array) in columns.iter_mut().zip(arrays) {
                    column.push(array);
                }
            }
            metrics::counter!("forebay_decode_columns_total").increment(positions.len() as u64);
            Ok(columns.into_iter().map(Arc::new).collect::<Vec<Chunks>>())
        });
        let decoded = decoded.await?;
        for (column, chunks) in claim.columns.iter().zip(&decoded) {
            wanted.fields[column.index].found = Some(Arc::clone(chunks));
        }
        claim.hand_out(wanted);
        Ok((decoded, started.elapsed()))
    }
}

/// The columns of a claim as the disk takes them.
fn sections(claim: &Claim, decoded: &[Chunks]) -> Vec<(u128, Vec<Bytes>)> {
    let names = claim.columns.iter().map(|column| column.key.1);
    names.zip(decoded).map(|(name, chunks)| (name, section::encode(chunks))).collect()
}

/// The columns side by side, of the rows that are kept.
fn chunks(job: &Job, wanted: &Wanted) -> Result<Vec<RecordBatch>, Error> {
    let columns: Vec<&[ArrayRef]> =
        wanted.fields.iter().filter_map(|column| column.found.as_ref()).map(|chunks| &chunks[..]).collect();
    let aligned = align::align(&columns)
        .ok_or_else(|| Error::Internal("columns of one block differ in their rows".into()))?;
    let batch = |arrays: Vec<ArrayRef>| {
        let rows = arrays.first().map_or(0, |array| array.len());
        job.view().kept_rows(job.view().batch(arrays, rows)?)
    };
    aligned.into_iter().map(batch).collect()
}

impl Wanted {
    fn names(&self) -> Vec<u128> {
        self.fields.iter().map(|column| column.name).collect()
    }

    /// Gives what was found to those of the same name that were not looked for.
    fn share(&mut self) {
        for index in self.missing().collect::<Vec<_>>() {
            let name = self.fields[index].name;
            let found = self.fields.iter().find(|column| column.name == name && column.found.is_some());
            self.fields[index].found = found.and_then(|column| column.found.clone());
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let missing = |(index, column): (usize, &Column)| column.found.is_none().then_some(index);
        self.fields.iter().enumerate().filter_map(missing)
    }
}

/// Columns that this one reads or decodes. Dropping it lets others do so; those who wait find out.
struct Claim {
    flights: Arc<DashMap<ColumnKey, Flight>>,
    columns: Vec<Claimed>,
}

/// Where those who wait for a column find it. It ends when its claim is dropped.
type Flight = watch::Receiver<Option<Chunks>>;

struct Claimed {
    /// Position among what is wanted.
    index: usize,
    key: ColumnKey,
    sender: watch::Sender<Option<Chunks>>,
}

impl Claim {
    /// Gives what was found to those who wait for it.
    fn hand_out(&self, wanted: &Wanted) {
        for column in &self.columns {
            if let Some(chunks) = &wanted.fields[column.index].found {
                column.sender.send_replace(Some(Arc::clone(chunks)));
            }
        }
    }

    /// Lets go what `predicate` says no to.
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
