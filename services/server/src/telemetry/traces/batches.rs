//! Spans of the batches of a stream, from the first work for a batch until its bytes were passed to the transport.

use forebay_proto::v1::BatchMetadata;
use tokio::time::Instant;

use super::{Trace, span::number};

/// One stage of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    /// `window` (waiting for rows), `storage` or `decode` within it, `gather`, `wait` or `send`.
    pub(crate) name: &'static str,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// Batches of one traced stream.
pub(crate) struct Batches {
    stream: Trace,
    asked: Instant,
    /// Batch whose bytes are being sent.
    sending: Option<Sending>,
}

struct Sending {
    about: BatchMetadata,
    bytes: u64,
    stages: Vec<Stage>,
    since: Instant,
}

impl Batches {
    /// Creates the batches of the stream with this call.
    pub(crate) fn of(stream: Trace) -> Self {
        Self { stream, asked: Instant::now(), sending: None }
    }

    /// Records that the next batch is requested, which means that the previous one was sent completely.
    pub(crate) fn asked(&mut self) {
        self.asked = Instant::now();
        self.sent(self.asked);
    }

    /// Records that the batch is ready after `stages`, with `bytes` bytes. The wait began with its request.
    pub(crate) fn came(&mut self, about: &BatchMetadata, bytes: u64, mut stages: Vec<Stage>) {
        let since = Instant::now();
        stages.push(Stage { name: "wait", start: self.asked, end: since });
        self.sending = Some(Sending { about: about.clone(), bytes, stages, since });
    }

    fn sent(&mut self, now: Instant) {
        let Some(Sending { about, bytes, mut stages, since }) = self.sending.take() else { return };
        stages.push(Stage { name: "send", start: since, end: now });
        let start = stages.iter().map(|stage| stage.start).min().unwrap_or(since);
        let end = stages.iter().map(|stage| stage.end).max().unwrap_or(now);
        let mut span = self.stream.child("batch", start);
        span.set("forebay.epoch", number(about.epoch));
        span.set("forebay.step", number(about.step));
        span.set("forebay.rank", number(about.rank));
        span.set("forebay.rows", number(about.rows));
        span.set("forebay.bytes", number(bytes));
        for stage in &stages {
            span.trace().child(stage.name, stage.start).end(stage.end);
        }
        span.end(end);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.sent(Instant::now());
    }
}
