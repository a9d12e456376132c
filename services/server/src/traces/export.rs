//! The way to the collector: OTLP over gRPC, many spans at a time, with nobody waiting for it.

use std::time::Duration;

use anyhow::Context;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{RetryPolicy, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{ClientTlsConfig, Endpoint};

/// Spans of one request.
const MAX_SPANS: usize = 512;
/// How long a span waits for others.
const PAUSE: Duration = Duration::from_secs(1);

/// An exporter to `endpoint`, which connects when it has something to send.
///
/// # Errors
/// When the endpoint is none.
pub(super) fn exporter(endpoint: &str, limit: Duration) -> anyhow::Result<impl SpanExporter + 'static> {
    let described = || format!("traces.endpoint {endpoint}");
    let mut channel = Endpoint::from_shared(endpoint.to_owned()).with_context(described)?;
    if endpoint.starts_with("https://") {
        channel = channel.tls_config(ClientTlsConfig::new().with_webpki_roots()).with_context(described)?;
    }
    let channel = channel.connect_timeout(limit).timeout(limit).connect_lazy();
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_channel(channel);
    // What fails is dropped and counted: the next spans are of more interest than these.
    let exporter = exporter.with_timeout(limit).with_retry_policy(RetryPolicy::disabled()).build();
    let mut exporter = exporter.with_context(described)?;
    let resource = Resource::builder_empty().with_attributes([
        KeyValue::new("service.name", "forebay"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ]);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Sends what comes, until `ending` and nothing is left.
pub(super) async fn run(
    mut queue: mpsc::Receiver<SpanData>,
    exporter: impl SpanExporter,
    limit: Duration,
    ending: CancellationToken,
) {
    let mut fails = false;
    loop {
        let mut spans = Vec::with_capacity(MAX_SPANS);
        tokio::select! {
            biased;
            count = queue.recv_many(&mut spans, MAX_SPANS) => if count == 0 { return },
            () = ending.cancelled() => return,
        }
        // Others may come soon.
        let due = Instant::now() + PAUSE;
        while spans.len() < MAX_SPANS {
            let room = MAX_SPANS - spans.len();
            tokio::select! {
                biased;
                _ = queue.recv_many(&mut spans, room) => {}
                () = ending.cancelled() => break,
                () = sleep_until(due) => break,
            }
        }
        let count = spans.len() as u64;
        let outcome = timeout(limit, exporter.export(spans)).await;
        let error = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {limit:?}")),
        };
        match &error {
            None => metrics::counter!("forebay_traces_exported_total").increment(count),
            Some(_) => count_dropped("export", count),
        }
        // Said when it begins and when it is over.
        match (std::mem::replace(&mut fails, error.is_some()), error) {
            (false, Some(error)) => tracing::warn!(error, "the collector takes no traces"),
            (true, None) => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

/// Counts spans that nobody will see.
pub(super) fn count_dropped(reason: &'static str, count: u64) {
    metrics::counter!("forebay_traces_dropped_total", "reason" => reason).increment(count);
}
