//! The stored sets of each tenant, as far as this server knows them.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use forebay_storage::DocumentMeta;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::Instant,
};

/// Tenants that have sent sets to this server, by the part of the names of their charges that identifies them. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Tenants {
    tenants: Arc<parking_lot::Mutex<HashMap<String, Arc<Mutex<Tenant>>>>>,
}

/// Sets that are charged to a tenant. Locked while this server changes its charges, so that a listing within that time lacks no change by
/// this server.
#[derive(Default)]
pub(super) struct Tenant {
    owner: String,
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
    /// Waits until no other task changes the charges of a tenant.
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
    /// Replaces the sets by those of a listing that was made while this tenant was locked.
    pub(super) fn adopt(&mut self, listing: &Listing) {
        let kept = |listed: &Listed| {
            let uploaded = listed.charges.get(&self.owner)?.last_modified;
            Some(Kept { bytes: listed.set.as_ref()?.bytes, uploaded })
        };
        let sets = listing.sets.iter();
        self.sets = sets.filter_map(|(sha256, listed)| Some((sha256.clone(), kept(listed)?))).collect();
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
