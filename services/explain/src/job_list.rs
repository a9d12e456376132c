//! The list of recorded jobs.

use forebay_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::JobRecord;

/// Recorded jobs.
#[derive(Serialize, ToSchema)]
pub struct JobList {
    /// Jobs, most recently streamed first.
    jobs: Vec<Listed>,
}

/// A recorded job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
struct Listed {
    /// Id of the job: 32 hexadecimal digits.
    id: String,
    /// Name of the job; empty if the request has none.
    job_name: String,
    /// Name of the dataset.
    dataset: String,
    /// Id of the pinned snapshot.
    snapshot: String,
    /// Time at which a server first streamed the job, in Unix seconds.
    first_seen: f64,
    /// Time at which a server last streamed the job, in Unix seconds. The actual time may be up to an hour later.
    last_seen: f64,
    /// Number of ranks.
    world_size: u64,
    /// Number of rows, groups or packs per rank and step.
    batch_size: u64,
    /// Request that streams the job again, as in docs/reference/protocol.md.
    #[schema(value_type = Object)]
    request: v1::Train,
}

impl<'a> FromIterator<&'a JobRecord> for JobList {
    fn from_iter<T: IntoIterator<Item = &'a JobRecord>>(records: T) -> Self {
        let listed = |JobRecord { id, first_seen, last_seen, request }: &JobRecord| Listed {
            id: id.clone(),
            job_name: request.job_name.clone(),
            dataset: request.dataset.clone(),
            snapshot: request.snapshot.clone(),
            first_seen: *first_seen,
            last_seen: *last_seen,
            world_size: request.world_size(),
            batch_size: request.batch_size,
            request: request.clone(),
        };
        Self { jobs: records.into_iter().map(listed).collect() }
    }
}
