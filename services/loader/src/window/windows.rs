//! Windows of all jobs. The memory of a window is reserved in one step. The window is loaded once and shared by the
//! ranks of a job.

use std::{sync::Arc, task::Poll};

use forebay_cache::{Disk, Memory, Reservation, Slabs, Tenant, Weigh};
use forebay_stall::Stage;
use forebay_storage::cache_key;
use futures::{StreamExt, future::BoxFuture, poll, stream::FuturesUnordered};

use super::{
    held::{BlockEvent, LoadError, Registry, Window},
    wanted::WantedWindow,
};
use crate::{
    Config, Error, Frame, FrameBuilder, Job, Priority,
    activity::{Activity, Purpose},
    block_reader::{BlockColumns, BlockReader, Chunks, DecodePermit, place_of},
    cache::{columns::Columns, forecast::NextUse},
    cpu::turns::TurnClock,
    frame::FrameKey,
    request::{admission::with_margin, footprint::Correction},
    selection::groups::BlockRows,
    view::kept_range::KeptRange,
};

/// Loads windows into the memory tier.
pub(crate) struct Windows {
    config: Config,
    pub(super) frames: Memory<FrameKey, Frame>,
    columns: Columns,
    forecast: NextUse,
    blocks: BlockReader,
    slabs: Slabs,
    pub(super) held: Arc<Registry>,
}

impl Windows {
    /// Creates the windows: frames in `memory_bytes`, columns on `disk` if given. Eviction uses the forecast `forecast`.
    pub(crate) fn new(
        memory_bytes: u64,
        disk: Option<Disk>,
        forecast: NextUse,
        config: Config,
        blocks: BlockReader,
    ) -> Self {
        let ready_bytes = config.total_prefetch_bytes(memory_bytes);
        Self {
            frames: Memory::new(memory_bytes, Arc::new(forecast.clone())),
            columns: Columns::new(disk, forecast.clone(), blocks.clone(), memory_bytes, config.clone()),
            forecast,
            blocks,
            slabs: Slabs::within(
                memory_bytes.saturating_add(ready_bytes),
                config.buffer_pool_bytes(memory_bytes),
            ),
            held: Arc::default(),
            config,
        }
    }

    /// Decoded columns and the disk tier that stores them.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Forecast of the next use of each block.
    pub(crate) fn forecast(&self) -> &NextUse {
        &self.forecast
    }

    /// Work in progress, by stage and purpose.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        self.blocks.activity()
    }

    pub(crate) fn memory(&self) -> &Memory<FrameKey, Frame> {
        &self.frames
    }

    /// Buffer pool for frames and batches.
    pub(crate) fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// Bytes of the frame of a block: its actual size if it is in memory, otherwise the estimate.
    fn bytes_of(&self, job: &Job, block: u32) -> u64 {
        self.frames.weight(&frame_key(job, block)).unwrap_or_else(|| job.bytes_of(&[block]))
    }

    /// Bytes to reserve for the frames of `blocks`: actual sizes of frames in memory, estimates with `correction` for the others.
    pub(super) fn bytes_to_load(&self, job: &Job, blocks: &[u32], correction: Correction) -> u64 {
        let bytes_of = |block: &u32| {
            let in_memory = self.frames.weight(&frame_key(job, *block));
            in_memory.unwrap_or_else(|| correction.of(job.bytes_of(std::slice::from_ref(block))))
        };
        blocks.iter().map(bytes_of).fold(0, u64::saturating_add)
    }

    /// Returns true if another tenant waits for memory of which `tenant` has more than its share.
    pub(super) fn should_yield(&self, tenant: Tenant) -> bool {
        self.frames.budget().of_tenant(tenant).should_yield()
    }

    /// Loads a window into its memory, which was reserved with the given correction, and calls `observe` with the events of its blocks. If
    /// all memory was reserved for the window and those of its set (`has_all_memory`), it may take more.
    ///
    /// # Errors
    /// [`LoadError::Understated`] if the window is larger than its reservation, and the memory with its margin has no room for the rest; the errors of
    /// [`frames_of`](Self::frames_of).
    pub(super) async fn load(
        &self,
        window: &WantedWindow,
        cached: Vec<Option<Arc<Frame>>>,
        (mut reservation, correction): (Reservation, Correction),
        has_all_memory: bool,
        observe: impl FnMut(BlockEvent),
    ) -> Result<Window, LoadError> {
        let capacity_bytes = self.frames.budget().capacity_bytes();
        let limit = with_margin(capacity_bytes);
        let WantedWindow { job, blocks, estimated_bytes, .. } = window;
        let mut is_understated = false;
        let raise = |bytes: u64| {
            // The footers may have understated the size.
            if has_all_memory {
                reservation.raise(bytes.min(capacity_bytes));
                return Ok(());
            }
            if reservation.try_raise(bytes, limit) {
                return Ok(());
            }
            is_understated = true;
            job.footprint.note_understated(*estimated_bytes, bytes, correction);
            Err(Error::Unavailable("a window is larger than estimated".into()))
        };
        let frames = match self.frames_of(job, blocks, cached, limit, raise, observe).await {
            Err(_) if is_understated => return Err(LoadError::Understated),
            frames => frames?,
        };
        reservation.loaded();
        Ok(Window::new(blocks, frames, reservation))
    }

    /// Loads the frames of `blocks`, except for those in `cached`, which is empty or has an entry for each block. Each frame, and the
    /// values of all together, have at most `limit` bytes. Before and after each load, in whatever order these end, calls `reserve`
    /// with the bytes of the loaded frames plus the expected bytes of those in progress. Calls `observe` with the events of the blocks.
    ///
    /// # Errors
    /// Returns the error of `reserve`, [`Error::TooLarge`] if the values exceed `limit` bytes, and the first error of a block.
    pub(crate) async fn frames_of(
        &self,
        job: &Job,
        blocks: &[u32],
        cached: Vec<Option<Arc<Frame>>>,
        limit: u64,
        mut reserve: impl FnMut(u64) -> Result<(), Error>,
        mut observe: impl FnMut(BlockEvent),
    ) -> Result<Vec<Arc<Frame>>, Error> {
        let mut next = blocks.iter().copied().enumerate();
        let mut cached = cached.into_iter();
        let mut loading = FuturesUnordered::new();
        let mut frames: Vec<Option<Arc<Frame>>> = vec![None; blocks.len()];
        let (mut bytes, mut value_bytes, mut bytes_in_progress) = (0_u64, 0, 0_u64);
        loop {
            while loading.len() < self.config.concurrent_blocks.max(1)
                && let Some((index, block)) = next.next()
            {
                let (expected_bytes, cached) = (self.bytes_of(job, block), cached.next().flatten());
                bytes_in_progress = bytes_in_progress.saturating_add(expected_bytes);
                reserve(bytes.saturating_add(bytes_in_progress))?;
                loading.push(async move {
                    let frame = match cached {
                        Some(frame) => frame,
                        None => self.frame_within(job, block, limit).await?,
                    };
                    Ok::<_, Error>((index, expected_bytes, frame))
                });
            }
            let first = match poll!(loading.next()) {
                Poll::Ready(first) => first,
                Poll::Pending => {
                    if next.len() == 0 {
                        observe(BlockEvent::AllStarted);
                    }
                    loading.next().await
                }
            };
            let Some(loaded) = first else { break };
            let (index, expected_bytes, frame) = loaded?;
            bytes_in_progress = bytes_in_progress.saturating_sub(expected_bytes);
            bytes = bytes.saturating_add(frame.weight());
            value_bytes += frame.value_bytes();
            observe(BlockEvent::Loaded { bytes: frame.weight() });
            frames[index] = Some(frame);
            reserve(bytes.saturating_add(bytes_in_progress))?;
            if value_bytes > limit {
                // The footers underestimated the size.
                return Err(too_large(value_bytes, limit));
            }
        }
        Ok(frames.into_iter().flatten().collect())
    }

    /// Returns the frame of one block, loading it if it is not in memory.
    pub(crate) async fn frame(&self, job: &Job, block: u32) -> Result<Arc<Frame>, Error> {
        self.frame_within(job, block, self.frames.budget().capacity_bytes()).await
    }

    /// As [`frame`](Self::frame), for a frame of at most `limit` bytes.
    async fn frame_within(&self, job: &Job, block: u32, limit: u64) -> Result<Arc<Frame>, Error> {
        let corrected_bytes = job.footprint.corrected(job.bytes_of(&[block]));
        let expected_bytes = corrected_bytes.min(self.frames.budget().capacity_bytes());
        let build = || self.build(job, block, limit);
        self.frames.get_or_load(&frame_key(job, block), expected_bytes, build).await
    }

    /// Writes the columns of a pinned block to disk. Returns false if the disk tier has no space for them.
    pub(crate) fn pin<'a>(&'a self, job: &'a Job, block: u32) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let bytes = job.footprint.corrected(job.read_bytes(block).max(job.bytes_of(&[block])));
            self.columns.pin(job, block, bytes).await
        })
    }

    fn build<'a>(&'a self, job: &'a Job, block: u32, limit: u64) -> BoxFuture<'a, Result<Frame, Error>> {
        Box::pin(self.build_frame(job, block, limit))
    }

    async fn build_frame(&self, job: &Job, block: u32, limit: u64) -> Result<Frame, Error> {
        let bytes = job.footprint.corrected(job.build_bytes(block));
        let permit = self.blocks.permit(bytes, job.decode_flow, job.reader().source_id()).await?;
        let (mut parts, view) = (job.rows.of_frame(block), Arc::clone(job.view()));
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let place = place_of(job.snapshot(), block);
        let schema = job.snapshot().schema();
        let name = |column: &usize| schema.field(*column).name().as_str();
        let filtered = view.filter().map_or(&[][..], |filter| filter.inputs());
        let columns = filtered.iter().map(name).collect::<Vec<_>>().join(", ");
        let builder = FrameBuilder::new(view, rows, place.clone(), &self.slabs)?;
        let mut builder = builder.within(limit).counted_by(columns);
        let started = std::time::Instant::now();
        let last = parts.pop();
        for part in parts {
            builder = self.append(job, part, builder, &permit, Ok).await?;
        }
        let (groups, keys) = (job.rows.groups_in(block), job.train().group_by.join(", "));
        let finish = move |builder: FrameBuilder| {
            let frame = builder.finish()?.with_load_time(started.elapsed());
            if frame.groups() != groups {
                let found = frame.groups();
                let detail = format!("{found} groups, expected {groups} by the stored counts");
                return Err(Error::contradiction(&place, &keys, detail));
            }
            Ok(frame)
        };
        // A frame is finished together with its last rows. Otherwise many blocks would be decoded before the first frame is finished,
        // and its size noticed.
        let frame = match last {
            Some(part) => self.append(job, part, builder, &permit, finish).await?,
            None => {
                let finish = move || finish(builder);
                self.blocks.pool().run_for(job.decode_flow, Priority::Background, finish).await?
            }
        };
        let working =
            self.activity().begin(Stage::Decode, Purpose::Window, job.reader().block_ids().id(block));
        working.add_output(frame.weight(), frame.rows() as u64);
        metrics::histogram!("forebay_decode_duration_seconds").record(started.elapsed());
        metrics::counter!("forebay_decode_rows_total").increment(frame.rows() as u64);
        Ok(frame)
    }

    /// Appends the rows of a block to a frame, from cached columns or from storage, and calls `then` on the thread that appended the
    /// last row.
    async fn append<T: Send + 'static>(
        &self,
        job: &Job,
        rows: BlockRows,
        builder: FrameBuilder,
        permit: &DecodePermit,
        then: impl FnOnce(FrameBuilder) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let BlockRows { block, rows } = rows;
        let builder = builder.at(place_of(job.snapshot(), block));
        // Whole columns can be larger than the rows of a frame. If memory has no room for them, they are not kept.
        if self.columns.are_kept(job, block)
            && let Some(cached) = unless_too_large(self.columns.get(job, block, Arc::clone(permit)).await)?
        {
            let view = Arc::clone(job.view());
            let append = async move {
                let mut builder = builder;
                cached.take(&view, rows, |chunk| builder.append(chunk)).await?;
                then(builder)
            };
            let id = job.reader().block_ids().id(block);
            return self.blocks.decode(permit, Purpose::Window, id, job.decode_flow, append).await;
        }
        let (view, keeps_all) = (Arc::clone(job.view()), job.keeps_all(block));
        let read = view.reads(keeps_all);
        let (columns, place) = (read.clone(), place_of(job.snapshot(), block));
        let decode = move |chunks: Chunks| async move {
            let (mut builder, mut range, mut turn) = (builder, KeptRange::new(rows), TurnClock::default());
            'chunks: for chunk in chunks {
                // Slices without a copy, so that computed values exist for a few rows at a time.
                for slice in view.slices(chunk?, &columns, keeps_all) {
                    let rows =
                        view.rows_of(slice, &columns, keeps_all, &place, &mut range, &mut turn).await?;
                    if rows.num_rows() > 0 {
                        builder.append(&rows)?;
                    }
                    if range.has_ended() {
                        break 'chunks;
                    }
                }
            }
            then(builder)
        };
        let what = BlockColumns { reader: job.reader(), block, columns: &read };
        self.blocks.read_within(permit, what, Purpose::Window, job.decode_flow, decode).await
    }
}

fn unless_too_large<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(Error::TooLarge { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Error of a window that can never fit.
pub(super) fn too_large(needed: u64, limit: u64) -> Error {
    let advice = "lower shuffle.window_rows or raise cache_memory".into();
    Error::TooLarge { what: "a shuffle window".into(), needed, limit, advice }
}

/// Key of the frame of a block.
pub(super) fn frame_key(job: &Job, block: u32) -> FrameKey {
    let ids = job.reader().block_ids();
    let rows = match job.has_groups() {
        false => 0,
        true => {
            let parts =
                job.rows.of_frame(block).into_iter().map(|BlockRows { block, rows }| (ids.id(block), rows));
            cache_key(format!("{:?}", parts.collect::<Vec<_>>()).as_bytes())
        }
    };
    FrameKey { block: ids.id(block), view: job.view().key(), rows }
}
