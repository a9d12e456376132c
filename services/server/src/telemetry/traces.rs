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
mod settings;
mod span;

use std::{sync::Arc, time::Duration};

use opentelemetry::{
    InstrumentationScope, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use batches::{Batches, Stage};
use clock::Clock;
pub use settings::Settings;
pub(crate) use span::{Span, Trace, number};

/// Sink of the spans of a server; discards them without a collector. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Traces {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    spans: mpsc::Sender<SpanData>,
    /// Fraction of calls without a `traceparent` that are traced, 0 to 1.
    sample: f64,
    scope: InstrumentationScope,
    ids: RandomIdGenerator,
    clock: Clock,
    /// Cancelled when no more spans are added; queued spans are then sent immediately.
    ending: CancellationToken,
    exporting: Mutex<Option<AbortOnDropHandle<()>>>,
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
            shared: Some(Arc::new(Shared {
                spans,
                sample: settings.sample,
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

    /// Starts the span of a call, if it is traced: by the sampled flag of its `traceparent`, or without one at random.
    pub(crate) fn call(&self, name: &str, headers: &http::HeaderMap) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        let caller = parent::of_headers(headers);
        if !caller.as_ref().map_or_else(|| shared.is_sampled(), SpanContext::is_sampled) {
            return None;
        }
        Some(shared.span(name.to_owned().into(), SpanKind::Server, caller.as_ref(), Instant::now()))
    }

    /// Starts a span with the parent `traceparent`, or with the parent `call` if `traceparent` is invalid.
    pub(crate) fn within(&self, name: &'static str, traceparent: &str, call: Option<&Trace>) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        match parent::of_text(traceparent) {
            Some(caller) if !caller.is_sampled() => None,
            Some(caller) => Some(shared.span(name.into(), SpanKind::Server, Some(&caller), Instant::now())),
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
        let shared = self.shared.as_ref()?;
        if requests.is_empty() {
            return None;
        }
        let mut span = shared.span(name.into(), SpanKind::Internal, None, start);
        span.link(requests);
        Some(span)
    }

    /// Sends queued spans for at most `within`. Spans that end later are dropped.
    pub(crate) async fn flush(&self, within: Duration) {
        let Some(shared) = &self.shared else { return };
        shared.ending.cancel();
        let exporting = shared.exporting.lock().take();
        if let Some(exporting) = exporting
            && tokio::time::timeout(within, exporting).await.is_err()
        {
            tracing::warn!("trace collector did not accept the last spans within {within:?}");
        }
    }
}

impl Shared {
    fn is_sampled(&self) -> bool {
        // A uniformly distributed multiple of 2^-53.
        let chance =
            (u64::from_be_bytes(self.ids.new_span_id().to_bytes()) >> 11) as f64 / (1_u64 << 53) as f64;
        chance < self.sample
    }

    fn span(
        self: &Arc<Self>,
        name: std::borrow::Cow<'static, str>,
        kind: SpanKind,
        parent: Option<&SpanContext>,
        start: Instant,
    ) -> Span {
        let trace = parent.map_or_else(|| self.ids.new_trace_id(), SpanContext::trace_id);
        let state = parent.map_or_else(TraceState::default, |parent| parent.trace_state().clone());
        let context = self.context(trace, state);
        Span::new(Arc::clone(self), name, kind, context, parent, start)
    }

    fn context(&self, trace: TraceId, state: TraceState) -> SpanContext {
        SpanContext::new(trace, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state)
    }

    /// Queues a completed span.
    fn send(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            export::count_dropped("queue", 1);
        }
    }
}

/// Parent of a root span.
const NONE: SpanId = SpanId::INVALID;

#[cfg(test)]
mod tests;
