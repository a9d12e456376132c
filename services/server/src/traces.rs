//! Traces: what a call waited for, as OpenTelemetry sees it.
//!
//! ```text
//! traceparent --> Traces::call --> Span of the call --+-- Trace: its children, from wherever the call's work is done
//!                                                     |     +-- Batches: a span for each batch, with its stages
//!                                                     |     +-- a span for each request of a batch queue
//!                                                     v
//!                          bounded queue --> export: OTLP over gRPC, some hundred spans at a time
//! ```
//!
//! Spans are made when they have ended, with the times that were taken anyway, and go straight to the exporter's queue: what is not
//! traced makes none, and a server without a collector asks nothing but whether it has one. A queue that is full drops spans and
//! counts them; nobody ever waits for a collector.

mod batches;
mod clock;
mod export;
mod parent;
mod settings;
mod span;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use opentelemetry::{
    InstrumentationScope, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use batches::{Batches, Stage};
use clock::Clock;
pub use settings::Settings;
pub(crate) use span::{Span, Trace, number};

/// Where the spans of a server go; none, if it has no collector. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Traces {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    spans: mpsc::Sender<SpanData>,
    /// Share of the calls whose callers leave it open that are traced.
    sample: f64,
    scope: InstrumentationScope,
    ids: RandomIdGenerator,
    clock: Clock,
    /// No more spans come; what is queued is sent at once.
    ending: CancellationToken,
    exporting: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Traces {
    /// Those of a server with these settings. Connects with the first span, and again whenever that is needed.
    ///
    /// # Errors
    /// When the endpoint is none.
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

    /// The span of a call that begins now, if it is traced: as its `traceparent` says, or, without one, by chance.
    pub(crate) fn call(&self, name: &str, headers: &http::HeaderMap) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        let caller = parent::of_headers(headers);
        if !caller.as_ref().map_or_else(|| shared.is_sampled(), SpanContext::is_sampled) {
            return None;
        }
        Some(shared.span(name.to_owned().into(), SpanKind::Server, caller.as_ref(), Instant::now()))
    }

    /// The span of something that begins now, within what `traceparent` names; if that is no such name, within `call`.
    pub(crate) fn within(&self, name: &'static str, traceparent: &str, call: Option<&Trace>) -> Option<Span> {
        let shared = self.shared.as_ref()?;
        match parent::of_text(traceparent) {
            Some(caller) if !caller.is_sampled() => None,
            Some(caller) => Some(shared.span(name.into(), SpanKind::Server, Some(&caller), Instant::now())),
            None => call.map(|call| call.child(name, Instant::now())),
        }
    }

    /// The span of work that began at `start`, for all of `requests` together; none if there are none.
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

    /// Sends what is queued, for at most so long. Spans that end later are dropped.
    pub(crate) async fn flush(&self, within: Duration) {
        let Some(shared) = &self.shared else { return };
        shared.ending.cancel();
        let exporting = shared.exporting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(exporting) = exporting
            && tokio::time::timeout(within, exporting).await.is_err()
        {
            tracing::warn!("the collector of traces did not take the last spans within {within:?}");
        }
    }
}

impl Shared {
    fn is_sampled(&self) -> bool {
        // Every 2^53rd is as likely as any other.
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

    /// Queues a span that has ended.
    fn send(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            export::count_dropped("queue", 1);
        }
    }
}

/// No parent.
const NONE: SpanId = SpanId::INVALID;

#[cfg(test)]
mod tests;
