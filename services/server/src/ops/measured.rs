//! What the cache tiers and the process take and did, out of the metrics, so that the page and a scrape say the same.

use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Ops, sampled};

/// One cache tier; counts are since the start.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct Tier {
    /// memory or disk.
    tier: &'static str,
    resident_bytes: f64,
    capacity_bytes: f64,
    hits: f64,
    misses: f64,
    hit_bytes: f64,
    miss_bytes: f64,
    evictions: f64,
    /// Readers that waited for another's load.
    joins: f64,
    /// That hits would have taken to make again.
    saved_seconds: f64,
    /// Damaged values, failed reads and writes.
    errors: f64,
}

/// What the process takes of its machine.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Process {
    /// Memory that it has.
    resident_bytes: f64,
    /// Time of processors that it took so far.
    cpu_seconds: f64,
    threads: f64,
    open_files: f64,
}

/// A scrape, to be read.
pub(crate) struct Measured(String);

impl Measured {
    /// As of now.
    pub(super) fn now(ops: &Ops) -> Self {
        sampled::sample(ops);
        Self::of(&ops.recorder)
    }

    /// As far as it is recorded.
    pub(crate) fn of(recorder: &PrometheusHandle) -> Self {
        Self(recorder.render())
    }

    /// What went wrong with the disk tier, since the start.
    pub(crate) fn cache_errors(&self) -> f64 {
        self.value("forebay_cache_errors_total", "tier=\"disk\"").unwrap_or(0.0)
    }

    /// The tiers; disk only if there is one.
    pub(super) fn tiers(&self, ops: &Ops) -> Vec<Tier> {
        let names = ["memory", "disk"].into_iter().take(1 + usize::from(ops.loader.disk_bytes().is_some()));
        names.map(|tier| self.tier(tier)).collect()
    }

    /// `None` where the system does not tell.
    pub(super) fn process(&self) -> Option<Process> {
        Some(Process {
            resident_bytes: self.value("process_resident_memory_bytes", "")?,
            cpu_seconds: self.value("process_cpu_seconds_total", "")?,
            threads: self.value("process_threads", "")?,
            open_files: self.value("process_open_fds", "")?,
        })
    }

    fn tier(&self, tier: &'static str) -> Tier {
        let label = format!("tier=\"{tier}\"");
        let of = |name: &str| self.value(name, &label).unwrap_or(0.0);
        Tier {
            tier,
            resident_bytes: of("forebay_cache_resident_bytes"),
            capacity_bytes: of("forebay_cache_capacity_bytes"),
            hits: of("forebay_cache_hits_total"),
            misses: of("forebay_cache_misses_total"),
            hit_bytes: of("forebay_cache_hit_bytes_total"),
            miss_bytes: of("forebay_cache_miss_bytes_total"),
            evictions: of("forebay_cache_evictions_total"),
            joins: of("forebay_cache_single_flight_joins_total"),
            saved_seconds: of("forebay_cache_saved_seconds_total"),
            errors: of("forebay_cache_errors_total"),
        }
    }

    /// The sum over the samples of this name that have this label; `None` if there are none.
    fn value(&self, name: &str, label: &str) -> Option<f64> {
        let mut sum = None;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            let Some((labels, value)) = rest.rsplit_once(' ') else { continue };
            let is_it = labels.is_empty() || labels.starts_with('{');
            if is_it && labels.contains(label) {
                *sum.get_or_insert(0.0) += value.parse::<f64>().unwrap_or(0.0);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_name_and_a_label_are_added_up_and_others_left_alone() {
        let text = "# TYPE a counter\na{tier=\"disk\",kind=\"x\"} 1\na{tier=\"disk\",kind=\"y\"} 2.5\na{tier=\"memory\"} 7\nab 9\nb 4\n";
        let measured = Measured(text.to_owned());
        assert_eq!(measured.value("a", "tier=\"disk\""), Some(3.5));
        assert_eq!(measured.value("b", ""), Some(4.0));
        assert_eq!(measured.value("c", ""), None);
    }
}
