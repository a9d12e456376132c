//! Sets of values in the state, which filters of requests refer to.
//!
//! A set is stored once, named by its hash. Each tenant that has sent it is charged its size. Charges are in the state, so that all servers
//! with this state count them. A set is kept as long as a job record refers to it, and for an hour after its last upload. Clients send a
//! missing set again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use forebay_loader::StoredValues;
use forebay_storage::{DocumentMeta, Documents, State};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Mutex,
    time::{Instant, MissedTickBehavior},
};

use super::jobs::Jobs;
use crate::Error;

/// Maximum size of the stored sets of a tenant, in bytes: eight of the largest sets. Callers of a server without tokens are one tenant.
const MAX_TENANT_BYTES: u64 = 256 << 20;
/// Maximum size of a charge, in bytes.
const MAX_CHARGE_BYTES: u64 = 16 << 10;
/// Time after its upload for which a set is kept without a job record. A stream writes the record only after the rows of the filter are
/// counted, which can take long.
const KEPT_FOR: TimeDelta = TimeDelta::hours(1);
/// Interval at which unused sets are removed.
const REMOVED_EVERY: Duration = Duration::from_secs(600);
/// Number of digits of the name of a charge that identify the tenant.
const TENANT_DIGITS: usize = 16;

/// Stored sets of values. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Values {
    sets: Documents,
    /// A document for each set and tenant, named by the hash of the set and a hash of the tenant.
    charges: Documents,
    jobs: Jobs,
    /// Lock that is held from the comparison of a tenant's bytes with the limit until its set is stored. Other servers of the state do not
    /// share it: two of them can exceed the limit once, if they store sets of a tenant at the same time.
    turn: Arc<Mutex<()>>,
    max_tenant_bytes: u64,
}

/// Content of a charge. Only people read it.
#[derive(Serialize, Deserialize)]
struct StoredCharge {
    /// Name of the token; null for a server without tokens.
    tenant: Option<String>,
    /// Size of the encoded set.
    bytes: u64,
}

impl Values {
    pub(crate) fn new(state: &State, jobs: Jobs) -> Self {
        let charges = state.documents("values", "charge", MAX_CHARGE_BYTES);
        let (sets, max_tenant_bytes) = (StoredValues::documents(state), MAX_TENANT_BYTES);
        Self { sets, charges, jobs, turn: Arc::default(), max_tenant_bytes }
    }

    /// Removes unused sets every ten minutes. Never returns.
    pub(crate) async fn run(self) {
        let mut interval = tokio::time::interval_at(Instant::now() + REMOVED_EVERY, REMOVED_EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            // A set that is uploaded again in the meantime is not removed.
            let _turn = self.turn.lock().await;
            if let Err(error) = self.remove_unused(Utc::now()).await {
                tracing::warn!(%error, "unused sets of values could not be removed from the state");
            }
        }
    }

    /// Stores the set with the hash `sha256` and charges it to `tenant`.
    ///
    /// # Errors
    /// A limit, if the tenant would have more than [`MAX_TENANT_BYTES`]; an error of the state.
    pub(crate) async fn put(
        &self,
        tenant: Option<&str>,
        sha256: &str,
        encoded: &[u8],
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let (owner, bytes) = (owner_of(tenant), encoded.len() as u64);
        let mut charged = self.charged(&owner, sha256).await?;
        let max = self.max_tenant_bytes;
        if charged.saturating_add(bytes) > max {
            self.remove_unused(now).await?;
            charged = self.charged(&owner, sha256).await?;
        }
        if charged.saturating_add(bytes) > max {
            let who = tenant.map_or_else(|| "this server".to_owned(), |token| format!("token '{token}'"));
            return Err(Error::limit(format!(
                "{who} has {charged} bytes of stored sets of values, and this set has {bytes}; the limit is {max}. A \
                 set is removed an hour after its upload, unless a job record refers to it"
            )));
        }
        // The charge comes first, so that no set is stored without one.
        let charge = StoredCharge { tenant: tenant.map(str::to_owned), bytes };
        self.charges.put(&format!("{sha256}-{owner}"), &charge).await?;
        Ok(self.sets.put_bytes(sha256, encoded).await?)
    }

    /// Bytes of the stored sets of a tenant, except the set `sha256`.
    async fn charged(&self, owner: &str, sha256: &str) -> Result<u64, Error> {
        let (sets, charges) = futures::try_join!(self.sets.list(), self.charges.list())?;
        let of_tenant: HashSet<&str> = charges
            .iter()
            .filter_map(|charge| charge.name.split_once('-'))
            .filter(|(set, of)| *of == owner && *set != sha256)
            .map(|(set, _)| set)
            .collect();
        Ok(sets.iter().filter(|set| of_tenant.contains(set.name.as_str())).map(|set| set.bytes).sum())
    }

    /// Removes the sets to which no job record refers and that were stored more than an hour before `now`, with their charges.
    ///
    /// # Errors
    /// If the state can't be read or written.
    pub(crate) async fn remove_unused(&self, now: DateTime<Utc>) -> Result<(), Error> {
        let (sets, charges) = futures::try_join!(self.sets.list(), self.charges.list())?;
        let is_old = |meta: &DocumentMeta| now - meta.last_modified > KEPT_FOR;
        let old: Vec<&str> = sets.iter().filter(|meta| is_old(meta)).map(|meta| meta.name.as_str()).collect();
        let old_charges: Vec<&str> =
            charges.iter().filter(|meta| is_old(meta)).map(|meta| meta.name.as_str()).collect();
        if old.is_empty() && old_charges.is_empty() {
            return Ok(());
        }
        let jobs = self.jobs.list().await?;
        let used: HashSet<&str> = jobs
            .iter()
            .flat_map(|job| job.request.values.iter().map(|values| values.sha256.as_str()))
            .collect();
        let unused: HashSet<&str> = old.into_iter().filter(|sha256| !used.contains(sha256)).collect();
        for sha256 in &unused {
            self.sets.delete(sha256).await?;
        }
        let kept: HashSet<&str> =
            sets.iter().map(|meta| meta.name.as_str()).filter(|sha256| !unused.contains(sha256)).collect();
        let is_kept = |name: &str| name.split_once('-').is_some_and(|(set, _)| kept.contains(set));
        for name in old_charges.into_iter().filter(|name| !is_kept(name)) {
            self.charges.delete(name).await?;
        }
        Ok(())
    }
}

/// The part of the name of a charge that identifies the tenant.
fn owner_of(tenant: Option<&str>) -> String {
    let hash = digest(&SHA256, tenant.unwrap_or_default().as_bytes());
    hash.as_ref().iter().take(TENANT_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use forebay_explain::JobRecord;
    use forebay_proto::v1;
    use forebay_storage::{Config, Location};

    use super::*;

    fn values(folder: &std::path::Path) -> Values {
        let config = Config::default();
        let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
        let state = State::open(location, None, &config);
        Values::new(&state, Jobs::new(&state, 100))
    }

    fn hash(number: u8) -> String {
        format!("{number:064x}")
    }

    async fn names(documents: &Documents) -> Vec<String> {
        let mut names: Vec<String> =
            documents.list().await.unwrap().into_iter().map(|meta| meta.name[..64].to_owned()).collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn a_set_is_kept_as_long_as_a_job_record_refers_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let values = values(folder.path());
        let now = Utc::now();
        for number in [1, 2] {
            values.put(None, &hash(number), b"set", now).await.unwrap();
        }
        let named = v1::NamedValues { name: "ids".into(), sha256: hash(1), count: 3 };
        let train = v1::Train { dataset: "d".into(), values: vec![named], ..v1::Train::default() };
        let record = JobRecord::new(&train, 1.0);
        values.jobs.keep(&record).await.unwrap();
        values.remove_unused(now).await.unwrap();
        assert_eq!(names(&values.sets).await, [hash(1), hash(2)], "a new set is kept");
        let later = now + TimeDelta::hours(2);
        values.remove_unused(later).await.unwrap();
        assert_eq!(names(&values.sets).await, [hash(1)]);
        assert_eq!(names(&values.charges).await, [hash(1)]);
        std::fs::remove_file(folder.path().join("jobs").join(format!("{}.job", record.id))).unwrap();
        values.remove_unused(later).await.unwrap();
        assert!(names(&values.sets).await.is_empty() && names(&values.charges).await.is_empty());
    }

    #[tokio::test]
    async fn the_sets_of_a_tenant_are_limited_and_shared_with_others() {
        let folder = tempfile::tempdir().unwrap();
        let values = Values { max_tenant_bytes: 1000, ..values(folder.path()) };
        let (now, set) = (Utc::now(), [0; 400]);
        for number in [1, 2, 1] {
            values.put(Some("a"), &hash(number), &set, now).await.unwrap();
        }
        let refused = values.put(Some("a"), &hash(3), &set, now).await.unwrap_err();
        assert_eq!(refused.grpc_code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("token 'a' has 876 bytes"), "{refused}");
        assert!(refused.message().contains("this set has 400; the limit is 1000"), "{refused}");
        // Another tenant has room, also for the same set.
        for number in [2, 3] {
            values.put(Some("b"), &hash(number), &set, now).await.unwrap();
        }
        assert_eq!(names(&values.sets).await, [1, 2, 3].map(hash));
        assert_eq!(names(&values.charges).await, [1, 2, 2, 3].map(hash));
        // Sets that no job uses give way an hour later.
        let later = now + TimeDelta::hours(2);
        values.put(Some("a"), &hash(4), &set, later).await.unwrap();
        assert_eq!(names(&values.sets).await, [hash(4)]);
    }
}
