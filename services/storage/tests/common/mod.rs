//! Test datasets: written to a temporary folder or to memory, pinned, and read back.

#![allow(dead_code, reason = "every test binary uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{path::Path, sync::Arc};

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use arrow_select::concat::concat_batches;
use forebay_storage::{Config, Error, Location, Reader, Snapshot, State, refresh_snapshot, take_snapshot};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};
use tempfile::TempDir;

pub(crate) mod forward;
pub(crate) mod http;
pub(crate) mod store;

/// Temporary folders for a dataset, the state and the footer cache.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) config: Config,
    pub(crate) state: State,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::default();
        let state = open_state(directory.path(), &config);
        std::fs::create_dir(directory.path().join("data")).unwrap();
        Self { directory, config, state }
    }

    /// Reopens the state, like a restarted process.
    pub(crate) fn restart(&mut self) {
        self.state = open_state(self.directory.path(), &self.config);
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn manifests(&self) -> std::path::PathBuf {
        self.directory.path().join("state/snapshots/test")
    }

    pub(crate) fn write(&self, path: &str, batch: &RecordBatch) {
        self.write_bytes(path, &parquet_bytes(batch, None));
    }

    pub(crate) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.data().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn location(&self) -> Location {
        Location::parse(self.data().to_str().unwrap(), &self.config).unwrap()
    }

    pub(crate) async fn take(&self) -> Result<Arc<Snapshot>, Error> {
        self.take_at(&self.location()).await
    }

    pub(crate) async fn take_at(&self, location: &Location) -> Result<Arc<Snapshot>, Error> {
        take_snapshot("test", location, &self.state, &self.config, |_, _| {}).await.map(Arc::new)
    }

    /// Takes a snapshot after the snapshot `previous`.
    pub(crate) async fn refresh(&self, previous: &Arc<Snapshot>) -> Result<Arc<Snapshot>, Error> {
        let (location, state, config) = (self.location(), &self.state, &self.config);
        refresh_snapshot("test", &location, state, config, Some(previous), |_, _| {}).await
    }

    pub(crate) fn reader(&self, snapshot: &Arc<Snapshot>) -> Reader {
        Reader::new(Arc::clone(snapshot), self.location(), &self.state, self.config.clone())
    }

    /// Takes a snapshot and reads the whole dataset.
    pub(crate) async fn read(&self) -> Result<RecordBatch, Error> {
        let snapshot = self.take().await?;
        read_all(&self.reader(&snapshot)).await
    }
}

fn open_state(directory: &Path, config: &Config) -> State {
    let location = Location::parse(directory.join("state").to_str().unwrap(), config).unwrap();
    State::open(location, Some(directory.join("footers")), config)
}

pub(crate) async fn read_all(reader: &Reader) -> Result<RecordBatch, Error> {
    let columns: Vec<usize> = (0..reader.snapshot().schema().fields().len()).collect();
    read_columns(reader, &columns).await
}

pub(crate) async fn read_columns(reader: &Reader, columns: &[usize]) -> Result<RecordBatch, Error> {
    let mut batches = Vec::new();
    for block in 0..reader.snapshot().blocks().len() {
        let encoded = reader.fetch(block, columns).await?;
        for batch in encoded.decode(1000) {
            batches.push(batch?);
        }
    }
    let schema = Arc::new(reader.snapshot().schema().project(columns).unwrap());
    Ok(concat_batches(&schema, &batches).unwrap())
}

pub(crate) fn parquet_bytes(batch: &RecordBatch, properties: Option<WriterProperties>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), properties).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes
}

pub(crate) fn batch<'a>(columns: impl IntoIterator<Item = (&'a str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

pub(crate) fn integers(values: impl IntoIterator<Item = i32>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int32Array>())
}

pub(crate) fn strings<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(arrow_array::StringArray::from_iter_values(values))
}

/// A batch with one column `x` of these values.
pub(crate) fn rows(values: impl IntoIterator<Item = i32>) -> RecordBatch {
    batch([("x", integers(values))])
}
