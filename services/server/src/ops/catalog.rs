//! All metrics of the server, in one table: what `/metrics` describes, how histograms are cut, and docs/metrics.md.
//!
//! A metric that is counted anywhere in the sources and is not here, or the other way round, fails a test.

mod build;
mod data;
mod labels;
#[cfg(test)]
mod markdown;
mod online;
mod server;
mod sessions;

use metrics::{Label as Pair, Unit, describe_counter, describe_gauge, describe_histogram};

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Whole numbers that only grow.
    Counter,
    /// Numbers with a fraction that only grow, such as seconds. The recorder's counters are whole, so these are recorded
    /// with `gauge!(..).increment(..)`, and shown as the counters that they are.
    FractionalCounter,
    /// A value that comes and goes.
    Gauge,
    /// Values in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// When there is nothing of a metric to be seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Absent {
    /// Never: it is there from the start, a counter with zeros.
    Never,
    /// Before this has happened for the first time.
    Before(&'static str),
    /// In a server without this.
    Without(&'static str),
}

/// The values that a label can have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// These.
    OneOf(&'static [&'static str]),
    /// What this says, which is bounded by the settings or the code, and never by what callers send.
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
    /// `seconds`, `bytes`, `rows` and so on; empty for what is counted.
    pub(super) unit: &'static str,
    pub(super) labels: &'static [Label],
    pub(super) help: &'static str,
    pub(super) absent: Absent,
}

/// Metrics of one subject.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page shows it"))]
    pub(super) title: &'static str,
    pub(super) metrics: &'static [Metric],
}

/// All metrics, by subject.
pub(super) const GROUPS: [Group; 9] = [
    Group { title: "The server", metrics: server::SERVER },
    Group { title: "Calls", metrics: server::CALLS },
    Group { title: "Sessions and stalls", metrics: sessions::SESSIONS },
    Group { title: "Stages and batches", metrics: data::STAGES },
    Group { title: "Cache", metrics: data::CACHE },
    Group { title: "Storage and datasets", metrics: data::STORAGE },
    Group { title: "Lookups", metrics: online::LOOKUPS },
    Group { title: "Batch queues", metrics: online::QUEUES },
    Group { title: "The process", metrics: server::PROCESS },
];

/// All metrics.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics)
}

impl Metric {
    /// Tells the recorder what this is; counters that are there from the start begin at 0.
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

    /// Every combination of its labels' values; none if the values of one are not known.
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
