//! Sets of values in the state, which filters of requests refer to.
//!
//! A set is stored once, named by its hash. Each tenant that has sent it is charged its size. Charges are in the state, so that all servers
//! with this state count them. A set is kept for an hour after its last upload. After that, it is kept as long as a job record refers to it and
//! its tenant has room. If a tenant has no room for a new set, its least recently used sets are evicted. Clients send a missing set again.
//!
//! - `known`: the sets of each tenant in memory, so that an upload does not list the state.

mod known;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use forebay_explain::JobRecord;
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
use known::{Kept, Known};

/// Limits of the stored sets of a tenant. Callers of a server without tokens are one tenant.
#[derive(Clone, Copy)]
struct Limits {
    bytes: u64,
    sets: usize,
}

/// Limits of a tenant. The bytes are those of eight sets of the maximum size. The number of sets is limited because the time of a listing grows
/// with it. A tenant at both limits has sets of 64 KiB on average; a smaller list of values fits into the text of a filter.
const TENANT_LIMITS: Limits = Limits { bytes: 256 << 20, sets: 4096 };
/// One in this many of the maximum number of sets is evicted at once, so that not each upload of a small set lists the state.
const SETS_AT_ONCE: usize = 16;
/// Maximum size of a charge, in bytes.
const MAX_CHARGE_BYTES: u64 = 16 << 10;
/// Time after its upload for which a set is kept without a job record, and is not evicted. A stream writes the record only after the rows of
/// the filter are counted, which can take long.
const KEPT_FOR: TimeDelta = TimeDelta::hours(1);
/// Interval at which unused sets are removed, and the sets of all tenants are listed.
const REMOVED_EVERY: Duration = Duration::from_secs(600);
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
    /// Sets that were listed, and those that this server has stored since. Other servers with the same state may have stored more, so that a
    /// tenant can exceed its limits until the next listing.
    known: Arc<parking_lot::Mutex<Known>>,
    /// Locked while sets are listed, so that concurrent first uploads list once.
    listing: Arc<Mutex<()>>,
    /// A lock for each tenant with uploads, which is held from the comparison with the limits until the set is stored.
    turns: Arc<parking_lot::Mutex<HashMap<String, Arc<Mutex<()>>>>>,
    /// Locks of the sets, which are held while a set is written or deleted.
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

/// The sets and charges in the state.
struct Listed {
    begun: Instant,
    sets: Vec<DocumentMeta>,
    charges: Vec<DocumentMeta>,
}

impl Values {
    /// The sets in `state`, of which this server uses `stored`.
    pub(crate) fn new(state: &State, jobs: Jobs, stored: StoredValues) -> Self {
        Self {
            sets: StoredValues::documents(state),
            charges: state.documents("values", "charge", MAX_CHARGE_BYTES),
            jobs,
            stored,
            known: Arc::default(),
            listing: Arc::default(),
            turns: Arc::default(),
            set_locks: Arc::new(std::array::from_fn(|_| Mutex::default())),
            limits: TENANT_LIMITS,
            listed_for: LISTED_FOR,
        }
    }

    /// Removes unused sets every ten minutes. Never returns.
    pub(crate) async fn run(self) {
        let mut interval = tokio::time::interval_at(Instant::now() + REMOVED_EVERY, REMOVED_EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if let Err(error) = self.remove_unused(Utc::now()).await {
                tracing::warn!(%error, "unused sets of values could not be removed from the state");
            }
        }
    }

    /// Stores the set with the hash `sha256` and charges it to `tenant`. If the tenant has no room, its least recently used sets
    /// are evicted.
    ///
    /// # Errors
    /// A limit, if the sets that can't be evicted leave too little room within [`TENANT_LIMITS`]; an error of the state.
    pub(crate) async fn put(
        &self,
        tenant: Option<&str>,
        sha256: &str,
        encoded: &[u8],
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let (owner, bytes) = (owner_of(tenant), encoded.len() as u64);
        let turn = self.turn_of(&owner);
        let _turn = turn.lock().await;
        self.list_once().await?;
        if !self.fits(&owner, sha256, bytes) {
            self.make_room(tenant, &owner, sha256, bytes, now).await?;
        }
        // A set that is uploaded again is not removed at the same time.
        let _set = self.lock_set(sha256).await;
        // The charge comes first, so that no set is stored without one.
        let charge = StoredCharge { tenant: tenant.map(str::to_owned), bytes };
        self.charges.put(&format!("{sha256}-{owner}"), &charge).await?;
        self.sets.put_bytes(sha256, encoded).await?;
        self.known.lock().add(&owner, sha256, Kept { bytes, uploaded: now, noted: Instant::now() });
        Ok(())
    }

    /// The lock of a tenant.
    fn turn_of(&self, owner: &str) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock();
        if !turns.contains_key(owner) {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        Arc::clone(turns.entry(owner.to_owned()).or_default())
    }

    async fn lock_set(&self, sha256: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let number = sha256.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.set_locks[number % SET_LOCKS].lock().await
    }

    /// Lists the state unless that was done before.
    async fn list_once(&self) -> Result<(), Error> {
        if self.known.lock().listed().is_some() {
            return Ok(());
        }
        let _listing = self.listing.lock().await;
        if self.known.lock().listed().is_none() {
            self.list_locked().await?;
        }
        Ok(())
    }

    /// Lists the state.
    async fn list(&self) -> Result<Listed, Error> {
        let _listing = self.listing.lock().await;
        self.list_locked().await
    }

    async fn list_locked(&self) -> Result<Listed, Error> {
        let begun = Instant::now();
        let (sets, charges) = futures::try_join!(self.sets.list(), self.charges.list())?;
        self.known.lock().replace(&sets, &charges, begun);
        Ok(Listed { begun, sets, charges })
    }

    /// True if the tenant has room for a set.
    fn fits(&self, owner: &str, sha256: &str, bytes: u64) -> bool {
        let (charged, sets) = self.known.lock().total(owner, sha256);
        charged.saturating_add(bytes) <= self.limits.bytes && sets < self.limits.sets
    }

    /// Removes sets until the tenant has room for the set `sha256`.
    ///
    /// # Errors
    /// As [`put`](Self::put). No set of the tenant is evicted for lack of room then.
    async fn make_room(
        &self,
        tenant: Option<&str>,
        owner: &str,
        sha256: &str,
        bytes: u64,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let listed = self.known.lock().listed();
        let is_listed = listed.is_some_and(|begun| begun.elapsed() < self.listed_for);
        if is_listed && self.giving_way(owner, sha256, bytes, now, &HashMap::new()).is_none() {
            return Err(self.exceeded(tenant, owner, sha256, bytes));
        }
        let listed = self.list().await?;
        if self.fits(owner, sha256, bytes) {
            return Ok(());
        }
        let jobs = self.jobs.list().await?;
        let used = last_uses(&jobs);
        self.remove_old(&listed, &used, now).await?;
        if self.fits(owner, sha256, bytes) {
            return Ok(());
        }
        let giving_way = self.giving_way(owner, sha256, bytes, now, &used);
        let giving_way = giving_way.ok_or_else(|| self.exceeded(tenant, owner, sha256, bytes))?;
        tracing::info!(
            token = tenant,
            sets = giving_way.len(),
            "the least recently used sets of values are removed to make room for a new one"
        );
        for set in giving_way {
            self.remove_of(owner, &set).await?;
        }
        Ok(())
    }

    /// Returns the sets of a tenant to evict for the set `sha256`, the least recently used first; `None` if there would still be no room. `used`
    /// has the times at which jobs last used the sets.
    fn giving_way(
        &self,
        owner: &str,
        sha256: &str,
        bytes: u64,
        now: DateTime<Utc>,
        used: &HashMap<&str, f64>,
    ) -> Option<Vec<String>> {
        let known = self.known.lock();
        let (mut charged, mut sets) = known.total(owner, sha256);
        let can_give_way =
            |set: &str, kept: &Kept| now - kept.uploaded > KEPT_FOR && !self.stored.is_in_use(set);
        let mut old: Vec<(f64, &str, u64)> = known
            .of(owner)
            .filter(|(set, kept)| *set != sha256 && can_give_way(set, kept))
            .map(|(set, kept)| {
                let uploaded = kept.uploaded.timestamp_millis() as f64 / 1e3;
                (used.get(set).map_or(uploaded, |used| used.max(uploaded)), set, kept.bytes)
            })
            .collect();
        old.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        let Limits { bytes: max_bytes, sets: max_sets } = self.limits;
        // At least one less than the maximum, so that there is room for the new one.
        let most = match sets < max_sets {
            true => sets,
            false => (max_sets - max_sets / SETS_AT_ONCE).min(max_sets.saturating_sub(1)),
        };
        let mut giving_way = Vec::new();
        for (_, set, set_bytes) in old {
            if charged.saturating_add(bytes) <= max_bytes && sets <= most {
                break;
            }
            charged -= set_bytes;
            sets -= 1;
            giving_way.push(set.to_owned());
        }
        let fits = charged.saturating_add(bytes) <= max_bytes && sets < max_sets;
        fits.then_some(giving_way)
    }

    /// The error of a tenant without room.
    fn exceeded(&self, tenant: Option<&str>, owner: &str, sha256: &str, bytes: u64) -> Error {
        let who = tenant.map_or_else(|| "this server".to_owned(), |token| format!("token '{token}'"));
        let (charged, sets) = self.known.lock().total(owner, sha256);
        let Limits { bytes: max_bytes, sets: max_sets } = self.limits;
        Error::limit(format!(
            "{who} has {charged} bytes of stored sets of values in {sets} sets, and this set has {bytes}; the limit is \
             {max_bytes} in {max_sets} sets. Older sets give way, except for those that were uploaded within the last hour \
             or that a training uses; try again later"
        ))
    }

    /// Removes a set of a tenant, and the set itself unless it is charged to others.
    async fn remove_of(&self, owner: &str, sha256: &str) -> Result<(), Error> {
        let _set = self.lock_set(sha256).await;
        if !self.known.lock().has_other(owner, sha256) {
            self.sets.delete(sha256).await?;
        }
        self.charges.delete(&format!("{sha256}-{owner}")).await?;
        self.known.lock().remove(owner, sha256);
        Ok(())
    }

    /// Removes the sets to which no job record refers and that were stored more than an hour before `now`, with their charges. Also removes the
    /// files of interrupted uploads.
    ///
    /// # Errors
    /// Returns an error if the state can't be read or written.
    pub(crate) async fn remove_unused(&self, now: DateTime<Utc>) -> Result<(), Error> {
        self.sets.remove_interrupted(KEPT_FOR.to_std().unwrap_or_default()).await?;
        let listed = self.list().await?;
        let is_any_old = listed.sets.iter().chain(&listed.charges).any(|meta| is_old(meta, now));
        if is_any_old {
            let jobs = self.jobs.list().await?;
            self.remove_old(&listed, &last_uses(&jobs), now).await?;
        }
        Ok(())
    }

    /// Removes the listed sets that are old and not used by a job, and old charges without a set.
    async fn remove_old(
        &self,
        listed: &Listed,
        used: &HashMap<&str, f64>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let Listed { begun, sets, charges } = listed;
        let is_used = |set: &str| used.contains_key(set) || self.stored.is_in_use(set);
        let stays = |meta: &&DocumentMeta| !is_old(meta, now) || is_used(&meta.name);
        let (kept, unused): (Vec<_>, Vec<_>) = sets.iter().partition(stays);
        for DocumentMeta { name, .. } in unused {
            let _set = self.lock_set(name).await;
            if !self.known.lock().is_noted_since(*begun, name) {
                self.sets.delete(name).await?;
                self.known.lock().remove_all(name);
            }
        }
        let kept: HashSet<&str> = kept.into_iter().map(|meta| meta.name.as_str()).collect();
        for DocumentMeta { name, .. } in charges.iter().filter(|meta| is_old(meta, now)) {
            let set = name.split_once('-').map_or("", |(set, _)| set);
            if kept.contains(set) {
                continue;
            }
            let _set = self.lock_set(set).await;
            if !self.known.lock().is_noted_since(*begun, set) {
                self.charges.delete(name).await?;
            }
        }
        Ok(())
    }
}

/// True for a document that was written more than an hour before `now`.
fn is_old(meta: &DocumentMeta, now: DateTime<Utc>) -> bool {
    now - meta.last_modified > KEPT_FOR
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
mod tests {
    use forebay_explain::JobRecord;
    use forebay_proto::v1;
    use forebay_storage::{Config, Location};

    use super::*;

    fn values(folder: &std::path::Path) -> Values {
        let config = Config::default();
        let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
        let state = State::open(location, None, &config);
        let values = Values::new(&state, Jobs::new(&state, 100), StoredValues::new(&state));
        Values { listed_for: Duration::ZERO, ..values }
    }

    fn limited(folder: &std::path::Path, bytes: u64, sets: usize) -> Values {
        Values { limits: Limits { bytes, sets }, ..values(folder) }
    }

    /// Keeps the record of a job that used the sets at the time `last_seen`.
    async fn use_sets(values: &Values, numbers: &[u8], last_seen: DateTime<Utc>) -> JobRecord {
        let named =
            |number: &u8| v1::NamedValues { name: format!("ids{number}"), sha256: hash(*number), count: 3 };
        let named = numbers.iter().map(named).collect();
        let train = v1::Train { dataset: "d".into(), values: named, ..v1::Train::default() };
        let record = JobRecord::new(&train, last_seen.timestamp() as f64);
        values.jobs.keep(&record).await.unwrap();
        record
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
        let record = use_sets(&values, &[1], now).await;
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
        let values = limited(folder.path(), 1000, 100);
        let (now, set) = (Utc::now(), [0; 400]);
        for number in [1, 2, 1] {
            values.put(Some("a"), &hash(number), &set, now).await.unwrap();
        }
        let refused = values.put(Some("a"), &hash(3), &set, now).await.unwrap_err();
        assert_eq!(refused.grpc_code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("token 'a' has 876 bytes of stored sets"), "{refused}");
        assert!(
            refused.message().contains("in 2 sets, and this set has 400; the limit is 1000 in 100"),
            "{refused}"
        );
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

    #[tokio::test]
    async fn the_least_recently_used_sets_of_a_tenant_give_way_although_job_records_refer_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let values = limited(folder.path(), 1000, 100);
        let (now, set) = (Utc::now(), [0; 400]);
        for (tenant, number) in [("a", 1), ("a", 2), ("b", 2)] {
            values.put(Some(tenant), &hash(number), &set, now).await.unwrap();
        }
        use_sets(&values, &[1], now + TimeDelta::minutes(90)).await;
        use_sets(&values, &[2], now).await;
        let soon = now + TimeDelta::minutes(50);
        let refused = values.put(Some("a"), &hash(3), &set, soon).await.unwrap_err();
        assert_eq!(
            refused.grpc_code(),
            tonic::Code::ResourceExhausted,
            "sets of the last hour do not give way"
        );
        let later = now + TimeDelta::hours(2);
        values.put(Some("a"), &hash(3), &set, later).await.unwrap();
        assert_eq!(
            names(&values.sets).await,
            [1, 2, 3].map(hash),
            "the second set is charged to another tenant"
        );
        assert_eq!(names(&values.charges).await, [1, 2, 3].map(hash));
        assert!(
            values
                .charges
                .get_bytes(&format!("{}-{}", hash(2), owner_of(Some("a"))))
                .await
                .unwrap()
                .is_none()
        );
        // A set of the maximum size needs the room of all others.
        let even_later = now + TimeDelta::hours(4);
        values.put(Some("a"), &hash(4), &[0; 900], even_later).await.unwrap();
        assert_eq!(names(&values.sets).await, [2, 4].map(hash));
        assert_eq!(names(&values.charges).await, [2, 4].map(hash));
    }

    #[tokio::test]
    async fn the_number_of_sets_of_a_tenant_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let values = limited(folder.path(), 1 << 20, 4);
        let now = Utc::now();
        for number in 1..=4 {
            values.put(None, &hash(number), b"set", now).await.unwrap();
        }
        values.put(None, &hash(4), b"set", now).await.unwrap();
        let refused = values.put(None, &hash(5), b"set", now).await.unwrap_err();
        assert!(refused.message().contains("in 4 sets, and this set has 3"), "{refused}");
        use_sets(&values, &[1, 2, 3, 4], now - TimeDelta::hours(1)).await;
        values.put(None, &hash(5), b"set", now + TimeDelta::hours(2)).await.unwrap();
        assert_eq!(names(&values.sets).await, [2, 3, 4, 5].map(hash));
    }

    #[tokio::test]
    async fn an_upload_lists_the_state_only_if_the_set_does_not_fit() {
        let folder = tempfile::tempdir().unwrap();
        let (values, other) = (limited(folder.path(), 1000, 100), limited(folder.path(), 1000, 100));
        let (now, set) = (Utc::now(), [0; 300]);
        values.put(None, &hash(1), &set, now).await.unwrap();
        other.put(None, &hash(2), &set, now).await.unwrap();
        // This server does not know the set of the other one yet.
        for number in [3, 4] {
            values.put(None, &hash(number), &set, now).await.unwrap();
        }
        let refused = values.put(None, &hash(5), &set, now).await.unwrap_err();
        assert!(refused.message().contains("has 1352 bytes of stored sets of values in 4 sets"), "{refused}");
        // Without a listing, the server would not know that its sets are gone.
        let values = Values { listed_for: Duration::from_secs(3600), ..values };
        for number in 1..=4 {
            values.sets.delete(&hash(number)).await.unwrap();
        }
        assert!(values.put(None, &hash(5), &set, now).await.is_err(), "the last listing counts for a while");
        let values = Values { listed_for: Duration::ZERO, ..values };
        values.put(None, &hash(5), &set, now).await.unwrap();
    }

    #[tokio::test]
    async fn concurrent_uploads_of_a_tenant_do_not_exceed_its_limits() {
        let folder = tempfile::tempdir().unwrap();
        let values = limited(folder.path(), 1 << 20, 5);
        let uploads = (0..20).map(|number| {
            let values = values.clone();
            tokio::spawn(async move { values.put(None, &hash(number), b"set", Utc::now()).await.is_ok() })
        });
        let stored =
            futures::future::join_all(uploads).await.into_iter().filter(|stored| *stored.as_ref().unwrap());
        assert_eq!(stored.count(), 5);
        assert_eq!(values.sets.list().await.unwrap().len(), 5);
    }
}
