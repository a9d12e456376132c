//! Cohorts: which queued requests may be in one batch.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)] // Order is deterministic.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::{Priority, RequestId, WorkerId};

/// Requests that may be in one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cohort {
    /// The requests of all tenants that share batches.
    Shared,
    /// The requests of a tenant that shares no batches for a while, by its id.
    Tenant(u64),
    /// Requests of one tenant and priority that were in the same failed batch.
    Part {
        /// Number of the part, in the order of creation.
        number: u64,
        /// Worker that reported the failure of the batch. Another one is preferred.
        failed_at: Option<WorkerId>,
    },
}

impl Cohort {
    /// Worker at which a batch with the requests of the cohort failed.
    pub(super) fn failed_at(self) -> Option<WorkerId> {
        match self {
            Self::Part { failed_at, .. } => failed_at,
            Self::Shared | Self::Tenant(_) => None,
        }
    }
}

/// Place of a request in the order of service: by priority and turn.
pub(super) type Place = (Priority, u64, RequestId);

/// Queued requests by cohort.
#[derive(Debug, Default)]
pub(super) struct Cohorts {
    members: BTreeMap<Cohort, Members>,
    /// First place of each cohort.
    heads: BTreeSet<(Place, Cohort)>,
}

/// Queued requests of one cohort, at least one.
#[derive(Debug, Default)]
struct Members {
    order: BTreeSet<Place>,
    totals: [Totals; 2],
}

/// Rows and bytes of queued requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Members {
    /// Totals of the requests that are sent before or with one of `priority`.
    fn up_to(&self, priority: Priority) -> Totals {
        let [normal, low] = self.totals;
        match priority {
            Priority::Normal => normal,
            Priority::Low => Totals { rows: normal.rows + low.rows, bytes: normal.bytes + low.bytes },
        }
    }
}

impl Cohorts {
    /// Adds a queued request.
    pub(super) fn insert(&mut self, cohort: Cohort, place: Place, rows: u64, bytes: u64) {
        let members = self.members.entry(cohort).or_default();
        let head = members.order.first().copied();
        members.order.insert(place);
        let totals = &mut members.totals[place.0 as usize];
        (totals.rows, totals.bytes) = (totals.rows + rows, totals.bytes + bytes);
        if head.is_none_or(|head| place < head) {
            if let Some(head) = head {
                self.heads.remove(&(head, cohort));
            }
            self.heads.insert((place, cohort));
        }
    }

    /// Removes a request that [`insert`](Self::insert) added with the same arguments.
    pub(super) fn remove(&mut self, cohort: Cohort, place: Place, rows: u64, bytes: u64) {
        let Some(members) = self.members.get_mut(&cohort) else { return };
        members.order.remove(&place);
        let totals = &mut members.totals[place.0 as usize];
        (totals.rows, totals.bytes) = (totals.rows - rows, totals.bytes - bytes);
        let head = members.order.first().copied();
        if self.heads.remove(&(place, cohort))
            && let Some(head) = head
        {
            self.heads.insert((head, cohort));
        }
        if head.is_none() {
            self.members.remove(&cohort);
        }
    }

    /// Cohorts with queued requests, in the order of service of their first ones.
    pub(super) fn heads(&self) -> impl Iterator<Item = Cohort> {
        self.heads.iter().map(|(_, cohort)| *cohort)
    }

    /// Queued requests of a cohort, in the order of service.
    pub(super) fn order(&self, cohort: Cohort) -> impl Iterator<Item = Place> {
        self.members.get(&cohort).into_iter().flat_map(|members| &members.order).copied()
    }

    /// Totals of the requests of `cohort` that are sent before or with one of `priority`.
    pub(super) fn of(&self, cohort: Cohort, priority: Priority) -> Totals {
        self.members.get(&cohort).map(|members| members.up_to(priority)).unwrap_or_default()
    }

    /// As [`of`](Self::of), for each other cohort that has such requests.
    pub(super) fn others(&self, cohort: Cohort, priority: Priority) -> impl Iterator<Item = Totals> {
        let others = self.members.iter().filter(move |(other, _)| **other != cohort);
        others.map(move |(_, members)| members.up_to(priority)).filter(|totals| totals.rows > 0)
    }
}
