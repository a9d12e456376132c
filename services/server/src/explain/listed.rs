//! Jobs as they are listed.

use forebay_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::jobs::Record;

/// The jobs that were streamed.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    /// The one that was seen last first.
    jobs: Vec<Listed>,
}

/// A job that was streamed.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
struct Listed {
    id: String,
    /// As its trainer calls it; may be empty.
    job: String,
    dataset: String,
    snapshot: String,
    /// When a server first began to stream it, in Unix seconds.
    first_seen: f64,
    /// When one did last, or up to an hour before that.
    last_seen: f64,
    world_size: u64,
    batch_size: u64,
    /// What it takes to ask for it again, as in docs/protocol.md.
    #[schema(value_type = Object)]
    request: v1::Train,
}

impl From<Vec<Record>> for JobList {
    fn from(records: Vec<Record>) -> Self {
        let listed = |Record { id, first_seen, last_seen, request }: Record| Listed {
            id,
            job: request.job.clone(),
            dataset: request.dataset.clone(),
            snapshot: request.snapshot.clone(),
            first_seen,
            last_seen,
            world_size: request.world_size(),
            batch_size: request.batch_size,
            request,
        };
        Self { jobs: records.into_iter().map(listed).collect() }
    }
}
