//! Number of rows of each group, and the packs of an epoch computed from them.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use forebay_plan::{EpochOrder, Location, Packs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

/// Maximum number of epochs with cached packs per filter and key. A pack takes 8 bytes.
const MAX_PACK_EPOCHS: usize = 16;
/// Number of groups located at a time when the packs of an epoch are computed.
const LOCATED_GROUPS: u64 = 1 << 16;

/// Number of rows of each group of a snapshot, in the order of their beginnings, with the cached packs of epochs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lengths {
    pub(super) rows: Box<[u32]>,
    #[serde(skip)]
    packs: Mutex<VecDeque<(PackKey, Cell)>>,
    /// Reserved part of the memory for the lengths of groups.
    #[serde(skip)]
    _permit: Option<OwnedSemaphorePermit>,
}

/// Packs of an epoch, computed at most once.
type Cell = Arc<OnceLock<Arc<Packs>>>;

/// Everything the packs of an epoch depend on, except the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackKey {
    /// Key of the order of the groups in any epoch.
    pub(crate) order: u128,
    pub(crate) epoch: u64,
    /// Number of packs.
    pub(crate) packs: u64,
}

impl Lengths {
    /// Creates the lengths of groups with `rows` rows each. They hold `permit`; permits in excess of one per group are
    /// released.
    pub(super) fn new(rows: Box<[u32]>, permit: Option<OwnedSemaphorePermit>) -> Self {
        let more = |permit: &OwnedSemaphorePermit| permit.num_permits().saturating_sub(rows.len());
        let permit = permit.map(|mut permit| {
            drop(permit.split(more(&permit)));
            permit
        });
        Self { rows, packs: Mutex::default(), _permit: permit }
    }

    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if the lengths are consistent with `groups` groups, of which the longest has `longest` rows, and with blocks that keep `rows` rows each.
    pub(super) fn fit(&self, groups: u64, longest: u64, rows: &[u32]) -> bool {
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        self.rows.len() as u64 == groups
            && self.rows.iter().all(|rows| *rows > 0)
            && u64::from(self.rows.iter().copied().max().unwrap_or(0)) == longest
            && sum(&self.rows) == sum(rows)
    }

    /// Returns the packs of an epoch with the groups in this order. The first call takes O(groups); concurrent calls
    /// wait for it, and recent results are cached. `begun` is the number of groups that begin in each block.
    pub(crate) fn packs(
        &self,
        key: PackKey,
        begun: &[u32],
        order: impl FnOnce() -> EpochOrder,
    ) -> Arc<Packs> {
        let cell = {
            let mut known = self.packs.lock();
            let found = known.iter().position(|(known, _)| *known == key);
            let entry = found.and_then(|at| known.remove(at)).unwrap_or_else(|| (key, Arc::default()));
            let cell = Arc::clone(&entry.1);
            known.push_back(entry);
            // The cached packs are bounded by the number of groups. No pack is empty, so the newest epoch always fits.
            let packs =
                |known: &VecDeque<(PackKey, Cell)>| known.iter().map(|(key, _)| key.packs).sum::<u64>();
            while known.len() > MAX_PACK_EPOCHS || packs(&known) > self.rows.len() as u64 {
                known.pop_front();
            }
            cell
        };
        Arc::clone(cell.get_or_init(|| Arc::new(self.compute_packs(key.packs, begun, &order()))))
    }

    fn compute_packs(&self, packs: u64, begun: &[u32], order: &EpochOrder) -> Packs {
        let first = begun.iter().scan(0, |groups, begun| {
            let first = *groups;
            *groups += *begun as usize;
            Some(first)
        });
        let first: Vec<usize> = first.collect();
        let mut located = Vec::new();
        let lengths = (0..order.items()).step_by(LOCATED_GROUPS as usize).flat_map(|start| {
            located.clear();
            order.locate_range(start..order.items().min(start + LOCATED_GROUPS), &mut located);
            let length = |at: &Location| self.rows[first[at.block as usize] + at.item as usize];
            located.iter().map(length).collect::<Vec<_>>()
        });
        let rows = self.rows.iter().map(|rows| u64::from(*rows)).sum();
        Packs::cut(lengths, rows, packs)
    }
}
