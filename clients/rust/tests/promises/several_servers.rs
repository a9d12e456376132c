//! Guarantees of running trainings with several servers that have different limits, or are restarted one after the other.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use forebay::{Server, Settings};
use forebay_client::{Client, Config, Training, proto::v1::Train};
use futures::future::join_all;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tonic::Code;

use crate::common::{self, Fault, Proxy, server, settings, stopped, train};

/// Returns settings with which a training returns to its preferred server soon, and prefetches little.
fn config() -> Config {
    Config {
        retry_deadline: Duration::from_secs(60),
        failback_interval: Duration::from_millis(200),
        connect_timeout: Duration::from_secs(2),
        prefetch_batches: 1,
        ..Config::default()
    }
}

/// Starts the server at the address of `held` again, with an empty cache.
async fn restarted(folder: &Path, held: TcpSocket, cache: &str, max_batch_bytes: Option<u64>) -> Server {
    let mut settings = settings(folder, cache);
    settings.grpc = held.local_addr().unwrap().to_string().parse().unwrap();
    if let Some(bytes) = max_batch_bytes {
        settings.loader.max_batch_bytes = bytes;
    }
    common::restarted(settings, held).await
}

async fn receive(training: &mut Training, batches: u64) {
    for _ in 0..batches {
        training.next().await.expect("the training has more batches").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_continues_at_the_only_server_whose_limits_allow_it() {
    let folder = TempDir::new().unwrap();
    let mut limited: Settings = settings(folder.path(), "limited");
    limited.loader.max_batch_bytes = 1 << 20;
    let (limited, able) = (Server::start(limited).await.unwrap(), server(folder.path(), "able").await);
    let request = Train { batch_size: 60_000, ..train(10_000) };
    // The limited server rejects the request by itself.
    let alone = Client::new([limited.grpc().url()], config()).unwrap();
    let error = alone.train(&request).await.err().expect("the batches are too large");
    assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
    for urls in [[limited.grpc().url(), able.grpc().url()], [able.grpc().url(), limited.grpc().url()]] {
        let mut training = Client::new(urls, config()).unwrap().train(&request).await.unwrap();
        receive(&mut training, 5).await;
    }
    // The able server is away for a while. The training asks both, and a rejection by the limited one does not end it.
    let urls = [able.grpc().url(), limited.grpc().url()];
    let mut training = Client::new(urls, config()).unwrap().train(&request).await.unwrap();
    receive(&mut training, 5).await;
    let held = stopped(able).await;
    let failures = training.failures();
    let receiving = tokio::spawn(async move {
        receive(&mut training, 50).await;
        training
    });
    let rejected = async {
        // Both errors alternate while the able server is away.
        while !failures.last().is_some_and(|error| error.contains("max_batch_bytes")) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), rejected).await.expect("the limited server is asked");
    let _able = restarted(folder.path(), held, "again", None).await;
    let training =
        tokio::time::timeout(Duration::from_secs(60), receiving).await.expect("it continues").unwrap();
    drop(training);
}

#[tokio::test(flavor = "multi_thread")]
async fn trainings_return_to_their_own_servers_after_a_rolling_restart() {
    const SERVERS: usize = 3;
    let folder = TempDir::new().unwrap();
    let names = ["first", "second", "third"];
    let servers = join_all(names.map(|name| server(folder.path(), name))).await;
    // Training i prefers server i, then the next ones. Each has its own proxies, which count what it receives from each server.
    let mut trainings = Vec::new();
    for first in 0..SERVERS {
        let order = (0..SERVERS).map(|next| &servers[(first + next) % SERVERS]);
        let proxies = join_all(order.map(|server| Proxy::before(server, Fault::Cut(u64::MAX)))).await;
        let urls: Vec<_> = proxies.iter().map(|proxy| proxy.url.clone()).collect();
        let training = Client::new(urls, config()).unwrap().train(&train(1_000_000)).await.unwrap();
        trainings.push((proxies, training));
    }
    let is_over = AtomicBool::new(false);
    let received: [AtomicU64; SERVERS] = Default::default();
    let mut loops = Vec::new();
    let mut proxies = Vec::new();
    for (index, (own, mut training)) in trainings.into_iter().enumerate() {
        proxies.push(own);
        let (is_over, received) = (&is_over, &received[index]);
        loops.push(async move {
            while !is_over.load(Ordering::Relaxed) {
                receive(&mut training, 1).await;
                received.fetch_add(1, Ordering::Relaxed);
                // Other tasks of this thread have their turn.
                tokio::task::yield_now().await;
            }
        });
    }
    let sent = |training: usize, server: usize| proxies[training][server].sent.load(Ordering::Relaxed);
    let rolling = async {
        let mut running: Vec<_> = servers.into_iter().map(Some).collect();
        for (index, slot) in running.iter_mut().enumerate() {
            let held = stopped(slot.take().expect("each server is restarted once")).await;
            let before: Vec<_> = received.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            // All trainings continue without this server.
            let continues =
                |(count, before): (&AtomicU64, &u64)| count.load(Ordering::Relaxed) >= before + 50;
            while !received.iter().zip(&before).all(continues) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            *slot = Some(restarted(folder.path(), held, &format!("again-{index}"), None).await);
        }
        // Each training receives from its own server again, and then from no other one.
        let before: Vec<_> = (0..SERVERS).map(|training| sent(training, 0)).collect();
        while !(0..SERVERS).all(|training| sent(training, 0) > before[training] + 2_000_000) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let others =
            || (0..SERVERS).map(|training| sent(training, 1) + sent(training, 2)).collect::<Vec<_>>();
        let (before, others_before): (Vec<_>, _) =
            ((0..SERVERS).map(|training| sent(training, 0)).collect(), others());
        while !(0..SERVERS).all(|training| sent(training, 0) > before[training] + 2_000_000) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Pings and closing connections take a few bytes.
        for (now, before) in others().iter().zip(&others_before) {
            assert!(now - before < 100_000, "{now} bytes, {before} before");
        }
        is_over.store(true, Ordering::Relaxed);
        running
    };
    let everything = async { tokio::join!(rolling, join_all(loops)) };
    tokio::time::timeout(Duration::from_secs(100), everything).await.expect("the trainings return");
}
