//! Requests for the plan of a running training, which tell where its streams are served.

use forebay_proto::v1::Train;

use super::{job::Job, plan::Plan, planner::plan};
use crate::{Error, route::Transport};

/// Asks for the plan of `job` again whenever it is due, and follows its locations. Ends when a server answers with another plan
/// than that of the streams; they then fail with the difference.
pub(super) async fn follow(job: Job) {
    loop {
        job.placement.replan_due().await;
        match replan(&job).await {
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

/// Requests the plan from each server of the client, and then from each location, until one answers with the same plan.
///
/// # Errors
/// [`Error::BatchMismatch`] if a server has answered with another plan, and none with the same one. Otherwise the last error.
async fn replan(job: &Job) -> Result<Plan, Error> {
    // The snapshot and all defaults of the first plan.
    let request = Train { rank: Some(job.plan.rank()), ..job.plan.resolved.clone() };
    let mut failure = Error::protocol("no server was asked");
    let mut failed = |error: Error| {
        if !matches!(failure, Error::BatchMismatch(_)) {
            failure = error;
        }
    };
    let mut asked = 0;
    while asked < job.servers.targets() {
        asked += 1;
        let (transport, target) = match job.servers.connect().await {
            Ok(opened) => opened,
            Err(error) => {
                failed(error);
                continue;
            }
        };
        match ask(job, &transport, &request).await {
            Ok(plan) => return Ok(plan),
            Err(error) => {
                job.servers.skip(target);
                failed(error);
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
            Err(error) => failed(error),
        }
    }
    Err(failure)
}

async fn ask(job: &Job, transport: &Transport, request: &Train) -> Result<Plan, Error> {
    let limit = job.servers.config().attempt_timeout;
    let answer = tokio::time::timeout(limit, plan(transport, request)).await;
    let answer = answer.unwrap_or_else(|_| Err(Error::silent(transport.url(), limit)))?;
    let (expected, found) = (&job.plan.summary.plan_hash, &answer.summary.plan_hash);
    if expected != found {
        return Err(Error::BatchMismatch(format!(
            "{} answers with another plan of the same request: plan hash {found}, expected {expected}",
            transport.url()
        )));
    }
    Ok(answer)
}
