//! The actions of the Flight method `DoAction`.

use std::sync::atomic::{AtomicU64, Ordering};

use arrow_flight::{Action, ActionType, Result as ActionResult};
use forebay_inference::Progress;
use forebay_loader::{CountProgress, LoadProgress, WindowLoad};
use forebay_proto::{
    ACTIONS, Encoding,
    v1::{
        self, Command, CountResult, DropCacheRequest, DropCacheResult, HelloRequest, OpenRequest,
        PinLookupsRequest, PinLookupsResult, RefreshRequest, RefreshResult, ReportRequest, ReportResult,
        WarmResult,
    },
};
use forebay_storage::{Credentials, Reader, shown_url};
use futures::{StreamExt, stream, stream::BoxStream};
use prost::Message;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::{Context, commands::RequestedJob};
use crate::{
    Error,
    auth::{Access, without_quoted},
    registry::datasets::Opened,
    services::Services,
    telemetry::audit,
};

/// Results of an action.
type Results = BoxStream<'static, Result<ActionResult, Status>>;

/// Sender for the results of an action that reports progress.
type ResultSender = mpsc::Sender<Result<ActionResult, Status>>;

/// Maximum number of results of an action that the caller has not received. Progress beyond it is skipped.
const MAX_UNSENT_RESULTS: usize = 256;

/// Maximum value of each time in a report, in seconds.
const MAX_REPORT_SECONDS: f64 = 3600.0;

// Each constant is the name of an action and its description in `ListActions`.

const REFRESH: (&str, &str) = (
    "refresh",
    "List the files of a dataset and make the result its current snapshot. \
     Running streams and existing tickets keep their snapshot. \
     Body: {\"dataset\": NAME}. Result: {\"dataset\", \"snapshot\", \"changed\", \"rows\", \"files\"}.",
);

const WARM: (&str, &str) = (
    "warm",
    "Load data of a training job into the memory cache until the cache is full, in the order of the job's first epoch. \
     Body: a command, {\"train\": {...}}. \
     Results: {\"blocks\", \"blocks_done\", \"bytes\"}, after each block of rows and at the end.",
);

const COUNT: (&str, &str) = (
    "count-rows",
    "Count the rows that match the filter of a training job. The first request with the filter then starts without \
     counting them. Body: a command, {\"train\": {...}}. Results: {\"blocks\", \"blocks_done\", \"blocks_read\", \"rows\", \
     \"rows_kept\"}, after each block of rows and at the end.",
);

const PIN: (&str, &str) = (
    "pin",
    "Load the columns of a training job into the disk cache and keep them there until `unpin` or a restart. \
     Body: a command, {\"train\": {...}}. \
     Results: {\"blocks\", \"blocks_done\", \"bytes\"}, after each block of rows and at the end.",
);

const UNPIN: (&str, &str) = (
    "unpin",
    "Undo one `pin` of the same dataset and snapshot. Body: a command, {\"train\": {...}}. No result.",
);

const DROP_CACHE: (&str, &str) = (
    "drop-cache",
    "Remove a dataset, or all datasets, from the memory and disk caches, including pinned columns. Running streams \
     continue. Body: {\"dataset\": NAME}, or {} for all datasets. Result, the freed bytes: {\"memory_bytes\", \"disk_bytes\"}.",
);

const PIN_LOOKUPS: (&str, &str) = (
    "pin-lookups",
    "Answer the lookups in a dataset from one of its snapshots, and load no newer ones, until another call or a restart. Requires a \
     token with `admin = true`. Body: {\"dataset\": NAME, \"snapshot\": ID}. The snapshot \"previous\" is the one before the snapshot that answers \
     now. Without \"snapshot\", the current snapshots answer again. \
     Result: {\"dataset\", \"snapshot\", \"pinned\"}.",
);

const REPORT: (&str, &str) = (
    "report",
    "Report how a trainer spent its time since its last report. A trainer sends a report about once per second. \
     Body: {\"dataset\", \"trainer\", \"rank\", \"seconds\", \"wait_seconds\", \"compute_seconds\", \"copy_seconds\", \
     \"steps\", \"rows\", and optionally \"gpu_utilization\", 0 to 1}. \"trainer\" is a non-zero number that the trainer chooses. The DoGet calls of the trainer carry \
     the same number in the header forebay-trainer, as 16 hexadecimal digits. Result, while a stream of the trainer waits for shuffle \
     windows: {\"loading\": {\"blocks\", \"blocks_done\", \"bytes\", \"bytes_done\", \"waits_for_memory\"}}.",
);

const OPEN: (&str, &str) = (
    "open",
    "Add a dataset and list its files. Requires a server with --open-datasets, and a caller that is a process of the same user, over a \
     Unix socket. Body: {\"url\": an absolute path or a URL, \"key\": [COLUMN, ...] for lookups, \"settings\": settings that the \
     server must have, as JSON, \"credentials\": {NAME: VALUE} of the caller for the object store}. Result: as of `refresh`, with the name of the dataset.",
);

pub(super) const HELLO: (&str, &str) = (
    "hello",
    "Say who this server is. The servers of a cluster call it at each other, also while one of them is about to stop. Body: {}. \
     Result: {\"name\", \"version\", \"state\", \"zone\", \"draining\"}.",
);

const ALL: [(&str, &str); ACTIONS.len()] =
    [REFRESH, WARM, COUNT, PIN, UNPIN, DROP_CACHE, PIN_LOOKUPS, REPORT, OPEN, HELLO];

/// Returns the name and the description of every action, for `ListActions`.
pub(super) fn types() -> impl Iterator<Item = ActionType> + Send + 'static {
    ALL.into_iter().map(|(name, description)| ActionType {
        r#type: name.to_owned(),
        description: description.to_owned(),
    })
}

/// Runs an action and returns the stream of its results.
pub(super) async fn run(context: Context, access: Access, action: Action) -> Result<Results, Error> {
    let name = action.r#type.clone();
    if !ACTIONS.contains(&name.as_str()) {
        let names = ACTIONS.join(", ");
        return Err(Error::invalid(format!("unknown action '{name}', expected one of {names}")));
    }
    let is_interruptible = ![PIN_LOOKUPS.0, OPEN.0].contains(&name.as_str());
    let running = async move {
        let results = permitted(&context, &access, &name, &action.body).await;
        // The others change nothing that another caller would notice.
        if matches!(
            name.as_str(),
            "refresh" | "warm" | "pin" | "unpin" | "drop-cache" | "pin-lookups" | "open"
        ) {
            let object = dataset_of(&name, &action.body);
            audit::change(&access, &name, &object, results.as_ref().map(drop).map_err(Error::message));
        }
        results
    };
    if is_interruptible {
        return running.await;
    }
    // A caller that disconnects must not interrupt it between the change and its events.
    tokio::spawn(running).await.unwrap_or_else(|error| Err(Error::internal(error.to_string())))
}

/// Runs an action if the caller may call it.
async fn permitted(context: &Context, access: &Access, name: &str, body: &[u8]) -> Result<Results, Error> {
    access.check_action(name)?;
    match name {
        "refresh" => refresh(context, access, body).await,
        "warm" => load(context, access, body, Tier::Memory).await,
        "count-rows" => count(context, access, body).await,
        "pin" => load(context, access, body, Tier::Disk).await,
        "unpin" => unpin(context, access, body).await,
        "drop-cache" => drop_cache(context, access, body).await,
        "pin-lookups" => pin_lookups(context, access, body).await,
        "open" => open(context, access, body).await,
        "hello" => hello(context, body).await,
        _ => report(context, access, body),
    }
}

/// Name of the dataset, or its URL for `open`, in the body of an action, for the audit log.
fn dataset_of(action: &str, body: &[u8]) -> String {
    let encoding = Encoding::of(body);
    let dataset = match action {
        "refresh" => {
            encoding.decode("RefreshRequest", body).ok().map(|request: RefreshRequest| request.dataset)
        }
        "drop-cache" => {
            encoding.decode("DropCacheRequest", body).ok().map(|request: DropCacheRequest| request.dataset)
        }
        "pin-lookups" => {
            encoding.decode("PinLookupsRequest", body).ok().map(|request: PinLookupsRequest| request.dataset)
        }
        // A URL with a secret is rejected, but must not be logged.
        "open" => {
            encoding.decode("OpenRequest", body).ok().map(|request: OpenRequest| shown_url(&request.url))
        }
        _ => encoding.decode("Command", body).ok().and_then(|command: Command| Some(command.train?.dataset)),
    };
    dataset.unwrap_or_default()
}

async fn refresh(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let encoding = Encoding::of(body);
    let request: RefreshRequest = encoding.decode("RefreshRequest", body)?;
    let (reader, changed) = context.services.datasets.refresh(access, &request.dataset).await?;
    Ok(stream::iter([Ok(result(encoding, &refreshed(request.dataset, &reader, changed)))]).boxed())
}

fn refreshed(dataset: String, reader: &Reader, changed: bool) -> RefreshResult {
    let snapshot = reader.snapshot();
    let (rows, files) = (snapshot.rows(), snapshot.files().len() as u64);
    RefreshResult { dataset, snapshot: snapshot.id().to_owned(), changed, rows, files }
}

async fn open(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    access.check_owner()?;
    let encoding = Encoding::of(body);
    // The error of the decoder shows wrong values, which may be secret.
    let decoded = encoding.decode("OpenRequest", body);
    let decoded = decoded.map_err(|error| Error::invalid(without_quoted(&error.to_string())));
    let OpenRequest { url, key, settings, credentials } = decoded?;
    let Services { datasets, online, settings: running, .. } = &context.services;
    if let Some(different) = running.different(&settings)? {
        return Err(Error::invalid(format!("the running server has other settings: {different}")));
    }
    let opened = Opened { url, key };
    let (name, reader, changed) = datasets.open(access, &opened, &Credentials::new(credentials)).await?;
    if !opened.key.is_empty() {
        online.open(datasets, &name, &opened.key, reader.clone()).await?;
    }
    datasets.record(&name, &opened).await?;
    Ok(stream::iter([Ok(result(encoding, &refreshed(name, &reader, changed)))]).boxed())
}

async fn hello(context: &Context, body: &[u8]) -> Result<Results, Error> {
    let encoding = Encoding::of(body);
    let _: HelloRequest = encoding.decode("HelloRequest", body)?;
    let Services { members, drain, .. } = &context.services;
    let hello = members.hello(drain.is_leaving()).await?;
    Ok(stream::iter([Ok(result(encoding, &hello))]).boxed())
}

async fn unpin(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let requested = one_dataset(context, access, body).await?;
    context.services.loader.unpin(&requested.job)?;
    Ok(stream::empty().boxed())
}

async fn drop_cache(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let encoding = Encoding::of(body);
    let request: DropCacheRequest = encoding.decode("DropCacheRequest", body)?;
    // `None`: all datasets.
    let readers = match request.dataset.as_str() {
        "" => {
            access.check_all_datasets()?;
            None
        }
        name => Some(context.services.datasets.open_readers(access, name)?),
    };
    let is_selected = |block: u128| {
        let has_block = |reader: &Reader| reader.block_ids().block(block).is_some();
        readers.as_ref().is_none_or(|readers| readers.iter().any(has_block))
    };
    let (memory_bytes, disk_bytes) = context.services.loader.drop_cache(is_selected).await;
    let dropped = DropCacheResult { memory_bytes, disk_bytes };
    Ok(stream::iter([Ok(result(encoding, &dropped))]).boxed())
}

async fn pin_lookups(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let encoding = Encoding::of(body);
    let PinLookupsRequest { dataset, snapshot } = encoding.decode("PinLookupsRequest", body)?;
    access.check(&dataset)?;
    access.check_admin()?;
    let Services { online, datasets, .. } = &context.services;
    let progress = || online.get(&dataset).map(|online| online.progress()).unwrap_or_default();
    match snapshot.as_str() {
        "" => online.unpin(&dataset).await?,
        "previous" => {
            let previous = progress().previous.ok_or_else(|| {
                Error::precondition(format!(
                    "dataset '{dataset}': no snapshot has answered lookups before the current one since the server was started; \
                     name its id"
                ))
            })?;
            online.pin(datasets, access, &dataset, &previous).await?;
        }
        id => online.pin(datasets, access, &dataset, id).await?,
    }
    let Progress { ready, pinned, .. } = progress();
    let snapshot = ready.map(|ready| ready.snapshot).unwrap_or_default();
    let pinned = PinLookupsResult { dataset, snapshot, pinned: pinned.is_some() };
    Ok(stream::iter([Ok(result(encoding, &pinned))]).boxed())
}

fn report(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let encoding = Encoding::of(body);
    let report: ReportRequest = encoding.decode("ReportRequest", body)?;
    access.check(&report.dataset)?;
    let times = [report.seconds, report.wait_seconds, report.compute_seconds, report.copy_seconds];
    if times.iter().any(|seconds| !(0.0..=MAX_REPORT_SECONDS).contains(seconds)) {
        return Err(Error::invalid(format!(
            "seconds, wait_seconds, compute_seconds, copy_seconds: expected 0 to {MAX_REPORT_SECONDS} each"
        )));
    }
    if let Some(share) = report.gpu_utilization.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(Error::invalid(format!("gpu_utilization: is {share}, expected 0 to 1")));
    }
    // A report from a trainer without a stream on this server has no effect.
    let session = context.services.sessions.reported(&report);
    let visible = session.filter(|session| session.is_visible_to(access));
    let loading = visible.and_then(|session| session.loading());
    let waiting = loading.map(|loading| {
        let WindowLoad { blocks, blocks_done, bytes, bytes_done, waits_for_memory } = loading;
        let loading = v1::WindowLoad { blocks, blocks_done, bytes, bytes_done, waits_for_memory };
        Ok(result(encoding, &ReportResult { loading: Some(loading) }))
    });
    Ok(stream::iter(waiting).boxed())
}

async fn count(context: &Context, access: &Access, body: &[u8]) -> Result<Results, Error> {
    let (train, reader, encoding) = context.request(access, body).await?;
    let to_result = move |CountProgress { blocks, blocks_done, blocks_read, rows, rows_kept }| {
        result(encoding, &CountResult { blocks, blocks_done, blocks_read, rows, rows_kept })
    };
    let loader = context.loader(access);
    Ok(progress_stream(move |sender| async move {
        let blocks_read = AtomicU64::new(0);
        let progress = |done: CountProgress| {
            blocks_read.store(done.blocks_read, Ordering::Relaxed);
            drop(sender.try_send(Ok(to_result(done))));
        };
        let counts = loader.count(&train, &reader, &progress).await?;
        let (blocks, rows) = (reader.snapshot().blocks().len() as u64, reader.snapshot().rows());
        let rows_kept = counts.map_or(rows, |counts| counts.rows().iter().map(|rows| u64::from(*rows)).sum());
        let blocks_read = blocks_read.into_inner();
        Ok(to_result(CountProgress { blocks, blocks_done: blocks, blocks_read, rows, rows_kept }))
    }))
}

/// Cache tier into which blocks are loaded.
#[derive(Clone, Copy)]
enum Tier {
    Memory,
    Disk,
}

async fn load(context: &Context, access: &Access, body: &[u8], tier: Tier) -> Result<Results, Error> {
    let RequestedJob { job, encoding, .. } = one_dataset(context, access, body).await?;
    let to_result = move |LoadProgress { blocks, blocks_done, bytes }| {
        result(encoding, &WarmResult { blocks, blocks_done, bytes })
    };
    let loader = context.loader(access);
    Ok(progress_stream(move |sender| async move {
        let progress = |done: LoadProgress| drop(sender.try_send(Ok(to_result(done))));
        let loaded = match tier {
            Tier::Memory => loader.warm(&job, &progress).await?,
            Tier::Disk => loader.pin(&job, &progress).await?,
        };
        Ok(to_result(loaded))
    }))
}

/// Decodes a command and resolves its job. Returns an error if the job mixes several datasets.
async fn one_dataset(context: &Context, access: &Access, body: &[u8]) -> Result<RequestedJob, Error> {
    let requested = context.job(access, body).await?;
    if requested.job.train().mix.is_empty() {
        return Ok(requested);
    }
    Err(Error::invalid(
        "mix: this action takes a job with one dataset, but the job mixes several; send one request for each dataset",
    ))
}

fn result(encoding: Encoding, message: &(impl Message + Serialize)) -> ActionResult {
    ActionResult { body: encoding.encode(message).into() }
}

/// Returns a stream of the results that `work` sends as progress, followed by its final result. Dropping the stream aborts
/// the work.
fn progress_stream<F>(work: impl FnOnce(ResultSender) -> F) -> Results
where
    F: Future<Output = Result<ActionResult, Error>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(MAX_UNSENT_RESULTS);
    let working = work(sender.clone());
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        drop(sender.send(working.await.map_err(Status::from)).await);
    }));
    let results = ReceiverStream::new(receiver).map(move |result| {
        // The stream owns the task, so that dropping the stream aborts the task.
        let _ = &task;
        result
    });
    results.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_of_the_protocol_has_a_description() {
        assert_eq!(ALL.map(|(name, _)| name), ACTIONS);
    }
}
