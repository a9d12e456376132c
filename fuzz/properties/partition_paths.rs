//! Property of the paths of a dataset: any paths are a dataset that can be read, or an error.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use forebay_storage::{Config, Error, Location, Reader, State, load_snapshot, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use tokio::runtime::{Builder, Runtime};

/// Maximum number of files.
const MAX_FILES: usize = 6;
/// A file with the column `x` and the rows 1, 2, 3.
const FILE: &[u8] = include_bytes!("three_rows.parquet");

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_all().build().expect("the system can start a thread")
});

/// Reads a dataset whose root is the first line of `data`, and whose files have the paths in the other lines.
pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    RUNTIME.block_on(read(text));
}

async fn read(text: &str) {
    let mut lines = text.split('\n');
    let Ok(root) = Path::parse(lines.next().unwrap_or_default()) else { return };
    let store = Arc::new(InMemory::new());
    for line in lines.take(MAX_FILES) {
        if let Ok(path) = Path::parse(line) {
            store.put(&path, Bytes::from_static(FILE).into()).await.expect("a store in memory");
        }
    }
    let config = Config::default();
    let location = Location::with_store("mem://", store, root);
    let state = State::open(Location::with_store("mem://", Arc::new(InMemory::new()), ""), None, &config);
    let snapshot = match take_snapshot("fuzzed", &location, &state, &config, |_, _| {}).await {
        Ok(snapshot) => Arc::new(snapshot),
        Err(error) => {
            assert!(!matches!(error, Error::Unavailable { .. } | Error::Corrupt { .. }), "{error}");
            return;
        }
    };
    assert_eq!(snapshot.rows(), 3 * snapshot.files().len() as u64);

    let loaded = load_snapshot("fuzzed", snapshot.id(), &state).await.expect("the manifest is stored");
    assert_eq!(loaded.files(), snapshot.files());
    assert_eq!(loaded.schema(), snapshot.schema());

    let reader = Reader::new(Arc::clone(&snapshot), location, &state, config);
    let columns: Vec<usize> = (0..snapshot.schema().fields().len()).collect();
    for block in 0..snapshot.blocks().len() {
        reader.statistics(block, &columns).await.expect("the file is valid");
        let encoded = reader.fetch(block, &columns).await.expect("the file is valid");
        for batch in encoded.decode(100) {
            let batch = batch.expect("the file is valid");
            assert_eq!((batch.num_rows(), batch.num_columns()), (3, columns.len()));
            assert_eq!(batch.schema(), *snapshot.schema());
        }
    }
}
