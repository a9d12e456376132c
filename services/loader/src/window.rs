//! The windows of all jobs: reserved in one step, loaded once, shared by the ranks of a job.

use std::sync::{Arc, Weak};

use arrow_array::RecordBatch;
use dashmap::DashMap;
use forebay_cache::{Disk, Memory, Reservation, Slabs, Weigh};
use forebay_plan::Location;
use forebay_storage::Snapshot;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{
    Config, Error, Frame, FrameBuilder, Job, Pool, Priority, RowRef, columns::Columns, forecast::Outlook,
    space::Total,
};

/// Loads windows into the memory tier.
pub(crate) struct Windows {
    config: Config,
    pool: Pool,
    frames: Memory<FrameKey, Frame>,
    columns: Columns,
    outlook: Outlook,
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
        let permits = (decode_bytes / 1024).clamp(1, u64::from(u32::MAX)) as usize;
        Self {
            frames: Memory::new(memory_bytes, Arc::new(outlook.clone())),
            columns: Columns::new(disk, outlook.clone(), memory_bytes, config.clone(), pool.clone()),
            outlook,
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
        // Blocks of which the filter keeps nothing have no frame, and are not read.
        let blocks: Vec<u32> = blocks.iter().copied().filter(|block| job.kept(*block) > 0).collect();
        let blocks = &blocks[..];
        // What was promised to fit does, even if the slabs that it lies in are somewhat longer.
        let capacity_bytes = self.frames.budget().capacity_bytes();
        let bytes = self.bytes_of(job, blocks).min(capacity_bytes.max(job.bytes_of(blocks)));
        let reservation = match room {
            Room::OnlyIfFree(_) => self.frames.budget().try_reserve(bytes).ok_or(None)?,
            Room::Wait => {
                let reserved = self.frames.budget().reserve(bytes).await;
                reserved.map_err(|error| Some(too_large(error.bytes, error.capacity_bytes)))?
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
        let mut loading = stream::iter(blocks.iter().copied())
            .map(|block| self.frame(job, block))
            .buffered(self.config.concurrent_blocks.max(1));
        let (mut frames, mut bytes, mut value_bytes) = (Vec::with_capacity(blocks.len()), 0, 0);
        while let Some(frame) = loading.try_next().await? {
            bytes += frame.weight();
            value_bytes += frame.value_bytes();
            if value_bytes > capacity_bytes {
                // The footers promised less.
                return Err(too_large(value_bytes, capacity_bytes));
            }
            reservation.raise(bytes.min(capacity_bytes));
            frames.push(frame);
        }
        drop(loading);
        let mut frame_of = vec![u32::MAX; job.snapshot().blocks().len()];
        for (index, block) in blocks.iter().enumerate() {
            frame_of[*block as usize] = index as u32;
        }
        Ok(Window { frame_of, frames, _reservation: reservation })
    }

    /// The frame of one block, fetched and decoded if it is not in memory.
    pub(crate) async fn frame(&self, job: &Job, block: u32) -> Result<Arc<Frame>, Error> {
        let expected_bytes = job.bytes_of(&[block]);
        self.frames
            .get_or_load(&frame_key(job, block), expected_bytes, || self.make(job, block, expected_bytes))
            .await
    }

    /// Brings the columns of one block, which is pinned, to disk; false if there is no room.
    pub(crate) async fn pin(&self, job: &Job, block: u32) -> Result<bool, Error> {
        let permit = self.permit(job.making_bytes(block)).await?;
        self.columns.pin(job, block, permit).await
    }

    /// Waits for memory for a block of so many bytes: compressed bytes, decoded chunks and the frame itself.
    async fn permit(&self, expected_bytes: u64) -> Result<Arc<OwnedSemaphorePermit>, Error> {
        let permits = (expected_bytes.saturating_mul(2) / 1024).min(self.decode_bytes / 1024).max(1);
        let permit = Arc::clone(&self.decoding)
            .acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX))
            .await
            .map_err(|_| Error::Internal("the decode semaphore is closed".into()))?;
        Ok(Arc::new(permit))
    }

    async fn make(&self, job: &Job, block: u32, expected_bytes: u64) -> Result<Frame, Error> {
        let permit = self.permit(expected_bytes.max(job.making_bytes(block))).await?;
        let (rows, view) = (job.kept(block) as usize, Arc::clone(job.view()));
        let builder =
            FrameBuilder::new(Arc::clone(&view), rows, place_of(job.snapshot(), block), &self.slabs)?;
        if self.columns.are_kept(job, block) {
            let chunks = self.columns.get(job, block, Arc::clone(&permit)).await?;
            let build = move || build(builder, chunks.into_iter().map(Ok), permit);
            return self.pool.run(Priority::Second, build).await;
        }
        let encoded = job.reader().fetch(block as usize, job.view().projection()).await?;
        let (decode_rows, columns) = (self.config.decode_rows, view.projection().len());
        let place = place_of(job.snapshot(), block);
        self.pool
            .run(Priority::Second, move || {
                let chunks = encoded.decode(decode_rows).map(|chunk| view.rows_of(chunk?, &place));
                let frame = build(builder, chunks, permit)?;
                metrics::counter!("forebay_decode_columns_total").increment(columns as u64);
                Ok(frame)
            })
            .await
    }
}

/// Lays chunks into a frame, each while it is in the processor's cache.
fn build(
    mut builder: FrameBuilder,
    chunks: impl Iterator<Item = Result<RecordBatch, Error>>,
    permit: Arc<OwnedSemaphorePermit>,
) -> Result<Frame, Error> {
    let started = std::time::Instant::now();
    for chunk in chunks {
        builder.append(&chunk?)?;
    }
    let frame = builder.finish()?;
    metrics::histogram!("forebay_decode_duration_seconds").record(started.elapsed());
    metrics::counter!("forebay_decode_rows_total").increment(frame.rows() as u64);
    drop(permit);
    Ok(frame)
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
}

fn too_large(needed: u64, limit: u64) -> Error {
    let advice = "lower shuffle.window_rows or raise --cache-memory".into();
    Error::TooLarge { what: "a shuffle window".into(), needed, limit, advice }
}

fn frame_key(job: &Job, block: u32) -> FrameKey {
    FrameKey { block: job.reader().block_ids().id(block), view: job.view().key() }
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
