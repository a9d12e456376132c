//! Export of spans to the collector: OTLP over gRPC, in batches, in the background.

use std::time::Duration;

use anyhow::{Context, ensure};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{RetryPolicy, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    resource::EnvResourceDetector,
    trace::{IdGenerator, RandomIdGenerator, SpanData, SpanExporter},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{ClientTlsConfig, Endpoint};

/// Largest number of spans per request.
const MAX_SPANS: usize = 512;
/// Time for which a span waits for others to be sent with.
const PAUSE: Duration = Duration::from_secs(1);

/// Creates an exporter to `endpoint`, which connects when the first spans are sent.
///
/// # Errors
/// If the endpoint is not a valid URL.
pub(super) fn exporter(endpoint: &str, limit: Duration) -> anyhow::Result<impl SpanExporter + 'static> {
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest).split('/').next();
    // Errors contain the URL.
    ensure!(
        !authority.is_some_and(|authority| authority.contains('@')),
        "traces.endpoint: a user or password in the URL is not supported"
    );
    let described = || format!("traces.endpoint {endpoint}");
    let mut channel = Endpoint::from_shared(endpoint.to_owned()).with_context(described)?;
    if endpoint.starts_with("https://") {
        channel = channel.tls_config(ClientTlsConfig::new().with_webpki_roots()).with_context(described)?;
    }
    let channel = channel.connect_timeout(limit).timeout(limit).connect_lazy();
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_channel(channel);
    // Failed requests are dropped and counted instead of retried: newer spans are more useful.
    let exporter = exporter.with_timeout(limit).with_retry_policy(RetryPolicy::disabled()).build();
    let mut exporter = exporter.with_context(described)?;
    // Attributes in the environment variable OTEL_RESOURCE_ATTRIBUTES take precedence.
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "forebay"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance_id()),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()));
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Random id of this process, in the form of a UUID of version 4.
fn instance_id() -> String {
    let mut bytes = RandomIdGenerator::default().new_trace_id().to_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

/// Sends spans until `ending` is cancelled and the queue is empty.
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
        // Wait for more spans to fill the request.
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
        // Log only the first failure and the recovery.
        match (std::mem::replace(&mut fails, error.is_some()), error) {
            (false, Some(error)) => tracing::warn!(error, "trace export failed; dropping spans"),
            (true, None) => tracing::info!("trace export recovered"),
            _ => {}
        }
    }
}

/// Counts dropped spans.
pub(super) fn count_dropped(reason: &'static str, count: u64) {
    metrics::counter!("forebay_traces_dropped_total", "reason" => reason).increment(count);
}
