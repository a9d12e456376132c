//! A single event.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{auth::Access, error::clip};

/// Kind of an event. `dataset_open`: a dataset was opened; `dataset_failed`: a dataset cannot be opened or checked for changes, or
/// the reason of that has changed; `dataset_changed`: a dataset has a new snapshot; `session_started`: a session opened its first
/// stream; `session_ended`: a session sent all batches, or its client disconnected; `session_failed`: a session ended with an
/// error; `snapshot_rejected`: a new snapshot breaks a rule of the canary and does not answer lookups; `snapshot_pinned`: lookups are
/// answered from one snapshot; `snapshot_unpinned`: lookups are answered from the current snapshots again;
/// `lookups_outdated`: the current snapshot of a dataset cannot be loaded for lookups, the reason has changed, or lookups follow the
/// dataset again;
/// `queue_settings_changed`: the settings of a queue were changed at run time; `worker_joined`: a worker connected to a queue;
/// `worker_left`: a worker disconnected from a queue; `worker_suspended`: a worker failed batches that other workers computed, and
/// receives none for a while; `worker_overdue`: a worker has not answered a batch in several times its predicted time, and receives none
/// until it answers; `worker_answering`: a worker answered after it was overdue; `cache_error`: the disk cache has damaged values, failed reads or failed
/// writes; `reload_failed`: changed certificates or tokens are invalid, and the server keeps the previous ones; `draining`: the
/// server is shutting down; `member_joined`: another server of the cluster answered; `member_left`: a server is no longer a member
/// of the cluster; `member_draining`: a member started or stopped draining; `member_refused`: the server at an address in the
/// member list cannot be a member, for example because it has another state; `member_list_held`: a new member list lacks more than
/// half of the previous addresses and is not adopted yet; `member_list_adopted`: a member list that was not adopted before is
/// adopted, or the member list can be read again; `member_list_failed`: the member list can't be read or is too long, and the
/// server uses the last valid list; `bottleneck_changed`: the bottleneck of the trainers changed; `label_skew`: the mean label of a
/// session's batches varies by more than chance explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventKind)]
pub(crate) enum Kind {
    DatasetOpen,
    DatasetFailed,
    DatasetChanged,
    SessionStarted,
    SessionEnded,
    SessionFailed,
    SnapshotRejected,
    SnapshotPinned,
    SnapshotUnpinned,
    LookupsOutdated,
    QueueSettingsChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspended,
    WorkerOverdue,
    WorkerAnswering,
    CacheError,
    ReloadFailed,
    Draining,
    MemberJoined,
    MemberLeft,
    MemberDraining,
    MemberRefused,
    MemberListHeld,
    MemberListAdopted,
    MemberListFailed,
    BottleneckChanged,
    LabelSkew,
}

/// Severity of an event. `info`: normal operation; `warning`: degraded operation; `error`: a function is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
}

/// An operational event.
#[derive(Serialize, ToSchema)]
pub(crate) struct Event {
    /// Sequence number, consecutive from 1 since the start of the server.
    pub(crate) id: u64,
    /// Time of the event, in Unix seconds.
    pub(super) timestamp: f64,
    /// Kind of the event.
    pub(super) kind: Kind,
    /// Severity of the event.
    severity: Severity,
    /// Description of the event, in one sentence.
    message: String,
    /// Name of the dataset concerned; null for other events.
    #[schema(required)]
    dataset: Option<String>,
    /// Name of the queue concerned; null for other events.
    #[schema(required)]
    queue: Option<String>,
    /// Identifier of the session concerned, 16 hexadecimal digits; null for other events.
    #[schema(required)]
    session: Option<String>,
    #[serde(skip)]
    pub(super) audience: Audience,
}

/// Callers that may see an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Audience {
    Everyone,
    /// Callers that may read all of these datasets.
    ReadersOf(Vec<String>),
    /// Callers that may read every dataset.
    ReadersOfAll,
}

impl Event {
    /// Creates an event with a message. The dashboard shows dataset, queue and session next to the message. A message that is
    /// too long is shortened in the middle. By default the event is visible to callers that may read every dataset.
    /// Recording it sets its id and its time.
    pub(crate) fn new(kind: Kind, message: &str) -> Self {
        // Names of jobs may contain line breaks, which would forge lines of the log.
        let message = message.replace(char::is_control, " ");
        let (message, severity) = (clip(&message), kind.severity());
        let audience = if kind == Kind::Draining { Audience::Everyone } else { Audience::ReadersOfAll };
        let (dataset, queue, session) = (None, None, None);
        Self { id: 0, timestamp: 0.0, kind, severity, message, dataset, queue, session, audience }
    }

    /// Overrides the default severity of the kind.
    pub(crate) fn severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// Sets the dataset and makes the event visible to callers that may read it.
    pub(crate) fn dataset(self, dataset: &str) -> Self {
        let audience = Audience::ReadersOf(vec![dataset.to_owned()]);
        Self { dataset: Some(dataset.to_owned()), audience, ..self }
    }

    /// Sets the first of some datasets, and makes the event visible to callers that may read all of them.
    pub(crate) fn datasets<'a>(self, datasets: impl Iterator<Item = &'a str>) -> Self {
        let datasets: Vec<String> = datasets.map(str::to_owned).collect();
        Self { dataset: datasets.first().cloned(), audience: Audience::ReadersOf(datasets), ..self }
    }

    /// Sets the queue and makes the event visible to callers that may read all `datasets` of its features.
    pub(crate) fn queue<'a>(self, queue: &str, datasets: impl Iterator<Item = &'a str>) -> Self {
        let audience = Audience::ReadersOf(datasets.map(str::to_owned).collect());
        Self { queue: Some(queue.to_owned()), audience, ..self }
    }

    /// Sets the session id. Also set its [dataset](Self::dataset), which controls visibility.
    pub(crate) fn session(self, session: &str) -> Self {
        Self { session: Some(session.to_owned()), ..self }
    }

    pub(super) fn log(&self) {
        let Self { message, dataset, queue, session, .. } = self;
        let (kind, dataset) = (self.kind.name(), dataset.as_deref());
        let (queue, session) = (queue.as_deref(), session.as_deref());
        match self.severity {
            Severity::Info => tracing::info!(kind, dataset, queue, session, "{message}"),
            Severity::Warning => tracing::warn!(kind, dataset, queue, session, "{message}"),
            Severity::Error => tracing::error!(kind, dataset, queue, session, "{message}"),
        }
    }

    /// True if the caller may see the event.
    pub(super) fn is_visible_to(&self, access: &Access) -> bool {
        match &self.audience {
            Audience::Everyone => true,
            Audience::ReadersOf(datasets) => datasets.iter().all(|dataset| access.may_read(dataset)),
            Audience::ReadersOfAll => access.check_all_datasets().is_ok(),
        }
    }
}

impl Kind {
    /// Returns the name in the API and in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DatasetOpen => "dataset_open",
            Self::DatasetFailed => "dataset_failed",
            Self::DatasetChanged => "dataset_changed",
            Self::SessionStarted => "session_started",
            Self::SessionEnded => "session_ended",
            Self::SessionFailed => "session_failed",
            Self::SnapshotRejected => "snapshot_rejected",
            Self::SnapshotPinned => "snapshot_pinned",
            Self::SnapshotUnpinned => "snapshot_unpinned",
            Self::LookupsOutdated => "lookups_outdated",
            Self::QueueSettingsChanged => "queue_settings_changed",
            Self::WorkerJoined => "worker_joined",
            Self::WorkerLeft => "worker_left",
            Self::WorkerSuspended => "worker_suspended",
            Self::WorkerOverdue => "worker_overdue",
            Self::WorkerAnswering => "worker_answering",
            Self::CacheError => "cache_error",
            Self::ReloadFailed => "reload_failed",
            Self::Draining => "draining",
            Self::MemberJoined => "member_joined",
            Self::MemberLeft => "member_left",
            Self::MemberDraining => "member_draining",
            Self::MemberRefused => "member_refused",
            Self::MemberListAdopted => "member_list_adopted",
            Self::MemberListHeld => "member_list_held",
            Self::MemberListFailed => "member_list_failed",
            Self::BottleneckChanged => "bottleneck_changed",
            Self::LabelSkew => "label_skew",
        }
    }

    /// Returns the default severity.
    fn severity(self) -> Severity {
        match self {
            Self::DatasetFailed | Self::ReloadFailed => Severity::Error,
            Self::SessionFailed
            | Self::SnapshotRejected
            | Self::LookupsOutdated
            | Self::WorkerSuspended
            | Self::WorkerOverdue
            | Self::CacheError
            | Self::LabelSkew
            | Self::MemberRefused
            | Self::MemberListHeld
            | Self::MemberListFailed => Severity::Warning,
            Self::DatasetOpen
            | Self::DatasetChanged
            | Self::SessionStarted
            | Self::SessionEnded
            | Self::SnapshotPinned
            | Self::SnapshotUnpinned
            | Self::QueueSettingsChanged
            | Self::WorkerJoined
            | Self::WorkerLeft
            | Self::WorkerAnswering
            | Self::Draining
            | Self::MemberJoined
            | Self::MemberLeft
            | Self::MemberDraining
            | Self::MemberListAdopted
            | Self::BottleneckChanged => Severity::Info,
        }
    }
}
