//! What an operator can set about traces.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// Where traces go, and how many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Collector that speaks OTLP over gRPC, such as `http://127.0.0.1:4317`; `https://` for one with a certificate of a known
    /// authority. Default: none, and nothing is traced.
    pub endpoint: Option<String>,
    /// Share of the calls without a `traceparent` that are traced, 0 to 1; those with one are traced as it says. Default: 0.01.
    pub sample: f64,
    /// Spans that wait for the collector; what is more is dropped and counted. A span takes about 1 KiB. Default: 8,192.
    pub max_queue: usize,
    /// How long one request to the collector may take. Default: 5 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { endpoint: None, sample: 0.01, max_queue: 8192, timeout: Duration::from_secs(5) }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(endpoint) = &self.endpoint {
            ensure!(
                endpoint.starts_with("http://") || endpoint.starts_with("https://"),
                "traces.endpoint is '{endpoint}', expected http://HOST:PORT or https://HOST:PORT"
            );
        }
        ensure!(
            (0.0..=1.0).contains(&self.sample),
            "traces.sample is {}, expected a share, 0 to 1",
            self.sample
        );
        ensure!(
            (1..=1 << 20).contains(&self.max_queue),
            "traces.max_queue is {}, expected 1 to 1048576",
            self.max_queue
        );
        ensure!(!self.timeout.is_zero(), "traces.timeout is 0, expected at least 1ms");
        Ok(())
    }
}
