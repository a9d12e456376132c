//! Number of rows of each group, and the packs of an epoch computed from them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use forebay_plan::{EpochOrder, Location, Packs};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::Groups;

/// Maximum number of epochs with cached packs per filter and key. A pack takes 8 bytes.
const MAX_CUT_EPOCHS: usize = 16;
/// Number of groups located at a time when the packs of an epoch are computed.
const CUT_GROUPS: u64 = 1 << 16;

/// Number of rows of each group of a snapshot, in the order of their beginnings, with the cached packs of epochs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lengths {
    pub(super) rows: Box<[u32]>,
    #[serde(skip)]
    cut: Mutex<VecDeque<(Cut, Cell)>>,
    /// Reserved part of the memory for the lengths of groups.
    #[serde(skip)]
    _room: Option<OwnedSemaphorePermit>,
}

/// Packs of an epoch, computed at most once.
type Cell = Arc<OnceLock<Arc<Packs>>>;

/// Everything the packs of an epoch depend on, except the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Hash of the order of the groups in any epoch.
    pub(crate) order: u64,
    pub(crate) epoch: u64,
    /// Number of packs.
    pub(crate) packs: u64,
}

impl Lengths {
    /// Creates the lengths of groups with `rows` rows each. They hold `room`; permits in excess of one per group are
    /// released.
    pub(super) fn new(rows: Box<[u32]>, room: Option<OwnedSemaphorePermit>) -> Self {
        let more = |room: &OwnedSemaphorePermit| room.num_permits().saturating_sub(rows.len());
        let room = room.map(|mut room| {
            drop(room.split(more(&room)));
            room
        });
        Self { rows, cut: Mutex::default(), _room: room }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if the lengths are consistent with these groups, and with blocks that keep `rows` rows each.
    pub(super) fn fit(&self, groups: &Groups, rows: &[u32]) -> bool {
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        self.rows.len() as u64 == groups.count()
            && self.rows.iter().all(|rows| *rows > 0)
            && u64::from(self.rows.iter().copied().max().unwrap_or(0)) == groups.longest
            && sum(&self.rows) == sum(rows)
    }

    /// Returns the packs of an epoch with the groups in this order. The first call takes O(groups); concurrent calls
    /// wait for it, and recent results are cached. `begun` is the number of groups that begin in each block.
    pub(crate) fn packs(&self, cut: Cut, begun: &[u32], order: impl FnOnce() -> EpochOrder) -> Arc<Packs> {
        let cell = {
            let mut known = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.iter().position(|(known, _)| *known == cut);
            let entry = found.and_then(|at| known.remove(at)).unwrap_or_else(|| (cut, Arc::default()));
            let cell = Arc::clone(&entry.1);
            known.push_back(entry);
            // The cached packs are bounded by the number of groups. No pack is empty, so the newest epoch always fits.
            let packs = |known: &VecDeque<(Cut, Cell)>| known.iter().map(|(cut, _)| cut.packs).sum::<u64>();
            while known.len() > MAX_CUT_EPOCHS || packs(&known) > self.rows.len() as u64 {
                known.pop_front();
            }
            cell
        };
        Arc::clone(cell.get_or_init(|| Arc::new(self.cut(cut.packs, begun, &order()))))
    }

    fn cut(&self, packs: u64, begun: &[u32], order: &EpochOrder) -> Packs {
        let first = begun.iter().scan(0, |groups, begun| {
            let first = *groups;
            *groups += *begun as usize;
            Some(first)
        });
        let first: Vec<usize> = first.collect();
        let mut located = Vec::new();
        let lengths = (0..order.items()).step_by(CUT_GROUPS as usize).flat_map(|start| {
            located.clear();
            order.locate_range(start..order.items().min(start + CUT_GROUPS), &mut located);
            let length = |at: &Location| self.rows[first[at.block as usize] + at.item as usize];
            located.iter().map(length).collect::<Vec<_>>()
        });
        let rows = self.rows.iter().map(|rows| u64::from(*rows)).sum();
        Packs::cut(lengths, rows, packs)
    }
}
