//! Window sets: the windows that a stream holds together, one of each of its sources. A *source* is a partition of a dataset
//! that the rank of the stream reads.

use std::sync::Arc;

use super::{
    held::{HeldWindow, SourceWindow},
    orders::Piece,
    wanted::WantedWindow,
};

/// Windows that are held together, one of each source, and the rows that one batch takes from them. Only the last batch of
/// an epoch can lack sources: those from which it takes no rows.
pub(crate) struct WindowSet {
    /// In the order of the sources.
    pieces: Vec<SourcePiece>,
}

/// Part of a batch in a window of one source.
pub(crate) struct SourcePiece {
    pub(crate) source: usize,
    pub(crate) piece: Piece,
    /// False if the piece only names its window, and its rows are taken from a later set.
    is_taken: bool,
}

impl SourcePiece {
    /// The window of the piece.
    pub(crate) fn id(&self) -> SourceWindow {
        (self.source, self.piece.window)
    }
}

impl WindowSet {
    /// Returns the window sets that a batch needs, one after the other, given its pieces in each source.
    ///
    /// Their number is the largest number of windows that a source needs. A source that needs fewer starts late: it
    /// stays at its first window, and the earlier sets take no rows from it. All sources therefore reach their last
    /// window in the same set. Example: of 3 sets, a source with 2 windows takes rows from sets 2 and 3. No rows
    /// have to be copied because another source advances.
    pub(crate) fn of_batch(pieces: &[Vec<Piece>]) -> Vec<Self> {
        let sets = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let set = |at: usize| {
            let with_rows = pieces.iter().enumerate().filter(|(_, pieces)| !pieces.is_empty());
            let pieces = with_rows.map(|(source, pieces)| {
                // Number of sets before the one with the first rows of the source.
                let before = sets - pieces.len();
                let piece = pieces[at.saturating_sub(before)].clone();
                SourcePiece { source, piece, is_taken: at >= before }
            });
            Self { pieces: pieces.collect() }
        };
        (0..sets).map(set).collect()
    }

    /// True if one of the windows comes after the window of the same source in `ids`.
    pub(crate) fn is_after(&self, ids: &[SourceWindow]) -> bool {
        let is_after = |piece: &SourcePiece| {
            let known = ids.binary_search_by_key(&piece.source, |(source, _)| *source);
            known.is_ok_and(|at| piece.id() > ids[at])
        };
        self.pieces.iter().any(is_after)
    }

    /// The pieces of the batch, in the order of the sources.
    pub(crate) fn pieces(&self) -> &[SourcePiece] {
        &self.pieces
    }

    /// Pieces that the batch takes from this set, each with its index in [`pieces`](Self::pieces).
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, &SourcePiece)> {
        self.pieces.iter().enumerate().filter(|(_, piece)| piece.is_taken)
    }
}

/// The windows of a set, after their memory was reserved.
pub(crate) struct HeldSet {
    pub(crate) ids: Vec<SourceWindow>,
    pub(crate) windows: Vec<Arc<HeldWindow>>,
    /// Estimated size of the windows that the set before did not have, in bytes.
    pub(crate) new_bytes: u64,
}

impl HeldSet {
    /// Describes `windows`, which were acquired for `wanted` after the windows `before`.
    pub(crate) fn new(
        wanted: &[WantedWindow],
        windows: Vec<Arc<HeldWindow>>,
        before: &[SourceWindow],
    ) -> Self {
        let ids = wanted.iter().map(WantedWindow::id).collect();
        let new = wanted.iter().filter(|window| before.binary_search(&window.id()).is_err());
        let new_bytes = new.map(|window| window.estimated_bytes).fold(0, u64::saturating_add);
        Self { ids, windows, new_bytes }
    }

    /// Returns the windows of the pieces of `set`, or `None` if one of them is not among these.
    pub(crate) fn windows_of(&self, set: &WindowSet) -> Option<Vec<Arc<HeldWindow>>> {
        let mut held = self.ids.iter().zip(&self.windows);
        let window = |piece: &SourcePiece| {
            // Both are in the order of the sources.
            held.find(|(id, _)| **id == piece.id()).map(|(_, window)| Arc::clone(window))
        };
        set.pieces().iter().map(window).collect()
    }

    /// Returns true if loading of every block of the set has started.
    pub(crate) fn all_started(&self) -> bool {
        self.windows.iter().all(|window| window.all_started())
    }

    /// Returns true if all windows are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.windows.iter().all(|window| window.is_loaded())
    }

    /// Drops the windows that `set` does not have. Returns false if none is left.
    pub(crate) fn keep_those_of(&mut self, set: &WindowSet) -> bool {
        let kept: Vec<bool> = self
            .ids
            .iter()
            .map(|id| set.pieces().binary_search_by_key(id, SourcePiece::id).is_ok())
            .collect();
        if !kept.contains(&true) {
            return false;
        }
        let mut is_kept = kept.iter();
        self.ids.retain(|_| is_kept.next().is_some_and(|kept| *kept));
        let mut is_kept = kept.iter();
        self.windows.retain(|_| is_kept.next().is_some_and(|kept| *kept));
        true
    }
}
