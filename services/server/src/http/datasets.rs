//! `/api/v1/datasets`: datasets and their state.

use axum::Json;
use forebay_inference::Progress;
use forebay_stall::SILENT_AFTER;
use serde::Serialize;
use utoipa::ToSchema;

use super::{context::View, response::AuthErrors};
use crate::{
    registry::datasets::{Listed, Phase},
    services::Services,
};

/// List of datasets.
#[derive(Serialize, ToSchema)]
pub(super) struct Datasets {
    /// Datasets, sorted by name.
    datasets: Vec<Dataset>,
}

/// A dataset. Fields that are unknown before it is open are null.
#[derive(Default, Serialize, ToSchema)]
struct Dataset {
    /// Name of the dataset.
    name: String,
    /// URL of the dataset's files.
    url: String,
    /// Lifecycle phase of the dataset.
    phase: DatasetPhase,
    /// Number of files whose footers were read; null before the files are listed.
    #[schema(required)]
    files_done: Option<u64>,
    /// Number of files; null before they are listed.
    #[schema(required)]
    files: Option<u64>,
    /// Reason why the dataset cannot be opened, or why its files could not be listed again; null if the last attempt did not fail. The
    /// server retries.
    #[schema(required)]
    error: Option<String>,
    /// Id of the current snapshot; null if the dataset is not open.
    #[schema(required)]
    snapshot: Option<String>,
    /// Time since the current snapshot was last verified against the store, in seconds; null if the dataset is not open.
    #[schema(required)]
    snapshot_age_seconds: Option<f64>,
    /// Time for which requests to the store have been waiting without an answer to any of them, in seconds; null unless it is at least 3.
    #[schema(required)]
    silent_seconds: Option<f64>,
    /// Number of blocks, the units of shuffling: row groups, with small ones merged; null if the dataset is not open.
    #[schema(required)]
    blocks: Option<u64>,
    /// Number of rows; null if the dataset is not open.
    #[schema(required)]
    rows: Option<u64>,
    /// Size of the files in bytes; null if the dataset is not open.
    #[schema(required)]
    stored_bytes: Option<u64>,
    /// Decoded size in bytes: the size of the values of all columns in memory, estimated from the footers; null if the dataset is not open.
    #[schema(required)]
    decoded_bytes: Option<u64>,
    /// State of the lookup index; null if lookups are not configured for the dataset.
    #[schema(required)]
    online: Option<OnlineDataset>,
}

/// State of the lookup index of a dataset. Fields that are unknown before the first index is ready are null.
#[derive(Serialize, ToSchema)]
struct OnlineDataset {
    /// Id of the snapshot that answers lookups; null before the first index is ready.
    #[schema(required)]
    snapshot: Option<String>,
    /// Id of the snapshot that answered lookups before this one; null if there was none since the server was started.
    #[schema(required)]
    previous_snapshot: Option<String>,
    /// True if lookups are answered from this snapshot until it is unpinned.
    pinned: bool,
    /// Number of distinct keys in this snapshot; null before the first index is ready.
    #[schema(required)]
    keys: Option<u64>,
    /// Size of the index in memory, in bytes; null before the first index is ready.
    #[schema(required)]
    index_bytes: Option<u64>,
    /// Number of views in memory: combinations of columns, tensors, expressions and a filter; null before the first index is
    /// ready.
    #[schema(required)]
    views: Option<u64>,
    /// Number of rows indexed for the next snapshot; null if no index is being built.
    #[schema(required)]
    rows_indexed: Option<u64>,
    /// Number of rows of the next snapshot; null if no index is being built.
    #[schema(required)]
    rows_to_index: Option<u64>,
    /// Reason why the last attempt to build an index failed, which the server retries, or why a snapshot was rejected; null if the
    /// last attempt succeeded.
    #[schema(required)]
    error: Option<String>,
}

impl OnlineDataset {
    fn of(online: &forebay_inference::OnlineDataset) -> Self {
        let Progress { ready, indexing, error, previous, pinned } = online.progress();
        Self {
            previous_snapshot: previous,
            pinned: pinned.is_some(),
            keys: ready.as_ref().map(|ready| ready.keys),
            index_bytes: ready.as_ref().map(|ready| ready.index_bytes),
            views: ready.as_ref().map(|ready| ready.views),
            snapshot: ready.map(|ready| ready.snapshot),
            rows_indexed: indexing.map(|indexing| indexing.rows_done),
            rows_to_index: indexing.map(|indexing| indexing.rows),
            error,
        }
    }
}

/// Lifecycle phase of a dataset. `opening`: its files are being listed and their footers read for the first time; `open`: the
/// dataset can be read; `failed`: the last attempt to open it failed, and the server retries.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum DatasetPhase {
    #[default]
    Opening,
    Open,
    Failed,
}

/// Lists the datasets that the caller may read.
#[utoipa::path(get, path = "/api/v1/datasets", operation_id = "list_datasets", tag = "datasets", responses((status = 200, body = Datasets), AuthErrors))]
pub(super) async fn list(view: View) -> Json<Datasets> {
    Json(of(&view))
}

/// Returns the datasets that the caller may read.
pub(super) fn of(view: &View) -> Datasets {
    let services = &view.context.services;
    let listed = services.datasets.list(&view.access).into_iter();
    Datasets { datasets: listed.map(|listed| shown(services, listed)).collect() }
}

fn shown(services: &Services, listed: Listed) -> Dataset {
    let Listed { name, url, phase, refresh_error, silence } = listed;
    let silent_seconds =
        silence.filter(|silence| *silence >= SILENT_AFTER).map(|silence| silence.as_secs_f64());
    let online = services.online.get(&name).as_ref().map(OnlineDataset::of);
    let blank = Dataset { name, url, online, silent_seconds, ..Dataset::default() };
    match phase {
        // The files are not listed yet.
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
            let age = services.datasets.age(&blank.name, snapshot.id());
            Dataset {
                phase: DatasetPhase::Open,
                files_done: files,
                files,
                error: refresh_error,
                snapshot: Some(snapshot.id().to_owned()),
                snapshot_age_seconds: age.map(|age| age.as_secs_f64()),
                blocks: Some(snapshot.blocks().len() as u64),
                rows: Some(snapshot.rows()),
                stored_bytes: Some(snapshot.stored_bytes()),
                decoded_bytes: Some(snapshot.decoded_bytes()),
                ..blank
            }
        }
    }
}
