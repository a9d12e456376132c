//! Explanations in this process, from the state and the datasets.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use forebay_explain::{At, Explained, Format, JobList, Summary, check_pinned};
use forebay_loader::{Flow, Loader, Pool, StoredValues, similar_names};
use forebay_proto::v1;
use forebay_storage::{Location, Reader, State, load_snapshot};

use super::wanted::Wanted;
use crate::{Settings, registry::jobs::Jobs};

/// Rebuilds batches in this process.
pub(super) struct Local {
    settings: Settings,
    state: State,
    jobs: Jobs,
    loader: Loader,
    pool: Pool,
}

impl Local {
    /// Opens the state of `settings`. Nothing is written to it except row counts of filters.
    ///
    /// # Errors
    /// If the URL of the state is invalid, or threads can't be started.
    pub(super) fn new(settings: Settings) -> anyhow::Result<Self> {
        let state = Location::parse(&settings.state_url(), &settings.storage).context("state")?;
        let state = State::open(state, None, &settings.storage);
        let pool = Pool::new(settings.cpu_threads, settings.cpu_scheduling)
            .context("can't start the CPU threads")?;
        let loader = Loader::new(settings.cache_memory.0, settings.loader.clone(), pool.clone())
            .with_values(StoredValues::new(&state));
        let jobs = Jobs::new(&state, settings.limits.max_jobs);
        Ok(Self { settings, state, jobs, loader, pool })
    }

    /// Recorded jobs, as the JSON of `GET /api/v1/jobs`.
    pub(super) async fn jobs(&self) -> anyhow::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.jobs.list().await?.iter().collect::<JobList>())?)
    }

    /// Summary of a batch, as the JSON of `GET /api/v1/explain`.
    pub(super) async fn summary(
        &self,
        wanted: &Wanted,
        at: At,
        max_listed_rows: usize,
    ) -> anyhow::Result<Vec<u8>> {
        let (train, others) = self.request(wanted).await?;
        let explained = self.explained(&train, at).await?;
        let summary = explained.summary(&self.loader, &self.pool, Flow::new(), max_listed_rows).await?;
        Ok(serde_json::to_vec(&Summary { others, ..summary })?)
    }

    pub(super) async fn export(&self, wanted: &Wanted, at: At, format: Format) -> anyhow::Result<Vec<u8>> {
        let (train, _) = self.request(wanted).await?;
        let explained = self.explained(&train, at).await?;
        Ok(explained.export(&self.pool, Flow::new(), format, u64::MAX).await?)
    }

    /// Returns the request of a job, and the ids of earlier jobs with its name.
    async fn request(&self, wanted: &Wanted) -> anyhow::Result<(v1::Train, Vec<String>)> {
        let job = match wanted {
            Wanted::Job(job) => job,
            Wanted::Request(train) => return Ok((v1::Train::clone(train), Vec::new())),
        };
        let found = self.jobs.find(job, |_| true).await;
        let found = found.map_err(|error| anyhow!("{error} (in {})", self.settings.state_url()))?;
        Ok((found.record.request, found.others))
    }

    async fn explained(&self, train: &v1::Train, at: At) -> anyhow::Result<Arc<Explained>> {
        check_pinned(train)?;
        let mut readers = vec![self.reader(&train.dataset, &train.snapshot).await?];
        for mixed in &train.mix {
            readers.push(self.reader(&mixed.dataset, &mixed.snapshot).await?);
        }
        let explained = Explained::build(&self.loader, train, readers, at).await;
        Ok(Arc::new(explained.with_context(|| format!("dataset '{}'", train.dataset))?))
    }

    async fn reader(&self, dataset: &str, snapshot: &str) -> anyhow::Result<Reader> {
        let unknown = || {
            let similar = similar_names(dataset, self.settings.datasets.keys().map(String::as_str));
            let hint = match similar.as_slice() {
                [] => String::new(),
                similar => format!("; did you mean '{}'?", similar.join("', '")),
            };
            anyhow!("the job reads dataset '{dataset}': add --dataset {dataset}=URL{hint}")
        };
        let url = self.settings.datasets.get(dataset).ok_or_else(unknown)?;
        let (state, storage) = (&self.state, &self.settings.storage);
        let named =
            || format!("dataset '{dataset}' (its snapshots are stored in {})", self.settings.state_url());
        let loaded = load_snapshot(dataset, snapshot, state).await.with_context(named)?;
        let location = Location::parse(url, storage).with_context(|| format!("dataset '{dataset}'"))?;
        Ok(Reader::new(Arc::new(loaded), location, state, storage.clone()))
    }
}
