//! Report of the demo.

use std::fmt::{self, Display, Formatter};

use bytesize::ByteSize;
use forebay_proto::v1::PlanSummary;

use super::trainer::Passed;

pub(super) struct Report {
    pub(super) source: String,
    /// Address of the dashboard.
    pub(super) dashboard: String,
    /// Number of columns that the trainer predicts from.
    pub(super) features: usize,
    pub(super) label: String,
    pub(super) plan: PlanSummary,
    pub(super) epochs: Vec<(u64, Passed)>,
    /// Digest of the first epoch, streamed a second time.
    pub(super) again: String,
}

impl Report {
    pub(super) fn is_repeatable(&self) -> bool {
        self.epochs.first().is_some_and(|(_, passed)| passed.digest == self.again)
    }

    fn line(&self, f: &mut Formatter<'_>, name: &str, value: impl Fn(&Passed) -> String) -> fmt::Result {
        write!(f, "{name:<22}")?;
        for (_, passed) in &self.epochs {
            write!(f, "{:>20}", value(passed))?;
        }
        writeln!(f)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        writeln!(f, "data        {}", self.source)?;
        writeln!(f, "            {} rows, snapshot {}", plan.rows, plan.snapshot)?;
        writeln!(
            f,
            "order       {} steps of {} {}, shuffled in windows of {} rows (at least {} blocks, {})",
            plan.steps,
            plan.batch_size,
            if plan.groups.is_some() { "groups" } else { "rows" },
            plan.window_rows(),
            plan.blocks_per_window,
            ByteSize(plan.window_bytes),
        )?;
        writeln!(
            f,
            "trainer     linear regression of {} on {} columns, over Arrow Flight",
            self.label, self.features
        )?;
        writeln!(f)?;
        write!(f, "{:<22}", "")?;
        for (epoch, _) in &self.epochs {
            write!(f, "{:>20}", format!("epoch {epoch} ({})", if *epoch == 0 { "cold" } else { "warm" }))?;
        }
        writeln!(f)?;
        let seconds = |passed: &Passed| passed.wall.as_secs_f64().max(1e-9);
        self.line(f, "rows", |passed| passed.rows.to_string())?;
        self.line(f, "rows/s", |passed| format!("{:.0}", passed.rows as f64 / seconds(passed)))?;
        self.line(f, "GB/s", |passed| format!("{:.3}", passed.bytes as f64 / seconds(passed) / 1e9))?;
        self.line(f, "time to first batch", |passed| format!("{:.3} s", passed.first_batch.as_secs_f64()))?;
        self.line(f, "trainer waited", |passed| {
            format!(
                "{:.0}% of {:.2} s",
                100.0 * passed.waited.as_secs_f64() / seconds(passed),
                passed.wall.as_secs_f64()
            )
        })?;
        self.line(f, "loss, first -> last", |passed| {
            format!("{:.4} -> {:.4}", passed.loss.0, passed.loss.1)
        })?;
        self.line(f, "digest", |passed| passed.digest.clone())?;
        writeln!(f)?;
        let same = if self.is_repeatable() { "identical" } else { "DIFFERENT" };
        writeln!(f, "epoch 0 again   {} ({same})", self.again)?;
        writeln!(f, "dashboard       http://{}/ (with --serve the server keeps running)", self.dashboard)
    }
}
