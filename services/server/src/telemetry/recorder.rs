//! The process-wide metrics recorder and its Prometheus output.

use anyhow::Context;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;

use super::catalog::{Kind, Metric, metrics};

/// Returns the recorder of the process. The first call installs it; later servers of the process share it.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = RECORDER.lock();
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let mut builder = PrometheusBuilder::new();
    for metric in metrics() {
        if let Kind::Histogram(bounds) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    let recorder = builder.install_recorder().context("cannot install the metrics recorder")?;
    metrics().for_each(Metric::register);
    gauge!("forebay_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(installed.insert(recorder).clone())
}

/// Renders all metrics in the Prometheus text format.
pub(crate) fn render(recorder: &PrometheusHandle) -> String {
    let mut text = recorder.render();
    for metric in metrics().filter(|metric| metric.kind == Kind::FractionalCounter) {
        // The recorder stores them as gauges.
        let line = |kind| format!("# TYPE {} {kind}\n", metric.name);
        text = text.replacen(&line("gauge"), &line("counter"), 1);
    }
    text
}
