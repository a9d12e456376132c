//! Window sets: the windows that a stream holds together, one of each dataset.

use std::sync::Arc;

use super::{
    held::{HeldWindow, WindowId},
    orders::Piece,
    windows::WantedWindow,
};

/// One window of each dataset that are held together, and the rows that one batch takes from them.
pub(crate) struct WindowSet {
    /// Windows, in the order of the datasets.
    pub(crate) ids: Vec<WindowId>,
    /// For each dataset with rows in this set: its index, and these rows.
    pub(crate) rows: Vec<(usize, Piece)>,
    /// For each window, some of its rows. They name the window and the order.
    windows: Vec<Piece>,
}

impl WindowSet {
    /// Returns the window sets that a batch needs, one after the other, given its rows in each dataset.
    ///
    /// Their number is the largest number of windows that a dataset needs. A dataset that needs fewer stays at its first
    /// window, so that all datasets reach their last window in the same set. Its rows are taken only from then on. No
    /// rows have to be copied because another dataset advances.
    pub(crate) fn of_batch(pieces: &[Vec<Piece>]) -> Vec<Self> {
        if pieces.iter().any(Vec::is_empty) {
            // An empty batch. In a mixture, each batch has rows of every dataset.
            return Vec::new();
        }
        let sets = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let set = |at: usize| {
            let (mut windows, mut rows) =
                (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
            for (dataset, pieces) in pieces.iter().enumerate() {
                let first = sets - pieces.len();
                let piece = &pieces[at.saturating_sub(first)];
                windows.push(piece.clone());
                if at >= first {
                    rows.push((dataset, piece.clone()));
                }
            }
            Self { ids: windows.iter().map(|piece| piece.window).collect(), rows, windows }
        };
        (0..sets).map(set).collect()
    }

    /// True if one of the windows comes after the window of the same dataset in `ids`.
    pub(crate) fn is_after(&self, ids: &[WindowId]) -> bool {
        self.ids.iter().zip(ids).any(|(own, other)| own > other)
    }

    /// The windows, in the order of the datasets.
    pub(crate) fn windows(&self) -> &[Piece] {
        &self.windows
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
        let new = (0..wanted.len()).filter(is_new).map(|at| wanted[at].estimated_bytes());
        let new_bytes = new.fold(0, u64::saturating_add);
        Self { ids, windows, new_bytes }
    }
}
