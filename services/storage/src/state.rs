//! What outlives a process: manifests of snapshots and the rows that filters keep of them, where every server reads them, and footers on this
//! machine's disk.

use std::{path::PathBuf, sync::Arc};

use object_store::PutMode;

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

    /// How many rows of each block a filter keeps, if that was counted before. What is damaged was not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn find_kept(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        filter: u128,
    ) -> Result<Option<Vec<u32>>, Error> {
        let relative = relative_kept(dataset, snapshot.id(), filter);
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let Some(sealed) = request::get(&self.location, &path, &url).await? else { return Ok(None) };
        let blocks = snapshot.blocks().len();
        let opened = blocking(move || {
            let counts =
                KEPT.open(&sealed).ok().and_then(|json| serde_json::from_slice::<Vec<u32>>(&json).ok());
            Ok(counts.filter(|counts| counts.len() == blocks))
        });
        opened.await
    }

    /// Keeps them beside the snapshot's manifest, where every server finds them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn keep_kept(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        filter: u128,
        counts: &[u32],
    ) -> Result<(), Error> {
        let relative = relative_kept(dataset, snapshot.id(), filter);
        let (path, url) = (self.location.child(&relative)?, self.location.child_url(&relative));
        let json = serde_json::to_vec(counts).expect("numbers have a JSON form");
        request::put(&self.location, &path, &url, KEPT.seal(&json), PutMode::Overwrite).await
    }

    pub(crate) fn footers(&self) -> &Arc<Footers> {
        &self.footers
    }
}

const KEPT: Envelope = Envelope { kind: "kept", version: 1 };

fn relative_kept(dataset: &str, id: &str, filter: u128) -> String {
    format!("snapshots/{dataset}/{id}.{filter:032x}.kept")
}

fn relative(dataset: &str, id: &str) -> String {
    format!("snapshots/{dataset}/{id}.manifest")
}
