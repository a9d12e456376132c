//! Steps: the sets of windows that a stream holds one after the other.

use std::sync::Arc;

use super::{
    held::{HeldWindow, WindowId},
    orders::Piece,
    windows::WantedWindow,
};

/// One window of each dataset that are held together, and the rows that one batch takes from them.
pub(crate) struct Step {
    /// Windows, in the order of the datasets.
    pub(crate) ids: Vec<WindowId>,
    /// Rows of the batch: indexes of datasets, with the rows. A dataset can have none.
    pub(crate) rows: Vec<(usize, Piece)>,
    /// A piece in each of the windows.
    windows: Vec<Piece>,
}

impl Step {
    /// Divides a batch into steps, given its rows in each dataset. In each step, every dataset with rows in a further
    /// window advances by one window. Datasets with rows in fewer windows start later, so that no rows are retained for
    /// others.
    pub(crate) fn of_batch(pieces: &[Vec<Piece>]) -> Vec<Self> {
        if pieces.iter().any(Vec::is_empty) {
            // An empty batch. In a mixture, each batch has rows of every dataset.
            return Vec::new();
        }
        let steps = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let step = |at: usize| {
            let (mut windows, mut rows) =
                (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
            for (dataset, pieces) in pieces.iter().enumerate() {
                let first = steps - pieces.len();
                let piece = &pieces[at.saturating_sub(first)];
                windows.push(piece.clone());
                if at >= first {
                    rows.push((dataset, piece.clone()));
                }
            }
            Self { ids: windows.iter().map(|piece| piece.window).collect(), rows, windows }
        };
        (0..steps).map(step).collect()
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

/// The windows of a step, which have their memory.
pub(crate) struct HeldStep {
    pub(crate) ids: Vec<WindowId>,
    pub(crate) windows: Vec<Arc<HeldWindow>>,
    /// Estimated size of the windows that the step before did not have, in bytes.
    pub(crate) new_bytes: u64,
}

impl HeldStep {
    /// Describes `windows`, which were acquired for `wanted` after the windows `before`.
    pub(crate) fn new(wanted: &[WantedWindow], windows: Vec<Arc<HeldWindow>>, before: &[WindowId]) -> Self {
        let ids: Vec<_> = wanted.iter().map(WantedWindow::id).collect();
        let is_new = |at: &usize| before.get(*at) != ids.get(*at);
        let new = (0..wanted.len()).filter(is_new).map(|at| wanted[at].estimated_bytes());
        let new_bytes = new.fold(0, u64::saturating_add);
        Self { ids, windows, new_bytes }
    }
}
