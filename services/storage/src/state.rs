//! What outlives a process: manifests of snapshots, what was counted of their rows and records of other kinds, where every
//! server reads them, and footers on this machine's disk.

use std::{path::PathBuf, sync::Arc};

use object_store::PutMode;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Config, Error, Location, Snapshot, blocking::blocking, envelope::Envelope, footers::Footers, manifest,
    request,
};

/// Durable manifests, and the footers read so far. Cheap to clone; clones share both.
#[derive(Clone, Debug)]
pub struct State {
    location: Location,
    footers: Arc<Footers>,
}

impl State {
    /// Manifests go to `snapshots/<dataset>/<id>.manifest` under `location`, which need not exist yet;
    /// footers to `footer_dir`, or to memory alone.
    pub fn open(location: Location, footer_dir: Option<PathBuf>, config: &Config) -> Self {
        Self { location, footers: Arc::new(Footers::new(footer_dir, config.footer_memory_bytes)) }
    }

    /// The kept snapshot, if there is one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a manifest that is truncated, altered or foreign.
    pub(crate) async fn find(&self, dataset: &str, id: &str) -> Result<Option<Snapshot>, Error> {
        let relative = relative(dataset, id);
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let Some(sealed) = request::get(&self.location, &path, &url).await? else { return Ok(None) };
        let id = id.to_owned();
        let opened = blocking(move || {
            let snapshot = manifest::read(&sealed).map_err(|detail| Error::corrupt(&url, detail))?;
            if snapshot.id() != id {
                return Err(Error::corrupt(&url, format!("it holds snapshot {}", snapshot.id())));
            }
            Ok(snapshot)
        });
        opened.await.map(Some)
    }

    /// Keeps a snapshot's manifest, and gives the snapshot back. With [`PutMode::Create`], a manifest that
    /// is there already stays.
    pub(crate) async fn keep(
        &self,
        dataset: &str,
        snapshot: Snapshot,
        mode: PutMode,
    ) -> Result<Snapshot, Error> {
        let relative = relative(dataset, snapshot.id());
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let written = blocking(move || {
            let bytes = manifest::write(&snapshot);
            Ok((snapshot, bytes))
        });
        let (snapshot, bytes) = written.await?;
        request::put(&self.location, &path, &url, bytes, mode).await?;
        Ok(snapshot)
    }

    /// What was counted of each block for a question about its rows, if it was. What is damaged was not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn find_counts<T: DeserializeOwned + Send + 'static>(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        question: u128,
    ) -> Result<Option<T>, Error> {
        let relative = relative_counts(dataset, snapshot.id(), question);
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let Some(sealed) = request::get(&self.location, &path, &url).await? else { return Ok(None) };
        blocking(move || Ok(COUNTS.open(&sealed).ok().and_then(|json| serde_json::from_slice(&json).ok())))
            .await
    }

    /// Keeps it beside the snapshot's manifest, where every server finds it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn keep_counts(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        question: u128,
        counts: Arc<impl Serialize + Send + Sync + 'static>,
    ) -> Result<(), Error> {
        let relative = relative_counts(dataset, snapshot.id(), question);
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let sealed = blocking(move || {
            let json = serde_json::to_vec(&*counts).expect("counts have a JSON form");
            Ok(COUNTS.seal(&json))
        });
        request::put(&self.location, &path, &url, sealed.await?, PutMode::Overwrite).await
    }

    /// Where all of it is kept.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn footers(&self) -> &Arc<Footers> {
        &self.footers
    }
}

const COUNTS: Envelope = Envelope { kind: "counts", version: 1 };

fn relative_counts(dataset: &str, id: &str, question: u128) -> String {
    format!("snapshots/{dataset}/{id}.{question:032x}.counts")
}

fn relative(dataset: &str, id: &str) -> String {
    format!("snapshots/{dataset}/{id}.manifest")
}
