//! Epochs of TPC-H lineitem (scale 1) over loopback, cold and warm, beside what bounds them: parquet-rs
//! decoding the same columns with as many threads, and memcpy of as many bytes.
//!
//! The contestants take turns, round after round, and the medians are compared: a machine's speed drifts.
//! `cargo bench --bench lineitem`

use std::{
    fs::File,
    hint::black_box,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use anyhow::Context;
use arrow_flight::{Ticket, flight_service_client::FlightServiceClient};
use forebay::{Server, Settings, demo::lineitem};
use forebay_proto::{Encoding, v1};
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};
use tonic::transport::{Channel, Endpoint};

const ROUNDS: usize = 5;
const BATCH_SIZE: u64 = 16_384;
const FOUR: [&str; 4] = ["l_orderkey", "l_quantity", "l_extendedprice", "l_discount"];

fn main() -> anyhow::Result<()> {
    let folder = std::env::var_os("FOREBAY_BENCH_DATA").map_or_else(std::env::temp_dir, PathBuf::from);
    let data = lineitem::at(&folder.join("forebay-bench"), 1.0)?;
    let settings = Settings::default();
    println!(
        "threads: {} for CPU work, {} for I/O; {ROUNDS} rounds, medians",
        settings.cpu_threads, settings.io_threads
    );
    println!("{:<12} {:<26} {:>10} {:>8} {:>16}", "columns", "what", "M rows/s", "GB/s", "of parquet-rs");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.io_threads)
        .enable_all()
        .build()?;
    for columns in [FOUR.map(str::to_owned).to_vec(), Vec::new()] {
        let mut seconds: [Vec<f64>; 5] = Default::default();
        let mut moved = Moved::default();
        for _ in 0..ROUNDS {
            let (alone, rows) = parquet_alone(&data, &columns, settings.cpu_threads)?;
            let (cold, warm, warm_in_order, found) = runtime.block_on(epochs(&data, &columns))?;
            anyhow::ensure!(found.rows == rows, "{} rows were streamed of {rows}", found.rows);
            moved = found;
            for (all, one) in seconds.iter_mut().zip([alone, cold, warm, warm_in_order, memcpy(moved.bytes)])
            {
                all.push(one);
            }
        }
        let name = if columns.is_empty() { "all 16".to_owned() } else { columns.len().to_string() };
        report(&name, seconds, moved);
    }
    Ok(())
}

#[derive(Default, Clone, Copy, PartialEq)]
struct Moved {
    rows: u64,
    bytes: u64,
}

fn report(columns: &str, seconds: [Vec<f64>; 5], moved: Moved) {
    let medians = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    });
    let names = [
        "parquet-rs alone",
        "cold epoch, shuffled",
        "warm epoch, shuffled",
        "warm epoch, file order",
        "memcpy, one thread",
    ];
    for (name, seconds) in names.iter().zip(medians) {
        println!(
            "{columns:<12} {name:<26} {:>10.2} {:>8.2} {:>16.2}",
            moved.rows as f64 / seconds / 1e6,
            moved.bytes as f64 / seconds / 1e9,
            medians[0] / seconds,
        );
    }
}

/// Seconds to decode the columns of all files, and the rows.
fn parquet_alone(data: &Path, columns: &[String], threads: usize) -> anyhow::Result<(f64, u64)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let decode = || -> anyhow::Result<u64> {
        let mut rows = 0;
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
            let mask = match columns.is_empty() {
                true => ProjectionMask::all(),
                false => {
                    ProjectionMask::columns(builder.parquet_schema(), columns.iter().map(String::as_str))
                }
            };
            for batch in builder.with_projection(mask).with_batch_size(4096).build()? {
                rows += black_box(batch?).num_rows() as u64;
            }
        }
        Ok(rows)
    };
    let rows = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(decode)).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<anyhow::Result<u64>>()
    })?;
    Ok((started.elapsed().as_secs_f64(), rows))
}

/// Seconds of a cold and a warm shuffled epoch and of a warm one in file order, on a fresh server.
async fn epochs(data: &Path, columns: &[String]) -> anyhow::Result<(f64, f64, f64, Moved)> {
    let cache = tempfile::tempdir()?;
    let mut settings = Settings { cache_dir: cache.path().to_owned(), ..Settings::default() };
    settings.grpc = "127.0.0.1:0".parse().expect("an address");
    settings.http.set_port(0);
    settings.add_datasets(&[format!("lineitem={}", data.display())])?;
    let server = Server::start(settings).await?;
    let channel = Endpoint::from_shared(server.grpc().url())?
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(64 << 20)
        .connect()
        .await?;
    let mut client = FlightServiceClient::new(channel).max_decoding_message_size(1 << 30);
    let request = |epoch| v1::Train {
        dataset: "lineitem".into(),
        columns: columns.to_vec(),
        batch_size: BATCH_SIZE,
        epoch,
        hash: Some(false),
        ..v1::Train::default()
    };
    let in_order = v1::Train {
        shuffle: Some(v1::Shuffle { none: Some(v1::shuffle::None {}), ..Default::default() }),
        ..request(0)
    };
    let (cold, moved) = stream(&mut client, request(0)).await?;
    let (warm, _) = stream(&mut client, request(1)).await?;
    let (warm_in_order, _) = stream(&mut client, in_order).await?;
    drop(client);
    server.drain().await;
    Ok((cold, warm, warm_in_order, moved))
}

async fn stream(client: &mut FlightServiceClient<Channel>, train: v1::Train) -> anyhow::Result<(f64, Moved)> {
    let ticket = Ticket::new(Encoding::Protobuf.encode(&v1::Command { train: Some(train) }));
    let started = Instant::now();
    let mut messages = client.do_get(ticket).await?.into_inner();
    let mut moved = Moved::default();
    while let Some(message) = messages.message().await? {
        moved.bytes += message.data_body.len() as u64;
        if !message.app_metadata.is_empty() {
            let batch: v1::BatchMetadata =
                Encoding::Protobuf.decode("BatchMetadata", &message.app_metadata)?;
            moved.rows += batch.rows;
        }
    }
    (moved.rows > 0).then_some(()).context("nothing was streamed")?;
    Ok((started.elapsed().as_secs_f64(), moved))
}

/// Seconds to copy as many bytes, from far more memory than the caches hold.
fn memcpy(bytes: u64) -> f64 {
    const PIECE: usize = 1 << 20;
    let source = vec![1u8; 256 * PIECE];
    // Not of zeros: such memory is not there until it is written to.
    let mut target = vec![2u8; 256 * PIECE];
    let started = Instant::now();
    for piece in 0..(bytes as usize).div_ceil(PIECE) {
        let at = piece % 256 * PIECE;
        target[at..at + PIECE].copy_from_slice(black_box(&source[at..at + PIECE]));
    }
    black_box(&target);
    started.elapsed().as_secs_f64()
}
