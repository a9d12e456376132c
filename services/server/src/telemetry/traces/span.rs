//! Open spans, and handles to them for child spans.

use std::{borrow::Cow, sync::Arc};

use opentelemetry::{
    Key, KeyValue, SpanId, Value,
    trace::{Link, SpanContext, SpanKind, Status},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::sink::Sink;

/// Largest number of links of a span; further links are counted.
const MAX_LINKS: usize = 128;
/// Largest number of attributes set through handles of a span.
const MAX_NOTES: usize = 16;

/// An open span. Dropping it ends the span.
pub(crate) struct Span {
    trace: Trace,
    data: Option<SpanData>,
}

/// Handle to an open span, which creates child spans and sets attributes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Trace {
    sink: Arc<Sink>,
    context: SpanContext,
    notes: Arc<Mutex<Vec<KeyValue>>>,
}

impl Span {
    /// Starts a span that began at `start`.
    pub(super) fn start(
        sink: &Arc<Sink>,
        name: Cow<'static, str>,
        kind: SpanKind,
        parent: Option<&SpanContext>,
        start: Instant,
    ) -> Self {
        let (context, start) = (sink.context(parent), sink.clock.time_of(start));
        let data = SpanData {
            span_context: context.clone(),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
            span_kind: kind,
            name,
            start_time: start,
            // Replaced when the span ends.
            end_time: start,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: sink.scope.clone(),
        };
        let trace = Trace { sink: Arc::clone(sink), context, notes: Arc::default() };
        Self { trace, data: Some(data) }
    }

    /// Returns a handle to the span.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn set(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        if let Some(data) = &mut self.data {
            data.attributes.push(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed with a reason.
    pub(crate) fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(data) = &mut self.data {
            data.status = Status::error(why);
        }
    }

    pub(super) fn link(&mut self, contexts: Vec<SpanContext>) {
        let Some(data) = &mut self.data else { return };
        let more = contexts.len().saturating_sub(MAX_LINKS);
        data.links.dropped_count = u32::try_from(more).unwrap_or(u32::MAX);
        data.links.links = contexts.into_iter().take(MAX_LINKS).map(Link::with_context).collect();
    }

    /// Ends the span at `end`.
    pub(crate) fn end(mut self, end: Instant) {
        self.send(end);
    }

    fn send(&mut self, end: Instant) {
        let Some(mut data) = self.data.take() else { return };
        data.end_time = self.trace.sink.clock.time_of(end).max(data.start_time);
        data.attributes.append(&mut self.trace.notes.lock());
        self.trace.sink.send(data);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.data.is_some() {
            self.send(Instant::now());
        }
    }
}

impl Trace {
    /// Starts a child span that began at `start`.
    pub(crate) fn child(&self, name: &'static str, start: Instant) -> Span {
        Span::start(&self.sink, name.into(), SpanKind::Internal, Some(&self.context), start)
    }

    /// Sets an attribute of the span.
    pub(crate) fn note(&self, key: &'static str, value: impl Into<Value>) {
        let mut notes = self.notes.lock();
        if notes.len() < MAX_NOTES {
            notes.push(KeyValue::new(key, value));
        }
    }

    /// Returns the context that identifies the span to other spans.
    pub(crate) fn context(&self) -> &SpanContext {
        &self.context
    }

    /// Returns a log span that adds the trace id to log lines within it.
    pub(crate) fn log_span(&self) -> tracing::Span {
        // At the highest level, so that it is enabled with every log filter.
        tracing::error_span!("call", trace_id = %self.context.trace_id())
    }
}

/// Converts to the signed integer type of attributes.
pub(crate) fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}
