//! Resource usage of the process, from `/proc`, under the names of the standard Prometheus client libraries.

use std::fs;

use metrics::gauge;

/// Updates the metrics of the process; does nothing on systems without `/proc`.
pub(crate) fn update() {
    if let Some(Usage { cpu_seconds, resident_bytes, virtual_bytes, threads, start_time }) = Usage::of_now() {
        gauge!("process_cpu_seconds_total").set(cpu_seconds);
        gauge!("process_resident_memory_bytes").set(resident_bytes);
        gauge!("process_virtual_memory_bytes").set(virtual_bytes);
        gauge!("process_threads").set(threads);
        gauge!("process_start_time_seconds").set(start_time);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One descriptor belongs to the directory itself.
        gauge!("process_open_fds").set(open.count().saturating_sub(1) as f64);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    gauge!("process_max_fds").set(limit.unwrap_or(0) as f64);
}

#[derive(Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    threads: f64,
    /// Unix seconds.
    start_time: f64,
}

impl Usage {
    fn of_now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let (ticks, page) = (rustix::param::clock_ticks_per_second(), rustix::param::page_size());
        Self::parse(&stat, &machine, ticks as f64, page as f64)
    }

    /// Parses `/proc/self/stat` and `/proc/stat` (proc(5)).
    fn parse(stat: &str, machine: &str, ticks: f64, page_bytes: f64) -> Option<Self> {
        // The second field is the name in parentheses and may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<f64> = fields.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let booted: f64 =
            machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            resident_bytes: field(24)? * page_bytes,
            virtual_bytes: field(23)?,
            threads: field(20)?,
            start_time: booted + field(22)? / ticks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 12 0 300 4096000 25 184467 1 1 0";
        let usage = Usage::parse(stat, "cpu 1 2\nbtime 1700000000\n", 100.0, 4096.0);
        let expected = Usage {
            cpu_seconds: 3.0,
            resident_bytes: 25.0 * 4096.0,
            virtual_bytes: 4_096_000.0,
            threads: 12.0,
            start_time: 1_700_000_003.0,
        };
        assert_eq!(usage, Some(expected));
        assert_eq!(Usage::parse("", "btime 1", 100.0, 4096.0), None);
    }

    #[test]
    fn usage_of_this_process_is_not_zero() {
        let usage = Usage::of_now().expect("/proc is mounted");
        assert!(usage.resident_bytes > 1e6 && usage.virtual_bytes >= usage.resident_bytes);
        assert!(usage.threads >= 1.0 && usage.start_time > 1.6e9);
    }
}
