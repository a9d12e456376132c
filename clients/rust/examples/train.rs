//! Trains for a part of an epoch, then resumes as a restarted trainer would.
//! Run with `cargo run --release -p forebay-client --example train -- grpc://127.0.0.1:8815`.

use forebay_client::{
    Client, Config, Cursor, Error,
    proto::v1::{Tensor, Train},
};

/// Trains for one epoch on the cluster of `urls`. Returns the number of rows.
pub(crate) async fn train(urls: &[String]) -> Result<u64, Error> {
    let client = Client::new(urls, Config::default())?;
    let request = Train {
        dataset: "lineitem".into(),
        batch_size: 4096,
        seed: 7,
        tensors: vec![Tensor {
            name: "x".into(),
            columns: vec!["l_quantity".into(), "l_discount".into()],
            dtype: "float32".into(),
            ..Tensor::default()
        }],
        ..Train::default()
    };
    let mut training = client.train(&request).await?;
    let mut rows = 0;
    while let Some(batch) = training.next().await {
        let batch = batch?.record_batch()?; // An Arrow RecordBatch, without a copy.
        rows += batch.num_rows() as u64;
        if training.cursor().step == 10 {
            break;
        }
    }

    // A checkpoint contains the cursor and the snapshot, in addition to the request.
    let Cursor { epoch, step } = training.cursor();
    let snapshot = training.plan().summary.snapshot.clone();
    drop(training);

    let resumed = Train { snapshot, epoch, start_step: step, ..request };
    let mut training = client.train(&resumed).await?;
    while let Some(batch) = training.next().await {
        rows += batch?.rows();
    }
    println!("{rows} rows; waited {:?} for batches", training.stats().wait);
    Ok(rows)
}

#[tokio::main]
#[allow(dead_code)] // A test calls only `train`.
async fn main() -> Result<(), Error> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    train(&urls).await.map(drop)
}
