//! Windows of all jobs. A window is reserved in one step, loaded once, and shared by the ranks of a job.

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
use tokio::sync::{OnceCell, oneshot};
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    Config, Error, Frame, FrameBuilder, Job, Priority, RowRef,
    activity::{Activity, Purpose, Watching},
    batches::Stream,
    block_reader::{BlockColumns, BlockReader, DecodePermit},
    columns::Columns,
    forecast::Outlook,
    groups::Piece,
    space::Total,
};

/// Loads windows into the memory tier.
pub(crate) struct Windows {
    config: Config,
    frames: Memory<FrameKey, Frame>,
    columns: Columns,
    outlook: Outlook,
    blocks: BlockReader,
    slabs: Slabs,
    space: Total,
    held: Arc<DashMap<WindowKey, Weak<HeldWindow>>>,
}

/// Key of a frame: one block of one view. A change of the file, the columns, a type or a fill value changes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) block: u128,
    pub(crate) view: u128,
    /// Hash of the rows in the frame if rows are grouped, otherwise 0. Some of these rows may be stored in later
    /// blocks.
    pub(crate) rows: u128,
}

/// Key of a window: one epoch of one order in one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct WindowKey {
    order: u64,
    view: u128,
    id: WindowId,
}

/// Window of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WindowId {
    pub(crate) epoch: u64,
    pub(crate) window: usize,
}

/// Window that is held or being loaded. After the last holder drops it, its frames may be evicted.
pub(crate) struct HeldWindow {
    window: OnceCell<Window>,
    key: WindowKey,
    registry: Arc<DashMap<WindowKey, Weak<HeldWindow>>>,
}

/// The frames of one window.
pub(crate) struct Window {
    /// Index of the frame of each block of the snapshot; `u32::MAX` for blocks without a frame in this window.
    frame_of: Vec<u32>,
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Memory reservation. Fields are dropped in order, so it is released after the frames.
    _reservation: Reservation,
}

/// Behavior when there is no free memory.
pub(crate) enum Room {
    Wait,
    /// Does not wait. The sender is notified if memory is free, and dropped otherwise.
    OnlyIfFree(Option<oneshot::Sender<()>>),
}

impl Room {
    fn found(&mut self) {
        if let Self::OnlyIfFree(reserved) = self
            && let Some(reserved) = reserved.take()
        {
            // The receiver may have been dropped.
            let _ = reserved.send(());
        }
    }
}

impl Windows {
    /// Creates the windows: frames in `memory_bytes`, columns on `disk` if given. Eviction uses the forecast `outlook`.
    pub(crate) fn new(
        memory_bytes: u64,
        disk: Option<Disk>,
        outlook: Outlook,
        config: Config,
        blocks: BlockReader,
    ) -> Self {
        let ready_bytes = config.total_prefetch_bytes(memory_bytes);
        Self {
            frames: Memory::new(memory_bytes, Arc::new(outlook.clone())),
            columns: Columns::new(disk, outlook.clone(), blocks.clone(), memory_bytes, config.clone()),
            outlook,
            blocks,
            slabs: Slabs::within(
                memory_bytes.saturating_add(ready_bytes),
                config.buffer_pool_bytes(memory_bytes),
            ),
            space: Total::new(ready_bytes, config.prefetch_bytes),
            held: Arc::default(),
            config,
        }
    }

    /// Decoded columns and the disk tier that stores them.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Forecast of the next use of each block.
    pub(crate) fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// Work in progress, by stage and purpose.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        self.blocks.activity()
    }

    /// Attributes work for `blocks` of the stream's job to the stream until the returned guard is dropped.
    pub(crate) fn watch(&self, stream: &Stream, blocks: &[u32]) -> Watching {
        let ids = stream.job.reader().block_ids();
        self.activity().watch(&stream.watch, &stream.seen, blocks.iter().map(|block| ids.id(*block)))
    }

    /// Prefetch budget of finished batches.
    pub(crate) fn space(&self) -> &Total {
        &self.space
    }

    pub(crate) fn memory(&self) -> &Memory<FrameKey, Frame> {
        &self.frames
    }

    /// Buffer pool for frames and batches.
    pub(crate) fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// Returns the window `id` of `job`, with the given blocks, loading it if necessary. Returns `Ok(None)` only for
    /// [`Room::OnlyIfFree`], if there is no free memory.
    ///
    /// With [`Room::Wait`], the caller must not hold another window; otherwise two callers can deadlock.
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

    /// Reserves memory and loads the window. Returns `Err(None)` if there is no free memory and `room` is not
    /// [`Room::Wait`].
    async fn reserve_and_load(
        &self,
        job: &Job,
        blocks: &[u32],
        room: &mut Room,
    ) -> Result<Window, Option<Error>> {
        // Blocks without a needed row have no frame.
        let blocks: Vec<u32> = blocks.iter().copied().filter(|block| job.is_needed(*block)).collect();
        let blocks = &blocks[..];
        // Admission uses estimates, and slabs round the actual sizes up. The cap lets every admitted window fit.
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

    /// Bytes of the frames of `blocks`: actual sizes of frames in memory, estimates for the others.
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

    /// Loads the frames of `blocks`. Calls `raise` with the total number of bytes after each frame.
    ///
    /// # Errors
    /// Returns [`Error::TooLarge`] if the values exceed `limit` bytes, and the error of the first block that cannot be
    /// read.
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
                // The footers underestimated the size.
                return Err(too_large(value_bytes, limit));
            }
            raise(bytes);
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Returns the frame of one block, loading it if it is not in memory.
    pub(crate) async fn frame(&self, job: &Job, block: u32) -> Result<Arc<Frame>, Error> {
        let expected_bytes = job.bytes_of(&[block]);
        self.frames
            .get_or_load(&frame_key(job, block), expected_bytes, || self.make(job, block, expected_bytes))
            .await
    }

    /// Writes the columns of a pinned block to disk. Returns false if the disk tier has no space for them.
    pub(crate) fn pin<'a>(&'a self, job: &'a Job, block: u32) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let permit = self.blocks.permit(job.read_bytes(block).max(job.bytes_of(&[block]))).await?;
            self.columns.pin(job, block, permit).await
        })
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
        let permit = self.blocks.permit(expected_bytes.max(job.making_bytes(block))).await?;
        let (pieces, view) = (job.pieces(block), Arc::clone(job.view()));
        let rows = pieces.iter().map(|piece| piece.rows.len()).sum();
        let place = place_of(job.snapshot(), block);
        let mut builder = FrameBuilder::new(view, rows, place.clone(), &self.slabs)?;
        let started = std::time::Instant::now();
        for piece in pieces {
            builder = self.append(job, piece, builder, &permit).await?;
        }
        let groups = job.groups_in(block);
        let (activity, id) = (Arc::clone(self.activity()), job.reader().block_ids().id(block));
        let finish = move || {
            let working = activity.begin(Stage::Decode, Purpose::Window, id);
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
        self.blocks.pool().run_for(job.decoding(), Priority::Second, finish).await
    }

    /// Appends the rows of a piece to a frame, from cached columns or from storage.
    async fn append(
        &self,
        job: &Job,
        piece: Piece,
        builder: FrameBuilder,
        permit: &DecodePermit,
    ) -> Result<FrameBuilder, Error> {
        let (block, rows) = (piece.block, piece.rows);
        let builder = builder.at(place_of(job.snapshot(), block));
        if self.columns.are_kept(job, block) {
            let chunks = self.columns.get(job, block, Arc::clone(permit)).await?;
            let append = move || append(builder, chunks.into_iter().map(Ok), rows);
            let id = job.reader().block_ids().id(block);
            return self.blocks.decode(Purpose::Window, id, job.decoding(), append).await;
        }
        let (view, keeps_all) = (Arc::clone(job.view()), job.keeps_all(block));
        let read = view.reads(keeps_all);
        let (columns, place) = (read.clone(), place_of(job.snapshot(), block));
        let decode = move |chunks: &mut dyn Iterator<Item = Result<RecordBatch, Error>>| {
            let chunks = chunks.map(|chunk| view.rows_of(chunk?, &columns, keeps_all, &place));
            append(builder, chunks, rows)
        };
        let what = BlockColumns { reader: job.reader(), block, columns: &read };
        self.blocks.read_within(permit, what, Purpose::Window, job.decoding(), decode).await
    }
}

/// Appends the rows at `range` of the concatenated `chunks`. Each chunk is appended while it is in the CPU cache.
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
    /// Returns the window, which [`Windows::acquire`] has loaded.
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
    /// Appends the rows at `locations` to `rows`, with frame indices starting at `first_frame`.
    pub(crate) fn rows(&self, locations: &[Location], first_frame: u32, rows: &mut Vec<RowRef>) {
        rows.extend(locations.iter().map(|location| RowRef {
            frame: first_frame + self.frame_of[location.block as usize],
            row: location.item,
        }));
    }

    /// Total number of rows of the groups at `locations`.
    pub(crate) fn rows_of_groups(&self, locations: &[Location]) -> u64 {
        let rows = locations.iter().map(|location| {
            let frame = self.frame_of[location.block as usize];
            self.frames[frame as usize].group(location.item).len() as u64
        });
        rows.sum()
    }

    /// Appends the rows of the groups at `locations` to `rows`, and the length of each group to `lengths`.
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

/// Name of a block in messages: file path and row groups.
pub(crate) fn place_of(snapshot: &Snapshot, block: u32) -> String {
    let block = &snapshot.blocks()[block as usize];
    let path = &snapshot.files()[block.file as usize].path;
    match block.row_groups.len() {
        1 => format!("{path}, row group {}", block.row_groups.start),
        _ => format!("{path}, row groups {} to {}", block.row_groups.start, block.row_groups.end - 1),
    }
}
