//! `/api/v1/datasets`: what is served, and where it stands.

use axum::{Extension, Json, extract::State};
use forebay_inference::{Online, Progress};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Ops, answer::Refused};
use crate::{
    datasets::{Listed, Phase},
    door::Access,
};

/// The datasets of a server.
#[derive(Serialize, ToSchema)]
pub(super) struct Datasets {
    /// By name.
    datasets: Vec<Dataset>,
}

/// A dataset; of what is not open, what is not known is null.
#[derive(Serialize, ToSchema)]
struct Dataset {
    name: String,
    url: String,
    phase: DatasetPhase,
    /// Whose footers are read.
    #[schema(required)]
    files_done: Option<u64>,
    #[schema(required)]
    files: Option<u64>,
    /// Why it can't be opened.
    #[schema(required)]
    error: Option<String>,
    /// Id of the current snapshot.
    #[schema(required)]
    snapshot: Option<String>,
    /// Since it was last seen to be what is there.
    #[schema(required)]
    snapshot_age_seconds: Option<f64>,
    /// Units of order: row groups, small ones joined.
    #[schema(required)]
    blocks: Option<u64>,
    #[schema(required)]
    rows: Option<u64>,
    /// Of all columns, by what footers say.
    #[schema(required)]
    decoded_bytes: Option<u64>,
    /// If it is looked up by keys: how far that is.
    #[schema(required)]
    online: Option<OnlineDataset>,
}

/// A dataset that is looked up; before the first snapshot is ready, what is not known is null.
#[derive(Serialize, ToSchema)]
struct OnlineDataset {
    /// Id of the snapshot that lookups are answered from.
    #[schema(required)]
    snapshot: Option<String>,
    /// Different keys in it.
    #[schema(required)]
    keys: Option<u64>,
    /// Bytes of memory of its index.
    #[schema(required)]
    index_bytes: Option<u64>,
    /// Of the next snapshot, while its index is built: rows whose keys are read.
    #[schema(required)]
    rows_indexed: Option<u64>,
    /// Its rows.
    #[schema(required)]
    rows_to_index: Option<u64>,
    /// Why the last try to make a snapshot ready has failed. There will be another one.
    #[schema(required)]
    error: Option<String>,
}

impl OnlineDataset {
    fn of(online: &Online) -> Self {
        let Progress { ready, indexed, error } = online.progress();
        Self {
            keys: ready.as_ref().map(|ready| ready.keys),
            index_bytes: ready.as_ref().map(|ready| ready.index_bytes),
            snapshot: ready.map(|ready| ready.snapshot),
            rows_indexed: indexed.map(|indexed| indexed.rows_done),
            rows_to_index: indexed.map(|indexed| indexed.rows),
            error,
        }
    }
}

/// Where a dataset stands.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum DatasetPhase {
    /// Its footers are read for the first time.
    Opening,
    Open,
    /// The last try has failed, and there will be another one.
    Failed,
}

/// The datasets that the caller may read.
#[utoipa::path(get, path = "/api/v1/datasets", operation_id = "list_datasets", tag = "datasets", responses((status = 200, body = Datasets), Refused))]
pub(super) async fn list(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Json<Datasets> {
    Json(of(&ops, &access))
}

/// Those that `access` may read.
pub(super) fn of(ops: &Ops, access: &Access) -> Datasets {
    Datasets { datasets: ops.datasets.list(access).into_iter().map(|listed| shown(ops, listed)).collect() }
}

fn shown(ops: &Ops, listed: Listed) -> Dataset {
    let Listed { name, url, phase } = listed;
    let online = ops.online.get(&name).map(OnlineDataset::of);
    let blank = Dataset {
        name,
        url,
        phase: DatasetPhase::Opening,
        files_done: None,
        files: None,
        error: None,
        snapshot: None,
        snapshot_age_seconds: None,
        blocks: None,
        rows: None,
        decoded_bytes: None,
        online,
    };
    match phase {
        // It is not listed yet.
        Phase::Opening { files: 0, .. } => blank,
        Phase::Opening { files_done, files } => {
            Dataset { files_done: Some(files_done), files: Some(files), ..blank }
        }
        Phase::Failed(error) => {
            Dataset { phase: DatasetPhase::Failed, error: Some(error.to_string()), ..blank }
        }
        Phase::Open(reader) => {
            let snapshot = reader.snapshot();
            let files = Some(snapshot.files().len() as u64);
            let age = ops.datasets.age(&blank.name, snapshot.id());
            Dataset {
                phase: DatasetPhase::Open,
                files_done: files,
                files,
                snapshot: Some(snapshot.id().to_owned()),
                snapshot_age_seconds: age.map(|age| age.as_secs_f64()),
                blocks: Some(snapshot.blocks().len() as u64),
                rows: Some(snapshot.rows()),
                decoded_bytes: Some(snapshot.uncompressed_bytes()),
                ..blank
            }
        }
    }
}
