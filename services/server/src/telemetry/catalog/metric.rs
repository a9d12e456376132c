//! One metric of the catalog.

use metrics::{Label as Pair, Unit, describe_counter, describe_gauge, describe_histogram};

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

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Monotonic integer.
    Counter,
    /// Monotonic number with a fraction, such as seconds. The recorder's counters are integers, so these are recorded with
    /// `gauge!(..).increment(..)` and exposed as counters.
    FractionalCounter,
    /// Value that rises and falls.
    Gauge,
    /// Distribution over buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// Values of a label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// A fixed set.
    OneOf(&'static [&'static str]),
    /// A set described in text, bounded by the configuration or the code and never by input of callers.
    Of(&'static str),
}

/// A label of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Label {
    pub(crate) key: &'static str,
    pub(crate) values: Values,
    /// Meaning of each value of a fixed set, in the order of the values; empty for a value that needs no explanation. May be
    /// shorter than the set.
    pub(crate) meanings: &'static [&'static str],
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) labels: &'static [Label],
    /// Condition under which the metric is absent from a scrape, such as `before the first batch`; empty if it is always present.
    pub(crate) absent: &'static str,
    pub(crate) help: &'static str,
}

impl Metric {
    /// Unit at the end of the name: `seconds`, `bytes` or `rows`; empty for counts.
    pub(crate) fn unit(&self) -> &'static str {
        let name = self.name.trim_end_matches("_total");
        ["seconds", "bytes", "rows"].into_iter().find(|unit| name.ends_with(unit)).unwrap_or("")
    }

    /// Registers the metric with the recorder. Counters that are always present start at 0.
    pub(crate) fn register(&self) {
        let unit = match self.unit() {
            "seconds" => Unit::Seconds,
            "bytes" => Unit::Bytes,
            _ => Unit::Count,
        };
        match self.kind {
            Kind::Counter => describe_counter!(self.name, unit, self.help),
            Kind::FractionalCounter | Kind::Gauge => describe_gauge!(self.name, unit, self.help),
            Kind::Histogram(_) => describe_histogram!(self.name, unit, self.help),
        }
        if !self.absent.is_empty() {
            return;
        }
        for labels in self.all_labels() {
            match self.kind {
                Kind::Counter => metrics::counter!(self.name, labels).increment(0),
                Kind::FractionalCounter => metrics::gauge!(self.name, labels).increment(0.0),
                Kind::Gauge | Kind::Histogram(_) => {}
            }
        }
    }

    /// Returns all combinations of label values; none if the values of a label are not a fixed set.
    fn all_labels(&self) -> Vec<Vec<Pair>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let Values::OneOf(values) = label.values else { return Vec::new() };
            let with = |labels: &Vec<Pair>, value: &'static str| {
                let pair = Pair::from_static_parts(label.key, value);
                labels.iter().cloned().chain([pair]).collect()
            };
            all = all.iter().flat_map(|labels| values.iter().map(|value| with(labels, value))).collect();
        }
        all
    }
}
