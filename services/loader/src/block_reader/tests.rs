use arrow_array::{ArrayRef, Int64Array};
use forebay_storage::{Location, State, take_snapshot};
use futures::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

use super::*;
use crate::Scheduling;

const ROWS: usize = 50_000;
const COLUMN_BYTES: u64 = 8 * ROWS as u64;

/// A block of three columns of random values, which neither an encoding nor a compression makes shorter. Its footer is in memory if
/// `is_planned` is true.
async fn reader(is_planned: bool) -> Reader {
    let mut random = fastrand::Rng::with_seed(1);
    let columns = ["a", "gap", "b"].map(|name| {
        let values = std::iter::repeat_with(|| random.i64(..)).take(ROWS);
        (name, Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)
    });
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let (store, config) = (Arc::new(InMemory::new()), forebay_storage::Config::default());
    let bytes = bytes::Bytes::from(writer.into_inner().unwrap());
    store.put(&Path::from("data/a.parquet"), bytes.into()).await.unwrap();
    let location = Location::with_store("memory://data", store, "data");
    let state =
        || State::open(Location::with_store("memory://state", Arc::new(InMemory::new()), ""), None, &config);
    let snapshot = take_snapshot("d", &location, &state(), &config, |_, _| {}).await.unwrap();
    // The footer is not in memory.
    let reader = Reader::new(Arc::new(snapshot), location, &state(), config.clone());
    if is_planned {
        reader.plan(0, &[0]).await.unwrap();
    }
    reader
}

/// Bytes that are reserved while the columns are decoded.
async fn reserved_for(columns: &[usize]) -> u64 {
    let reader = reader(true).await;
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let blocks = BlockReader::new(1 << 30, &Config::default(), pool);
    let (budget, excess) = (blocks.budget.clone(), blocks.excess.clone());
    let what = BlockColumns { reader: &reader, block: 0, columns };
    let decode = |chunks: Chunks| async move {
        let rows: usize = chunks.map(|chunk| chunk.unwrap().num_rows()).sum();
        Ok((rows, budget.reserved_bytes() + excess.reserved_bytes()))
    };
    let (rows, reserved) = blocks.read(what, Purpose::Window, Flow::new(), decode).await.unwrap();
    assert_eq!((rows, blocks.budget.reserved_bytes(), blocks.excess.reserved_bytes()), (ROWS, 0, 0));
    reserved
}

#[tokio::test]
async fn the_bytes_of_gaps_between_columns_are_reserved_with_the_block() {
    // The chunks of three columns are fetched, and two are decoded.
    let reserved = reserved_for(&[0, 2]).await;
    assert!(reserved >= 3 * COLUMN_BYTES + 2 * COLUMN_BYTES, "{reserved} bytes");
    assert!(reserved < 6 * COLUMN_BYTES, "{reserved} bytes");
}

#[tokio::test]
async fn without_gaps_twice_the_size_of_a_block_is_reserved() {
    let reserved = reserved_for(&[0, 1, 2]).await;
    assert!((6 * COLUMN_BYTES..6 * COLUMN_BYTES + COLUMN_BYTES).contains(&reserved), "{reserved} bytes");
}

#[tokio::test]
async fn column_chunks_that_are_larger_than_expected_wait_for_memory_before_they_are_read() {
    let reader = reader(true).await;
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let config = Config { decode_bytes: Some(8 * COLUMN_BYTES), ..Config::default() };
    let blocks = BlockReader::new(1 << 30, &config, pool);
    let flow = Flow::new();
    // The footer claims that the block has a few bytes, and its chunks have those of three columns.
    let permits: Vec<_> =
        join_all((0..20).map(|_| async { blocks.permit(10, flow, reader.source_id()).await.unwrap() })).await;
    let of_file = BlockColumns { reader: &reader, block: 0, columns: &[0, 1, 2] };
    let (blocks, permits) = (&blocks, &permits);
    let read = |permit| async move { blocks.fetch(permit, of_file, Purpose::Window, flow).await.unwrap() };
    let mut reads: FuturesUnordered<_> = permits.iter().map(read).collect();
    let mut fetched = Vec::new();
    while let Some(Some(block)) = reads.next().now_or_never() {
        fetched.push(block);
    }
    assert_eq!(fetched.len(), 1, "half of the memory for decoding has room for four columns");
    fetched.clear();
    assert!(reads.next().await.is_some(), "the next one follows when the memory is released");
}

#[tokio::test]
async fn footers_are_parsed_on_the_pool_as_background_work() {
    let reader = reader(false).await;
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let busy = pool.run(Priority::Interactive, move || Ok(blocked.recv().is_ok()));
    let blocks = BlockReader::new(1 << 30, &Config::default(), pool.clone());
    let activity = Arc::clone(blocks.activity());
    let read = tokio::spawn(async move {
        let what = BlockColumns { reader: &reader, block: 0, columns: &[0] };
        blocks.read(what, Purpose::Window, Flow::new(), |chunks| async move { Ok(chunks.count()) }).await
    });
    while pool.waiting().1 == 0 {
        tokio::task::yield_now().await;
    }
    // What waits is not a decoder: nothing of the block has been read.
    assert_eq!((activity.in_flight(Purpose::Window), read.is_finished()), (1, false));
    release.send(()).unwrap();
    assert!(busy.await.unwrap() && read.await.unwrap().unwrap() > 0);
}
