//! The stages that rows go through: how fast each is, how fast it could be, and what waits before it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use forebay_loader::{Loader, StageWork};
use forebay_stall::{Limit, Stage};
use serde::Serialize;
use utoipa::ToSchema;

use crate::sessions::Sessions;

/// Rates are taken over about this time.
const OVER: Duration = Duration::from_secs(10);

/// Remembers, once a second, what the stages had done.
pub(crate) struct Pipeline {
    notes: VecDeque<(Instant, [StageWork; Stage::ALL.len()])>,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Stage)]
pub(crate) struct StageAnswer {
    /// storage, decode, gather or send.
    pub(crate) stage: &'static str,
    pub(crate) bytes_per_second: f64,
    /// Null where rows are not known yet.
    #[schema(required)]
    pub(crate) rows_per_second: Option<f64>,
    /// The part of the time, or of the threads, that it takes; null where that is not known.
    #[schema(required)]
    pub(crate) busy: Option<f64>,
    /// Pieces of work at a time.
    pub(crate) active: usize,
    /// What waits for it.
    pub(crate) queue: usize,
    /// Most that may be at work.
    #[schema(required)]
    pub(crate) queue_limit: Option<usize>,
    /// What it would do if it were at work all the time; null if it has done nothing of late.
    #[schema(required)]
    pub(crate) capacity_bytes_per_second: Option<f64>,
    /// Whether it is what trainers wait for.
    pub(crate) limiting: bool,
}

impl Pipeline {
    pub(crate) fn new() -> Self {
        Self { notes: VecDeque::new() }
    }

    /// Notes what the stages have done. To be called about once a second.
    pub(crate) fn note(&mut self, now: Instant, loader: &Loader) {
        self.notes.push_back((now, Stage::ALL.map(|stage| loader.work(stage))));
        while self.notes.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.notes.pop_front();
        }
    }

    /// The stages, the store's end first; `limit` is what trainers wait for.
    pub(crate) fn stages(&self, loader: &Loader, sessions: &Sessions, limit: Limit) -> Vec<StageAnswer> {
        let waiting = loader.waiting();
        let threads = loader.cpu_threads();
        let mut stages: Vec<_> =
            Stage::ALL.into_iter().map(|stage| self.stage(stage, threads, limit)).collect();
        for (answer, (queue, most)) in stages.iter_mut().zip([
            (waiting.reads, None),
            (waiting.decodes, Some(threads)),
            (waiting.gathers, Some(threads)),
        ]) {
            (answer.queue, answer.queue_limit) = (queue, most);
        }
        let (bytes_per_second, rows_per_second) = sessions.sent_per_second();
        stages.push(StageAnswer {
            stage: "send",
            bytes_per_second,
            rows_per_second: Some(rows_per_second),
            busy: None,
            active: sessions.streams(),
            queue: 0,
            queue_limit: None,
            capacity_bytes_per_second: None,
            limiting: limit == Limit::Network,
        });
        stages
    }

    fn stage(&self, stage: Stage, threads: usize, limit: Limit) -> StageAnswer {
        let none = (Duration::ZERO, StageWork::default(), StageWork::default());
        let (time, before, after) = match (self.notes.front(), self.notes.back()) {
            (Some((first, before)), Some((last, after))) => {
                (last.saturating_duration_since(*first), before[stage as usize], after[stage as usize])
            }
            _ => none,
        };
        let seconds = time.as_secs_f64();
        let rate = |of: fn(&StageWork) -> u64| {
            if seconds > 0.0 { of(&after).saturating_sub(of(&before)) as f64 / seconds } else { 0.0 }
        };
        let share = |of: fn(&StageWork) -> Duration, most: f64| {
            let spent = of(&after).saturating_sub(of(&before)).as_secs_f64();
            if seconds > 0.0 { (spent / seconds / most).min(1.0) } else { 0.0 }
        };
        let busy = match stage {
            // It waits for the store; how many requests that takes is no measure.
            Stage::Storage => share(|work| work.at_work, 1.0),
            Stage::Decode | Stage::Gather => share(|work| work.busy, threads as f64),
        };
        let bytes_per_second = rate(|work| work.bytes);
        StageAnswer {
            stage: stage.name(),
            bytes_per_second,
            rows_per_second: (stage != Stage::Storage).then(|| rate(|work| work.rows)),
            busy: Some(busy),
            active: after.active,
            queue: 0,
            queue_limit: None,
            capacity_bytes_per_second: (busy > 0.001 && bytes_per_second > 0.0)
                .then(|| bytes_per_second / busy),
            limiting: limit == Limit::from(stage.bucket()),
        }
    }
}
