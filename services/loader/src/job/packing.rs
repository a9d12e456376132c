//! Packs: several groups combined into one unit, with a bounded number of rows.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use forebay_plan::{Cursor, Packs};
use forebay_proto::v1;

use super::{Job, MAX_BATCH_SIZE, within};
use crate::{
    Error,
    groups::{Cut, Groups, Lengths},
};

/// Maximum number of epochs with packs held by a job; larger than the number of epochs with prefetched windows.
const MAX_EPOCHS_AT_HAND: usize = 16;
/// Maximum number of packs held by a job, at 8 bytes each. The packs of two epochs are always held.
const MAX_PACKS_AT_HAND: u64 = 1 << 20;

/// Parameters and current packs of a job.
#[derive(Debug)]
pub(super) struct Packing {
    /// Number of packs per epoch.
    pub(super) packs: u64,
    /// Maximum number of rows per pack.
    pub(super) most_rows: u64,
    /// Packs of recently used epochs, least recently used first. The job holds them because other jobs can evict them
    /// from the shared cache.
    at_hand: Mutex<VecDeque<(u64, Arc<Packs>)>>,
    /// Number of rows of each group; `None` if there are no groups.
    lengths: Option<Arc<Lengths>>,
}

impl Packing {
    /// Returns the packing that `train` requests for `groups` with `rows` rows in total, or `None` if it requests none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `max_pack_rows` is set without groups or is out of range.
    pub(super) fn of(train: &v1::Train, groups: Option<&Groups>, rows: u64) -> Result<Option<Self>, Error> {
        let most_rows = train.max_pack_rows;
        if most_rows == 0 {
            return Ok(None);
        }
        let Some(groups) = groups else {
            let reason = "bounds the rows of packs of groups; without group_by batch_size counts rows";
            return Err(Error::invalid("max_pack_rows", reason));
        };
        within("max_pack_rows", most_rows, 1, MAX_BATCH_SIZE / train.batch_size)?;
        let Some(packs) = Packs::count(rows, groups.longest, most_rows) else {
            let (longest, least) = (groups.longest, groups.longest.saturating_mul(3));
            let reason = format!(
                "is {most_rows}, the longest group has {longest} rows; expected at least {least}, so that every pack has one \
                 group or more; or leave long groups out by a filter"
            );
            return Err(Error::invalid("max_pack_rows", reason));
        };
        let lengths = groups.lengths.clone();
        if packs > 0 && lengths.is_none() {
            return Err(Error::Internal("groups are packed whose lengths were not counted".into()));
        }
        Ok(Some(Self { packs, most_rows, at_hand: Mutex::default(), lengths }))
    }
}

impl Job {
    /// Returns the packs of an epoch, or `None` without packs. The first call for an epoch takes O(groups).
    pub(crate) fn pack(&self, epoch: u64) -> Option<Arc<Packs>> {
        let packing = self.packing.as_ref()?;
        let lengths = packing.lengths.as_ref()?;
        let at_hand = || packing.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |at_hand: &mut VecDeque<(u64, Arc<Packs>)>| {
            let at = at_hand.iter().position(|(known, _)| *known == epoch)?;
            let found = at_hand.remove(at)?;
            at_hand.push_back(found.clone());
            Some(found.1)
        };
        if let Some(packs) = find(&mut at_hand()) {
            return Some(packs);
        }
        let cut = Cut { order: self.windows_key(), epoch, packs: packing.packs };
        let packs = lengths.packs(cut, &self.items, || self.order(epoch));
        let mut at_hand = at_hand();
        at_hand.push_back((epoch, Arc::clone(&packs)));
        let sum =
            |at_hand: &VecDeque<(u64, Arc<Packs>)>| at_hand.iter().map(|(_, packs)| packs.len()).sum::<u64>();
        while at_hand.len() > MAX_EPOCHS_AT_HAND || at_hand.len() > 2 && sum(&at_hand) > MAX_PACKS_AT_HAND {
            at_hand.pop_front();
        }
        Some(packs)
    }

    /// True if groups are packed, so that locating a batch requires the packs of its epoch.
    pub(crate) fn is_packed(&self) -> bool {
        self.packing.is_some()
    }

    /// Size of a full batch of a rank: in rows including padding, or in groups if groups are not packed.
    pub(crate) fn whole_size(&self) -> u64 {
        self.train.batch_size * self.packing.as_ref().map_or(1, |packing| packing.most_rows)
    }

    /// Size of the batch at `at`, which may be the last of its epoch, in the unit of [`Self::whole_size`].
    pub(crate) fn size(&self, at: Cursor, rank: u32) -> u64 {
        let dealt = match &self.packing {
            Some(packing) => {
                let packs = self.steps.rank(at.step, rank);
                (packs.end - packs.start) * packing.most_rows
            }
            None => self.ranges(at, rank).into_iter().map(|(_, range)| range.end - range.start).sum(),
        };
        let others = self.mixed.iter().map(|mixed| u64::from(mixed.steps.batch_size())).sum::<u64>();
        (dealt + others).max(self.least_rows() as u64)
    }

    /// Mean size in bytes of one item counted by [`Self::size`], estimated from the footers.
    pub(crate) fn item_bytes(&self) -> u64 {
        let items = if self.packing.is_some() { self.rows } else { self.epoch_items };
        self.view.least_row_bytes().max(self.snapshot_bytes / items.max(1))
    }
}
