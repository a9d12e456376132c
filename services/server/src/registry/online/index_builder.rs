//! Lookup indexes of datasets that callers add at run time.

use std::{path::PathBuf, sync::Arc, time::Duration};

use forebay_inference::{Config, KeySpec, LookupMemory, OnlineDataset, Requirements};
use forebay_loader::{Loader, Pool};
use tokio::sync::{Mutex, MutexGuard};

use crate::{Error, Settings};

/// Builds lookup indexes of datasets that are not in the settings. Cheap to clone.
#[derive(Clone)]
pub(super) struct IndexBuilder {
    config: Config,
    loader: Loader,
    memory: LookupMemory,
    pools: (Pool, Pool),
    indexes: PathBuf,
    /// Maximum backoff between attempts to load a snapshot.
    pub(super) max_backoff: Duration,
    /// Memory to reserve for lookups before the first index is built, in bytes.
    unreserved: Arc<Mutex<u64>>,
}

impl IndexBuilder {
    /// Creates the builder; indexes are stored in the cache directory. `pools` are the CPU threads and the lookup threads.
    pub(super) fn new(
        settings: &Settings,
        loader: &Loader,
        memory: LookupMemory,
        pools: &(Pool, Pool),
    ) -> Self {
        // The server reserves the memory that the settings name when it starts.
        let is_reserved = settings.lookup_memory.is_some() || !settings.online.is_empty();
        Self {
            config: settings.lookups.clone(),
            loader: loader.clone(),
            memory,
            pools: pools.clone(),
            indexes: settings.cache_dir.join("indexes"),
            max_backoff: settings.limits.max_open_backoff,
            unreserved: Arc::new(Mutex::new(if is_reserved { 0 } else { settings.cache_memory.0 / 2 })),
        }
    }

    /// Waits until no other caller adds an index.
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn { builder: self, unreserved: self.unreserved.lock().await }
    }
}

/// The right to add an index, which one caller has at a time.
pub(super) struct Turn<'a> {
    builder: &'a IndexBuilder,
    unreserved: MutexGuard<'a, u64>,
}

impl Turn<'_> {
    /// Creates the index of dataset `name` by `key`, without rows. The first call reserves the memory for lookups.
    ///
    /// # Errors
    /// If the memory is in use.
    pub(super) fn build(&mut self, name: &str, key: &[String]) -> Result<OnlineDataset, Error> {
        let IndexBuilder { config, loader, memory, pools, indexes, .. } = self.builder.clone();
        if *self.unreserved > 0 {
            loader.reserve_for_lookups(*self.unreserved)?;
            *self.unreserved = 0;
        }
        let spec = KeySpec { key: key.to_vec(), order_by: None };
        let requirements = Requirements { views: Vec::new(), canary: None };
        Ok(OnlineDataset::new(name, spec, config, memory, pools, indexes.join(name), requirements))
    }
}
