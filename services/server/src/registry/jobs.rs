//! Job records in the state, which identify the batches of past jobs.

mod notes;
mod surplus;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use forebay_explain::{JobRecord, name_prefix};
use forebay_loader::similar_names;
use forebay_storage::{DocumentMeta, Documents, State};
use futures::{StreamExt, stream};
use tokio::{sync::Mutex, time::Instant};

use crate::Error;
use surplus::{Room, surplus};

pub(crate) use notes::Notes;

/// Maximum size of a record, in bytes. A request has at most `limits.max_request_bytes`, by default half of this.
const MAX_RECORD_BYTES: u64 = 2 << 20;
/// Maximum total size of all records, in bytes. A typical record has less than 1 KiB.
const MAX_TOTAL_BYTES: u64 = 32 << 20;
/// Number of records that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// Job records in the state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Jobs {
    documents: Documents,
    max_jobs: usize,
    known: Arc<Mutex<Known>>,
    /// Dataset of each record, by the id of the record. An id is a hash of the request and therefore has always the same dataset.
    datasets: Arc<Mutex<HashMap<String, String>>>,
    last_list: Arc<Mutex<LastList>>,
}

/// The last list of all jobs, while a caller uses it, and the time at which it was begun.
#[derive(Default)]
struct LastList {
    begun: Option<Instant>,
    list: Weak<Vec<JobRecord>>,
}

/// Records that were read before, by their ids, each with the version that was read. Damaged ones are `None`.
type Known = HashMap<String, (DocumentMeta, Option<JobRecord>)>;

/// A job that was found by name or id.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: JobRecord,
    /// Ids of earlier jobs with the same name.
    pub(crate) others: Vec<String>,
}

impl Jobs {
    /// Opens the records in `state` and limits them to `max_jobs`.
    pub(crate) fn new(state: &State, max_jobs: usize) -> Self {
        let documents = state.documents("jobs", "job", MAX_RECORD_BYTES);
        Self {
            documents,
            max_jobs,
            known: Arc::default(),
            datasets: Arc::default(),
            last_list: Arc::default(),
        }
    }

    /// Lists all jobs, most recently streamed first. Damaged records are omitted. A caller gets the list of
    /// another one if that list was begun after its own call.
    ///
    /// # Errors
    /// If the state can't be read.
    pub(crate) async fn list(&self) -> Result<Arc<Vec<JobRecord>>, forebay_storage::Error> {
        let called = Instant::now();
        let mut last = self.last_list.lock().await;
        if last.begun.is_some_and(|begun| begun >= called)
            && let Some(list) = last.list.upgrade()
        {
            return Ok(list);
        }
        *last = LastList { begun: Some(Instant::now()), list: Weak::new() };
        let list = Arc::new(self.read(|_| true).await?);
        last.list = Arc::downgrade(&list);
        Ok(list)
    }

    /// Finds the job with id `wanted`, or the most recently streamed job with that name that `may_read` allows.
    ///
    /// # Errors
    /// Not found, with similar names; or if the state can't be read.
    pub(crate) async fn find(
        &self,
        wanted: &str,
        may_read: impl Fn(&JobRecord) -> bool,
    ) -> Result<Found, Error> {
        let is_id =
            wanted.len() == 32 && wanted.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if is_id
            && let Some(record) = self.documents.get::<JobRecord>(wanted).await?
            && may_read(&record)
        {
            return Ok(Found { record, others: Vec::new() });
        }
        let prefix = name_prefix(wanted);
        let named = self.read(|id| id.starts_with(&prefix)).await?;
        let is_meant = |record: &JobRecord| record.request.job_name == wanted && may_read(record);
        let mut named = named.into_iter().filter(is_meant);
        if !wanted.is_empty()
            && let Some(record) = named.next()
        {
            return Ok(Found { record, others: named.map(|other| other.id).collect() });
        }
        let known = self.list().await?;
        let mut names: Vec<&str> = known
            .iter()
            .filter(|record| may_read(record))
            .map(|record| record.request.job_name.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        let similar = similar_names(wanted, names.iter().copied());
        let hint = match (similar.is_empty(), names.len()) {
            (false, _) => format!("did you mean '{}'?", similar.join("' or '")),
            (true, 0) => "no jobs are recorded".to_owned(),
            (true, count) => format!("{count} names are recorded"),
        };
        Err(Error::not_found(format!("there is no job '{wanted}'; {hint}")))
    }

    /// Returns the records whose ids `picks` selects, most recently streamed first. Reads only those that were written since the
    /// last call. Concurrent calls read one after the other.
    async fn read(&self, picks: impl Fn(&str) -> bool) -> Result<Vec<JobRecord>, forebay_storage::Error> {
        let mut listed = self.documents.list().await?;
        // The state has more records than `max_jobs` and `MAX_TOTAL_BYTES` until the servers remove some.
        listed.truncate(self.max_jobs.saturating_mul(2));
        listed.sort_by_key(|meta| !picks(&meta.name));
        let mut room = 2 * MAX_TOTAL_BYTES;
        // Those that are not picked are only kept if they were read before.
        listed.retain(|meta| {
            let fits = meta.bytes <= room;
            room -= if fits { meta.bytes } else { 0 };
            fits
        });
        let mut known = self.known.lock().await;
        let mut before = std::mem::take(&mut *known);
        known.extend(listed.iter().filter_map(|meta| before.remove_entry(&meta.name)));
        let is_new = |meta: &DocumentMeta| known.get(&meta.name).is_none_or(|(read, _)| read != meta);
        let new: Vec<DocumentMeta> =
            listed.iter().filter(|meta| picks(&meta.name) && is_new(meta)).cloned().collect();
        let mut reading = stream::iter(new)
            .map(|meta| async move { (self.documents.get::<JobRecord>(&meta.name).await, meta) })
            .buffered(CONCURRENT_READS);
        while let Some((record, meta)) = reading.next().await {
            let record = match record {
                Ok(record) => record,
                Err(error) if is_damaged(&error) => {
                    tracing::warn!(id = meta.name, %error, "skipping a damaged job record");
                    None
                }
                Err(error) => return Err(error),
            };
            known.insert(meta.name.clone(), (meta, record));
        }
        drop(reading);
        let picked = listed.iter().filter(|meta| picks(&meta.name));
        let picked: Vec<(&JobRecord, u64)> =
            picked.filter_map(|meta| Some((known.get(&meta.name)?.1.as_ref()?, meta.bytes))).collect();
        let sizes = picked.iter().map(|(record, bytes)| (Some(record.request.dataset.as_str()), *bytes));
        let sizes: Vec<_> = sizes.collect();
        let removed: HashSet<usize> = surplus(&sizes, self.room()).into_iter().collect();
        let kept = picked.into_iter().enumerate().filter(|(position, _)| !removed.contains(position));
        let mut found: Vec<JobRecord> = kept.map(|(_, (record, _))| record.clone()).collect();
        drop(known);
        found.sort_by(|a, b| b.last_seen.total_cmp(&a.last_seen).then_with(|| a.id.cmp(&b.id)));
        Ok(found)
    }

    /// Writes a record and keeps the first and last times of an existing record. Returns true if the job is new.
    pub(super) async fn keep(&self, record: &JobRecord) -> Result<bool, Error> {
        let before = match self.documents.get::<JobRecord>(&record.id).await {
            Ok(before) => before,
            Err(error) if is_damaged(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let mut record = record.clone();
        if let Some(before) = &before {
            record.first_seen = before.first_seen.min(record.first_seen);
            record.last_seen = before.last_seen.max(record.last_seen);
        }
        self.documents.put(&record.id, &record).await?;
        self.datasets.lock().await.insert(record.id, record.request.dataset);
        Ok(before.is_none())
    }

    /// Returns the limits of all records together.
    fn room(&self) -> Room {
        Room { records: self.max_jobs, bytes: MAX_TOTAL_BYTES }
    }

    /// Removes the records above `max_jobs` and [`MAX_TOTAL_BYTES`]: the least recently written ones of the datasets with the most.
    async fn forget_old(&self) -> Result<(), Error> {
        let listed = self.documents.list().await?;
        for position in self.read_surplus(&listed).await? {
            self.documents.delete(&listed[position].name).await?;
        }
        Ok(())
    }

    /// Returns the positions of the records above the limits in the list of all records. Reads records whose dataset is not known yet.
    async fn read_surplus(&self, listed: &[DocumentMeta]) -> Result<Vec<usize>, Error> {
        let mut known = self.datasets.lock().await;
        let mut before = std::mem::take(&mut *known);
        known.extend(listed.iter().filter_map(|meta| before.remove_entry(&meta.name)));
        let total: u64 = listed.iter().map(|meta| meta.bytes).sum();
        if listed.len() <= self.max_jobs && total <= MAX_TOTAL_BYTES {
            return Ok(Vec::new());
        }
        let unknown = listed.iter().map(|meta| &meta.name).filter(|id| !known.contains_key(*id));
        let unknown: Vec<String> = unknown.cloned().collect();
        let mut reading = stream::iter(unknown)
            .map(|id| async move { (self.documents.get::<JobRecord>(&id).await, id) })
            .buffered(CONCURRENT_READS);
        while let Some((record, id)) = reading.next().await {
            match record {
                Ok(Some(record)) => drop(known.insert(id, record.request.dataset)),
                // It was deleted since it was listed, or is damaged.
                Ok(None) => {}
                Err(error) if is_damaged(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(reading);
        let dataset = |meta: &DocumentMeta| known.get(&meta.name).map(String::as_str);
        let records: Vec<(Option<&str>, u64)> =
            listed.iter().map(|meta| (dataset(meta), meta.bytes)).collect();
        Ok(surplus(&records, self.room()))
    }
}

/// True for the error of a damaged record, which another read would return again.
fn is_damaged(error: &forebay_storage::Error) -> bool {
    matches!(error, forebay_storage::Error::Corrupt { .. } | forebay_storage::Error::Limit { .. })
}

#[cfg(test)]
mod tests;
