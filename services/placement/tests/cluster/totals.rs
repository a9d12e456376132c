//! Counts over histories.

/// Counts over histories.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) events: u64,
    pub(crate) batches: u64,
    pub(crate) retries: u64,
    pub(crate) moves: u64,
    pub(crate) placements: u64,
    pub(crate) joined_or_left: u64,
    pub(crate) held_back: u64,
    pub(crate) refused: u64,
    /// Hash of all events, in order.
    pub(crate) trace: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.batches += other.batches;
        self.retries += other.retries;
        self.moves += other.moves;
        self.placements += other.placements;
        self.joined_or_left += other.joined_or_left;
        self.held_back += other.held_back;
        self.refused += other.refused;
    }
}
