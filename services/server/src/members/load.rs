//! Load of this server over the last ten seconds, and the thresholds at which it redirects new streams.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{Settings, samples::Samples, sessions::Sessions, telemetry::process};

/// Default of `membership.overflow_bytes_per_second`, in parts of `network_bandwidth`.
const BANDWIDTH_FRACTION: f64 = 0.9;
/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// Load of this server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Load {
    bounds: Bounds,
    sessions: Sessions,
    cpu: Arc<Mutex<Cpu>>,
}

/// Thresholds of the load. A load at a threshold exceeds it, too.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    streams: Option<usize>,
    cpu: f64,
    bytes_per_second: Option<f64>,
}

/// Load at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Now {
    streams: usize,
    /// Fraction of the cores in use, 0 to 1.
    cpu: f64,
    bytes_per_second: f64,
}

/// CPU seconds of the process.
struct Cpu {
    started: Instant,
    samples: Samples<f64>,
    cores: f64,
}

impl Load {
    pub(super) fn new(settings: &Settings, sessions: Sessions) -> Self {
        let (now, used) = (Instant::now(), process::cpu_seconds().unwrap_or_default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let cpu = Cpu { started: now, samples: Samples::new(now, used), cores };
        Self { bounds: Bounds::new(settings), sessions, cpu: Arc::new(Mutex::new(cpu)) }
    }

    /// Takes a sample every second; never returns.
    pub(super) async fn measure(self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Some(used) = process::cpu_seconds() {
                self.cpu.lock().samples.sample(Instant::now(), used);
            }
        }
    }

    /// Returns a description of the load and the threshold that it exceeds; `None` if it exceeds none.
    pub(super) fn exceeded(&self) -> Option<String> {
        let now = Now {
            streams: self.sessions.streams(),
            cpu: self.cpu.lock().fraction(Instant::now()),
            bytes_per_second: self.sessions.sent_per_second().0,
        };
        self.bounds.exceeded_by(now)
    }
}

impl Bounds {
    fn new(settings: &Settings) -> Self {
        let membership = &settings.membership;
        let of_bandwidth =
            settings.network_bandwidth.map(|bandwidth| bandwidth.0 as f64 * BANDWIDTH_FRACTION);
        let of_membership = membership.overflow_bytes_per_second.map(|bytes| bytes.0 as f64);
        Self {
            streams: membership.overflow_streams,
            cpu: membership.overflow_cpu,
            bytes_per_second: of_membership.or(of_bandwidth),
        }
    }

    fn exceeded_by(self, now: Now) -> Option<String> {
        if let Some(most) = self.streams.filter(|most| now.streams >= *most) {
            return Some(format!("{} open streams, membership.overflow_streams is {most}", now.streams));
        }
        if let Some(most) = self.bytes_per_second.filter(|most| now.bytes_per_second >= *most) {
            return Some(format!(
                "{:.0} bytes per second are sent, membership.overflow_bytes_per_second is {most:.0}",
                now.bytes_per_second
            ));
        }
        // With 1, the threshold is disabled, because measured use of all cores may round up to 1.
        let is_busy = self.cpu < 1.0 && now.cpu >= self.cpu;
        is_busy.then(|| {
            format!(
                "{:.0} % of the cores are in use, membership.overflow_cpu is {}",
                now.cpu * 100.0,
                self.cpu
            )
        })
    }
}

impl Cpu {
    /// Returns the fraction of the cores in use over the last ten seconds. Returns 0 in the first ten seconds after the start, in which
    /// datasets are opened.
    fn fraction(&self, now: Instant) -> f64 {
        if now.saturating_duration_since(self.started) < 10 * INTERVAL {
            return 0.0;
        }
        self.samples.rate(|used| *used) / self.cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_exceeded_by_its_own_load() {
        let bounds = Bounds { streams: Some(2), cpu: 0.9, bytes_per_second: Some(1000.0) };
        let calm = Now { streams: 1, cpu: 0.89, bytes_per_second: 999.0 };
        assert_eq!(bounds.exceeded_by(calm), None);
        for (load, expected) in [
            (Now { streams: 2, ..calm }, "2 open streams, membership.overflow_streams is 2"),
            (Now { cpu: 0.9, ..calm }, "90 % of the cores are in use"),
            (Now { bytes_per_second: 1000.0, ..calm }, "1000 bytes per second"),
        ] {
            let exceeded = bounds.exceeded_by(load).unwrap();
            assert!(exceeded.contains(expected), "{exceeded}");
        }
    }

    #[test]
    fn the_bound_of_the_network_follows_its_bandwidth_unless_it_is_set() {
        let bound = |text: &str| Bounds::new(&toml::from_str(text).unwrap()).bytes_per_second;
        assert_eq!(bound(""), None);
        assert_eq!(bound("network_bandwidth = 1000"), Some(900.0));
        let both = "network_bandwidth = 1000\n[membership]\noverflow_bytes_per_second = 500";
        assert_eq!(bound(both), Some(500.0));
    }

    #[test]
    fn a_cpu_bound_of_1_and_absent_bounds_are_never_exceeded() {
        let bounds = Bounds { streams: None, cpu: 1.0, bytes_per_second: None };
        assert_eq!(bounds.exceeded_by(Now { streams: 10_000, cpu: 1.01, bytes_per_second: 1e12 }), None);
    }

    #[test]
    fn the_use_of_the_cores_is_averaged_and_ignores_the_start() {
        let start = Instant::now();
        let mut cpu = Cpu { started: start, samples: Samples::new(start, 0.0), cores: 2.0 };
        let second = |number: u32| start + number * INTERVAL;
        for number in 1..=30 {
            cpu.samples.sample(second(number), f64::from(number) * 1.5);
        }
        assert_eq!(cpu.fraction(second(9)), 0.0);
        assert!((cpu.fraction(second(30)) - 0.75).abs() < 1e-9);
    }
}
