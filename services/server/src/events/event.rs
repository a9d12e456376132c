//! One event.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{door::Access, status};

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventKind)]
pub(crate) enum Kind {
    /// A dataset has its first snapshot.
    DatasetOpen,
    /// A dataset can't be read, or not be looked at for changes. Noted again when the reason is another one.
    DatasetFailed,
    /// A dataset has another snapshot than before.
    DatasetChanged,
    /// A stream has begun.
    SessionStarted,
    /// A stream has sent all, or its consumer has left.
    SessionEnded,
    /// A stream has ended with an error.
    SessionFailed,
    /// A queue's settings were changed while it runs.
    QueueTuned,
    /// A worker serves a queue.
    WorkerJoined,
    /// ... no more.
    WorkerLeft,
    /// The disk tier is left alone for a while, or found damaged values.
    CacheTrouble,
    /// Certificates or tokens have changed and make no sense.
    ReloadFailed,
    /// The server stops.
    Draining,
    /// What limits the trainers is another thing than before.
    VerdictChanged,
    /// The labels of a stream's batches differ from its dataset's by more than chance.
    LabelSkew,
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// As intended.
    Info,
    /// Works, but not as intended.
    Warning,
    /// Something does not work.
    Error,
}

/// Something that happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Event {
    /// Counts from 1, without gaps.
    pub(crate) id: u64,
    /// Unix seconds.
    at: f64,
    kind: Kind,
    severity: Severity,
    /// For a person.
    words: String,
    /// The dataset that it is about.
    #[schema(required)]
    dataset: Option<String>,
    /// The queue that it is about.
    #[schema(required)]
    queue: Option<String>,
    /// The session that it is about.
    #[schema(required)]
    session: Option<String>,
    #[serde(skip)]
    audience: Audience,
}

/// Who may know of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Audience {
    Everybody,
    /// Who may read all of these datasets.
    ReadersOf(Vec<String>),
    /// Who may read every dataset.
    ReadersOfAll,
}

/// What is to be noted. Unless it says otherwise, it is for those who may read every dataset.
pub(crate) struct Note {
    pub(super) kind: Kind,
    severity: Severity,
    words: String,
    dataset: Option<String>,
    queue: Option<String>,
    session: Option<String>,
    audience: Audience,
}

impl Note {
    /// In words for a person, who sees the dataset and the like beside them. What is too long loses its middle.
    pub(crate) fn new(kind: Kind, words: &str) -> Self {
        let (words, severity) = (status::clip(words), kind.severity());
        let audience = if kind == Kind::Draining { Audience::Everybody } else { Audience::ReadersOfAll };
        Self { kind, severity, words, dataset: None, queue: None, session: None, audience }
    }

    /// Of another severity than most of its kind.
    pub(crate) fn severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// About `dataset`, and for those who may read it.
    pub(crate) fn dataset(self, dataset: &str) -> Self {
        let audience = Audience::ReadersOf(vec![dataset.to_owned()]);
        Self { dataset: Some(dataset.to_owned()), audience, ..self }
    }

    /// About `queue`, and for those who may read `datasets`, all that its features are of.
    pub(crate) fn queue<'a>(self, queue: &str, datasets: impl Iterator<Item = &'a str>) -> Self {
        let audience = Audience::ReadersOf(datasets.map(str::to_owned).collect());
        Self { queue: Some(queue.to_owned()), audience, ..self }
    }

    /// About the session with this id; name its [dataset](Self::dataset), too.
    pub(crate) fn session(self, session: &str) -> Self {
        Self { session: Some(session.to_owned()), ..self }
    }

    pub(super) fn log(&self) {
        let Self { words, dataset, queue, session, .. } = self;
        let (kind, dataset) = (self.kind.name(), dataset.as_deref());
        let (queue, session) = (queue.as_deref(), session.as_deref());
        match self.severity {
            Severity::Info => tracing::info!(kind, dataset, queue, session, "{words}"),
            Severity::Warning => tracing::warn!(kind, dataset, queue, session, "{words}"),
            Severity::Error => tracing::error!(kind, dataset, queue, session, "{words}"),
        }
    }

    pub(super) fn into_event(self, id: u64, at: f64) -> Event {
        let Self { kind, severity, words, dataset, queue, session, audience } = self;
        Event { id, at, kind, severity, words, dataset, queue, session, audience }
    }
}

impl Event {
    /// Whether the caller may know of it.
    pub(super) fn is_for(&self, access: &Access) -> bool {
        match &self.audience {
            Audience::Everybody => true,
            Audience::ReadersOf(datasets) => datasets.iter().all(|dataset| access.may_read(dataset)),
            Audience::ReadersOfAll => access.check_everything().is_ok(),
        }
    }
}

impl Kind {
    /// As the API and the metrics name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DatasetOpen => "dataset_open",
            Self::DatasetFailed => "dataset_failed",
            Self::DatasetChanged => "dataset_changed",
            Self::SessionStarted => "session_started",
            Self::SessionEnded => "session_ended",
            Self::SessionFailed => "session_failed",
            Self::QueueTuned => "queue_tuned",
            Self::WorkerJoined => "worker_joined",
            Self::WorkerLeft => "worker_left",
            Self::CacheTrouble => "cache_trouble",
            Self::ReloadFailed => "reload_failed",
            Self::Draining => "draining",
            Self::VerdictChanged => "verdict_changed",
            Self::LabelSkew => "label_skew",
        }
    }

    /// Of most of its kind.
    fn severity(self) -> Severity {
        match self {
            Self::DatasetFailed | Self::ReloadFailed => Severity::Error,
            Self::SessionFailed | Self::CacheTrouble | Self::LabelSkew => Severity::Warning,
            Self::DatasetOpen
            | Self::DatasetChanged
            | Self::SessionStarted
            | Self::SessionEnded
            | Self::QueueTuned
            | Self::WorkerJoined
            | Self::WorkerLeft
            | Self::Draining
            | Self::VerdictChanged => Severity::Info,
        }
    }
}
