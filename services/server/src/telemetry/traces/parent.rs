//! Trace context of a caller, in the format of W3C Trace Context.

use std::collections::HashMap;

use opentelemetry::{
    Context,
    propagation::TextMapPropagator,
    trace::{SpanContext, TraceContextExt},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Parses the headers `traceparent` and `tracestate`.
pub(super) fn of_headers(headers: &http::HeaderMap) -> Option<SpanContext> {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    extract(value("traceparent")?, value("tracestate"))
}

/// Parses a `traceparent` value.
pub(super) fn of_text(traceparent: &str) -> Option<SpanContext> {
    if traceparent.is_empty() { None } else { extract(traceparent, None) }
}

fn extract(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let values = [("traceparent", Some(traceparent)), ("tracestate", tracestate)];
    let values = values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let values: HashMap<String, String> = values.collect();
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &values);
    let caller = context.span().span_context().clone();
    caller.is_valid().then_some(caller)
}
