//! JSON of the ranks of a job, side by side.

use std::{sync::Arc, time::Instant};

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    sessions::Session,
    stalls::{JobRanks, Judgement, Observer},
};

/// Maximum number of jobs.
const MAX_JOBS: usize = 20;
/// Maximum number of ranks of a job.
const MAX_RANKS: usize = 128;

/// Ranks of one job that have open streams at this server.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRanks)]
pub(in crate::http) struct JobInfo {
    /// Job name from the request; empty if the request has none.
    job_name: String,
    /// Name of the dataset.
    dataset: String,
    /// Number of ranks of the job, also those at other servers.
    world_size: u64,
    /// Number of ranks with open streams at this server.
    running_ranks: usize,
    /// These ranks in order; if there are more than 128, those that wait the most.
    ranks: Vec<RankInfo>,
    /// Rank that waits for at least 10% of the time more than the median of the others, which wait for it in every step; null if no rank
    /// does.
    #[schema(required)]
    straggler: Option<u64>,
    /// Sentence about the straggler; null without one.
    #[schema(required)]
    summary: Option<String>,
}

/// One rank of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = Rank)]
struct RankInfo {
    /// Number of the rank, from 0.
    rank: u64,
    /// Identifier of its session.
    session: String,
    /// Fraction of the time that the rank waits for batches, as in the verdict of its session; null if it is unknown.
    #[schema(required)]
    wait_fraction: Option<f64>,
    /// Bottleneck of the rank, as in the verdict of its session.
    #[schema(value_type = super::schema::Bottleneck)]
    bottleneck: forebay_stall::Bottleneck,
    /// Epoch of the latest batch.
    epoch: u64,
    /// Step of the latest batch within its epoch.
    step: u64,
}

/// Returns the jobs with several ranks among these sessions.
pub(in crate::http) fn jobs(sessions: &[Arc<Session>], observer: &Observer, now: Instant) -> Vec<JobInfo> {
    let mut jobs = JobRanks::of(sessions, observer, now);
    jobs.sort_by_key(|job| job.straggler.is_none());
    jobs.truncate(MAX_JOBS);
    jobs.iter().filter_map(JobInfo::new).collect()
}

impl JobInfo {
    fn new(job: &JobRanks) -> Option<Self> {
        let (first, _) = job.ranks.first()?;
        let train = &first.train;
        Some(Self {
            job_name: train.job_name.clone(),
            dataset: train.dataset.clone(),
            world_size: train.world_size.unwrap_or(1),
            running_ranks: job.ranks.len(),
            ranks: listed(&job.ranks),
            straggler: job.straggler.map(|at| job.ranks[at].0.train.rank()),
            summary: job.summary(),
        })
    }
}

fn listed(ranks: &[(Arc<Session>, Judgement)]) -> Vec<RankInfo> {
    let mut all: Vec<RankInfo> =
        ranks.iter().map(|(session, judgement)| RankInfo::new(session, judgement)).collect();
    if all.len() > MAX_RANKS {
        let wait = |rank: &RankInfo| rank.wait_fraction.unwrap_or(0.0);
        all.sort_by(|one, other| wait(other).total_cmp(&wait(one)));
        all.truncate(MAX_RANKS);
        all.sort_by_key(|rank| rank.rank);
    }
    all
}

impl RankInfo {
    fn new(session: &Session, judgement: &Judgement) -> Self {
        let (_, (epoch, step)) = session.progress();
        Self {
            rank: session.train.rank(),
            session: format!("{:016x}", session.id),
            wait_fraction: judgement.verdict.wait_fraction,
            bottleneck: judgement.verdict.bottleneck,
            epoch,
            step,
        }
    }
}
