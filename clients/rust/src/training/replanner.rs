//! Requests for the plan of a running training, which tell where its streams are served.

use forebay_proto::v1::Train;
use tokio::time::Instant;

use super::{job::Job, plan::Plan, planner::plan};
use crate::{
    Error,
    route::{Attempts, Transport},
};

/// Asks for the plan of `job` again whenever it is due, and follows its locations. Ends when the servers answer with another plan
/// than that of the streams; they then fail with the difference.
pub(super) async fn follow(job: Job) {
    loop {
        job.placement.replan_due().await;
        match agreed(&job).await {
            Ok(plan) => job.placement.planned(Some(plan.own_locations())),
            Err(error @ Error::BatchMismatch(_)) => {
                job.plan_changed(error);
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "no server has answered with the plan; streams stay where they are");
                job.placement.planned(None);
            }
        }
        job.placement.probe_first().await;
    }
}

/// Answers of the servers, none of which is the plan of the streams.
#[derive(Default)]
struct Answers {
    /// Difference of the first other plan.
    difference: Option<Error>,
    /// Last transient error: this server may have the plan of the streams.
    unreachable: Option<Error>,
    /// Last other error.
    failure: Option<Error>,
}

impl Answers {
    fn note(&mut self, error: Error) {
        match error {
            Error::BatchMismatch(_) => drop(self.difference.get_or_insert(error)),
            error if error.is_transient() => self.unreachable = Some(error),
            error => self.failure = Some(error),
        }
    }
}

/// Requests the plan until a server answers with that of the streams. While one server answers with another plan and others are
/// unreachable, it asks again, with pauses, until [`Config::retry_deadline`](crate::Config::retry_deadline) has passed.
///
/// # Errors
/// [`Error::BatchMismatch`] if a server has answered with another plan, and none with that of the streams. Otherwise the last error,
/// at once.
async fn agreed(job: &Job) -> Result<Plan, Error> {
    let mut attempts = Attempts::new(job.servers.config().retry_deadline);
    let began = Instant::now();
    loop {
        let Answers { difference, unreachable, failure } = match replan(job).await {
            Ok(plan) => return Ok(plan),
            Err(answers) => answers,
        };
        let (difference, unreachable) = match (difference, unreachable) {
            (Some(difference), Some(unreachable)) => (difference, unreachable),
            (Some(difference), None) => return Err(difference),
            (None, unreachable) => {
                let error = unreachable.or(failure);
                return Err(error.unwrap_or_else(|| Error::protocol("no server was asked")));
            }
        };
        tracing::warn!(%difference, %unreachable, "a server answers with another plan; asking the others again");
        if let Err(late) = attempts.pause(unreachable, 1).await {
            return Err(Error::BatchMismatch(format!(
                "{difference}; no other server has answered with the expected plan within {:.1?}: {late}",
                began.elapsed()
            )));
        }
    }
}

/// Requests the plan from each server of the client, and then from each location, until one answers with the same plan.
async fn replan(job: &Job) -> Result<Plan, Answers> {
    // The snapshot and all defaults of the first plan.
    let request = Train { rank: Some(job.plan.rank()), ..job.plan.resolved.clone() };
    let mut answers = Answers::default();
    let mut asked = 0;
    while asked < job.servers.targets() {
        asked += 1;
        let (transport, target) = match job.servers.connect().await {
            Ok(opened) => opened,
            Err(error) => {
                answers.note(error);
                continue;
            }
        };
        match ask(job, &transport, &request).await {
            Ok(plan) => return Ok(plan),
            Err(error) => {
                job.servers.skip(target);
                answers.note(error);
            }
        }
    }
    for url in job.placement.locations() {
        let answer = match job.servers.dial(&url).await {
            Ok(transport) => ask(job, &transport, &request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(plan) => return Ok(plan),
            Err(error) => answers.note(error),
        }
    }
    Err(answers)
}

async fn ask(job: &Job, transport: &Transport, request: &Train) -> Result<Plan, Error> {
    let limit = job.servers.config().attempt_timeout;
    let ask = || async {
        let answer = tokio::time::timeout(limit, plan(transport, request)).await;
        answer.unwrap_or_else(|_| Err(Error::silent(transport.url(), limit)))
    };
    let mut answer = ask().await;
    if let Err(error) = &answer
        && job.servers.supply(transport, error).await?
    {
        answer = ask().await;
    }
    let answer = answer?;
    let (expected, found) = (&job.plan.summary.plan_hash, &answer.summary.plan_hash);
    if expected != found {
        return Err(Error::BatchMismatch(format!(
            "{} answers with another plan of the same request: plan hash {found}, expected {expected}",
            transport.url()
        )));
    }
    Ok(answer)
}
