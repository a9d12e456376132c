//! The datasets that are looked up, kept ready for their current snapshots.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use forebay_inference::{Config, KeySpec, Online};
use forebay_loader::{Loader, Pool};
use tokio::sync::watch;

use crate::{
    datasets::{Datasets, Phase},
    status,
};

/// Datasets by name. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct OnlineDatasets {
    entries: Arc<BTreeMap<String, Online>>,
    max_keys: usize,
}

impl OnlineDatasets {
    /// Those of `specs`; their indexes are kept below `folder`.
    pub(crate) fn new(
        specs: &BTreeMap<String, KeySpec>,
        config: &Config,
        loader: &Loader,
        pools: &(Pool, Pool),
        folder: &Path,
    ) -> Self {
        let online = |(name, spec): (&String, &KeySpec)| {
            let folder = folder.join("indexes").join(name);
            let online =
                Online::new(name, spec.clone(), config.clone(), loader.clone(), pools.clone(), folder);
            (name.clone(), online)
        };
        Self { entries: Arc::new(specs.iter().map(online).collect()), max_keys: config.max_keys }
    }

    /// The dataset `name`, if it is looked up.
    pub(crate) fn get(&self, name: &str) -> Option<&Online> {
        self.entries.get(name)
    }

    /// Most keys of one lookup.
    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Those of which nothing is ready yet.
    pub(crate) fn unready(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, online)| !online.is_ready()).map(|(name, _)| name.as_str())
    }

    /// Makes every snapshot of dataset `name` ready that becomes current; never returns. What fails is logged, and tried again
    /// with backoff.
    pub(crate) async fn tend(self, datasets: Datasets, name: String, max_backoff: Duration) {
        let (Some(online), Some(mut phase)) = (self.get(&name), datasets.watch(&name)) else { return };
        let mut backoff = Duration::from_secs(1);
        loop {
            let Some(reader) = opened(&mut phase).await else { return };
            let progress = |done: forebay_inference::Indexed| {
                tracing::debug!(dataset = name, rows = done.rows, rows_done = done.rows_done, "reading keys");
            };
            match online.adopt(reader, progress).await {
                Ok(()) => {
                    backoff = Duration::from_secs(1);
                    if phase.changed().await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let error = status::of_load(&error);
                    let error = error.message();
                    tracing::warn!(dataset = name, error, "can't be looked up, trying again in {backoff:?}");
                    // Another snapshot may be better.
                    drop(tokio::time::timeout(backoff, phase.changed()).await);
                    backoff = (backoff * 2).min(max_backoff);
                }
            }
        }
    }
}

/// The current snapshot, once there is one.
async fn opened(phase: &mut watch::Receiver<Phase>) -> Option<forebay_storage::Reader> {
    let phase = phase.wait_for(|phase| matches!(phase, Phase::Open(_))).await.ok()?;
    match &*phase {
        Phase::Open(reader) => Some(reader.clone()),
        Phase::Opening { .. } | Phase::Failed(_) => None,
    }
}
