//! Property of Parquet files: any bytes are rows or an error, within the limits.

use std::sync::{Arc, LazyLock};

use forebay_storage::{Config, Error, Location, Reader, State, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory};
use tokio::runtime::{Builder, Runtime};

const MIB: u64 = 1 << 20;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_all().build().expect("the system can start a thread")
});

/// Takes a snapshot of a dataset of one file, `data`, and reads its statistics and all of its columns.
pub(crate) fn check(data: &[u8]) {
    if let Err(error) = RUNTIME.block_on(read(data)) {
        // The store does not fail, so that only a panic makes the file unavailable.
        assert!(!matches!(error, Error::Unavailable { .. }), "{error}");
    }
}

/// Reads the file. A block has at most 4 MiB.
pub(crate) async fn read(data: &[u8]) -> Result<(), Error> {
    let config =
        Config { max_footer_bytes: MIB, max_page_bytes: MIB, max_block_bytes: 4 * MIB, ..Config::default() };
    let store = Arc::new(InMemory::new());
    store.put(&"a.parquet".into(), data.to_vec().into()).await.expect("a store in memory");
    let location = Location::with_store("mem://", store, "");
    let state = State::open(Location::with_store("mem://", Arc::new(InMemory::new()), ""), None, &config);
    let snapshot = Arc::new(take_snapshot("fuzzed", &location, &state, &config, |_, _| {}).await?);
    let reader = Reader::new(Arc::clone(&snapshot), location, &state, config);
    let columns: Vec<usize> = (0..snapshot.schema().fields().len()).collect();
    let mut outcome = Ok(());
    for block in 0..snapshot.blocks().len() {
        // An error of one part does not keep the other parts from being read.
        outcome = outcome.and(statistics(&reader, block, &columns).await);
        outcome = outcome.and(rows(&reader, block, &columns).await);
    }
    outcome
}

async fn statistics(reader: &Reader, block: usize, columns: &[usize]) -> Result<(), Error> {
    let rows = reader.snapshot().blocks()[block].rows;
    for known in [reader.statistics(block, columns).await?, reader.page_statistics(block, columns).await?] {
        assert_eq!(known.len(), columns.len());
        for (position, column) in known.into_iter().enumerate() {
            assert_eq!(column.ends.last(), Some(&rows));
            assert_eq!(
                [column.min.len(), column.max.len(), column.null_counts.len()],
                [column.ends.len(); 3]
            );
            // Bloom filters are read for values of the column's type.
            if column.min.null_count() == 0 {
                reader.may_contain(block, columns[position], column.min).await?;
            }
        }
    }
    Ok(())
}

async fn rows(reader: &Reader, block: usize, columns: &[usize]) -> Result<(), Error> {
    let encoded = reader.fetch(block, columns).await?;
    let (mut left, schema) = (encoded.rows(), Arc::clone(encoded.schema()));
    for batch in encoded.decode(1000) {
        let batch = batch?;
        assert_eq!(batch.schema(), schema);
        assert!((1..=left.min(1000)).contains(&batch.num_rows()), "{} of {left} rows", batch.num_rows());
        left -= batch.num_rows();
        for column in batch.columns() {
            // The decoder omits checks that it considers implied.
            column.to_data().validate_full().expect("the decoded values are valid");
        }
    }
    assert_eq!(left, 0, "rows are missing");
    Ok(())
}
