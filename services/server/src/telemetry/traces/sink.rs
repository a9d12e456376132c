//! The queue of spans that wait for export, and what all spans of a server share.

use opentelemetry::{
    InstrumentationScope, TraceFlags,
    trace::{SpanContext, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{clock::Clock, export::count_dropped, rate_limit::RateLimit};

/// Sink of the spans of a server with a collector.
pub(super) struct Sink {
    pub(super) spans: mpsc::Sender<SpanData>,
    /// Fraction of calls without a `traceparent` that are traced, 0 to 1.
    pub(super) sample: f64,
    /// Limit of the calls whose callers decide that they are traced.
    pub(super) by_callers: RateLimit,
    pub(super) scope: InstrumentationScope,
    pub(super) ids: RandomIdGenerator,
    pub(super) clock: Clock,
    /// Cancelled when no more spans are added; queued spans are then sent immediately.
    pub(super) ending: CancellationToken,
    pub(super) exporting: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Sink {
    /// Decides whether a call with the `traceparent` `caller` is traced: as its caller says, or at random without one and above
    /// the limit.
    pub(super) fn traces(&self, caller: Option<&SpanContext>, now: Instant) -> bool {
        match caller {
            Some(caller) if !caller.is_sampled() => false,
            Some(_) if self.by_callers.allows(now) => true,
            Some(_) | None => self.is_sampled(),
        }
    }

    /// Decides at random whether a call without a `traceparent` is traced.
    fn is_sampled(&self) -> bool {
        // A uniformly distributed multiple of 2^-53.
        let chance =
            (u64::from_be_bytes(self.ids.new_span_id().to_bytes()) >> 11) as f64 / (1_u64 << 53) as f64;
        chance < self.sample
    }

    /// Creates the context of a span with this parent, or of a root span.
    pub(super) fn context(&self, parent: Option<&SpanContext>) -> SpanContext {
        let trace = parent.map_or_else(|| self.ids.new_trace_id(), SpanContext::trace_id);
        let state = parent.map_or_else(TraceState::default, |parent| parent.trace_state().clone());
        SpanContext::new(trace, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state)
    }

    /// Queues a completed span.
    pub(super) fn send(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            count_dropped("queue", 1);
        }
    }
}
