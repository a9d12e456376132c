//! Constructors of metrics for the tables.

use super::metric::{Absent, Kind, Label, Metric};

/// Bounds of most histograms of seconds: 100 us to 100 s, two per decade.
pub(super) const SECONDS: &[f64] =
    &[1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// Bounds of histograms of latencies (lookups, queues): 10 us to 10 s, eight per decade.
pub(super) const LATENCIES: &[f64] = &[
    1.0e-5, 1.3e-5, 1.8e-5, 2.4e-5, 3.2e-5, 4.2e-5, 5.6e-5, 7.5e-5, 1.0e-4, 1.3e-4, 1.8e-4, 2.4e-4, 3.2e-4,
    4.2e-4, 5.6e-4, 7.5e-4, 1.0e-3, 1.3e-3, 1.8e-3, 2.4e-3, 3.2e-3, 4.2e-3, 5.6e-3, 7.5e-3, 0.010, 0.013,
    0.018, 0.024, 0.032, 0.042, 0.056, 0.075, 0.10, 0.13, 0.18, 0.24, 0.32, 0.42, 0.56, 0.75, 1.0, 1.3, 1.8,
    2.4, 3.2, 4.2, 5.6, 7.5, 10.0,
];

/// Bounds of histograms of rows.
pub(super) const ROWS: &[f64] =
    &[1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

const fn metric(name: &'static str, kind: Kind, unit: &'static str, help: &'static str) -> Metric {
    Metric { name, kind, unit, labels: &[], help, absent: Absent::Never }
}

/// Returns a counter of integers.
pub(super) const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(name, Kind::Counter, "", help)
}

/// Returns a counter of numbers with a fraction.
pub(super) const fn sum(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    metric(name, Kind::FractionalCounter, unit, help)
}

/// Returns a gauge.
pub(super) const fn gauge(name: &'static str, help: &'static str) -> Metric {
    metric(name, Kind::Gauge, "", help)
}

/// Returns a histogram, which is absent before the first value.
pub(super) const fn histogram(
    name: &'static str,
    unit: &'static str,
    bounds: &'static [f64],
    help: &'static str,
) -> Metric {
    metric(name, Kind::Histogram(bounds), unit, help)
}

impl Metric {
    pub(super) const fn of(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    pub(super) const fn before(self, what: &'static str) -> Self {
        Self { absent: Absent::Before(what), ..self }
    }

    pub(super) const fn without(self, what: &'static str) -> Self {
        Self { absent: Absent::Without(what), ..self }
    }
}
