//! Window sets: the windows that a stream holds together, one of each dataset.

use std::sync::Arc;

use super::{
    held::{HeldWindow, WindowId},
    orders::Piece,
    wanted::WantedWindow,
};

/// One window of each dataset that are held together, and the rows that one batch takes from them.
pub(crate) struct WindowSet {
    /// A piece of the batch in each window, in the order of the datasets.
    pieces: Vec<Piece>,
    /// True for the datasets whose piece is taken from this set. The piece of another dataset only names its window.
    is_taken: Vec<bool>,
}

impl WindowSet {
    /// Returns the window sets that a batch needs, one after the other, given its pieces in each dataset.
    ///
    /// Their number is the largest number of windows that a dataset needs. A dataset that needs fewer starts late: it
    /// stays at its first window, and the earlier sets take no rows from it. All datasets therefore reach their last
    /// window in the same set. Example: of 3 sets, a dataset with 2 windows takes rows from sets 2 and 3. No rows
    /// have to be copied because another dataset advances.
    pub(crate) fn of_batch(pieces: &[Vec<Piece>]) -> Vec<Self> {
        if pieces.iter().any(Vec::is_empty) {
            // An empty batch. In a mixture, each batch has rows of every dataset.
            return Vec::new();
        }
        let sets = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let set = |at: usize| {
            // Number of sets before the one with the first rows of a dataset.
            let before = |pieces: &Vec<Piece>| sets - pieces.len();
            let is_taken = pieces.iter().map(|pieces| at >= before(pieces)).collect();
            let pieces = pieces.iter().map(|pieces| pieces[at.saturating_sub(before(pieces))].clone());
            Self { pieces: pieces.collect(), is_taken }
        };
        (0..sets).map(set).collect()
    }

    /// True if these are the windows `ids`.
    pub(crate) fn has_ids(&self, ids: &[WindowId]) -> bool {
        self.pieces.iter().map(|piece| piece.window).eq(ids.iter().copied())
    }

    /// True if one of the windows comes after the window of the same dataset in `ids`.
    pub(crate) fn is_after(&self, ids: &[WindowId]) -> bool {
        self.pieces.iter().zip(ids).any(|(piece, id)| piece.window > *id)
    }

    /// A piece of the batch in each window, in the order of the datasets.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Pieces that the batch takes from this set, each with the index of its dataset.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, &Piece)> {
        let pieces = self.pieces.iter().enumerate().zip(&self.is_taken);
        pieces.filter(|(_, is_taken)| **is_taken).map(|(piece, _)| piece)
    }
}

/// The windows of a set, after their memory was reserved.
pub(crate) struct HeldSet {
    pub(crate) ids: Vec<WindowId>,
    pub(crate) windows: Vec<Arc<HeldWindow>>,
    /// Estimated size of the windows that the set before did not have, in bytes.
    pub(crate) new_bytes: u64,
}

impl HeldSet {
    /// Describes `windows`, which were acquired for `wanted` after the windows `before`.
    pub(crate) fn new(wanted: &[WantedWindow], windows: Vec<Arc<HeldWindow>>, before: &[WindowId]) -> Self {
        let ids: Vec<_> = wanted.iter().map(WantedWindow::id).collect();
        let is_new = |at: &usize| before.get(*at) != ids.get(*at);
        let new = (0..wanted.len()).filter(is_new).map(|at| wanted[at].estimated_bytes);
        let new_bytes = new.fold(0, u64::saturating_add);
        Self { ids, windows, new_bytes }
    }

    /// Returns true if loading of every block of the set has started.
    pub(crate) fn all_started(&self) -> bool {
        self.windows.iter().all(|window| window.all_started())
    }

    /// Returns true if all windows are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.windows.iter().all(|window| window.is_loaded())
    }

    /// Returns true if `set` has one of the windows.
    pub(crate) fn has_any_of(&self, set: &WindowSet) -> bool {
        self.ids.iter().zip(set.pieces()).any(|(id, piece)| *id == piece.window)
    }

    /// Drops the windows that `set` does not have.
    pub(crate) fn keep_those_of(&mut self, set: &WindowSet) {
        let mut ids = self.ids.iter().zip(set.pieces());
        self.windows.retain(|_| ids.next().is_some_and(|(id, piece)| *id == piece.window));
    }
}
