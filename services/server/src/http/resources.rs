//! JSON of the cache tiers and of the process.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Context, scrape_gauges};
use crate::telemetry::metric_readout::MetricReadout;

/// One cache tier. Counts are since the start of the server.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CacheTier)]
pub(super) struct Tier {
    /// Name of the tier: `memory` holds decoded blocks, `disk` holds decoded columns.
    tier: &'static str,
    /// Size of the values in the tier, in bytes.
    resident_bytes: f64,
    /// Capacity of the tier, in bytes.
    capacity_bytes: f64,
    /// Number of reads that found their value.
    hits: f64,
    /// Number of reads that did not find their value.
    misses: f64,
    /// Size of the values found, in bytes.
    hit_bytes: f64,
    /// Size of the values not found, in bytes, counted when they were loaded.
    miss_bytes: f64,
    /// Number of values evicted.
    evictions: f64,
    /// Number of reads that waited for a load that another read had started.
    coalesced_loads: f64,
    /// Time that hits saved, compared to loading the values again, in seconds.
    saved_seconds: f64,
    /// Number of damaged values, failed reads and failed writes; 0 for the tier `memory`.
    errors: f64,
}

/// Resources used by the server process.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Process {
    /// Resident memory, in bytes.
    resident_bytes: f64,
    /// CPU time since the start, in seconds.
    cpu_seconds: f64,
    /// Number of threads.
    threads: f64,
    /// Number of open file descriptors.
    open_files: f64,
}

/// Reads all metrics after updating those that are sampled.
pub(super) fn read_metrics(context: &Context) -> MetricReadout {
    scrape_gauges::update(context);
    MetricReadout::read(&context.recorder)
}

/// Returns the cache tiers: memory, and disk if configured.
pub(super) fn tiers(readout: &MetricReadout, context: &Context) -> Vec<Tier> {
    let names =
        ["memory", "disk"].into_iter().take(1 + usize::from(context.services.loader.disk_bytes().is_some()));
    names.map(|name| tier(readout, name)).collect()
}

/// Returns the resources of the process; `None` on systems without `/proc`.
pub(super) fn process(readout: &MetricReadout) -> Option<Process> {
    Some(Process {
        resident_bytes: readout.value("process_resident_memory_bytes", "")?,
        cpu_seconds: readout.value("process_cpu_seconds_total", "")?,
        threads: readout.value("process_threads", "")?,
        open_files: readout.value("process_open_fds", "")?,
    })
}

fn tier(readout: &MetricReadout, name: &'static str) -> Tier {
    let label = format!("tier=\"{name}\"");
    let value = |metric: &str| readout.value(metric, &label).unwrap_or(0.0);
    Tier {
        tier: name,
        resident_bytes: value("forebay_cache_resident_bytes"),
        capacity_bytes: value("forebay_cache_capacity_bytes"),
        hits: value("forebay_cache_hits_total"),
        misses: value("forebay_cache_misses_total"),
        hit_bytes: value("forebay_cache_hit_bytes_total"),
        miss_bytes: value("forebay_cache_miss_bytes_total"),
        evictions: value("forebay_cache_evictions_total"),
        coalesced_loads: value("forebay_cache_coalesced_loads_total"),
        saved_seconds: value("forebay_cache_saved_seconds_total"),
        errors: value("forebay_cache_errors_total"),
    }
}
