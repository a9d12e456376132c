//! Explanations of batches for clients of a running server, with a timeout and a concurrency limit that callers share fairly.

use std::sync::Arc;

use forebay_explain::{At, Explained, Format, JobList, JobRecord, Summary, check_pinned};
use forebay_loader::{Flow, Loader, Pool, Priority};
use forebay_proto::v1;
use tokio::time::timeout;

use crate::{
    Error,
    auth::Access,
    callers::Permits,
    reads,
    registry::datasets::Datasets,
    registry::jobs::{Found, Jobs},
    settings::Limits,
};

/// Explains batches. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Explainer {
    datasets: Datasets,
    loader: Loader,
    pool: Pool,
    jobs: Jobs,
    permits: Permits,
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
        let permits = Permits::new(limits.max_concurrent_explains, limits.max_queued_explains);
        Self { datasets, loader, pool, jobs, permits, limits }
    }

    /// Jobs whose datasets the caller may read, as JSON of a [`JobList`]. There can be thousands, so they are encoded on the pool.
    pub(crate) async fn job_list(&self, access: &Access) -> Result<Vec<u8>, Error> {
        let jobs = self.jobs.list().await.map_err(Error::from)?;
        let (access, flow) = (access.clone(), Flow::of(access.tenant()));
        let encode = move || {
            let list: JobList = jobs.iter().filter(|job| may_read(&access, job)).collect();
            serde_json::to_vec(&list).map_err(|error| forebay_loader::Error::Internal(error.to_string()))
        };
        Ok(self.pool.run_for(flow, Priority::Background, encode).await?)
    }

    /// Finds a job by name or id.
    pub(crate) async fn job(&self, access: &Access, wanted: &str) -> Result<Found, Error> {
        self.jobs.find(wanted, |job| may_read(access, job)).await
    }

    /// Explains a batch of a pinned request.
    pub(crate) async fn summary(
        &self,
        access: &Access,
        train: &v1::Train,
        at: At,
        max_listed_rows: usize,
    ) -> Result<Summary, Error> {
        let summary = async {
            let explained = self.explained(access, train, at).await?;
            let summary =
                explained.summary(&self.loader, &self.pool, Flow::of(access.tenant()), max_listed_rows).await;
            summary.map_err(|error| self.datasets.read_error(reads::of_train(train), error))
        };
        self.bounded(access, summary).await
    }

    /// Exports a batch of a pinned request.
    pub(crate) async fn export(
        &self,
        access: &Access,
        train: &v1::Train,
        at: At,
        format: Format,
    ) -> Result<Vec<u8>, Error> {
        let max_bytes = self.limits.max_explain_bytes;
        let export = async {
            let explained = self.explained(access, train, at).await?;
            let flow = Flow::of(access.tenant());
            explained.export(&self.pool, flow, format, max_bytes).await.map_err(Error::from)
        };
        self.bounded(access, export).await
    }

    async fn explained(&self, access: &Access, train: &v1::Train, at: At) -> Result<Arc<Explained>, Error> {
        check_pinned(train).map_err(Error::from)?;
        let mut readers = vec![self.datasets.pinned(access, &train.dataset, &train.snapshot).await?];
        for mixed in &train.mix {
            readers.push(self.datasets.pinned(access, &mixed.dataset, &mixed.snapshot).await?);
        }
        let loader = self.loader.of_tenant(access.tenant());
        let explained = Explained::build(&loader, train, readers, at).await;
        explained.map(Arc::new).map_err(|error| self.datasets.read_error(reads::of_train(train), error))
    }

    /// Runs `work` within the timeout, once the caller has a permit. The wait for the permit is limited to the same time.
    async fn bounded<T>(
        &self,
        access: &Access,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (caller, limit) = (access.caller(), self.limits.explain_timeout);
        let advice = "try again, or run `forebay explain` without --server";
        let _permit = match timeout(limit, self.permits.acquire(&caller)).await {
            Ok(Some(permit)) => permit,
            Ok(None) => {
                let max_queued = self.limits.max_queued_explains;
                return Err(Error::busy(format!(
                    "{max_queued} explanations are queued (limits.max_queued_explains), and no caller has more of them than \
                     {caller}; {advice}"
                )));
            }
            Err(_) => {
                let most = self.limits.max_concurrent_explains;
                let most_of_caller = self.permits.max_of_caller();
                return Err(Error::busy(format!(
                    "the explanation was queued for {limit:?} (limits.explain_timeout); limits.max_concurrent_explains is {most}, \
                     of which one caller can use {most_of_caller}; {advice}"
                )));
            }
        };
        timeout(limit, work).await.unwrap_or_else(|_| {
            Err(Error::timeout(format!(
                "the batch was not rebuilt within {limit:?} (limits.explain_timeout) because the server is busy; {advice}"
            )))
        })
    }
}

/// True if the caller may read all datasets of a job.
fn may_read(access: &Access, job: &JobRecord) -> bool {
    job.datasets().all(|dataset| access.may_read(dataset))
}
