//! Trace context of a caller, in the format of W3C Trace Context.

use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
    trace::{SpanContext, TraceContextExt},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Parses the headers `traceparent` and `tracestate`.
pub(super) fn of_headers(headers: &http::HeaderMap) -> Option<SpanContext> {
    headers.get("traceparent")?;
    extract(&Headers(headers))
}

/// Parses a `traceparent` value.
pub(super) fn of_text(traceparent: &str) -> Option<SpanContext> {
    (!traceparent.is_empty()).then(|| extract(&Text(traceparent))).flatten()
}

fn extract(from: &dyn Extractor) -> Option<SpanContext> {
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), from);
    let caller = context.span().span_context().clone();
    caller.is_valid().then_some(caller)
}

struct Headers<'a>(&'a http::HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

struct Text<'a>(&'a str);

impl Extractor for Text<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}
