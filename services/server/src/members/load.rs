//! Load of this server over the last seconds, and the thresholds at which it redirects new streams.

use crate::{Settings, sessions::Sessions};

/// Default of `membership.overflow_bytes_per_second`, in parts of `network_bandwidth`.
const BANDWIDTH_FRACTION: f64 = 0.9;

/// Load of this server. Cheap to clone.
#[derive(Clone)]
pub(super) struct Load {
    bounds: Bounds,
    sessions: Sessions,
}

/// Thresholds of the load. A load at a threshold exceeds it, too.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    streams: Option<usize>,
    demand: f64,
    bytes_per_second: Option<f64>,
}

/// Load at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Now {
    streams: usize,
    /// Demand of the trainers, in servers at full load.
    demand: f64,
    bytes_per_second: f64,
}

impl Load {
    pub(super) fn new(settings: &Settings, sessions: Sessions) -> Self {
        Self { bounds: Bounds::new(settings), sessions }
    }

    /// Returns a description of the load and the threshold that it exceeds; `None` if it exceeds none.
    pub(super) fn exceeded(&self) -> Option<String> {
        let now = Now {
            streams: self.sessions.streams(),
            demand: self.sessions.demand(),
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
            demand: membership.overflow_demand,
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
        (now.demand >= self.demand).then(|| {
            format!(
                "the demand of the trainers is {:.2} servers, membership.overflow_demand is {}",
                now.demand, self.demand
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_exceeded_by_its_own_load() {
        let bounds = Bounds { streams: Some(2), demand: 1.0, bytes_per_second: Some(1000.0) };
        let calm = Now { streams: 1, demand: 0.99, bytes_per_second: 999.0 };
        assert_eq!(bounds.exceeded_by(calm), None);
        for (load, expected) in [
            (Now { streams: 2, ..calm }, "2 open streams, membership.overflow_streams is 2"),
            (Now { demand: 1.25, ..calm }, "the demand of the trainers is 1.25 servers"),
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
    fn absent_bounds_are_never_exceeded() {
        let bounds = Bounds { streams: None, demand: 1.0, bytes_per_second: None };
        assert_eq!(bounds.exceeded_by(Now { streams: 10_000, demand: 0.99, bytes_per_second: 1e12 }), None);
    }
}
