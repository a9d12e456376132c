//! Growth of the server's resources during a long run.

use std::time::Duration;

use serde::Serialize;

use crate::server::Server;

/// A gauge of the server's process.
struct Gauge {
    name: &'static str,
    unit: &'static str,
    /// Size of the unit.
    size: f64,
    /// Largest increase after the first third of a run, in units. With the flags of `make nightly-load`, a leak of one file or
    /// task for each change of files exceeds it, or one of 1.5 MiB.
    max_increase: f64,
}

const GAUGES: [Gauge; 4] = [
    Gauge {
        name: "process_resident_memory_bytes",
        unit: "MiB RSS",
        size: 1024.0 * 1024.0,
        max_increase: 200.0,
    },
    Gauge { name: "process_open_fds", unit: "open files", size: 1.0, max_increase: 20.0 },
    // Threads of blocking calls start on demand and end after ten seconds without work.
    Gauge { name: "process_threads", unit: "threads", size: 1.0, max_increase: 32.0 },
    Gauge { name: "forebay_async_tasks", unit: "tasks", size: 1.0, max_increase: 20.0 },
];

/// Samples of the gauges, each with its time in hours.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<(f64, [f64; GAUGES.len()])>);

/// Trend of one gauge after the first third of the samples, in which caches fill.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    unit: &'static str,
    last: f64,
    /// Hourly growth, by a line of least squares.
    per_hour: f64,
    /// Growth by this line over the judged time.
    increase: f64,
    max_increase: f64,
}

impl Growth {
    /// Returns a description of the growth if it exceeds its bound, or if the server lacks the gauge.
    pub(super) fn excess(&self) -> Option<String> {
        let Self { unit, increase, max_increase, .. } = self;
        let exceeds = increase.is_nan() || increase > max_increase;
        exceeds.then(|| format!("{increase:.0} {unit} more, expected at most {max_increase:.0}"))
    }
}

impl Samples {
    /// Reads the gauges after `elapsed` of the run.
    pub(super) fn add(&mut self, server: &Server, elapsed: Duration) -> anyhow::Result<()> {
        let text = server.metrics()?;
        let gauge = |Gauge { name, size, .. }: Gauge| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            value.unwrap_or(f64::NAN) / size
        };
        self.0.push((elapsed.as_secs_f64() / 3600.0, GAUGES.map(gauge)));
        Ok(())
    }

    /// Returns the trend of each gauge.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let later = &self.0[self.0.len() / 3..];
        let hours = later.last().map_or(0.0, |last| last.0 - later[0].0);
        let trend = |(index, Gauge { unit, max_increase, .. }): (usize, &Gauge)| {
            let points: Vec<_> = later.iter().map(|(hours, values)| (*hours, values[index])).collect();
            let per_hour = slope(&points);
            Growth {
                unit,
                last: points.last().map_or(f64::NAN, |(_, value)| *value),
                per_hour,
                increase: per_hour * hours,
                max_increase: *max_increase,
            }
        };
        GAUGES.iter().enumerate().map(trend).collect()
    }
}

impl std::fmt::Display for Growth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { unit, last, per_hour, .. } = self;
        write!(f, "{last:.0} {unit} at the end, {per_hour:+.1} per hour")
    }
}

/// Slope of the line of least squares; 0 for fewer than two points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of an hour: 100 of everything, and `leaked` more of each gauge at the end.
    fn samples(leaked: [f64; GAUGES.len()]) -> Samples {
        Samples(
            (0..=360)
                .map(|n| f64::from(n) / 360.0)
                .map(|hour| (hour, leaked.map(|end| 100.0 + end * hour)))
                .collect(),
        )
    }

    #[test]
    fn an_increase_above_its_bound_after_the_first_third_is_an_excess() {
        let excesses =
            |leaked| -> Vec<String> { samples(leaked).growth().iter().filter_map(Growth::excess).collect() };
        assert_eq!(excesses([290.0, 25.0, 45.0, 25.0]), [""; 0]);
        assert_eq!(excesses([310.0, 0.0, 0.0, 0.0]), ["207 MiB RSS more, expected at most 200"]);
        assert_eq!(excesses([0.0, 228.0, 0.0, 60.0]).len(), 2);
        assert_eq!(excesses([f64::NAN, 0.0, 0.0, 0.0]), ["NaN MiB RSS more, expected at most 200"]);
    }

    #[test]
    fn caches_that_fill_in_the_first_third_are_no_excess() {
        let filling = (0..=360).map(f64::from).map(|n| (n / 360.0, [n.min(119.0) * 10.0, 0.0, 0.0, 0.0]));
        assert!(Samples(filling.collect()).growth().iter().all(|growth| growth.excess().is_none()));
    }

    #[test]
    fn the_slope_is_that_of_the_line_of_least_squares() {
        assert!((slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) - 2.0).abs() < 1e-9);
        assert!((slope(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)])).abs() < 1e-9);
        assert!(slope(&[(1.0, 5.0)]).abs() < 1e-9);
    }
}
