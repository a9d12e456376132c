//! Progress of the windows for which streams wait.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Progress of windows for which streams wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowLoad {
    /// Number of blocks of the windows.
    pub blocks: u64,
    /// Number of blocks in memory.
    pub blocks_done: u64,
    /// Estimated size of the windows in memory, in bytes.
    pub bytes: u64,
    /// Size of the blocks in memory, in bytes.
    pub bytes_done: u64,
    /// True if the windows wait for memory that other streams use.
    pub waits_for_memory: bool,
}

/// Blocks of one window, as they are loaded.
#[derive(Debug, Default)]
pub(super) struct LoadedBlocks {
    blocks: u64,
    bytes: u64,
    blocks_done: AtomicU64,
    bytes_done: AtomicU64,
}

impl LoadedBlocks {
    /// Creates the progress of a window with this number of blocks and this estimated size in bytes.
    pub(super) fn none_of(blocks: usize, bytes: u64) -> Self {
        Self { blocks: blocks as u64, bytes, ..Self::default() }
    }

    /// Adds a loaded block.
    pub(super) fn add(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.blocks_done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Windows for which one stream waits. Cheap to clone; clones describe the same stream.
#[derive(Debug, Clone, Default)]
pub struct WindowWait {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Nothing,
    /// Memory for windows, with their number of blocks and their estimated size in bytes.
    Memory { blocks: u64, bytes: u64 },
    /// The blocks of windows.
    Blocks(Vec<Arc<LoadedBlocks>>),
}

/// Ends the wait of a stream when it is dropped.
pub(super) struct Waits(WindowWait);

impl Drop for Waits {
    fn drop(&mut self) {
        self.set(State::Nothing);
    }
}

impl Waits {
    /// Records that the stream waits for the memory of windows with `blocks` blocks and an estimated size of `bytes` bytes.
    pub(super) fn for_memory(&self, blocks: u64, bytes: u64) {
        self.set(State::Memory { blocks, bytes });
    }

    /// Records that the stream waits for the blocks of windows.
    pub(super) fn for_blocks(&self, windows: impl Iterator<Item = Arc<LoadedBlocks>>) {
        self.set(State::Blocks(windows.collect()));
    }

    fn set(&self, state: State) {
        *self.0.state.lock() = state;
    }
}

impl WindowWait {
    /// Begins a wait, which ends when the returned guard is dropped.
    pub(super) fn begin(&self) -> Waits {
        Waits(self.clone())
    }

    /// True if the stream has ended.
    pub fn is_over(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }

    /// Returns the progress of the windows for which at least one of these streams waits; `None` if none of them waits. A window that
    /// several streams share counts once.
    pub fn progress(waits: &[Self]) -> Option<WindowLoad> {
        let (mut load, mut is_waiting) = (WindowLoad::default(), false);
        let mut windows: Vec<Arc<LoadedBlocks>> = Vec::new();
        for wait in waits {
            match &*wait.state.lock() {
                State::Nothing => continue,
                // The streams of a trainer wait for the same windows.
                State::Memory { blocks, bytes } => {
                    load.blocks = load.blocks.max(*blocks);
                    load.bytes = load.bytes.max(*bytes);
                    load.waits_for_memory = true;
                }
                State::Blocks(of_stream) => windows.extend(of_stream.iter().cloned()),
            }
            is_waiting = true;
        }
        windows.sort_unstable_by_key(|blocks| Arc::as_ptr(blocks).addr());
        windows.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for window in windows {
            load.blocks += window.blocks;
            load.bytes = load.bytes.saturating_add(window.bytes);
            load.blocks_done += window.blocks_done.load(Ordering::Relaxed);
            load.bytes_done = load.bytes_done.saturating_add(window.bytes_done.load(Ordering::Relaxed));
        }
        is_waiting.then_some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_two_streams_wait_for_counts_once() {
        let streams = [WindowWait::default(), WindowWait::default()];
        assert_eq!(WindowWait::progress(&streams), None);
        let shared = Arc::new(LoadedBlocks::none_of(95, 1000));
        let own = Arc::new(LoadedBlocks::none_of(5, 10));
        let waits = streams.each_ref().map(WindowWait::begin);
        waits[0].for_blocks([&shared, &own].into_iter().cloned());
        waits[1].for_blocks(std::iter::once(Arc::clone(&shared)));
        shared.add(7);
        shared.add(8);
        let load =
            WindowLoad { blocks: 100, blocks_done: 2, bytes: 1010, bytes_done: 15, waits_for_memory: false };
        assert_eq!(WindowWait::progress(&streams), Some(load));
        drop(waits);
        assert_eq!(WindowWait::progress(&streams), None, "no stream waits any more");
    }

    #[test]
    fn a_wait_is_over_when_its_stream_has_ended() {
        let stream = WindowWait::default();
        let observed = stream.clone();
        assert!(!observed.is_over());
        drop(stream);
        assert!(observed.is_over());
    }
}
