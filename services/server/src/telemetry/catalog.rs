//! Table of all metrics: the source of the help texts in `/metrics`, of the histogram buckets, and of docs/reference/metrics.md.
//!
//! A test fails if a metric is recorded in the sources but not listed here, or listed but not recorded.

mod build;
mod data;
mod labels;
mod lookups;
#[cfg(test)]
mod markdown;
mod metric;
mod server;
mod sessions;

pub(super) use metric::{Kind, Metric};

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

#[cfg(test)]
mod tests;
