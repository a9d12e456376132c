//! One metric of the catalog.

use metrics::{Label as Pair, Unit, describe_counter, describe_gauge, describe_histogram};

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

/// Condition under which a metric is absent from a scrape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Absent {
    /// Always present; counters start at 0.
    Never,
    /// Absent before this first happens.
    Before(&'static str),
    /// Absent from a server without this.
    Without(&'static str),
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
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Unit such as `seconds`, `bytes` or `rows`; empty for counts.
    pub(crate) unit: &'static str,
    pub(crate) labels: &'static [Label],
    pub(crate) help: &'static str,
    pub(crate) absent: Absent,
}

impl Metric {
    /// Registers the metric with the recorder. Counters that are always present start at 0.
    pub(crate) fn register(&self) {
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
