//! A span while it lasts, and what is known of it elsewhere.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry::{
    Key, KeyValue, Value,
    trace::{Link, SpanContext, SpanKind, Status},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::time::Instant;

use super::{NONE, Shared};

/// Links that a span has at most; more are counted.
const MAX_LINKS: usize = 128;
/// Facts that others note of a span, at most.
const MAX_NOTES: usize = 16;

/// Something that goes on and is traced. It ends when it is dropped.
pub(crate) struct Span {
    trace: Trace,
    data: Option<SpanData>,
}

/// A span as those see it who do its work: they make spans within it, and say what they found. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Trace {
    shared: Arc<Shared>,
    context: SpanContext,
    notes: Arc<Mutex<Vec<KeyValue>>>,
}

impl Span {
    pub(super) fn new(
        shared: Arc<Shared>,
        name: Cow<'static, str>,
        kind: SpanKind,
        context: SpanContext,
        parent: Option<&SpanContext>,
        start: Instant,
    ) -> Self {
        let start = shared.clock.time_of(start);
        let data = SpanData {
            span_context: context.clone(),
            parent_span_id: parent.map_or(NONE, SpanContext::span_id),
            parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
            span_kind: kind,
            name,
            start_time: start,
            // Until it ends.
            end_time: start,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: shared.scope.clone(),
        };
        Self { trace: Trace { shared, context, notes: Arc::default() }, data: Some(data) }
    }

    /// For whoever does its work.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn set(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        if let Some(data) = &mut self.data {
            data.attributes.push(KeyValue::new(key, value));
        }
    }

    /// It failed, and why.
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

    /// It ends at `end`.
    pub(crate) fn end(mut self, end: Instant) {
        self.send(end);
    }

    fn send(&mut self, end: Instant) {
        let Some(mut data) = self.data.take() else { return };
        data.end_time = self.trace.shared.clock.time_of(end).max(data.start_time);
        let mut notes = self.trace.notes.lock().unwrap_or_else(PoisonError::into_inner);
        data.attributes.append(&mut notes);
        self.trace.shared.send(data);
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
    /// A span within this one, which began at `start`.
    pub(crate) fn child(&self, name: &'static str, start: Instant) -> Span {
        self.shared.span(name.into(), SpanKind::Internal, Some(&self.context), start)
    }

    /// Says of the span what turned out while its work was done.
    pub(crate) fn note(&self, key: &'static str, value: impl Into<Value>) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_NOTES {
            notes.push(KeyValue::new(key, value));
        }
    }

    /// What names it to other spans.
    pub(crate) fn context(&self) -> &SpanContext {
        &self.context
    }

    /// Puts the trace's id on the log lines of what is done within what is returned.
    pub(crate) fn log_span(&self) -> tracing::Span {
        // At the highest level, so that it is there whatever is logged.
        tracing::error_span!("call", trace_id = %self.context.trace_id())
    }
}

/// Signed, as attributes are.
pub(crate) fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}
