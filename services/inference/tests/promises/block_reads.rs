//! Reads of blocks share one memory limit, whatever their purpose.

use std::{cell::RefCell, time::Duration};

use forebay_inference::KeyIndex;
use forebay_loader::{Config, Error, FaultInjection, Loader, Purpose};
use forebay_proto::v1::Train;
use forebay_stall::Stage;
use forebay_storage::Reader;

use crate::fixture::{Fixture, pool, spec, users};

const FILES: i64 = 3;
/// Time for which every decode holds its permit.
const DECODE_DELAY: Duration = Duration::from_millis(10);
/// Number of rounds after which a purpose that was never in flight is an error.
const MAX_ROUNDS: u64 = 1000;

/// Request whose counts, labels and frames no earlier round has cached.
fn request(round: u64, column: &str, filter: String) -> Train {
    Train {
        dataset: "d".into(),
        select: vec![format!("user_id + {round} AS {column}")],
        columns: vec![column.into()],
        filter,
        batch_size: 500,
        ..Train::default()
    }
}

/// Streams rows, counts a filter, estimates labels and builds a key index, all concurrently.
async fn read_for_all_purposes(loader: &Loader, reader: &Reader, round: u64) -> Result<(), Error> {
    let stream = async {
        let job = loader.job(request(round, "streamed", String::new()), reader.clone(), Vec::new()).await?;
        let mut batches = loader.batches(job, 0, 0);
        while let Some(batch) = batches.next().await {
            batch?;
        }
        Ok(())
    };
    let count = async {
        let filter = format!("user_id % 7 = 1 AND user_id <> -{round}");
        loader.count(&request(round, "counted", filter), reader, |_| {}).await.map(drop)
    };
    let label = async {
        let labelled = request(round, "user_id", format!("user_id > -{round}"));
        let labelled = Train { select: Vec::new(), label_column: "user_id".into(), ..labelled };
        let job = loader.job(labelled, reader.clone(), Vec::new()).await?;
        loader.label(&job).await.map(drop)
    };
    let index = async {
        KeyIndex::build(reader, &spec(&["user_id"], None), loader.blocks(), 4, |_| {}).await.map(drop)
    };
    tokio::try_join!(stream, count, label, index).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_counts_labels_and_key_indexes_share_one_memory_limit_and_appear_by_purpose() {
    let fixture = Fixture::new();
    for file in 0..FILES {
        fixture.write(file as usize, &users(file * 1000..(file + 1) * 1000, 1)).await;
    }
    let reader = fixture.reader().await;
    // No block fits in one byte, and a block that does not fit is decoded alone.
    let fault_injection = FaultInjection { decode: DECODE_DELAY, ..FaultInjection::default() };
    let config = Config { decode_bytes: Some(1), fault_injection, ..Config::default() };
    let loader = Loader::new(1 << 28, config, pool());
    let seen = RefCell::new([false; Purpose::ALL.len()]);
    let sample = async || {
        loop {
            for (seen, purpose) in seen.borrow_mut().iter_mut().zip(Purpose::ALL) {
                *seen |= loader.reads_in_flight(purpose) > 0;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut round = 0;
    while *seen.borrow() != [true; 4] {
        round += 1;
        assert!(round < MAX_ROUNDS, "in flight of {:?}: {seen:?}", Purpose::ALL);
        tokio::select! {
            read = read_for_all_purposes(&loader, &reader, round) => read.unwrap(),
            _ = sample() => unreachable!("sampling does not end"),
        }
    }
    for stage in [Stage::Storage, Stage::Decode] {
        let work = loader.work(stage);
        assert!(work.busy > Duration::ZERO);
        // Operations that never overlap take as long together as the time with any of them.
        assert_eq!(work.busy, work.at_work, "{stage:?}");
    }
    assert_eq!(Purpose::ALL.map(|purpose| loader.reads_in_flight(purpose)), [0; 4]);
}
