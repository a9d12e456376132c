//! What others did on the machine while something was measured: a figure taken beside a compiler is no figure.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;

/// As in [`crate::usage`].
const TICKS_A_SECOND: f64 = 100.0;
/// Others' share of the machine from which on a figure should not be trusted.
pub(crate) const TROUBLING: f64 = 0.05;

/// CPU time of the whole machine so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clock {
    busy_seconds: f64,
    all_seconds: f64,
}

impl Clock {
    /// Now.
    pub(crate) fn now() -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?).context("/proc/stat has no line for all cores")
    }

    /// See proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<f64> =
            line.split_whitespace().take(8).map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
        let all: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { busy_seconds: (all - idle) / TICKS_A_SECOND, all_seconds: all / TICKS_A_SECOND })
    }

    /// The share of the machine that was not idle since then and not used by the measured processes,
    /// `own_seconds`. Time stolen by the hypervisor and interrupts count as others'.
    pub(crate) fn others_since(self, own_seconds: f64) -> anyhow::Result<f64> {
        Ok(self.others(Self::now()?, own_seconds))
    }

    fn others(self, now: Self, own_seconds: f64) -> f64 {
        let all = now.all_seconds - self.all_seconds;
        if all <= 0.0 {
            return 0.0;
        }
        ((now.busy_seconds - self.busy_seconds - own_seconds) / all).max(0.0)
    }
}

/// How often the machine is looked at while it is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// The flag of subcommands that wait until others leave the machine alone.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// How many seconds to wait, for each turn, until others leave the machine alone, and to repeat what
    /// they disturbed.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    patience: u64,
}

impl Patience {
    /// Does `one` when others leave the machine alone, and again if they did not, as long as it lasts; the
    /// last one stands. `others` is their share while it was done.
    pub(crate) fn undisturbed<T>(
        &self,
        others: impl Fn(&T) -> f64,
        mut one: impl FnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + Duration::from_secs(self.patience);
        loop {
            while Instant::now() < deadline {
                let clock = Clock::now()?;
                std::thread::sleep(LOOK);
                if clock.others_since(0.0)? <= TROUBLING {
                    break;
                }
            }
            let done = one()?;
            if others(&done) <= TROUBLING || Instant::now() >= deadline {
                return Ok(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_ours_is_others() {
        let before = Clock::parse("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1").expect("well formed");
        let after = Clock::parse("cpu  300 0 200 1100 100 100 100 100 0 0").expect("well formed");
        // 10 s passed over all cores, 6 of them busy.
        let others = before.others(after, 4.0);
        assert!((others - 0.2).abs() < 1e-9, "{others}");
    }

    #[test]
    fn without_patience_the_first_one_stands() {
        let mut done = 0;
        let disturbed = |_: &i32| 1.0;
        let one = || {
            done += 1;
            Ok(done)
        };
        assert_eq!(Patience { patience: 0 }.undisturbed(disturbed, one).expect("no error"), 1);
    }

    #[test]
    fn rounding_does_not_make_others_negative() {
        let clock = Clock::parse("cpu  100 0 100 700 100 0 0 0 0 0").expect("well formed");
        assert_eq!(clock.others(clock, 1.0), 0.0);
    }
}
