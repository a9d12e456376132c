//! Packs: several groups combined into one unit, with a bounded number of rows.

use std::{collections::VecDeque, sync::Arc};

use forebay_plan::{EpochOrder, Packs};
use forebay_proto::v1;
use parking_lot::Mutex;

use super::validate::{MAX_BATCH_SIZE, within};
use crate::{
    Error,
    selection::{
        group_lengths::{Lengths, PackKey},
        groups::Groups,
    },
};

/// Maximum number of epochs with packs held by a job; larger than the number of epochs with prefetched windows.
const MAX_HELD_EPOCHS: usize = 16;
/// Maximum number of packs held by a job, at 8 bytes each. The packs of two epochs are always held.
const MAX_HELD_PACKS: u64 = 1 << 20;

/// Parameters and recently used packs of a job.
#[derive(Debug)]
pub(crate) struct Packing {
    /// Number of packs per epoch.
    pub(crate) packs: u64,
    /// Maximum number of rows per pack.
    pub(crate) max_rows: u64,
    /// Packs of recently used epochs, least recently used first. The job holds them because other jobs can evict them
    /// from the shared cache.
    held: Mutex<VecDeque<(u64, Arc<Packs>)>>,
    /// Number of rows of each group; `None` if there are no groups.
    lengths: Option<Arc<Lengths>>,
}

impl Packing {
    /// Returns the packing that `train` requests for `groups` with `rows` rows in total, or `None` if it requests none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `max_pack_rows` is set without groups or is out of range.
    pub(crate) fn of(train: &v1::Train, groups: Option<&Groups>, rows: u64) -> Result<Option<Self>, Error> {
        let max_rows = train.max_pack_rows;
        if max_rows == 0 {
            return Ok(None);
        }
        let Some(groups) = groups else {
            let reason = "limits the rows of packs of groups; without group_by batch_size counts rows";
            return Err(Error::invalid("max_pack_rows", reason));
        };
        within("max_pack_rows", max_rows, 1, MAX_BATCH_SIZE / train.batch_size)?;
        let Some(packs) = Packs::count(rows, groups.longest, max_rows) else {
            let (longest, min) = (groups.longest, groups.longest.saturating_mul(3));
            let reason = format!(
                "is {max_rows}, the longest group has {longest} rows; expected at least {min}, so that every pack has \
                 one group or more; or exclude long groups by a filter"
            );
            return Err(Error::invalid("max_pack_rows", reason));
        };
        let lengths = groups.lengths.clone();
        if packs > 0 && lengths.is_none() {
            return Err(Error::Internal("groups are packed whose lengths were not counted".into()));
        }
        Ok(Some(Self { packs, max_rows, held: Mutex::default(), lengths }))
    }

    /// Returns the packs of an epoch, or `None` if there are no groups. The first call for an epoch takes O(groups).
    /// `key` identifies the order, `begun` is the number of groups that begin in each block.
    pub(crate) fn of_epoch(
        &self,
        epoch: u64,
        key: impl FnOnce() -> u128,
        begun: &[u32],
        order: impl FnOnce() -> EpochOrder,
    ) -> Option<Arc<Packs>> {
        let lengths = self.lengths.as_ref()?;
        let find = |held: &mut VecDeque<(u64, Arc<Packs>)>| {
            let at = held.iter().position(|(known, _)| *known == epoch)?;
            let found = held.remove(at)?;
            held.push_back(found.clone());
            Some(found.1)
        };
        if let Some(packs) = find(&mut self.held.lock()) {
            return Some(packs);
        }
        let packs = lengths.packs(PackKey { order: key(), epoch, packs: self.packs }, begun, order);
        let mut held = self.held.lock();
        held.push_back((epoch, Arc::clone(&packs)));
        let sum = |held: &VecDeque<(u64, Arc<Packs>)>| held.iter().map(|(_, packs)| packs.len()).sum::<u64>();
        while must_drop(held.len(), sum(&held)) {
            held.pop_front();
        }
        Some(packs)
    }
}

/// True if a job that holds `packs` packs of `epochs` epochs must drop those of the oldest epoch.
fn must_drop(epochs: usize, packs: u64) -> bool {
    epochs > MAX_HELD_EPOCHS || epochs > 2 && packs > MAX_HELD_PACKS
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int32Array};
    use forebay_plan::{Partitions, Shuffle};

    use super::*;
    use crate::selection::groups::Runs;

    /// Groups of one row each.
    fn groups(count: i32, with_lengths: bool) -> Groups {
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..count));
        let mut runs = Runs::builder();
        runs.append(&[keys]).unwrap();
        Groups::joined(std::iter::once(Some(runs.summary(with_lengths))))
    }

    fn train(max_pack_rows: u64) -> v1::Train {
        v1::Train { batch_size: 4, max_pack_rows, ..v1::Train::default() }
    }

    #[test]
    fn a_batch_of_packs_has_at_most_as_many_rows_as_any_batch() {
        let groups = groups(12, true);
        let most = MAX_BATCH_SIZE / 4;
        assert!(Packing::of(&train(most), Some(&groups), 12).unwrap().is_some());
        let error = Packing::of(&train(most + 1), Some(&groups), 12).unwrap_err().to_string();
        assert!(error.contains(&format!("max_pack_rows: is {}, expected 1 to {most}", most + 1)), "{error}");
    }

    #[test]
    fn groups_are_packed_only_if_their_lengths_are_known() {
        let error = Packing::of(&train(4), Some(&groups(12, false)), 12).unwrap_err().to_string();
        assert!(error.contains("lengths were not counted"), "{error}");
        let empty = Packing::of(&train(4), Some(&groups(0, false)), 0).unwrap().unwrap();
        assert_eq!((empty.packs, empty.max_rows), (0, 4));
    }

    #[test]
    fn a_job_holds_the_packs_of_the_sixteen_epochs_that_were_used_last() {
        let groups = groups(12, true);
        let packing = Packing::of(&train(4), Some(&groups), 12).unwrap().unwrap();
        let order = |epoch| Partitions::new(&groups.begun, 1).epoch(0, Shuffle::Global, 7, epoch);
        for epoch in (0..16).chain([3]).chain(16..20) {
            packing.of_epoch(epoch, || 1, &groups.begun, || order(epoch)).unwrap();
        }
        let expected = (5..16).chain([3]).chain(16..20);
        assert!(packing.held.lock().iter().map(|(epoch, _)| *epoch).eq(expected));
    }

    #[test]
    fn more_than_two_epochs_are_held_up_to_a_number_of_epochs_and_of_packs() {
        assert!(!must_drop(2, u64::MAX) && !must_drop(3, MAX_HELD_PACKS) && !must_drop(16, 0));
        assert!(must_drop(3, MAX_HELD_PACKS + 1) && must_drop(17, 0));
    }
}
