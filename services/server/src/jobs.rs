//! The jobs that were streamed, as the state remembers them: what it takes to ask for any of their batches again.
//!
//! A job is its pinned request, without what only says which of its batches were sent: rank, lane, first epoch and step, and how
//! many of them. Its id is a hash of that, so that every rank of every server means the same record; what servers write for
//! one of them differs in its times alone.

mod notes;

use forebay_loader::near;
use forebay_proto::v1;
use forebay_storage::{Error, Recorded, Records, State};
use futures::{StreamExt, stream};
use prost::Message;
use serde::{Deserialize, Serialize};
use tonic::Status;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::status;

pub(crate) use notes::Notes;

/// Longest record. A request has at most `limits.max_request_bytes`, by default half of that.
const MAX_RECORD_BYTES: u64 = 2 << 20;
/// Records that are listed, in bytes together; older ones are left out.
const MAX_LISTED_BYTES: u64 = 64 << 20;
/// Records that are read at a time.
const CONCURRENT_READS: usize = 16;
/// Digits of an id that tell of the job's name.
const NAME_DIGITS: usize = 8;

/// A job that was streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// When a server first began to stream it, in Unix seconds.
    pub(crate) first_seen: f64,
    /// When one did last, or up to an hour before that.
    pub(crate) last_seen: f64,
    /// With every default resolved.
    pub(crate) request: v1::Train,
}

impl Record {
    /// The job of a pinned request, seen at `now`.
    pub(crate) fn of(train: &v1::Train, now: f64) -> Self {
        let request = v1::Train {
            rank: None,
            lane: None,
            lanes: None,
            epoch: 0,
            epochs: None,
            start_step: 0,
            steps: 0,
            hash: None,
            ..train.clone()
        };
        let hash = xxh3_128(&request.encode_to_vec());
        let id = format!("{}{:024x}", name_digits(&request.job), hash >> 32);
        Self { id, first_seen: now, last_seen: now, request }
    }

    /// The datasets whose rows the job sends, its own first.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = &str> {
        let mixed = self.request.mix.iter().map(|mixed| mixed.dataset.as_str());
        std::iter::once(self.request.dataset.as_str()).chain(mixed)
    }
}

/// The beginning of the ids of all jobs of a name.
fn name_digits(name: &str) -> String {
    format!("{:016x}", xxh3_64(name.as_bytes()))[..NAME_DIGITS].to_owned()
}

/// The records that are kept. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Jobs {
    records: Records,
    max_jobs: usize,
}

/// The job that was asked for.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// Ids of others of that name, which were seen before it.
    pub(crate) others: Vec<String>,
}

impl Jobs {
    /// The records in `state`, of which the `max_jobs` that were written last count.
    pub(crate) fn new(state: &State, max_jobs: usize) -> Self {
        Self { records: state.records("jobs", "job", MAX_RECORD_BYTES), max_jobs }
    }

    /// All jobs, the one that was seen last first. What is damaged is left out.
    ///
    /// # Errors
    /// When the state can't be read.
    pub(crate) async fn list(&self) -> Result<Vec<Record>, Error> {
        self.read(|_| true).await
    }

    /// The job of that id, or else the one of that name, among those for which `may_read` holds, that was seen last.
    ///
    /// # Errors
    /// `NOT_FOUND` with the near names; when the state can't be read.
    pub(crate) async fn find(
        &self,
        wanted: &str,
        may_read: impl Fn(&Record) -> bool,
    ) -> Result<Found, Status> {
        let failed = |error: Error| status::of_storage(&error);
        let is_id =
            wanted.len() == 32 && wanted.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if is_id && let Some(record) = self.records.find::<Record>(wanted).await.map_err(failed)? {
            return Ok(Found { record, others: Vec::new() });
        }
        let digits = name_digits(wanted);
        let named = self.read(|id| id.starts_with(&digits)).await.map_err(failed)?;
        let is_meant = |record: &Record| record.request.job == wanted && may_read(record);
        let mut named = named.into_iter().filter(is_meant);
        if !wanted.is_empty()
            && let Some(record) = named.next()
        {
            return Ok(Found { record, others: named.map(|other| other.id).collect() });
        }
        let known = self.list().await.map_err(failed)?;
        let mut names: Vec<&str> = known
            .iter()
            .filter(|record| may_read(record))
            .map(|record| record.request.job.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        let near = near(wanted, names.iter().copied());
        let hint = match (near.is_empty(), names.len()) {
            (false, _) => format!("did you mean '{}'?", near.join("' or '")),
            (true, 0) => "none is remembered here".to_owned(),
            (true, count) => format!("{count} names are remembered here"),
        };
        Err(Status::not_found(status::clip(&format!("there is no job '{wanted}'; {hint}"))))
    }

    /// The records whose ids are picked, the one that was seen last first.
    async fn read(&self, picks: impl Fn(&str) -> bool) -> Result<Vec<Record>, Error> {
        let mut room = MAX_LISTED_BYTES;
        let mut listed = self.records.list().await?;
        listed.truncate(self.max_jobs);
        listed.retain(|Recorded { name, bytes, .. }| {
            let fits = picks(name) && *bytes <= room;
            room -= if fits { *bytes } else { 0 };
            fits
        });
        let mut reading = stream::iter(listed)
            .map(|listed| async move { (self.records.find::<Record>(&listed.name).await, listed.name) })
            .buffered(CONCURRENT_READS);
        let mut found = Vec::new();
        while let Some((record, id)) = reading.next().await {
            match record {
                Ok(record) => found.extend(record),
                Err(error @ (Error::Corrupt { .. } | Error::Limit { .. })) => {
                    tracing::warn!(id, %error, "a job's record is left out");
                }
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| b.last_seen.total_cmp(&a.last_seen).then_with(|| a.id.cmp(&b.id)));
        Ok(found)
    }

    /// Keeps a record, with the time of the first one of its job. Returns whether it is the first.
    async fn keep(&self, record: &Record) -> Result<bool, Error> {
        let before = match self.records.find::<Record>(&record.id).await {
            Ok(before) => before,
            Err(Error::Corrupt { .. } | Error::Limit { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut record = record.clone();
        if let Some(before) = &before {
            record.first_seen = before.first_seen.min(record.first_seen);
            record.last_seen = before.last_seen.max(record.last_seen);
        }
        self.records.keep(&record.id, &record).await?;
        Ok(before.is_none())
    }

    /// Forgets the jobs that were written longest ago, so that `max_jobs` are left.
    async fn forget_old(&self) -> Result<(), Error> {
        let listed = self.records.list().await?;
        for old in listed.iter().skip(self.max_jobs) {
            self.records.remove(&old.name).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
