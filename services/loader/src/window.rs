//! The windows of all jobs: reserved in one step, loaded once, shared by the ranks of a job.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use arrow_array::RecordBatch;
use dashmap::DashMap;
use forebay_cache::{Disk, Memory, Reservation, Slabs, Weigh};
use forebay_plan::Location;
use forebay_stall::Stage;
use forebay_storage::Snapshot;
use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    Config, Error, Frame, FrameBuilder, Job, Pool, Priority, RowRef,
    activity::{Activity, Watching},
    batches::Stream,
    columns::Columns,
    forecast::Outlook,
    groups::Piece,
    space::Total,
};

/// Loads windows into the memory tier.
pub(crate) struct Windows {
    config: Config,
    pool: Pool,
    frames: Memory<FrameKey, Frame>,
    columns: Columns,
    outlook: Outlook,
    activity: Arc<Activity>,
    slabs: Slabs,
    space: Total,
    /// Permits of 1 KiB for blocks that are being fetched and decoded.
    decoding: Arc<Semaphore>,
    decode_bytes: u64,
    held: Arc<DashMap<WindowKey, Weak<HeldWindow>>>,
}

/// One block of one view. A changed file, column list, type or fill is another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) block: u128,
    pub(crate) view: u128,
    /// With groups: a hash of the rows that are in it, some of which lie in later blocks.
    pub(crate) rows: u128,
}

/// One window of one epoch of one order, seen through one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct WindowKey {
    order: u64,
    view: u128,
    id: WindowId,
}

/// A window of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WindowId {
    pub(crate) epoch: u64,
    pub(crate) window: usize,
}

/// A window that somebody holds or waits for. When the last holder drops it, its frames may be evicted.
pub(crate) struct HeldWindow {
    window: OnceCell<Window>,
    key: WindowKey,
    registry: Arc<DashMap<WindowKey, Weak<HeldWindow>>>,
}

/// The frames of one window.
pub(crate) struct Window {
    /// Frame of each block of the snapshot; `u32::MAX` for blocks of other windows.
    frame_of: Vec<u32>,
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Given back after the frames, as fields are dropped in order.
    _reservation: Reservation,
}

/// Whether to wait for memory.
pub(crate) enum Room {
    Wait,
    /// Says so once there is memory; drops the sender when there is none.
    OnlyIfFree(Option<oneshot::Sender<()>>),
}

impl Room {
    fn found(&mut self) {
        if let Self::OnlyIfFree(reserved) = self
            && let Some(reserved) = reserved.take()
        {
            // Nobody need be waiting for that.
            let _ = reserved.send(());
        }
    }
}

impl Windows {
    /// Frames in `memory_bytes`, above columns on `disk` if there is one; its forecast is `outlook`.
    pub(crate) fn new(
        memory_bytes: u64,
        disk: Option<Disk>,
        outlook: Outlook,
        config: Config,
        pool: Pool,
    ) -> Self {
        let decode_bytes = config.decode_bytes(memory_bytes);
        let ready_bytes = config.total_prefetch_bytes(memory_bytes);
        let activity = Arc::<Activity>::default();
        let known = Arc::clone(&activity);
        let permits = (decode_bytes / 1024).clamp(1, u64::from(u32::MAX)) as usize;
        Self {
            frames: Memory::new(memory_bytes, Arc::new(outlook.clone())),
            columns: Columns::new(disk, outlook.clone(), known, memory_bytes, config.clone(), pool.clone()),
            outlook,
            activity,
            slabs: Slabs::within(memory_bytes.saturating_add(ready_bytes), config.idle_bytes(memory_bytes)),
            space: Total::new(ready_bytes, config.prefetch_bytes),
            decoding: Arc::new(Semaphore::new(permits)),
            decode_bytes,
            held: Arc::default(),
            config,
            pool,
        }
    }

    /// Decoded columns, and the disk tier below them.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// When each block is needed next.
    pub(crate) fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// What is being done.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// From now on, and until what is returned is dropped, work for these blocks of its job is work for this stream.
    pub(crate) fn watch(&self, stream: &Stream, blocks: &[u32]) -> Watching {
        let ids = stream.job.reader().block_ids();
        self.activity.watch(&stream.watch, &stream.seen, blocks.iter().map(|block| ids.id(*block)))
    }

    /// Where finished batches wait.
    pub(crate) fn space(&self) -> &Total {
        &self.space
    }

    pub(crate) fn memory(&self) -> &Memory<FrameKey, Frame> {
        &self.frames
    }

    /// What frames and batches lie in.
    pub(crate) fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// The loaded window `id` of `job`, whose blocks are `blocks`. `Ok(None)` only for
    /// [`Room::OnlyIfFree`], when there is no free memory.
    ///
    /// Whoever waits here must hold no other window, lest two wait for each other.
    pub(crate) async fn acquire(
        &self,
        job: &Job,
        id: WindowId,
        blocks: &[u32],
        room: Room,
    ) -> Result<Option<Arc<HeldWindow>>, Error> {
        let held = self.hold(WindowKey { order: job.windows_key(), view: job.view().key(), id });
        let mut room = room;
        let loaded = held.window.get_or_try_init(|| self.reserve_and_load(job, blocks, &mut room)).await;
        match loaded {
            Ok(_) => {
                room.found();
                Ok(Some(held))
            }
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    fn hold(&self, key: WindowKey) -> Arc<HeldWindow> {
        let mut entry = self.held.entry(key).or_default();
        if let Some(held) = entry.upgrade() {
            return held;
        }
        let held = Arc::new(HeldWindow { window: OnceCell::new(), key, registry: Arc::clone(&self.held) });
        *entry = Arc::downgrade(&held);
        held
    }

    /// `Err(None)` when there is no free memory and the caller won't wait.
    async fn reserve_and_load(
        &self,
        job: &Job,
        blocks: &[u32],
        room: &mut Room,
    ) -> Result<Window, Option<Error>> {
        // Blocks of which nothing is needed have no frame.
        let blocks: Vec<u32> = blocks.iter().copied().filter(|block| job.is_needed(*block)).collect();
        let blocks = &blocks[..];
        // What was promised to fit does, even if the slabs that it lies in are somewhat longer.
        let available_bytes = self.frames.budget().available_bytes();
        let bytes = self.bytes_of(job, blocks).min(available_bytes.max(job.bytes_of(blocks)));
        let reservation = match room {
            Room::OnlyIfFree(_) => self.frames.budget().try_reserve(bytes).ok_or(None)?,
            Room::Wait => {
                let reserved = self.frames.budget().reserve(bytes).await;
                reserved.map_err(|error| Some(too_large(error.bytes, error.available_bytes)))?
            }
        };
        room.found();
        self.load(job, blocks, reservation).await.map_err(Some)
    }

    /// Bytes of the frames of `blocks`: what they take if they are in memory, else the estimate.
    fn bytes_of(&self, job: &Job, blocks: &[u32]) -> u64 {
        let bytes_of = |block: &u32| {
            self.frames
                .weight(&frame_key(job, *block))
                .unwrap_or_else(|| job.bytes_of(std::slice::from_ref(block)))
        };
        blocks.iter().map(bytes_of).sum()
    }

    async fn load(&self, job: &Job, blocks: &[u32], mut reservation: Reservation) -> Result<Window, Error> {
        let capacity_bytes = self.frames.budget().capacity_bytes();
        let frames =
            self.frames_of(job, blocks, capacity_bytes, |bytes| reservation.raise(bytes.min(capacity_bytes)));
        let frames = frames.await?;
        let mut frame_of = vec![u32::MAX; job.snapshot().blocks().len()];
        for (index, block) in blocks.iter().enumerate() {
            frame_of[*block as usize] = index as u32;
        }
        Ok(Window { frame_of, frames, _reservation: reservation })
    }

    /// The frames of `blocks`, of `limit` bytes at most; `raise` is told how many there are so far.
    pub(crate) async fn frames_of(
        &self,
        job: &Job,
        blocks: &[u32],
        limit: u64,
        mut raise: impl FnMut(u64),
    ) -> Result<Vec<Arc<Frame>>, Error> {
        let mut loading = stream::iter(blocks.iter().copied())
            .map(|block| self.frame(job, block))
            .buffered(self.config.concurrent_blocks.max(1));
        let (mut frames, mut bytes, mut value_bytes) = (Vec::with_capacity(blocks.len()), 0, 0);
        while let Some(frame) = loading.try_next().await? {
            bytes += frame.weight();
            value_bytes += frame.value_bytes();
            if value_bytes > limit {
                // The footers promised less.
                return Err(too_large(value_bytes, limit));
            }
            raise(bytes);
            frames.push(frame);
        }
        Ok(frames)
    }

    /// The frame of one block, fetched and decoded if it is not in memory.
    pub(crate) async fn frame(&self, job: &Job, block: u32) -> Result<Arc<Frame>, Error> {
        let expected_bytes = job.bytes_of(&[block]);
        self.frames
            .get_or_load(&frame_key(job, block), expected_bytes, || self.make(job, block, expected_bytes))
            .await
    }

    /// Brings the columns of one block, which is pinned, to disk; false if there is no room.
    pub(crate) fn pin<'a>(&'a self, job: &'a Job, block: u32) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let permit = self.permit(job.read_bytes(block).max(job.bytes_of(&[block]))).await?;
            self.columns.pin(job, block, permit).await
        })
    }

    /// Waits for memory for a block of so many bytes: compressed bytes, decoded chunks and the frame itself.
    async fn permit(&self, expected_bytes: u64) -> Result<Arc<OwnedSemaphorePermit>, Error> {
        let _waiting = self.activity.wait();
        let permits = (expected_bytes.saturating_mul(2) / 1024).min(self.decode_bytes / 1024).max(1);
        let permit = Arc::clone(&self.decoding)
            .acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX))
            .await
            .map_err(|_| Error::Internal("the decode semaphore is closed".into()))?;
        Ok(Arc::new(permit))
    }

    fn make<'a>(
        &'a self,
        job: &'a Job,
        block: u32,
        expected_bytes: u64,
    ) -> BoxFuture<'a, Result<Frame, Error>> {
        Box::pin(self.make_inner(job, block, expected_bytes))
    }

    async fn make_inner(&self, job: &Job, block: u32, expected_bytes: u64) -> Result<Frame, Error> {
        let permit = self.permit(expected_bytes.max(job.making_bytes(block))).await?;
        let (pieces, view) = (job.pieces(block), Arc::clone(job.view()));
        let rows = pieces.iter().map(|piece| piece.rows.len()).sum();
        let place = place_of(job.snapshot(), block);
        let mut builder = FrameBuilder::new(view, rows, place.clone(), &self.slabs)?;
        let started = std::time::Instant::now();
        for piece in pieces {
            builder = self.append(job, piece, builder, &permit).await?;
        }
        let groups = job.groups_in(block);
        let (activity, id) = (Arc::clone(&self.activity), job.reader().block_ids().id(block));
        let finish = move || {
            let working = activity.begin(Stage::Decode, id);
            let frame = builder.finish()?.that_took(started.elapsed());
            working.made(frame.weight(), frame.rows() as u64);
            if frame.groups() != groups {
                let found = frame.groups();
                return Err(Error::Internal(format!(
                    "{place}: {found} groups begin there, {groups} were counted"
                )));
            }
            metrics::histogram!("forebay_decode_duration_seconds").record(started.elapsed());
            metrics::counter!("forebay_decode_rows_total").increment(frame.rows() as u64);
            drop(permit);
            Ok(frame)
        };
        self.pool.run_for(job.decoding(), Priority::Second, finish).await
    }

    /// Lays some rows of a block into a frame.
    async fn append(
        &self,
        job: &Job,
        piece: Piece,
        builder: FrameBuilder,
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> Result<FrameBuilder, Error> {
        let (block, rows) = (piece.block, piece.rows);
        let builder = builder.at(place_of(job.snapshot(), block));
        if self.columns.are_kept(job, block) {
            let chunks = self.columns.get(job, block, Arc::clone(permit)).await?;
            let (activity, id) = (Arc::clone(&self.activity), job.reader().block_ids().id(block));
            let append = move || {
                let _working = activity.begin(Stage::Decode, id);
                append(builder, chunks.into_iter().map(Ok), rows)
            };
            return self.pool.run_for(job.decoding(), Priority::Second, append).await;
        }
        let (view, snapshot) = (Arc::clone(job.view()), job.snapshot());
        let keeps_all = job.keeps_all(block);
        let read = view.reads(keeps_all);
        let id = job.reader().block_ids().id(block);
        let working = self.activity.begin(Stage::Storage, id);
        let encoded = job.reader().fetch(block as usize, &read).await?;
        working.made(encoded.bytes() as u64, 0);
        drop(working);
        let (decode_rows, place) = (self.config.decode_rows, place_of(snapshot, block));
        let (activity, delays) = (Arc::clone(&self.activity), self.config.delays);
        self.pool
            .run_for(job.decoding(), Priority::Second, move || {
                let _working = activity.begin(Stage::Decode, id);
                delays.before_decode();
                let chunks = encoded.decode(decode_rows);
                let chunks = chunks.map(|chunk| view.rows_of(chunk?, &read, keeps_all, &place));
                let builder = append(builder, chunks, rows)?;
                metrics::counter!("forebay_decode_columns_total").increment(read.len() as u64);
                Ok(builder)
            })
            .await
    }
}

/// Lays the rows at `range` of those in `chunks` into a frame, each while it is in the processor's cache.
fn append(
    mut builder: FrameBuilder,
    chunks: impl Iterator<Item = Result<RecordBatch, Error>>,
    range: Range<u32>,
) -> Result<FrameBuilder, Error> {
    let mut at = 0;
    for chunk in chunks {
        let chunk = chunk?;
        let rows = at..at + chunk.num_rows();
        let (first, last) = ((range.start as usize).max(rows.start), (range.end as usize).min(rows.end));
        if first < last {
            builder.append(&chunk.slice(first - at, last - first))?;
        }
        at = rows.end;
        if at >= range.end as usize {
            break;
        }
    }
    Ok(builder)
}

impl HeldWindow {
    /// The window. It is loaded before [`Windows::acquire`] hands it out.
    pub(crate) fn window(&self) -> &Window {
        self.window.get().expect("acquire hands out loaded windows only")
    }
}

impl Drop for HeldWindow {
    fn drop(&mut self) {
        self.registry.remove_if(&self.key, |_, held| held.strong_count() == 0);
    }
}

impl Window {
    /// Where in `frames` the rows at `locations` lie; frame numbers begin at `first_frame`.
    pub(crate) fn rows(&self, locations: &[Location], first_frame: u32, rows: &mut Vec<RowRef>) {
        rows.extend(locations.iter().map(|location| RowRef {
            frame: first_frame + self.frame_of[location.block as usize],
            row: location.item,
        }));
    }

    /// How many rows the groups at `locations` have.
    pub(crate) fn rows_of_groups(&self, locations: &[Location]) -> u64 {
        let rows = locations.iter().map(|location| {
            let frame = self.frame_of[location.block as usize];
            self.frames[frame as usize].group(location.item).len() as u64
        });
        rows.sum()
    }

    /// ... and the rows of the groups at `locations`, with how many each has.
    pub(crate) fn groups(
        &self,
        locations: &[Location],
        first_frame: u32,
        rows: &mut Vec<RowRef>,
        lengths: &mut Vec<u32>,
    ) {
        for location in locations {
            let frame = self.frame_of[location.block as usize];
            let group = self.frames[frame as usize].group(location.item);
            lengths.push(group.end - group.start);
            rows.extend(group.map(|row| RowRef { frame: first_frame + frame, row }));
        }
    }
}

fn too_large(needed: u64, limit: u64) -> Error {
    let advice = "lower shuffle.window_rows or raise --cache-memory".into();
    Error::TooLarge { what: "a shuffle window".into(), needed, limit, advice }
}

fn frame_key(job: &Job, block: u32) -> FrameKey {
    let ids = job.reader().block_ids();
    let rows = match job.has_groups() {
        false => 0,
        true => {
            let pieces = job.pieces(block).into_iter().map(|Piece { block, rows }| (ids.id(block), rows));
            xxh3_128(format!("{:?}", pieces.collect::<Vec<_>>()).as_bytes())
        }
    };
    FrameKey { block: ids.id(block), view: job.view().key(), rows }
}

/// What to call a block.
pub(crate) fn place_of(snapshot: &Snapshot, block: u32) -> String {
    let block = &snapshot.blocks()[block as usize];
    let path = &snapshot.files()[block.file as usize].path;
    match block.row_groups.len() {
        1 => format!("{path}, row group {}", block.row_groups.start),
        _ => format!("{path}, row groups {} to {}", block.row_groups.start, block.row_groups.end - 1),
    }
}
