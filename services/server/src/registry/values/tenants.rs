//! The stored sets of each tenant, as far as this server knows them.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use forebay_storage::DocumentMeta;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};

/// Tenants whose charges this server has written or deleted. The key is the part of a charge's name that identifies the tenant. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Tenants {
    tenants: Arc<parking_lot::Mutex<HashMap<String, Arc<Mutex<Tenant>>>>>,
}

/// Sets that are charged to a tenant. Locked while this server lists or deletes its charges. Charges are written without the lock, and the sets
/// that are being written are counted.
#[derive(Default)]
pub(super) struct Tenant {
    pub(super) owner: String,
    /// Sets by hash: those of the last listing, with later changes by this server. Other servers with the same state may have stored more, so
    /// that a tenant can exceed its limits until the next listing.
    pub(super) sets: HashMap<String, Kept>,
    /// Time at which the last listing began; `None` if the sets are not known.
    pub(super) listed: Option<Instant>,
    /// Time of the last change by this server.
    pub(super) changed: Option<Instant>,
}

/// A set that is charged to a tenant.
pub(super) struct Kept {
    pub(super) bytes: u64,
    /// Time of the tenant's last upload.
    pub(super) uploaded: DateTime<Utc>,
    /// Number of uploads that are writing the set and its charge. A listing may lack these.
    pub(super) writes: usize,
}

/// The sets and charges in the state, by the hash of the set.
pub(super) struct Listing {
    pub(super) begun: Instant,
    pub(super) sets: HashMap<String, Listed>,
}

/// A set and its charges. Interrupted uploads leave charges without a set.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) set: Option<DocumentMeta>,
    /// Charges by tenant.
    pub(super) charges: HashMap<String, DocumentMeta>,
}

impl Tenants {
    /// Locks a tenant. While the guard is held, no other task of this server lists or deletes its charges. Uploads may still write them.
    pub(super) async fn lock(&self, owner: &str) -> OwnedMutexGuard<Tenant> {
        let new = || Arc::new(Mutex::new(Tenant { owner: owner.to_owned(), ..Tenant::default() }));
        let tenant = Arc::clone(self.tenants.lock().entry(owner.to_owned()).or_insert_with(new));
        tenant.lock_owned().await
    }

    /// Updates all tenants with a listing.
    pub(super) async fn update(&self, listing: &Listing) {
        let owners: Vec<String> = self.tenants.lock().keys().cloned().collect();
        for owner in owners {
            self.lock(&owner).await.update(listing);
        }
    }
}

impl Tenant {
    /// Replaces the sets by those of a listing that was made while this tenant was locked, except for those that are being written.
    pub(super) fn adopt(&mut self, listing: &Listing) {
        let kept = |listed: &Listed| {
            let uploaded = listed.charges.get(&self.owner)?.last_modified;
            Some(Kept { bytes: listed.set.as_ref()?.bytes, uploaded, writes: 0 })
        };
        let listed = listing.sets.iter();
        let listed = listed.filter_map(|(sha256, listed)| Some((sha256.clone(), kept(listed)?))).collect();
        let known = std::mem::replace(&mut self.sets, listed);
        self.sets.extend(known.into_iter().filter(|(_, kept)| kept.writes > 0));
        self.listed = Some(listing.begun);
    }

    /// Replaces the sets by those of any listing. If this server has made a change since the listing began, the listing may lack it, and the
    /// sets are listed again at the next upload.
    fn update(&mut self, listing: &Listing) {
        match self.changed < Some(listing.begun) {
            true => self.adopt(listing),
            false => self.listed = None,
        }
    }

    /// Counts a set whose write begins. Each call is followed by one of [`written`](Self::written).
    pub(super) fn writing(&mut self, sha256: &str, bytes: u64, now: DateTime<Utc>) {
        let writes = self.sets.get(sha256).map_or(0, |kept| kept.writes) + 1;
        self.sets.insert(sha256.to_owned(), Kept { bytes, uploaded: now, writes });
    }

    /// Notes that a write has ended, also one that failed.
    pub(super) fn written(&mut self, sha256: &str) {
        if let Some(kept) = self.sets.get_mut(sha256) {
            kept.writes = kept.writes.saturating_sub(1);
        }
    }

    /// True if an upload is writing a set.
    pub(super) fn is_writing(&self, sha256: &str) -> bool {
        self.sets.get(sha256).is_some_and(|kept| kept.writes > 0)
    }

    /// Name of the charge of this tenant for a set.
    pub(super) fn charge_of(&self, sha256: &str) -> String {
        format!("{sha256}-{}", self.owner)
    }

    /// Size and number of the sets, without the set `sha256`.
    pub(super) fn total_besides(&self, sha256: &str) -> (u64, usize) {
        let others = self.sets.iter().filter(|(set, _)| *set != sha256);
        others.fold((0, 0), |(bytes, sets), (_, kept)| (bytes + kept.bytes, sets + 1))
    }
}
