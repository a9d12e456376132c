//! Table of all metrics: the source of the help texts in `/metrics`, of the histogram buckets, and of docs/reference/metrics.md.
//!
//! A test fails if a metric is recorded in the sources but not listed here, or listed but not recorded.

mod build;
mod data;
mod labels;
mod lookups;
#[cfg(test)]
mod markdown;
mod server;
mod sessions;

use metrics::{Label as Pair, Unit, describe_counter, describe_gauge, describe_histogram};

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
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

/// Condition under which a metric is absent from a scrape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Absent {
    /// Always present; counters start at 0.
    Never,
    /// Absent before this first happens.
    Before(&'static str),
    /// Absent from a server without this.
    Without(&'static str),
}

/// Values of a label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// A fixed set.
    OneOf(&'static [&'static str]),
    /// A set described in text, bounded by the configuration or the code and never by input of callers.
    Of(&'static str),
}

/// A label of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Label {
    pub(super) key: &'static str,
    pub(super) values: Values,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Unit such as `seconds`, `bytes` or `rows`; empty for counts.
    pub(super) unit: &'static str,
    pub(super) labels: &'static [Label],
    pub(super) help: &'static str,
    pub(super) absent: Absent,
}

/// Metrics of one subject.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only used in docs/reference/metrics.md"))]
    pub(super) title: &'static str,
    pub(super) metrics: &'static [Metric],
}

/// All metrics, by subject.
pub(super) const GROUPS: [Group; 9] = [
    Group { title: "Server", metrics: server::SERVER },
    Group { title: "Calls", metrics: server::CALLS },
    Group { title: "Sessions and stalls", metrics: sessions::SESSIONS },
    Group { title: "Stages and batches", metrics: data::STAGES },
    Group { title: "Cache", metrics: data::CACHE },
    Group { title: "Storage and datasets", metrics: data::STORAGE },
    Group { title: "Lookups", metrics: lookups::LOOKUPS },
    Group { title: "Batch queues", metrics: lookups::QUEUES },
    Group { title: "Process", metrics: server::PROCESS },
];

/// All metrics.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics)
}

impl Metric {
    /// Registers the metric with the recorder. Counters that are always present start at 0.
    pub(super) fn register(&self) {
        let unit = match self.unit {
            "seconds" => Unit::Seconds,
            "bytes" => Unit::Bytes,
            _ => Unit::Count,
        };
        match self.kind {
            Kind::Counter => describe_counter!(self.name, unit, self.help),
            Kind::FractionalCounter | Kind::Gauge => describe_gauge!(self.name, unit, self.help),
            Kind::Histogram(_) => describe_histogram!(self.name, unit, self.help),
        }
        if self.absent != Absent::Never {
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

#[cfg(test)]
mod tests;
