//! Resources that callers share, their limits, and the part of each that remains for others.

use forebay_inference::queue::Priority;

use crate::settings::Limits;

/// Resources that callers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Open streams of training batches.
    Streams,
    /// Open DoExchange streams of lookups and of callers of queues.
    Exchanges,
    /// Open DoExchange streams of workers of queues.
    Workers,
    /// Calls that are not in the other groups. Every call is one until its kind is known.
    Calls,
    /// Subscribers of `/api/v1/live`.
    Subscribers,
    /// Bytes of requests until they are complete. A message of a DoExchange stream counts until the server asks for the next one.
    IncomingBytes,
    /// Bytes of replies of workers until they are complete, and what decoding them takes in addition. They have a limit of their own:
    /// requests wait for replies, so that replies must not wait for requests, nor take what requests of other callers may have.
    ReplyBytes,
    /// Bytes of answers that clients have not received, of requests that wait in batch queues, and of large requests of open lookup
    /// streams.
    UnsentBytes,
}

impl Resource {
    pub(super) const ALL: [Self; 8] = [
        Self::Streams,
        Self::Exchanges,
        Self::Workers,
        Self::Calls,
        Self::Subscribers,
        Self::IncomingBytes,
        Self::ReplyBytes,
        Self::UnsentBytes,
    ];

    /// Name in metrics and in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Exchanges => "exchanges",
            Self::Workers => "workers",
            Self::Calls => "calls",
            Self::Subscribers => "subscribers",
            Self::IncomingBytes => "incoming_bytes",
            Self::ReplyBytes => "reply_bytes",
            Self::UnsentBytes => "unsent_bytes",
        }
    }

    /// Setting of the limit, and its value.
    pub(super) fn limit(self, limits: &Limits) -> (&'static str, u64) {
        match self {
            Self::Streams => ("limits.max_streams", limits.max_streams as u64),
            Self::Exchanges => ("limits.max_exchanges", limits.max_exchanges as u64),
            Self::Workers => ("limits.max_workers", limits.max_workers as u64),
            Self::Calls => ("limits.max_calls", limits.max_calls as u64),
            Self::Subscribers => ("limits.max_live_subscribers", limits.max_live_subscribers as u64),
            Self::IncomingBytes | Self::ReplyBytes => {
                ("limits.max_incoming_bytes", limits.max_incoming_bytes)
            }
            Self::UnsentBytes => ("limits.max_unsent_bytes", limits.max_unsent_bytes),
        }
    }
}

/// Rule for the part of a resource that remains for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserve {
    /// An eighth of the limit.
    Normal,
    /// Half of the limit, and an eighth of the other half.
    Low,
    /// A sixteenth of the limit.
    Small,
}

impl Reserve {
    /// Returns the amount that all callers together may hold, and how much of this amount is only for callers that hold nothing.
    pub(super) fn of(self, limit: u64) -> (u64, u64) {
        match self {
            Self::Normal => (limit, limit / 8),
            Self::Low => (limit / 2, limit / 2 / 8),
            Self::Small => (limit, limit / 16),
        }
    }
}

impl From<Priority> for Reserve {
    fn from(priority: Priority) -> Self {
        if priority == Priority::Low { Self::Low } else { Self::Normal }
    }
}
