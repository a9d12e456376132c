//! The stored sets of each tenant, as far as this server knows them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use forebay_storage::DocumentMeta;
use tokio::time::Instant;

/// Sets that are charged to tenants: those of the last listing, and those that this server has stored since.
#[derive(Default)]
pub(super) struct Known {
    /// Sets by tenant and hash.
    tenants: HashMap<String, HashMap<String, Kept>>,
    /// Time at which the last listing began; `None` before the first one.
    listed: Option<Instant>,
}

/// A set that is charged to a tenant.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    /// Time of the tenant's last upload.
    pub(super) uploaded: DateTime<Utc>,
    /// Time at which this server stored the set, or at which the listing that found it began.
    pub(super) noted: Instant,
}

impl Known {
    /// Time at which the last listing began; `None` before the first one.
    pub(super) fn listed(&self) -> Option<Instant> {
        self.listed
    }

    /// Adds a set of a tenant that was stored.
    pub(super) fn add(&mut self, owner: &str, sha256: &str, kept: Kept) {
        self.tenants.entry(owner.to_owned()).or_default().insert(sha256.to_owned(), kept);
    }

    /// Replaces all sets by the listed ones, except those that were stored since the time `begun` of the listing. Ignores charges without a set.
    pub(super) fn replace(&mut self, sets: &[DocumentMeta], charges: &[DocumentMeta], begun: Instant) {
        let before = std::mem::take(&mut self.tenants);
        self.listed = Some(begun);
        let sizes: HashMap<&str, u64> = sets.iter().map(|set| (set.name.as_str(), set.bytes)).collect();
        for charge in charges {
            let Some((sha256, owner)) = charge.name.split_once('-') else { continue };
            if let Some(bytes) = sizes.get(sha256) {
                self.add(owner, sha256, Kept { bytes: *bytes, uploaded: charge.last_modified, noted: begun });
            }
        }
        for (owner, of_tenant) in before {
            for (sha256, kept) in of_tenant.into_iter().filter(|(_, kept)| kept.noted >= begun) {
                self.add(&owner, &sha256, kept);
            }
        }
    }

    /// The sets of a tenant.
    pub(super) fn of(&self, owner: &str) -> impl Iterator<Item = (&str, &Kept)> {
        self.tenants.get(owner).into_iter().flatten().map(|(sha256, kept)| (sha256.as_str(), kept))
    }

    /// Size and number of the sets of a tenant, except the set `sha256`.
    pub(super) fn total(&self, owner: &str, sha256: &str) -> (u64, usize) {
        let others = self.of(owner).filter(|(set, _)| *set != sha256);
        others.fold((0, 0), |(bytes, sets), (_, kept)| (bytes + kept.bytes, sets + 1))
    }

    /// True if the set is charged to a tenant besides `owner`.
    pub(super) fn has_other(&self, owner: &str, sha256: &str) -> bool {
        self.tenants.iter().any(|(other, sets)| other != owner && sets.contains_key(sha256))
    }

    /// True if this server has stored the set since the time `begun` of a listing.
    pub(super) fn is_noted_since(&self, begun: Instant, sha256: &str) -> bool {
        self.tenants.values().filter_map(|sets| sets.get(sha256)).any(|kept| kept.noted > begun)
    }

    /// Removes a set of a tenant.
    pub(super) fn remove(&mut self, owner: &str, sha256: &str) {
        if let Some(sets) = self.tenants.get_mut(owner) {
            sets.remove(sha256);
            if sets.is_empty() {
                self.tenants.remove(owner);
            }
        }
    }

    /// Removes a set from all tenants.
    pub(super) fn remove_all(&mut self, sha256: &str) {
        self.tenants.retain(|_, sets| {
            sets.remove(sha256);
            !sets.is_empty()
        });
    }
}
