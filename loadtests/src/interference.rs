//! CPU time of other processes during a measurement, which would make it unreliable.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;

/// Ticks of CPU time per second, as in [`crate::usage`].
const TICKS_PER_SECOND: f64 = 100.0;
/// Maximum fraction of CPU time of other processes for a reliable measurement.
pub(crate) const MAX_FOREIGN_SHARE: f64 = 0.05;

/// CPU time of the machine since boot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clock {
    busy_seconds: f64,
    all_seconds: f64,
}

impl Clock {
    /// Reads the current values.
    pub(crate) fn now() -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no line for all cores")
    }

    /// Parses proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<f64> =
            line.split_whitespace().take(8).map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
        let all: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { busy_seconds: (all - idle) / TICKS_PER_SECOND, all_seconds: all / TICKS_PER_SECOND })
    }

    /// Returns the fraction of CPU time that other processes used since this reading. `own_seconds` is the CPU time of the
    /// measured processes. Interrupts and time stolen by the hypervisor count as other processes.
    pub(crate) fn foreign_share_since(self, own_seconds: f64) -> anyhow::Result<f64> {
        Ok(self.foreign_share(Self::now()?, own_seconds))
    }

    fn foreign_share(self, now: Self, own_seconds: f64) -> f64 {
        let all = now.all_seconds - self.all_seconds;
        if all <= 0.0 {
            return 0.0;
        }
        ((now.busy_seconds - self.busy_seconds - own_seconds) / all).max(0.0)
    }
}

/// Interval of the checks while waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Flag of the subcommands that wait for an idle machine.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// Seconds to wait per turn for an idle machine, and to repeat turns that other processes disturbed.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    patience: u64,
}

impl Patience {
    /// Runs `one` when the machine is idle, and repeats it if other processes disturbed it, until the patience ends. Returns
    /// the last result. `foreign_share` returns the fraction of CPU time of other processes during a result.
    pub(crate) fn undisturbed<T>(
        &self,
        foreign_share: impl Fn(&T) -> f64,
        mut one: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + Duration::from_secs(self.patience);
        loop {
            while Instant::now() < deadline {
                let clock = Clock::now()?;
                std::thread::sleep(CHECK_INTERVAL);
                if clock.foreign_share_since(0.0)? <= MAX_FOREIGN_SHARE {
                    break;
                }
            }
            let done = one()?;
            if foreign_share(&done) <= MAX_FOREIGN_SHARE || Instant::now() >= deadline {
                return Ok(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_that_is_neither_idle_nor_own_is_foreign() {
        let before = Clock::parse("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1").expect("well formed");
        let after = Clock::parse("cpu  300 0 200 1100 100 100 100 100 0 0").expect("well formed");
        // 10 s passed over all cores, 6 of them busy.
        let foreign_share = before.foreign_share(after, 4.0);
        assert!((foreign_share - 0.2).abs() < 1e-9, "{foreign_share}");
    }

    #[test]
    fn without_patience_the_first_result_counts() {
        let mut done = 0;
        let disturbed = |_: &i32| 1.0;
        let one = || {
            done += 1;
            Ok(done)
        };
        assert_eq!(Patience { patience: 0 }.undisturbed(disturbed, one).expect("no error"), 1);
    }

    #[test]
    fn rounding_does_not_make_the_foreign_share_negative() {
        let clock = Clock::parse("cpu  100 0 100 700 100 0 0 0 0 0").expect("well formed");
        assert_eq!(clock.foreign_share(clock, 1.0), 0.0);
    }
}
