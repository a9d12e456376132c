//! Streams epochs of a job and prints the throughput. Run with
//!
//! ```sh
//! cargo run --release -p forebay-client --example stream -- \
//!     http://127.0.0.1:8815 3 '{"dataset": "flights", "batch_size": 4096}'
//! ```

use std::time::Instant;

use forebay_client::{Client, Config};
use forebay_proto::{Encoding, v1};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, epochs, train] = arguments.as_slice() else {
        return Err("expected: URL EPOCHS '{\"dataset\": ...}'".into());
    };
    let command: v1::Command =
        Encoding::Json.decode("Command", format!("{{\"train\": {train}}}").as_bytes())?;
    let train = command.train.ok_or("no request")?;
    let client = Client::new([url], Config::default())?;
    for epoch in 0..epochs.parse()? {
        let started = Instant::now();
        let mut batches = client.train(&v1::Train { epoch: train.epoch + epoch, ..train.clone() }).await?;
        let (mut rows, mut bytes, mut columns) = (0, 0, 0);
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            rows += batch.rows();
            bytes += batch.body().len();
            columns = batch.record_batch()?.num_columns();
        }
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {rows} rows of {columns} columns in {seconds:.3} s, {:.2} M rows/s, {:.3} GB/s",
            rows as f64 / seconds / 1e6,
            bytes as f64 / seconds / 1e9
        );
    }
    Ok(())
}
