//! How many rows each group has, and where that cuts an epoch into packs.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use forebay_plan::{EpochOrder, Location, Packs};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::Groups;

/// Epochs whose packs are remembered for one filter and key at most, each with 8 bytes a pack.
const MAX_CUT_EPOCHS: usize = 16;
/// Groups that are looked up at a time when an epoch is cut into packs.
const CUT_GROUPS: u64 = 1 << 16;

/// The rows of each group of a snapshot, in the order in which they begin, and where epochs are cut into packs by them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lengths {
    pub(super) rows: Box<[u32]>,
    #[serde(skip)]
    cut: Mutex<VecDeque<(Cut, Cell)>>,
    /// What they take of the room for all.
    #[serde(skip)]
    _room: Option<OwnedSemaphorePermit>,
}

/// Packs, once they are cut.
type Cell = Arc<OnceLock<Arc<Packs>>>;

/// What the packs of an epoch depend on, beside the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Names the order of the groups in any epoch.
    pub(crate) order: u64,
    pub(crate) epoch: u64,
    /// How many packs there are.
    pub(crate) packs: u64,
}

impl Lengths {
    /// Of groups with so many rows each, which take `room` for as long as this lives; what is more than that is given back.
    pub(super) fn new(rows: Box<[u32]>, room: Option<OwnedSemaphorePermit>) -> Self {
        let more = |room: &OwnedSemaphorePermit| room.num_permits().saturating_sub(rows.len());
        let room = room.map(|mut room| {
            drop(room.split(more(&room)));
            room
        });
        Self { rows, cut: Mutex::default(), _room: room }
    }

    /// How many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether they can be those of these groups, of blocks with so many rows.
    pub(super) fn fit(&self, groups: &Groups, rows: &[u32]) -> bool {
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        self.rows.len() as u64 == groups.count()
            && self.rows.iter().all(|rows| *rows > 0)
            && u64::from(self.rows.iter().copied().max().unwrap_or(0)) == groups.longest
            && sum(&self.rows) == sum(rows)
    }

    /// The packs of an epoch, which has the groups in this order: O(groups) the first time; who asks meanwhile waits, and some are
    /// remembered. `begun` are the groups that begin in each block.
    pub(crate) fn packs(&self, cut: Cut, begun: &[u32], order: impl FnOnce() -> EpochOrder) -> Arc<Packs> {
        let cell = {
            let mut known = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.iter().position(|(known, _)| *known == cut);
            let entry = found.and_then(|at| known.remove(at)).unwrap_or_else(|| (cut, Arc::default()));
            let cell = Arc::clone(&entry.1);
            known.push_back(entry);
            // Of these together as many as there are groups: no pack is empty, so the last one is always among them.
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
