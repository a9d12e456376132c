//! Explanations for callers of a running server.

use std::{sync::Arc, time::Duration};

use forebay_loader::{Error, Loader, Pool, Priority, check_mixture};
use forebay_proto::v1;
use tokio::sync::Semaphore;
use tonic::Status;

use super::{At, Explained, Format, Summary};
use crate::{
    datasets::Datasets,
    door::Access,
    jobs::{Found, Jobs, Record},
    settings::Limits,
    status,
};

/// Explains batches, a few at a time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Explainer {
    datasets: Datasets,
    loader: Loader,
    pool: Pool,
    jobs: Jobs,
    running: Arc<Semaphore>,
    limits: Arc<Limits>,
}

impl Explainer {
    pub(crate) fn new(
        datasets: Datasets,
        loader: Loader,
        pool: Pool,
        jobs: Jobs,
        limits: Arc<Limits>,
    ) -> Self {
        let running = Arc::new(Semaphore::new(limits.max_explains));
        Self { datasets, loader, pool, jobs, running, limits }
    }

    /// The jobs whose datasets the caller may read, the one that was seen last first.
    pub(crate) async fn jobs(&self, access: &Access) -> Result<Vec<Record>, Status> {
        let mut jobs = self.jobs.list().await.map_err(|error| status::of_storage(&error))?;
        jobs.retain(|job| may_read(access, job));
        Ok(jobs)
    }

    /// The job of that name or id.
    pub(crate) async fn job(&self, access: &Access, wanted: &str) -> Result<Found, Status> {
        self.jobs.find(wanted, |job| may_read(access, job)).await
    }

    /// Explains a batch of a pinned request.
    pub(crate) async fn summary(
        &self,
        access: &Access,
        train: &v1::Train,
        at: At,
        listed_rows: usize,
    ) -> Result<Summary, Status> {
        let summary = async {
            let explained = self.explained(access, train, at).await?;
            let summary = explained.summary(&self.loader, &self.pool, listed_rows).await;
            summary.map_err(|error| self.datasets.stream_status(&train.dataset, &error))
        };
        self.bounded(summary).await
    }

    /// A batch of a pinned request, in this format.
    pub(crate) async fn written(
        &self,
        access: &Access,
        train: &v1::Train,
        at: At,
        format: Format,
    ) -> Result<Vec<u8>, Status> {
        let max_bytes = self.limits.max_explain_bytes;
        let written = async {
            let explained = self.explained(access, train, at).await?;
            let written = self.pool.run(Priority::Second, move || explained.written(format, max_bytes)).await;
            written.map_err(|error| status::of_load(&error))
        };
        self.bounded(written).await
    }

    async fn explained(&self, access: &Access, train: &v1::Train, at: At) -> Result<Arc<Explained>, Status> {
        check_pinned(train).map_err(|error| status::of_load(&error))?;
        let mut readers = vec![self.datasets.pinned(access, &train.dataset, &train.snapshot).await?];
        for mixed in &train.mix {
            readers.push(self.datasets.pinned(access, &mixed.dataset, &mixed.snapshot).await?);
        }
        let explained = Explained::make(&self.loader, train, readers, at).await;
        explained.map(Arc::new).map_err(|error| self.datasets.stream_status(&train.dataset, &error))
    }

    /// Waits for its turn, and for memory beside the streams, but not for ever.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let in_turn = async {
            let closed = |_| Status::unavailable("the server is stopping");
            let _turn = self.running.acquire().await.map_err(closed)?;
            work.await
        };
        let limit: Duration = self.limits.explain_timeout;
        tokio::time::timeout(limit, in_turn).await.unwrap_or_else(|_| {
            Err(Status::unavailable(format!(
                "the batch was not made within {limit:?} (limits.explain_timeout), beside what streams and others ask for; try again, \
                 or run `forebay explain` without --server"
            )))
        })
    }
}

/// Whether the caller may read all datasets of a job.
fn may_read(access: &Access, job: &Record) -> bool {
    job.datasets().all(|dataset| access.may_read(dataset))
}

/// Refuses a request that doesn't say which snapshots it means.
///
/// # Errors
/// [`Error::Invalid`] naming the field.
pub(super) fn check_pinned(train: &v1::Train) -> Result<(), Error> {
    if train.dataset.is_empty() {
        return Err(Error::invalid("dataset", "is missing, expected the name of a dataset"));
    }
    check_mixture(train)?;
    let advice =
        "is missing: only of a pinned snapshot is it known what was sent; take a ticket, or add the id";
    if train.snapshot.is_empty() {
        return Err(Error::invalid("snapshot", advice));
    }
    match train.mix.iter().find(|mixed| mixed.snapshot.is_empty()) {
        Some(mixed) => Err(Error::invalid(format!("mix.{}.snapshot", mixed.dataset), advice)),
        None => Ok(()),
    }
}
