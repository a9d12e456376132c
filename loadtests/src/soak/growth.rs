//! Growth of the server's resources during a long run.

use std::time::Duration;

use serde::Serialize;

use crate::server::Server;

/// Name, unit and size of the unit, for gauges of the server's process.
const GAUGES: [(&str, &str, f64); 4] = [
    ("process_resident_memory_bytes", "MiB RSS", 1024.0 * 1024.0),
    ("process_open_fds", "open files", 1.0),
    ("process_threads", "threads", 1.0),
    ("forebay_async_tasks", "tasks", 1.0),
];

/// Samples of the gauges, each with its time in hours.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<(f64, [f64; GAUGES.len()])>);

/// Trend of one gauge.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    unit: &'static str,
    last: f64,
    /// Hourly growth after the first third of the samples, by a line of least squares.
    per_hour: f64,
}

impl Samples {
    /// Reads the gauges after `elapsed` of the run.
    pub(super) fn add(&mut self, server: &Server, elapsed: Duration) -> anyhow::Result<()> {
        let text = server.metrics()?;
        let gauge = |(name, _, size): (&str, &str, f64)| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            value.unwrap_or(f64::NAN) / size
        };
        self.0.push((elapsed.as_secs_f64() / 3600.0, GAUGES.map(gauge)));
        Ok(())
    }

    /// Returns the trend of each gauge.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let later = &self.0[self.0.len() / 3..];
        let trend = |(index, (_, unit, _)): (usize, &(&str, &'static str, f64))| {
            let points: Vec<_> = later.iter().map(|(hours, values)| (*hours, values[index])).collect();
            Growth {
                unit,
                last: points.last().map_or(f64::NAN, |(_, value)| *value),
                per_hour: slope(&points),
            }
        };
        GAUGES.iter().enumerate().map(trend).collect()
    }
}

impl std::fmt::Display for Growth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { unit, last, per_hour } = self;
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

    #[test]
    fn the_slope_is_that_of_the_line_of_least_squares() {
        assert!((slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) - 2.0).abs() < 1e-9);
        assert!((slope(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)])).abs() < 1e-9);
        assert!(slope(&[(1.0, 5.0)]).abs() < 1e-9);
    }
}
