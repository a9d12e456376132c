//! Ranks of the running jobs side by side.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use forebay_stall::straggler;

use super::{
    Observer,
    demand::job,
    judgement::Judgement,
    summary::{noun, percent},
};
use crate::sessions::Session;

/// Ranks of one job that have open streams at this server, in order.
pub(crate) struct JobRanks {
    pub(crate) ranks: Vec<(Arc<Session>, Judgement)>,
    /// Position of the rank that the others wait for, if any.
    pub(crate) straggler: Option<usize>,
}

impl JobRanks {
    /// Groups sessions by job. Jobs with only one rank here are left out: there is nothing to compare.
    pub(crate) fn of(sessions: &[Arc<Session>], observer: &Observer, now: Instant) -> Vec<Self> {
        let mut jobs: BTreeMap<u64, Vec<&Arc<Session>>> = BTreeMap::new();
        for session in sessions.iter().filter(|session| session.train.world_size.unwrap_or(1) > 1) {
            jobs.entry(job(&session.train)).or_default().push(session);
        }
        let several = jobs.into_values().filter(|ranks| ranks.len() > 1);
        let mut all: Vec<Self> = several
            .map(|mut ranks| {
                ranks.sort_by_key(|session| (session.train.rank(), session.id));
                let judged = |session: &Arc<Session>| {
                    (Arc::clone(session), observer.judge(std::slice::from_ref(session), now))
                };
                Self::new(ranks.into_iter().map(judged).collect())
            })
            .collect();
        all.sort_by_key(|job| job.ranks.first().map(|(session, _)| (session.started, session.id)));
        all
    }

    fn new(ranks: Vec<(Arc<Session>, Judgement)>) -> Self {
        let waits: Vec<Option<f64>> =
            ranks.iter().map(|(_, judgement)| judgement.verdict.wait_fraction).collect();
        Self { straggler: straggler(&waits), ranks }
    }

    /// Names the straggler in one sentence; `None` without one.
    pub(crate) fn summary(&self) -> Option<String> {
        let (session, judgement) = self.ranks.get(self.straggler?)?;
        let train = &session.train;
        let name = match train.job_name.as_str() {
            "" => format!("the job that reads '{}'", train.dataset),
            name => format!("job '{name}'"),
        };
        let rank = train.rank();
        let wait = percent(judgement.verdict.wait_fraction.unwrap_or(0.0));
        let cause = noun(judgement.verdict.bottleneck);
        Some(format!(
            "Rank {rank} of {name} is the straggler: it waits {wait} of its time, mostly for {cause}, and the other ranks wait for it."
        ))
    }
}
