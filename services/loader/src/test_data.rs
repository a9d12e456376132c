//! Datasets of the unit tests.

use std::sync::Arc;

use arrow_array::RecordBatch;
use forebay_storage::{Config, Location, Reader, State, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::arrow::ArrowWriter;

/// Reader of a new dataset in memory, with a Parquet file of one row group for each batch.
pub(crate) async fn reader(dataset: &str, files: impl IntoIterator<Item = RecordBatch>) -> Reader {
    let store = Arc::new(InMemory::new());
    for (file, batch) in files.into_iter().enumerate() {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let bytes = writer.into_inner().unwrap();
        store.put(&Path::from(format!("data/{file:02}.parquet")), bytes.into()).await.unwrap();
    }
    let config = Config::default();
    let location = Location::with_store(format!("memory://{dataset}"), store, "data");
    let state = Location::with_store("memory://state", Arc::new(InMemory::new()), "state");
    let state = State::open(state, None, &config);
    let snapshot = take_snapshot(dataset, &location, &state, &config, |_, _| {}).await.unwrap();
    Reader::new(Arc::new(snapshot), location, &state, config)
}
