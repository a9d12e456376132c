//! Datasets in memory, and helpers for their lookups.

use std::{collections::HashMap, path::Path, sync::Arc};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::{reader::read_record_batch, root_as_message};
use forebay_inference::{Answer, Config, KeySpec, LookupMemory, OnlineDataset, Requirements};
use forebay_loader::{BlockReader, Loader, Pool, Scheduling};
use forebay_proto::v1::Train;
use forebay_storage::{Location, Reader, State, take_snapshot};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path as StorePath};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

/// Datasets in memory.
pub(crate) struct Fixture {
    pub(crate) store: Arc<InMemory>,
    state: State,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let config = forebay_storage::Config::default();
        let state = Location::with_store("memory://state", Arc::new(InMemory::new()), "state");
        Self { store: Arc::new(InMemory::new()), state: State::open(state, None, &config) }
    }

    /// Writes or replaces a file.
    pub(crate) async fn write(&self, file: usize, rows: &RecordBatch) {
        self.put(file, encoded(rows)).await;
    }

    /// Writes or replaces a file with any content.
    pub(crate) async fn put(&self, file: usize, content: Vec<u8>) {
        self.store.put(&path(file), content.into()).await.unwrap();
    }

    /// Deletes a file, if it exists.
    pub(crate) async fn delete(&self, file: usize) {
        self.store.delete(&path(file)).await.ok();
    }

    pub(crate) async fn reader(&self) -> Reader {
        self.try_reader().await.unwrap()
    }

    pub(crate) async fn try_reader(&self) -> Result<Reader, forebay_storage::Error> {
        self.reader_through(Arc::clone(&self.store) as _).await
    }

    /// A reader that reads through `store`.
    pub(crate) async fn reader_through(
        &self,
        store: Arc<dyn ObjectStore>,
    ) -> Result<Reader, forebay_storage::Error> {
        let config = forebay_storage::Config::default();
        let location = Location::with_store("memory://data", store, "data");
        let snapshot = take_snapshot("d", &location, &self.state, &config, |_, _| {}).await?;
        Ok(Reader::new(Arc::new(snapshot), location, &self.state, config))
    }
}

fn path(file: usize) -> StorePath {
    StorePath::from(format!("data/{file:03}.parquet"))
}

/// Rows as a Parquet file.
pub(crate) fn encoded(rows: &RecordBatch) -> Vec<u8> {
    let small = WriterProperties::builder().set_max_row_group_row_count(Some(20_000)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(small)).unwrap();
    writer.write(rows).unwrap();
    writer.into_inner().unwrap()
}

pub(crate) fn pool() -> Pool {
    Pool::new(2, Scheduling::Normal).unwrap()
}

pub(crate) fn blocks() -> BlockReader {
    BlockReader::new(1 << 30, &forebay_loader::Config::default(), pool())
}

pub(crate) fn spec(key: &[&str], order_by: Option<&str>) -> KeySpec {
    KeySpec { key: key.iter().map(|&name| name.to_owned()).collect(), order_by: order_by.map(str::to_owned) }
}

pub(crate) fn online_with_views(
    spec: KeySpec,
    memory_bytes: u64,
    folder: &Path,
    config: Config,
    declared: &[Train],
) -> OnlineDataset {
    online_with(spec, memory_bytes, folder, config, Requirements { views: declared.to_vec(), canary: None })
}

pub(crate) fn online_with(
    spec: KeySpec,
    memory_bytes: u64,
    folder: &Path,
    config: Config,
    requirements: Requirements,
) -> OnlineDataset {
    let loader = Loader::new(2 * memory_bytes, forebay_loader::Config::default(), pool());
    loader.reserve_for_lookups(memory_bytes).unwrap();
    OnlineDataset::new(
        "d",
        spec,
        config,
        LookupMemory::new(loader),
        (pool(), pool()),
        folder.to_owned(),
        requirements,
    )
}

/// Decodes the rows of an answer.
pub(crate) fn rows(answer: &Answer) -> RecordBatch {
    let message = root_as_message(&answer.batch.header).unwrap();
    let body = answer.batch.body.to_vec().into();
    let schema = Arc::clone(answer.lookup_rows[0].view().schema());
    let batch = message.header_as_record_batch().unwrap();
    read_record_batch(&body, batch, schema, &HashMap::new(), None, &message.version()).unwrap()
}

/// Users with these ids. Their other columns hold the number of the snapshot.
pub(crate) fn users(ids: std::ops::Range<i64>, snapshot: i64) -> RecordBatch {
    let same = |value: i64| ids.clone().map(move |_| value);
    let columns: [(&str, ArrayRef); 4] = [
        ("user_id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("version", Arc::new(Int64Array::from_iter_values(same(snapshot)))),
        ("again", Arc::new(Int64Array::from_iter_values(same(snapshot)))),
        ("name", Arc::new(StringArray::from_iter_values(ids.clone().map(|id| format!("user {id}"))))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn ids(ids: impl IntoIterator<Item = i64>) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    RecordBatch::try_from_iter([("user_id", ids)]).unwrap()
}
