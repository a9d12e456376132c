//! Sets of values in the state, which filters of requests refer to.
//!
//! A set is stored once, named by its hash. Each tenant that has sent it is charged its size. Charges are in the state, so that all servers
//! with this state count them. A set is kept for an hour after its last upload. After that, it is kept as long as a tenant is charged for it
//! and a job record refers to it. If a tenant has no room for a new set, it is no longer charged for its least recently used ones. A sweep
//! deletes the sets for which no tenant is charged, so that an upload deletes nothing that other tenants use. Clients send a missing set again.
//!
//! - `tenants`: the sets of each tenant in memory, so that an upload does not list the state.
//! - `sweep`: removal of unused sets.

mod sweep;
mod tenants;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use forebay_explain::JobRecord;
use forebay_loader::StoredValues;
use forebay_storage::{Documents, State};
use futures::{StreamExt, stream};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tokio::{sync::Mutex, time::Instant};

use super::jobs::Jobs;
use crate::Error;
use tenants::{Kept, Listed, Listing, Tenant, Tenants};

/// Limits of the stored sets of a tenant. Callers of a server without tokens are one tenant.
#[derive(Clone, Copy)]
struct Limits {
    bytes: u64,
    sets: usize,
}

/// Limits of a tenant. The bytes are those of eight sets of the maximum size. The number of sets is limited because the time of a listing grows
/// with it. A tenant at both limits has sets of 64 KiB on average; a smaller list of values fits into the text of a filter.
const TENANT_LIMITS: Limits = Limits { bytes: 256 << 20, sets: 4096 };
/// Number of charges that cannot be deleted after which an upload that needs room fails.
const MAX_FAILED: usize = 16;
/// Number of documents that are deleted concurrently.
const CONCURRENT_DELETES: usize = 16;
/// Maximum size of a charge, in bytes.
const MAX_CHARGE_BYTES: u64 = 16 << 10;
/// Time after its upload for which a set is kept without a job record, and is not evicted. A stream writes the record only after the rows of
/// the filter are counted, which can take long.
const KEPT_FOR: TimeDelta = TimeDelta::hours(1);
/// Time after a listing within which an upload that does not fit, and for which no set can be evicted, is rejected without another listing.
const LISTED_FOR: Duration = Duration::from_secs(5);
/// Number of digits of the name of a charge that identify the tenant.
const TENANT_DIGITS: usize = 16;
/// Number of locks that the sets share.
const SET_LOCKS: usize = 64;

/// Stored sets of values. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Values {
    sets: Documents,
    /// A document for each set and tenant, named by the hash of the set and a hash of the tenant.
    charges: Documents,
    jobs: Jobs,
    /// Sets that the streams of this server use.
    stored: StoredValues,
    tenants: Tenants,
    /// Locks of the sets, which are held while a set is written, or is deleted after its age was checked.
    set_locks: Arc<[Mutex<()>; SET_LOCKS]>,
    limits: Limits,
    listed_for: Duration,
}

/// Content of a charge. Only people read it.
#[derive(Serialize, Deserialize)]
struct StoredCharge {
    /// Name of the token; null for a server without tokens.
    tenant: Option<String>,
    /// Size of the encoded set.
    bytes: u64,
}

/// A set that is to be stored.
struct Upload {
    sha256: String,
    encoded: Bytes,
    charge: StoredCharge,
    now: DateTime<Utc>,
}

impl Values {
    /// The sets in `state`, of which this server uses `stored`.
    pub(crate) fn new(state: &State, jobs: Jobs, stored: StoredValues) -> Self {
        Self {
            sets: StoredValues::documents(state),
            charges: state.documents("values", "charge", MAX_CHARGE_BYTES),
            jobs,
            stored,
            tenants: Tenants::default(),
            set_locks: Arc::new(std::array::from_fn(|_| Mutex::default())),
            limits: TENANT_LIMITS,
            listed_for: LISTED_FOR,
        }
    }

    /// Stores the set with the hash `sha256` and charges it to `tenant`. If the tenant has no room, its least recently used sets
    /// are evicted. An upload that has begun to change the state continues if the returned future is dropped, and holds `encoded` until it ends.
    ///
    /// # Errors
    /// A limit, if the sets that can't be evicted leave too little room within [`TENANT_LIMITS`]; an error of the state.
    pub(crate) async fn put(
        &self,
        tenant: Option<&str>,
        sha256: &str,
        encoded: Bytes,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let charge = StoredCharge { tenant: tenant.map(str::to_owned), bytes: encoded.len() as u64 };
        let upload = Upload { sha256: sha256.to_owned(), encoded, charge, now };
        let mut tenant = self.tenants.lock(&owner_of(tenant)).await;
        let values = self.clone();
        // It has a task of its own: if the caller disconnects, the state and what this server knows of it still change together.
        let storing = tokio::spawn(async move {
            let stored = match values.reserve(&mut tenant, &upload).await {
                Ok(charge_name) => {
                    // Other uploads of the tenant do not wait for the writes.
                    let owner = tenant.owner.clone();
                    drop(tenant);
                    let written = values.write(&charge_name, &upload).await;
                    tenant = values.tenants.lock(&owner).await;
                    tenant.written(&upload.sha256);
                    written
                }
                Err(error) => Err(error),
            };
            tenant.changed = Some(Instant::now());
            stored
        });
        storing.await.unwrap_or_else(|error| Err(Error::internal(error.to_string())))
    }

    /// Makes room for a set of a tenant, and counts the set. Returns the name of its charge.
    async fn reserve(&self, tenant: &mut Tenant, upload: &Upload) -> Result<String, Error> {
        if tenant.listed.is_none() {
            tenant.adopt(&self.list().await?);
        }
        if !self.fits(tenant, upload) {
            self.make_room(tenant, upload).await?;
        }
        // It is counted before it is written: a write that returns an error may have reached the state.
        tenant.writing(&upload.sha256, upload.charge.bytes, upload.now);
        Ok(tenant.charge_of(&upload.sha256))
    }

    async fn write(&self, charge_name: &str, upload: &Upload) -> Result<(), Error> {
        let Upload { sha256, encoded, charge, .. } = upload;
        let _set = self.lock_set(sha256).await;
        // The charge comes first, so that no set is stored without one.
        self.charges.put(charge_name, charge).await?;
        self.sets.put_bytes(sha256, encoded).await?;
        Ok(())
    }

    async fn lock_set(&self, sha256: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let number = sha256.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.set_locks[number % SET_LOCKS].lock().await
    }

    async fn list(&self) -> Result<Listing, Error> {
        let begun = Instant::now();
        let (documents, charges) = futures::try_join!(self.sets.list(), self.charges.list())?;
        let mut sets = HashMap::new();
        for set in documents {
            let listed: &mut Listed = sets.entry(set.name.clone()).or_default();
            listed.set = Some(set);
        }
        for charge in charges {
            let Some((set, owner)) = charge.name.split_once('-') else { continue };
            let (set, owner) = (set.to_owned(), owner.to_owned());
            sets.entry(set).or_default().charges.insert(owner, charge);
        }
        Ok(Listing { begun, sets })
    }

    /// True if the tenant has room for a set.
    fn fits(&self, tenant: &Tenant, upload: &Upload) -> bool {
        let (bytes, sets) = tenant.total_besides(&upload.sha256);
        self.limits.permit(bytes + upload.charge.bytes, sets + 1)
    }

    /// Evicts sets of a tenant until there is room for a new one: their charges are deleted.
    ///
    /// # Errors
    /// As [`put`](Self::put). No set is evicted if all sets that can give way would make too little room. If charges cannot be deleted, others may
    /// have been evicted before the error.
    async fn make_room(&self, tenant: &mut Tenant, upload: &Upload) -> Result<(), Error> {
        let is_listed = tenant.listed.is_some_and(|begun| begun.elapsed() < self.listed_for);
        if is_listed && self.giving_way(tenant, upload, &HashMap::new()).is_none() {
            return Err(self.exceeded(tenant, upload));
        }
        tenant.adopt(&self.list().await?);
        if self.fits(tenant, upload) {
            return Ok(());
        }
        let jobs = self.jobs.list().await?;
        let (used, mut failed) = (last_uses(&jobs), Vec::new());
        while !self.fits(tenant, upload) {
            let giving_way = self.giving_way(tenant, upload, &used).filter(|_| failed.len() < MAX_FAILED);
            let giving_way =
                giving_way.ok_or_else(|| failed.pop().unwrap_or_else(|| self.exceeded(tenant, upload)))?;
            tracing::info!(
                token = upload.charge.tenant,
                sets = giving_way.len(),
                "the least recently used sets of values are removed to make room for a new one"
            );
            let named: Vec<_> = giving_way.into_iter().map(|set| (tenant.charge_of(&set), set)).collect();
            let deletes = named.into_iter().map(|(charge, set)| async move {
                (set, delete_old(&self.charges, &charge, upload.now).await)
            });
            let deleted: Vec<_> = stream::iter(deletes).buffer_unordered(CONCURRENT_DELETES).collect().await;
            for (set, deleted) in deleted {
                if matches!(deleted, Ok(true)) {
                    tenant.sets.remove(&set);
                } else if let Some(kept) = tenant.sets.get_mut(&set) {
                    // Another server has stored it again, or it can't be deleted now. It is not tried again until the next listing.
                    kept.uploaded = upload.now;
                }
                failed.extend(deleted.err());
            }
        }
        if let Some(error) = failed.first() {
            tracing::warn!(%error, sets = failed.len(), "some sets of values could not be removed to make room");
        }
        Ok(())
    }

    /// Returns the sets of a tenant to evict for a new one: first the sets to which no job record refers, by their upload, then the others,
    /// by their last upload or use. `None` if there would still be no room. `used` has the times at which jobs last used the sets.
    fn giving_way(&self, tenant: &Tenant, upload: &Upload, used: &HashMap<&str, f64>) -> Option<Vec<String>> {
        let can_give_way = |set: &str, kept: &Kept| {
            set != upload.sha256 && is_old(kept.uploaded, upload.now) && !self.stored.is_in_use(set)
        };
        let old = tenant.sets.iter().filter(|(set, kept)| can_give_way(set, kept));
        let mut old: Vec<(bool, f64, &String, u64)> = old
            .map(|(set, kept)| {
                let (uploaded, used) =
                    (kept.uploaded.timestamp_millis() as f64 / 1e3, used.get(set.as_str()));
                (used.is_some(), used.map_or(uploaded, |used| used.max(uploaded)), set, kept.bytes)
            })
            .collect();
        old.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(b.2)));
        let (mut bytes, mut sets) = tenant.total_besides(&upload.sha256);
        (bytes, sets) = (bytes + upload.charge.bytes, sets + 1);
        let mut giving_way = Vec::new();
        for (_, _, set, set_bytes) in old {
            if self.limits.lowered().permit(bytes, sets) {
                break;
            }
            (bytes, sets) = (bytes - set_bytes, sets - 1);
            giving_way.push(set.clone());
        }
        self.limits.permit(bytes, sets).then_some(giving_way)
    }

    /// The error of a tenant without room.
    fn exceeded(&self, tenant: &Tenant, upload: &Upload) -> Error {
        let StoredCharge { tenant: token, bytes } = &upload.charge;
        let who = token.as_ref().map_or_else(|| "this server".to_owned(), |token| format!("token '{token}'"));
        let (charged, sets) = tenant.total_besides(&upload.sha256);
        let Limits { bytes: max_bytes, sets: max_sets } = self.limits;
        Error::limit(format!(
            "{who} has {charged} bytes of stored sets of values in {sets} sets, and this set has {bytes}; the limit is \
             {max_bytes} in {max_sets} sets. Older sets give way, except for those that were uploaded within the last hour \
             or that a training of this server uses; try again later"
        ))
    }
}

impl Limits {
    /// True if a tenant may have this number of sets with this size in total.
    fn permit(self, bytes: u64, sets: usize) -> bool {
        bytes <= self.bytes && sets <= self.sets
    }

    /// The limits down to which sets are evicted, so that not each upload of a small set lists the state.
    fn lowered(self) -> Self {
        Self { bytes: self.bytes - self.bytes / 16, sets: self.sets - self.sets / 16 }
    }
}

/// Deletes a document unless it was written within the hour before `now`, for example since it was listed. Returns true if it was deleted, or
/// did not exist.
async fn delete_old(documents: &Documents, name: &str, now: DateTime<Utc>) -> Result<bool, Error> {
    let found = documents.head(name).await?;
    if found.is_some_and(|meta| !is_old(meta.last_modified, now)) {
        return Ok(false);
    }
    documents.delete(name).await?;
    Ok(true)
}

/// True for a document that was written more than an hour before `now`.
fn is_old(written: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    now - written > KEPT_FOR
}

/// The last use of each set to which a job record refers, in seconds since 1970.
fn last_uses(jobs: &[JobRecord]) -> HashMap<&str, f64> {
    let mut uses = HashMap::new();
    for job in jobs {
        for values in &job.request.values {
            let last = uses.entry(values.sha256.as_str()).or_insert(job.last_seen);
            *last = f64::max(*last, job.last_seen);
        }
    }
    uses
}

/// The part of the name of a charge that identifies the tenant.
fn owner_of(tenant: Option<&str>) -> String {
    let hash = digest(&SHA256, tenant.unwrap_or_default().as_bytes());
    hash.as_ref().iter().take(TENANT_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
