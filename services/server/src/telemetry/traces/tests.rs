use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry_sdk::trace::SpanData;

use super::*;

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_TRACED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Returns traces with a queue of `max_queue` spans, and the queue. No test has as many calls as the limit of sampled callers.
fn traces(sample: f64, max_queue: usize) -> (Traces, mpsc::Receiver<SpanData>) {
    limited_traces(sample, max_queue, 1_000_000)
}

fn limited_traces(
    sample: f64,
    max_queue: usize,
    max_caller_sampled: u32,
) -> (Traces, mpsc::Receiver<SpanData>) {
    let (spans, queue) = mpsc::channel(max_queue);
    let sink = Sink {
        spans,
        sample,
        by_callers: RateLimit::new(max_caller_sampled, Instant::now()),
        scope: InstrumentationScope::builder("test").build(),
        ids: RandomIdGenerator::default(),
        clock: Clock::new(),
        ending: CancellationToken::new(),
        exporting: Mutex::default(),
    };
    (Traces { sink: Some(Arc::new(sink)) }, queue)
}

fn headers(traceparent: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static("traceparent"),
        HeaderValue::from_static(traceparent),
    )])
}

#[test]
fn a_call_continues_the_trace_of_its_caller() {
    let (traces, mut queue) = traces(0.0, 8);
    let call = traces.call("x/DoGet", &headers(CALLER)).expect("it is to be traced");
    let child = call.trace().child("batch", Instant::now());
    child.end(Instant::now());
    drop(call);
    let (child, call) = (queue.try_recv().expect("a child"), queue.try_recv().expect("the call"));
    let trace = TraceId::from(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    assert_eq!((child.span_context.trace_id(), call.span_context.trace_id()), (trace, trace));
    assert_eq!(call.parent_span_id, SpanId::from(0x00f0_67aa_0ba9_02b7));
    assert!(call.parent_span_is_remote && !child.parent_span_is_remote);
    assert_eq!(child.parent_span_id, call.span_context.span_id());
    assert!(call.start_time <= child.start_time && child.end_time <= call.end_time);
}

#[test]
fn an_unsampled_caller_is_not_traced_and_others_are_sampled_at_random() {
    for (sample, expected) in [(0.0, 0..1), (1.0, 1000..1001), (0.1, 40..200)] {
        let (traces, _queue) = traces(sample, 8);
        assert!(traces.call("x", &headers(NOT_TRACED)).is_none());
        assert!(traces.call("x", &headers(CALLER)).is_some());
        let count = (0..1000).filter(|_| traces.call("x", &HeaderMap::new()).is_some()).count();
        assert!(expected.contains(&count), "{count} of 1000 at {sample}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_cannot_have_more_calls_traced_than_the_limit_and_the_sample() {
    for (sample, beyond) in [(0.0, 0), (1.0, 1000)] {
        let (traces, _queue) = limited_traces(sample, 8, 10);
        let count = || (0..1000).filter(|_| traces.call("x", &headers(CALLER)).is_some()).count();
        let within = || (0..1000).filter(|_| traces.within("x", CALLER, None).is_some()).count();
        assert_eq!(count(), 10.max(beyond));
        tokio::time::advance(Duration::from_millis(250)).await;
        // Calls and what is done within them share the limit.
        assert_eq!([within(), count()], [2.max(beyond), beyond]);
    }
    let (traces, _queue) = limited_traces(0.0, 8, 0);
    assert!(traces.call("x", &headers(CALLER)).is_none());
}

#[test]
fn an_invalid_traceparent_is_ignored() {
    let (traces, _queue) = traces(0.0, 8);
    for wrong in ["", "00", "nonsense", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
        assert!(traces.call("x", &headers(wrong)).is_none(), "{wrong}");
        assert!(traces.within("x", wrong, None).is_none(), "{wrong}");
    }
    let call = traces.call("x", &headers(CALLER)).expect("it is to be traced");
    assert!(traces.within("x", "", Some(call.trace())).is_some());
    assert!(traces.within("x", NOT_TRACED, Some(call.trace())).is_none());
}

#[test]
fn work_for_several_requests_links_to_each() {
    let (traces, mut queue) = traces(0.0, 8);
    assert!(traces.linked("x", Vec::new(), Instant::now()).is_none());
    let requests: Vec<SpanContext> = (0..200)
        .map(|_| traces.call("x", &headers(CALLER)).expect("it is to be traced").trace().context().clone())
        .collect();
    while queue.try_recv().is_ok() {}
    drop(traces.linked("x", requests.clone(), Instant::now()));
    let span = queue.try_recv().expect("a span");
    let linked: Vec<&SpanContext> = span.links.iter().map(|link| &link.span_context).collect();
    assert_eq!(linked, requests[..128].iter().collect::<Vec<_>>());
    assert_eq!(span.links.dropped_count, 72);
}

#[test]
fn a_full_queue_drops_spans_without_blocking() {
    let (traces, mut queue) = traces(1.0, 4);
    for _ in 0..100 {
        drop(traces.call("x", &HeaderMap::new()));
    }
    assert_eq!(std::iter::from_fn(|| queue.try_recv().ok()).count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_batch_spans_its_stages() {
    let (traces, mut queue) = traces(1.0, 64);
    let call = traces.call("x", &HeaderMap::new()).expect("all are traced");
    let made = Instant::now();
    let mut batches = Batches::of(call.trace().clone());
    tokio::time::advance(Duration::from_millis(10)).await;
    batches.asked();
    tokio::time::advance(Duration::from_millis(20)).await;
    let decode = Stage { name: "decode", start: made, end: made + Duration::from_millis(5) };
    let about = forebay_proto::v1::BatchMetadata { step: 7, rows: 3, ..Default::default() };
    batches.came(&about, 99, vec![decode]);
    tokio::time::advance(Duration::from_millis(40)).await;
    drop(batches);
    let spans: Vec<SpanData> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["decode", "wait", "send", "batch"]);
    let took = |span: &SpanData| span.end_time.duration_since(span.start_time).expect("it ends later");
    assert_eq!(spans.iter().map(|span| took(span).as_millis()).collect::<Vec<_>>(), [5, 20, 40, 70]);
    let batch = spans.last().expect("there are some");
    assert!(spans[..3].iter().all(|span| span.parent_span_id == batch.span_context.span_id()));
    assert_eq!(batch.parent_span_id, call.trace().context().span_id());
}
