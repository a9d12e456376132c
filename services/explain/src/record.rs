//! Records of jobs.

use forebay_proto::v1;
use prost::Message;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Hexadecimal digits of an id that are a hash of the job's name.
const NAME_DIGITS: usize = 8;

/// A recorded job: its pinned request, without the fields that only select which of its batches were sent (rank, lane, first epoch
/// and step, and their numbers).
///
/// The id is a hash of that request, so every rank and every server writes the same record; only the times differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Id of the job: 32 hexadecimal digits.
    pub id: String,
    /// Time at which a server started to stream the job, in Unix seconds.
    pub first_seen: f64,
    /// Time at which a server last streamed the job, in Unix seconds; up to an hour too early.
    pub last_seen: f64,
    /// Request of the job, with every default resolved.
    pub request: v1::Train,
}

impl JobRecord {
    /// Records the job of a pinned request that was streamed at `now`, in Unix seconds.
    pub fn new(train: &v1::Train, now: f64) -> Self {
        let request = v1::Train {
            rank: None,
            lane: None,
            lanes: None,
            epoch: 0,
            epochs: None,
            start_step: 0,
            steps: 0,
            content_hash: None,
            ..train.clone()
        };
        let hash = xxh3_128(&request.encode_to_vec());
        let id = format!("{}{:024x}", name_prefix(&request.job_name), hash >> 32);
        Self { id, first_seen: now, last_seen: now, request }
    }

    /// Names of the datasets whose rows the job sends; `dataset` of the request comes first.
    pub fn datasets(&self) -> impl Iterator<Item = &str> {
        let mixed = self.request.mix.iter().map(|mixed| mixed.dataset.as_str());
        std::iter::once(self.request.dataset.as_str()).chain(mixed)
    }
}

/// Returns the prefix of the ids of all jobs with this name.
pub fn name_prefix(name: &str) -> String {
    format!("{:016x}", xxh3_64(name.as_bytes()))[..NAME_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id that commit 39b7b77 gave this job, as `compatibility/39b7b77` records it.
    #[test]
    fn the_id_of_a_job_is_frozen() {
        let request = r#"{
            "dataset": "events", "snapshot": "cb7fbc3cbe1bdbaa854e5d683b95c2bd", "columns": ["id"],
            "tensors": [{"name": "x", "columns": ["w", "v"], "dtype": "float32", "null_value": -1.5}],
            "batch_size": 2, "shuffle": {"window_rows": 500}, "world_size": 2, "remainder": "PAD",
            "job_name": "job packs", "plan_version": 1, "group_by": ["k"], "max_pack_rows": 60,
            "rank": 1, "lane": 0, "lanes": 1, "epoch": 3, "epochs": 4, "start_step": 5, "content_hash": true
        }"#;
        let train: v1::Train = serde_json::from_str(request).unwrap();
        let id = JobRecord::new(&train, 7.0).id;
        assert_eq!(
            id, "4e4937f86caf7832bba0d12563bb07c3",
            "servers of several versions share the records of a job"
        );
        assert!(id.starts_with(&name_prefix("job packs")));
    }
}
