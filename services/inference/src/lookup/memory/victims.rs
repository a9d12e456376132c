//! Choice of the views to evict. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use forebay_loader::Tenant;

/// A load that needs memory, and what it may evict.
#[derive(Debug, Clone, Copy)]
pub(in crate::lookup) struct Claim<'a> {
    /// View that is loaded, which is kept in other snapshots; empty for an index.
    pub(in crate::lookup) key: &'a [u8],
    /// Owner of the memory.
    pub(in crate::lookup) tenant: Tenant,
    /// True for what every snapshot has, such as its index and its declared views. They evict any view that is not declared.
    pub(in crate::lookup) is_required: bool,
}

impl Claim<'static> {
    /// The claim of an index.
    pub(in crate::lookup) const INDEX: Self = Self { key: &[], tenant: Tenant::SERVER, is_required: true };
}

/// A loaded view that is not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Id of the tenant that loaded the view.
    pub(super) owner: u64,
    pub(super) last_use: u64,
    pub(super) bytes: u64,
}

/// Returns the positions of the views to evict, of at least `bytes` bytes together, for a claim of `needed` bytes. Empty if there are
/// too few.
///
/// What is required evicts any view: the least recently used one of the tenant that has most. Another view evicts views that were not
/// used after `idle_before`, those of its own tenant first, and then views of tenants that have more than its own tenant gets.
pub(super) fn victims(
    candidates: &[Candidate],
    claim: Claim<'_>,
    needed: u64,
    bytes: u64,
    idle_before: u64,
) -> Vec<usize> {
    let own = claim.tenant.id();
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for candidate in candidates {
        *held.entry(candidate.owner).or_default() += candidate.bytes;
    }
    let held_after = held.get(&own).copied().unwrap_or(0).saturating_add(needed);
    let (mut left, mut chosen, mut freed): (Vec<usize>, _, u64) =
        ((0..candidates.len()).collect(), Vec::new(), 0);
    while freed < bytes.max(1) {
        let of_owner = |at: usize| held.get(&candidates[at].owner).copied().unwrap_or(0);
        let may = |at: usize| {
            let Candidate { owner, last_use, .. } = candidates[at];
            claim.is_required || last_use <= idle_before || (owner != own && of_owner(at) > held_after)
        };
        let order = |at: usize| {
            let Candidate { owner, last_use, .. } = candidates[at];
            match claim.is_required {
                true => (false, false, Reverse(of_owner(at)), last_use),
                false if last_use <= idle_before => (false, owner != own, Reverse(0), last_use),
                false => (true, owner != own, Reverse(of_owner(at)), last_use),
            }
        };
        let next = left.iter().copied().filter(|at| may(*at)).min_by_key(|at| (order(*at), *at));
        let Some(next) = next else { return Vec::new() };
        left.retain(|at| *at != next);
        let Candidate { owner, bytes, .. } = candidates[next];
        held.entry(owner).and_modify(|held| *held -= bytes);
        freed = freed.saturating_add(bytes);
        chosen.push(next);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn claim(tenant: u64, is_required: bool) -> Claim<'static> {
        Claim { key: &[], tenant: Tenant::new(tenant, NonZeroU32::MIN), is_required }
    }

    /// Views of an owner with these last uses and bytes.
    fn views(views: &[(u64, u64, u64)]) -> Vec<Candidate> {
        views.iter().map(|&(owner, last_use, bytes)| Candidate { owner, last_use, bytes }).collect()
    }

    #[test]
    fn an_index_evicts_the_least_recent_views_of_the_tenant_that_has_most_and_no_more_than_it_needs() {
        let views = views(&[(1, 1, 10), (2, 5, 30), (2, 9, 30), (2, 7, 30), (3, 2, 40)]);
        assert_eq!(victims(&views, claim(9, true), 25, 25, 0), [1]);
        assert_eq!(victims(&views, claim(9, true), 50, 50, 0), [1, 3]);
        assert_eq!(victims(&views, claim(9, true), 65, 65, 0), [1, 3, 4], "then the third has most");
        assert_eq!(victims(&views, claim(9, true), 140, 140, 0).len(), 5);
        assert_eq!(victims(&views, claim(9, true), 141, 141, 0), [0; 0], "evicting all would not help");
    }

    #[test]
    fn a_view_evicts_idle_views_of_its_own_tenant_first_and_no_used_ones() {
        let views = views(&[(2, 1, 10), (1, 3, 10), (1, 2, 10), (2, 50, 10), (1, 60, 10)]);
        assert_eq!(victims(&views, claim(1, false), 10, 10, 9), [2]);
        assert_eq!(victims(&views, claim(1, false), 30, 30, 9), [2, 1, 0]);
        assert_eq!(victims(&views, claim(1, false), 40, 40, 9), [0; 0]);
    }

    #[test]
    fn a_tenant_without_memory_gets_an_equal_part_from_the_one_that_has_most() {
        let views = views(&[(2, 50, 30), (2, 60, 30), (2, 55, 30), (3, 40, 20)]);
        assert_eq!(victims(&views, claim(1, false), 40, 40, 9), [0, 2]);
        assert_eq!(victims(&views, claim(1, false), 70, 70, 9), [0; 0], "it would have more than the other");
        assert_eq!(victims(&views, claim(2, false), 10, 10, 9), [0; 0], "its own views are in use");
    }

    #[test]
    fn something_is_evicted_even_if_the_shortfall_is_unknown() {
        assert_eq!(victims(&views(&[(1, 1, 10)]), claim(9, true), 0, 0, 0), [0]);
        assert_eq!(victims(&[], claim(9, true), 0, 0, 0), [0; 0]);
    }
}
