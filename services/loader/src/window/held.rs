//! Windows that have memory, shared by the streams that hold them.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
};

use forebay_cache::Reservation;
use forebay_plan::Location;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, futures::Notified};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::progress::LoadedBlocks;
use crate::{Error, Frame, RowRef};

/// Identifies a window: its order and view, its partition and epoch, and its number in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WindowKey {
    pub(super) order: u128,
    pub(super) view: u128,
    pub(super) id: WindowId,
}

/// Window of a partition in an epoch. Ids of one partition are in the order of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WindowId {
    pub(crate) partition: u32,
    pub(crate) epoch: u64,
    pub(crate) window: usize,
}

/// Index of a source in its stream, and a window of the source. A *source* is a partition of a dataset that the rank of the
/// stream reads.
pub(crate) type SourceWindow = (usize, WindowId);

/// All windows that have memory. A window is registered when it receives its memory, so no stream ever waits for the memory
/// of a registered window.
#[derive(Default)]
pub(super) struct Registry {
    windows: Mutex<HashMap<WindowKey, Weak<HeldWindow>>>,
    registered: Notify,
}

impl Registry {
    /// Locks the registry. A [`HeldWindow`] must not be dropped under the lock.
    pub(super) fn lock(&self) -> RegistryGuard<'_> {
        RegistryGuard(self.windows.lock())
    }

    /// Wakes all streams that wait for [`Self::registered`].
    pub(super) fn notify(&self) {
        self.registered.notify_waiters();
    }

    /// Completes when windows are registered for the next time.
    pub(super) fn registered(&self) -> Notified<'_> {
        self.registered.notified()
    }
}

/// The locked registry.
pub(super) struct RegistryGuard<'a>(MutexGuard<'a, HashMap<WindowKey, Weak<HeldWindow>>>);

impl RegistryGuard<'_> {
    /// Returns the window with this key if a stream holds it.
    pub(super) fn get(&self, key: &WindowKey) -> Option<Arc<HeldWindow>> {
        self.0.get(key).and_then(Weak::upgrade)
    }

    /// Registers a window, which replaces a failed one with the same key.
    pub(super) fn insert(&mut self, window: &Arc<HeldWindow>) {
        self.0.insert(window.key, Arc::downgrade(window));
    }
}

/// Window that is loaded or being loaded. After the last holder drops it, loading stops and its frames may be evicted.
pub(crate) struct HeldWindow {
    key: WindowKey,
    registry: Arc<Registry>,
    load: Arc<Load>,
    /// Task that loads the window.
    task: OnceLock<AbortOnDropHandle<()>>,
}

/// Progress of loading a window.
#[derive(Default)]
struct Load {
    /// Cancelled when loading of every block has started, or loading of the window has ended. A started block waits
    /// for memory to decode it, is being decoded, or is finished.
    all_started: CancellationToken,
    loaded: OnceLock<Result<Window, LoadError>>,
    /// Token that is cancelled when loading ends: with a window, with an error, or by a panic.
    ended: CancellationToken,
    blocks: Arc<LoadedBlocks>,
}

/// Why a window was not loaded.
#[derive(Debug, Clone)]
pub(crate) enum LoadError {
    /// The window is larger than its reservation, and the memory has no room for the rest. A stream that holds no other window can
    /// acquire it again, with a larger reservation.
    Understated,
    /// A block could not be read, or the window can never fit.
    Failed(Error),
}

impl From<Error> for LoadError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Event of loading the blocks of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockEvent {
    /// All blocks wait for memory to decode, are decoded, or are loaded.
    AllStarted,
    /// A block of this size in bytes was loaded.
    Loaded { bytes: u64 },
}

/// Reports the progress of loading a window.
pub(super) struct LoadReporter(Arc<Load>);

impl LoadReporter {
    /// Reports an event of loading the blocks.
    pub(super) fn note(&self, event: BlockEvent) {
        match event {
            BlockEvent::AllStarted => self.0.all_started.cancel(),
            BlockEvent::Loaded { bytes } => self.0.blocks.add(bytes),
        }
    }

    /// Reports the end of loading.
    pub(super) fn end(self, loaded: Result<Window, LoadError>) {
        // It is set only here.
        drop(self.0.loaded.set(loaded));
    }
}

impl Drop for LoadReporter {
    fn drop(&mut self) {
        self.0.all_started.cancel();
        self.0.ended.cancel();
    }
}

/// The frames of one window.
pub(crate) struct Window {
    /// Number of the first block that has a frame.
    first_block: u32,
    /// Index of the frame of each block from `first_block` on; `u32::MAX` for blocks without a frame in this window.
    frame_of: Vec<u32>,
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Memory reservation. Fields are dropped in order, so it is released after the frames.
    _reservation: Reservation,
}

impl HeldWindow {
    /// Creates a window that is not being loaded yet.
    pub(super) fn new(
        registry: &Arc<Registry>,
        key: WindowKey,
        blocks: LoadedBlocks,
    ) -> (Arc<Self>, LoadReporter) {
        let load = Arc::new(Load { blocks: Arc::new(blocks), ..Load::default() });
        let reporter = LoadReporter(Arc::clone(&load));
        let (registry, task) = (Arc::clone(registry), OnceLock::new());
        (Arc::new(Self { key, registry, load, task }), reporter)
    }

    /// Sets the task that loads the window.
    pub(super) fn load_with(&self, task: AbortOnDropHandle<()>) {
        // Only the creator of the window calls this.
        drop(self.task.set(task));
    }

    /// Returns true if loading of every block has started, or loading of the window has ended. A started block waits
    /// for memory to decode it, is being decoded, or is finished.
    pub(super) fn all_started(&self) -> bool {
        self.load.all_started.is_cancelled()
    }

    /// Waits until loading of every block has started, or has ended.
    pub(super) async fn wait_for_start(&self) {
        self.load.all_started.cancelled().await;
    }

    /// Blocks of the window, as they are loaded.
    pub(super) fn loaded_blocks(&self) -> Arc<LoadedBlocks> {
        Arc::clone(&self.load.blocks)
    }

    /// Returns true if the window is loaded.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.load.loaded.get(), Some(Ok(_)))
    }

    /// Returns true if loading has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.load.ended.is_cancelled() && !self.is_loaded()
    }

    /// Waits until the window is loaded.
    ///
    /// # Errors
    /// Returns why it could not be loaded, to each waiter.
    pub(super) async fn wait(&self) -> Result<(), LoadError> {
        self.load.ended.cancelled().await;
        match self.load.loaded.get() {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::Internal("loading a window ended without a result".into()).into()),
        }
    }

    /// Returns the frames of the window, which must be loaded.
    pub(crate) fn window(&self) -> &Window {
        match self.load.loaded.get() {
            Some(Ok(window)) => window,
            _ => unreachable!("a window is loaded before its rows are used"),
        }
    }
}

impl Drop for HeldWindow {
    fn drop(&mut self) {
        let mut windows = self.registry.windows.lock();
        if windows.get(&self.key).is_some_and(|window| window.strong_count() == 0) {
            windows.remove(&self.key);
        }
    }
}

impl Window {
    /// Creates a window from the frames of `blocks`.
    pub(super) fn new(blocks: &[u32], frames: Vec<Arc<Frame>>, reservation: Reservation) -> Self {
        let first_block = blocks.iter().copied().min().unwrap_or(0);
        let blocks_spanned = blocks.iter().max().map_or(0, |last| (last - first_block) as usize + 1);
        let mut frame_of = vec![u32::MAX; blocks_spanned];
        for (index, block) in blocks.iter().enumerate() {
            frame_of[(block - first_block) as usize] = index as u32;
        }
        Self { first_block, frame_of, frames, _reservation: reservation }
    }

    /// Index of the frame of a block.
    fn frame_of(&self, block: u32) -> u32 {
        self.frame_of[(block - self.first_block) as usize]
    }

    /// Appends the rows at `locations` to `rows`, with frame indices starting at `first_frame`.
    pub(crate) fn rows(&self, locations: &[Location], first_frame: u32, rows: &mut Vec<RowRef>) {
        rows.extend(locations.iter().map(|location| RowRef {
            frame: first_frame + self.frame_of(location.block),
            row: location.item,
        }));
    }

    /// Total number of rows of the groups at `locations`.
    pub(crate) fn rows_of_groups(&self, locations: &[Location]) -> u64 {
        let rows = locations.iter().map(|location| {
            let frame = self.frame_of(location.block);
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
            let frame = self.frame_of(location.block);
            let group = self.frames[frame as usize].group(location.item);
            lengths.push(group.end - group.start);
            rows.extend(group.map(|row| RowRef { frame: first_frame + frame, row }));
        }
    }
}

#[cfg(test)]
mod tests;
