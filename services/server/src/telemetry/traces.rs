//! Traces of calls, exported to an OpenTelemetry collector.
//!
//! ```text
//! traceparent --> Traces::call --> Span of the call --+-- Trace: its child spans
//!                                                     |     +-- Batches: one span per batch, with its stages
//!                                                     |     +-- one span per request of a batch queue
//!                                                     v
//!                          bounded queue --> export: OTLP over gRPC, in batches of spans
//! ```
//!
//! Spans are created when they end, from times that are measured anyway, and are added to the queue of the exporter. Calls that are
//! not traced create no spans. A full queue drops spans and counts them; calls never wait for the collector.

mod batches;
mod clock;
mod export;
mod parent;
mod rate_limit;
mod settings;
mod sink;
mod span;

use std::{sync::Arc, time::Duration};

use opentelemetry::{
    InstrumentationScope,
    trace::{SpanContext, SpanKind},
};
use opentelemetry_sdk::trace::RandomIdGenerator;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use batches::{Batches, Stage};
use clock::Clock;
use rate_limit::RateLimit;
pub use settings::Settings;
use sink::Sink;
pub(crate) use span::{Span, Trace, number};

/// Sink of the spans of a server; discards them without a collector. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Traces {
    sink: Option<Arc<Sink>>,
}

impl Traces {
    /// Starts the exporter. It connects when the first span is sent and reconnects when necessary.
    ///
    /// # Errors
    /// If the endpoint is not a valid URL.
    pub(crate) fn start(settings: &Settings) -> anyhow::Result<Self> {
        let Some(endpoint) = &settings.endpoint else { return Ok(Self::default()) };
        let exporter = export::exporter(endpoint, settings.timeout)?;
        let (spans, queue) = mpsc::channel(settings.max_queue);
        let ending = CancellationToken::new();
        let exporting = export::run(queue, exporter, settings.timeout, ending.clone());
        Ok(Self {
            sink: Some(Arc::new(Sink {
                spans,
                sample: settings.sample,
                by_callers: RateLimit::new(settings.max_caller_sampled, Instant::now()),
                scope: InstrumentationScope::builder("forebay")
                    .with_version(env!("CARGO_PKG_VERSION"))
                    .build(),
                ids: RandomIdGenerator::default(),
                clock: Clock::new(),
                ending,
                exporting: Mutex::new(Some(AbortOnDropHandle::new(tokio::spawn(exporting)))),
            })),
        })
    }

    /// Starts the span of a call, if it is traced: by the sampled flag of its `traceparent`, or at random without one and above
    /// `max_caller_sampled`.
    pub(crate) fn call(&self, name: &str, headers: &http::HeaderMap) -> Option<Span> {
        let sink = self.sink.as_ref()?;
        let caller = parent::of_headers(headers);
        if !sink.traces(caller.as_ref(), Instant::now()) {
            return None;
        }
        Some(Span::start(sink, name.to_owned().into(), SpanKind::Server, caller.as_ref(), Instant::now()))
    }

    /// Starts a span with the parent `traceparent`, or with the parent `call` if `traceparent` is invalid.
    pub(crate) fn within(&self, name: &'static str, traceparent: &str, call: Option<&Trace>) -> Option<Span> {
        let sink = self.sink.as_ref()?;
        match parent::of_text(traceparent) {
            Some(caller) if !sink.traces(Some(&caller), Instant::now()) => None,
            Some(caller) => {
                Some(Span::start(sink, name.into(), SpanKind::Server, Some(&caller), Instant::now()))
            }
            None => call.map(|call| call.child(name, Instant::now())),
        }
    }

    /// Creates a span of work that began at `start`, linked to `requests`; `None` without requests.
    pub(crate) fn linked(
        &self,
        name: &'static str,
        requests: Vec<SpanContext>,
        start: Instant,
    ) -> Option<Span> {
        let sink = self.sink.as_ref()?;
        if requests.is_empty() {
            return None;
        }
        let mut span = Span::start(sink, name.into(), SpanKind::Internal, None, start);
        span.link(requests);
        Some(span)
    }

    /// Sends queued spans for at most `within`. Spans that end later are dropped.
    pub(crate) async fn flush(&self, within: Duration) {
        let Some(sink) = &self.sink else { return };
        sink.ending.cancel();
        let exporting = sink.exporting.lock().take();
        if let Some(exporting) = exporting
            && tokio::time::timeout(within, exporting).await.is_err()
        {
            tracing::warn!("trace collector did not accept the last spans within {within:?}");
        }
    }
}

#[cfg(test)]
mod tests;
