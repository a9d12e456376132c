//! A connection to a real server, compared with the stock Flight client.

use std::{path::Path, sync::Arc};

use arrow_array::RecordBatch;
use arrow_flight::{FlightClient, Ticket};
use forebay::{Server, Settings};
use forebay_client::{Batches, Config, Connection, Error};
use forebay_proto::{
    Encoding,
    v1::{Command, Train},
};
use forebay_sample_data::lineitem;
use futures::TryStreamExt;
use tempfile::TempDir;
use tonic::{Code, transport::Endpoint};

async fn server(folder: &Path, grpc: &str) -> Server {
    let data = lineitem::at(&folder.join("data"), 0.01).unwrap();
    let mut settings = Settings { cache_dir: folder.join("cache"), ..Settings::default() };
    settings.grpc = grpc.parse().unwrap();
    settings.http = "127.0.0.1:0".parse().unwrap();
    settings.grace_period = std::time::Duration::ZERO;
    settings.cache_disk = Some("0B".parse().unwrap());
    settings.add_datasets(&[format!("lineitem={}", data.display())]).unwrap();
    Server::start(settings).await.unwrap()
}

fn train(epochs: u64) -> Train {
    Train { dataset: "lineitem".into(), batch_size: 1000, epochs: Some(epochs), ..Train::default() }
}

async fn all(mut batches: Batches) -> Result<Vec<RecordBatch>, Error> {
    let mut all = Vec::new();
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        assert_eq!(batch.metadata.rows, batch.rows());
        assert_eq!(batch.metadata.content_hash, Some(xxhash_rust::xxh3::xxh3_64(batch.body())));
        assert_eq!(batch.body().as_ptr() as usize % 64, 0);
        all.push(batch.record_batch()?);
    }
    Ok(all)
}

#[tokio::test]
async fn a_connection_receives_the_same_batches_as_the_stock_client_over_tcp_and_unix_sockets() {
    for socket in [false, true] {
        let folder = TempDir::new().unwrap();
        let path = format!("unix:{}", folder.path().join("socket").display());
        let server = server(folder.path(), if socket { &path } else { "127.0.0.1:0" }).await;
        let url = server.grpc().url();
        let client = Connection::open(&url, Arc::default()).await.unwrap();
        let info = client.plan(&train(2)).await.unwrap();
        let found = all(client.train(&train(2)).await.unwrap()).await.unwrap();
        let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
        assert_eq!((rows as i64, &*found[0].schema()), (info.total_records, &*info.schema));
        assert_eq!(all(client.get(info.tickets[0].clone()).await.unwrap()).await.unwrap(), found);

        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let ticket = Encoding::Protobuf.encode(&Command::from(train(2)));
        let stock = FlightClient::new(channel).do_get(Ticket::new(ticket)).await.unwrap();
        assert_eq!(stock.try_collect::<Vec<_>>().await.unwrap(), found);
    }
}

#[tokio::test]
async fn errors_keep_the_status_and_message_of_the_server() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "127.0.0.1:0").await;
    let client = Connection::open(&server.grpc().url(), Arc::default()).await.unwrap();
    let unknown = Train { dataset: "lineitm".into(), ..train(1) };
    for error in [client.train(&unknown).await.err().unwrap(), client.plan(&unknown).await.err().unwrap()] {
        let Error::Status(status) = &error else { panic!("{error:?}") };
        assert_eq!(status.code(), Code::NotFound);
        assert!(error.to_string().contains("did you mean 'lineitem'"), "{error}");
    }
    let unreachable = Connection::open("http://127.0.0.1:1", Arc::default()).await.err().unwrap();
    assert!(
        matches!(&unreachable, Error::Connect { url, .. } if url == "http://127.0.0.1:1"),
        "{unreachable:?}"
    );
}

#[tokio::test]
async fn a_stopped_server_is_an_error_and_never_the_end_of_the_stream() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "127.0.0.1:0").await;
    let client = Connection::open(&server.grpc().url(), Arc::default()).await.unwrap();
    let mut batches = client.train(&train(100_000)).await.unwrap();
    batches.next().await.unwrap().unwrap();
    server.drain().await;
    let error = loop {
        match batches.next().await.expect("100,000 epochs are not over") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    // There is no grace period, so the connection can be closed before its status is received.
    let is_lost = matches!(error, Error::Lost { .. });
    assert!(is_lost || error.code() == Some(Code::Unavailable), "{error:?}");
    assert!(batches.next().await.is_none(), "after an error the stream is over");
}

#[tokio::test]
async fn a_batch_over_the_limit_of_the_client_is_rejected() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "127.0.0.1:0").await;
    let config = Config { max_batch_bytes: 1000, ..Config::default() };
    let client = Connection::open(&server.grpc().url(), Arc::new(config)).await.unwrap();
    let error = all(client.train(&train(1)).await.unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("the limit is 1000"), "{error}");
}

#[tokio::test]
async fn only_a_limit_that_is_reached_at_the_moment_is_transient() {
    let folder = TempDir::new().unwrap();
    let data = lineitem::at(&folder.path().join("data"), 0.01).unwrap();
    let mut settings = Settings { cache_dir: folder.path().join("cache"), ..Settings::default() };
    settings.grpc = "127.0.0.1:0".parse().unwrap();
    settings.http = "127.0.0.1:0".parse().unwrap();
    settings.grace_period = std::time::Duration::ZERO;
    settings.limits.max_streams = 1;
    settings.loader.max_batch_bytes = 1 << 20;
    settings.add_datasets(&[format!("lineitem={}", data.display())]).unwrap();
    let server = Server::start(settings).await.unwrap();
    let client = Connection::open(&server.grpc().url(), Arc::default()).await.unwrap();
    let large = Train { batch_size: 60_000, ..train(1) };
    let never = client.train(&large).await.err().unwrap();
    assert!(never.code() == Some(Code::ResourceExhausted) && !never.is_transient(), "{never:?}");
    let mut running = client.train(&train(100_000)).await.unwrap();
    running.next().await.unwrap().unwrap();
    let busy = client.train(&train(1)).await.err().unwrap();
    assert!(busy.code() == Some(Code::ResourceExhausted) && busy.is_transient(), "{busy:?}");
    assert!(busy.to_string().contains("limits.max_streams is 1"), "{busy}");
}
