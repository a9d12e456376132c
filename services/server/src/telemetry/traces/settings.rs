//! Settings of traces.

use std::time::Duration;

use anyhow::{Context, ensure};
use documented::DocumentedFields;
use forebay_storage::{check_url, shown_url};
use serde::{Deserialize, Serialize};

/// Settings of traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// URL of the OTLP/gRPC collector, such as `http://127.0.0.1:4317`; `https://` requires a certificate of a public CA. Default:
    /// none, no traces.
    pub endpoint: Option<String>,
    /// Fraction (0 to 1) of the calls without a `traceparent` header that are traced. Calls with the header follow its sampled
    /// flag, up to `max_caller_sampled`. Default: 0.01.
    pub sample: f64,
    /// Maximum number of calls and lookups per second that are traced because their callers set the sampled flag. The fraction `sample`
    /// of further ones is traced. 0 ignores the flag of sampled callers. Default: 100.
    pub max_caller_sampled: u32,
    /// Maximum number of spans that wait for export; further spans are dropped and counted. A span takes about 1 KiB. Default:
    /// 8,192.
    pub max_queue: usize,
    /// Timeout of one request to the collector. Default: 5 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: None,
            sample: 0.01,
            max_caller_sampled: 100,
            max_queue: 8192,
            timeout: Duration::from_secs(5),
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(endpoint) = &self.endpoint {
            ensure!(
                endpoint.starts_with("http://") || endpoint.starts_with("https://"),
                "traces.endpoint is '{}', expected http://HOST:PORT or https://HOST:PORT",
                shown_url(endpoint)
            );
            check_url(endpoint).context("traces.endpoint")?;
        }
        ensure!(
            (0.0..=1.0).contains(&self.sample),
            "traces.sample is {}, expected a fraction from 0 to 1",
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
