//! Guarantees with servers that are stuck, slow, or fail again and again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use forebay::{Server, Settings};
use forebay_client::{
    Client, Config, Connection, Error, Training,
    proto::v1::{Lookup, Train},
};
use tempfile::TempDir;

use crate::common::{Fault, Proxy, restarted, server, settings, stopped, train};

/// Returns settings with an attempt timeout of `millis`. Keepalive pings do not detect a stuck server before the deadline.
fn config(millis: u64) -> Config {
    Config {
        retry_deadline: Duration::from_secs(30),
        attempt_timeout: Duration::from_millis(millis),
        failback_interval: Duration::from_secs(3600),
        ..Config::default()
    }
}

async fn all(mut training: Training) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    while let Some(batch) = training.next().await {
        batches.push(batch.unwrap().record_batch().unwrap());
    }
    batches
}

async fn received(urls: &[&str], config: Config, request: &Train) -> Vec<RecordBatch> {
    let client = Client::new(urls.iter().copied(), config).unwrap();
    all(client.train(request).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_server_does_not_use_up_the_time_of_a_healthy_one() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let url = server.grpc().url();
    let request = Train { lanes: Some(2), ..train(1) };
    let expected = received(&[&url], config(1000), &request).await;
    // Stuck before the answer to the handshake, before the plan, and within the batches.
    for after in [0, 60, 1_000_000] {
        let stuck = Proxy::before(&server, Fault::Stall(after)).await;
        let found = received(&[&stuck.url, &url], config(1000), &request).await;
        assert!(found == expected, "stuck after {after} bytes");
        assert!(stuck.connections.load(Ordering::Relaxed) > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_all_need_longer_than_the_attempt_timeout_are_given_the_time() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let late = Duration::from_millis(1500);
    let slow =
        [Proxy::before(&server, Fault::Late(late)).await, Proxy::before(&server, Fault::Late(late)).await];
    let urls = slow.each_ref().map(|proxy| proxy.url.as_str());
    for urls in [&urls[..1], &urls] {
        assert!(!received(urls, config(200), &train(1)).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_send_one_batch_and_fail_are_asked_with_growing_pauses() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let cut = Fault::Cut(400_000);
    let failing = [Proxy::before(&server, cut).await, Proxy::before(&server, cut).await];
    let urls = failing.each_ref().map(|proxy| proxy.url.clone());
    // Reports have connections of their own, which the test would count.
    let config = Config { report: false, ..config(60_000) };
    let opened = Instant::now();
    let mut training = Client::new(urls, config).unwrap().train(&train(1000)).await.unwrap();
    let began = Instant::now();
    training.next().await.unwrap().unwrap();
    let mut batches = 1;
    while began.elapsed() < Duration::from_secs(3) {
        if let Ok(next) = tokio::time::timeout(Duration::from_millis(100), training.next()).await {
            next.unwrap().unwrap();
            batches += 1;
        }
    }
    // The time is taken after the count, so that it includes all pauses before the counted connections.
    let connections: u64 = failing.iter().map(|proxy| proxy.connections.load(Ordering::Relaxed)).sum();
    let longer = opened.elapsed().saturating_sub(Duration::from_secs(8));
    // The plan uses one connection. After each pair of failures there is a pause: at least 50, 100, 200, 400, 800, 1600, then always
    // 2500 ms. Therefore at most 8 pairs fit in 8 s.
    let most = 1 + 16 + 2 * longer.as_millis().div_ceil(2500) as u64;
    assert!(connections <= most, "{connections} connections for {batches} batches, expected at most {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_returns_to_the_preferred_server_after_its_restart() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let preferred = Proxy::before(&first, Fault::Cut(u64::MAX)).await;
    let request = train(100_000);
    let config = Config {
        prefetch_batches: 1,
        failback_interval: Duration::from_millis(200),
        connect_timeout: Duration::from_secs(2),
        ..config(60_000)
    };
    let urls = [preferred.url.clone(), second.grpc().url()];
    let mut training = Client::new(urls, config).unwrap().train(&request).await.unwrap();
    for _ in 0..10 {
        training.next().await.unwrap().unwrap();
    }
    let held = stopped(first).await;
    // The second server serves. The bytes of the first one that are already received come first.
    for _ in 0..200 {
        training.next().await.unwrap().unwrap();
    }
    let before = preferred.sent.load(Ordering::Relaxed);
    let mut again = Settings { cache_dir: folder.path().join("again"), ..settings(folder.path(), "again") };
    again.grpc = held.local_addr().unwrap().to_string().parse().unwrap();
    let _first = restarted(again, held).await;
    let returned = async {
        while preferred.sent.load(Ordering::Relaxed) < before + 2_000_000 {
            training.next().await.unwrap().unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), returned).await.expect("the first server serves again");
}

async fn online(folder: &TempDir) -> Server {
    let mut settings = settings(folder.path(), "cache");
    settings.add_online(&["lineitem=l_orderkey,l_linenumber".to_owned()]).unwrap();
    let server = Server::start(settings).await.unwrap();
    // Retries until the lookups are ready.
    Client::new([server.grpc().url()], config(60_000)).unwrap().lookup(&lookup()).await.unwrap();
    server
}

fn lookup() -> Lookup {
    Lookup { dataset: "lineitem".into(), columns: vec!["l_comment".into()], ..Lookup::default() }
}

/// Returns the keys of the first rows.
async fn keys(server: &Server) -> RecordBatch {
    let columns = ["l_orderkey", "l_linenumber"].map(str::to_owned).into();
    let request = Train { columns, batch_size: 100, steps: 1, ..train(1) };
    received(&[&server.grpc().url()], config(60_000), &request).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_of_a_stuck_server_are_answered_by_another_one() {
    let folder = TempDir::new().unwrap();
    let server = online(&folder).await;
    let keys = keys(&server).await;
    let stuck = Proxy::before(&server, Fault::Stall(20_000)).await;
    let config = Config { max_in_flight: 4, ..config(500) };
    let lookups = Client::new([stuck.url.clone(), server.grpc().url()], config).unwrap().lookups(&lookup());
    assert!(lookups.schema().is_none());
    let asked = futures::future::join_all((0..30).map(|_| lookups.get(&keys)));
    for found in asked.await {
        assert_eq!(found.unwrap().metadata.found, keys.num_rows() as u64);
    }
    assert!(lookups.schema().is_some() && stuck.connections.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_server_does_not_keep_the_places_of_lookups() {
    let folder = TempDir::new().unwrap();
    let server = online(&folder).await;
    let keys = keys(&server).await;
    // Enough for the schema, and for no answer.
    let stuck = Proxy::before(&server, Fault::Stall(1000)).await;
    let config = Config { max_in_flight: 2, ..config(3000) };
    let attempt_timeout = config.attempt_timeout;
    let began = Instant::now();
    // On a busy machine, the schema can arrive after the attempt timeout. The loop then asks for it with a new connection.
    let opened = async {
        loop {
            let connection = Connection::open(&stuck.url, Arc::new(config.clone())).await.unwrap();
            match connection.lookup(&lookup()).await {
                Ok(lookups) => break lookups,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    let lookups = tokio::time::timeout(Duration::from_secs(60), opened).await.expect("the schema comes");
    let timeout = Duration::from_millis(50);
    let late = futures::future::join_all((0..5).map(|_| lookups.get_within(&keys, timeout))).await;
    for late in late {
        let error = late.err().unwrap();
        // If `attempt_timeout` has passed, the exchange may already have ended.
        let is_over = error.is_transient() && began.elapsed() >= attempt_timeout;
        assert!(matches!(error, Error::RetryDeadlineExceeded { .. }) || is_over, "{error:?}");
    }
    // The places of the first two are free again when the exchange has ended.
    for _ in 0..3 {
        let error = lookups.get(&keys).await.err().unwrap();
        assert!(error.is_transient(), "{error:?}");
    }
}
