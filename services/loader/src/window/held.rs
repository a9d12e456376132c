//! Windows that are held by streams.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use dashmap::DashMap;
use forebay_cache::Reservation;
use forebay_plan::Location;
use tokio::sync::OnceCell;

use crate::{Frame, RowRef};

/// Key of a window: one epoch of one order in one view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WindowKey {
    pub(super) order: u64,
    pub(super) view: u128,
    pub(super) id: WindowId,
}

/// Window of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WindowId {
    pub(crate) epoch: u64,
    pub(crate) window: usize,
}

/// Windows that are held or being loaded.
pub(super) type WindowRegistry = DashMap<WindowKey, Weak<HeldWindow>>;

/// Window that is held or being loaded. After the last holder drops it, its frames may be evicted.
pub(crate) struct HeldWindow {
    pub(super) window: OnceCell<Window>,
    /// True while the window has its memory and is being loaded.
    is_loading: AtomicBool,
    key: WindowKey,
    registry: Arc<WindowRegistry>,
}

/// The frames of one window.
pub(crate) struct Window {
    /// Index of the frame of each block of the snapshot; `u32::MAX` for blocks without a frame in this window.
    pub(super) frame_of: Vec<u32>,
    pub(crate) frames: Vec<Arc<Frame>>,
    /// Memory reservation. Fields are dropped in order, so it is released after the frames.
    pub(super) _reservation: Reservation,
}

impl HeldWindow {
    /// Returns the held window with this key, or a new one that is not loaded yet.
    pub(super) fn of(registry: &Arc<WindowRegistry>, key: WindowKey) -> Arc<Self> {
        let mut entry = registry.entry(key).or_default();
        if let Some(held) = entry.upgrade() {
            return held;
        }
        let held = Arc::new(Self {
            window: OnceCell::new(),
            is_loading: AtomicBool::new(false),
            key,
            registry: Arc::clone(registry),
        });
        *entry = Arc::downgrade(&held);
        held
    }

    /// Returns true if the window with this key has its memory, so that only loading it takes time.
    pub(super) fn has_memory(registry: &WindowRegistry, key: &WindowKey) -> bool {
        let held = registry.get(key).and_then(|held| held.upgrade());
        held.is_some_and(|held| held.window.initialized() || held.is_loading.load(Ordering::Acquire))
    }

    /// Marks the window as having its memory, until the guard is dropped.
    pub(super) fn loading(&self) -> LoadingGuard<'_> {
        self.is_loading.store(true, Ordering::Release);
        LoadingGuard(&self.is_loading)
    }

    /// Returns the window, which must be loaded.
    pub(crate) fn window(&self) -> &Window {
        self.window.get().expect("a window is loaded before it is returned")
    }
}

/// Marks a window as having its memory.
pub(super) struct LoadingGuard<'a>(&'a AtomicBool);

impl Drop for LoadingGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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
