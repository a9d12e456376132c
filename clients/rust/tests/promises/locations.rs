//! Guarantees of a training whose plan names the servers of its streams.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow_array::RecordBatch;
use forebay::Server;
use forebay_client::{Client, Config, Error, Tls, Token, Training, proto::v1::Train};
use forebay_sample_data::lineitem;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, net::TcpListener};
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Code, Status,
    transport::{Identity, ServerTlsConfig},
};

use crate::common::{Fault, Proxy, front::Front, refusing, server, settings, train};

/// Returns settings of a client that stays where it is, unless a server fails.
fn config() -> Config {
    Config {
        retry_deadline: Duration::from_secs(60),
        failback_interval: Duration::from_secs(3600),
        replan_interval: Duration::from_secs(3600),
        // Reports have connections of their own, which the tests would count.
        report: false,
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

async fn started(url: &str, config: Config, request: &Train) -> Training {
    Client::new([url], config).unwrap().train(request).await.unwrap()
}

/// Returns the batches of `request` by a client that knows only `server`.
async fn expected(server: &Server, request: &Train) -> Vec<RecordBatch> {
    all(started(&server.grpc().url(), config(), request).await).await
}

/// A TCP server that accepts connections, counts what it receives, and never answers.
struct Recorder {
    address: std::net::SocketAddr,
    connections: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    _accepting: AbortOnDropHandle<()>,
}

impl Recorder {
    async fn at(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let [connections, bytes]: [Arc<AtomicU64>; 2] = Default::default();
        let (accepted, received) = (Arc::clone(&connections), Arc::clone(&bytes));
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::Relaxed);
                let received = Arc::clone(&received);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = connection.read(&mut buffer).await {
                        received.fetch_add(read as u64, Ordering::Relaxed);
                    }
                });
            }
        }));
        Self { address, connections, bytes, _accepting: accepting }
    }

    fn seen(&self) -> (u64, u64) {
        (self.connections.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_reads_from_its_location() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let (seed, location) = (Front::before(&first).await, Front::before(&second).await);
    seed.locate([location.url.as_str(), "arrow-flight-reuse-connection://?"]);
    let request = Train { lanes: Some(2), ..train(2) };
    let config = Config { zone: Some("a".into()), ..config() };
    let training = started(&seed.url, config, &request).await;
    assert_eq!(training.plan().locations[0].len(), 2);
    assert_eq!(all(training).await, expected(&first, &request).await);
    assert_eq!((seed.streams(), location.streams()), (0, 2));
    assert_eq!(location.header("forebay-candidate"), ["last", "last"]);
    assert!(!seed.header("forebay-zone").is_empty());
    assert!(seed.header("forebay-zone").iter().all(|zone| zone == "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_reads_from_the_location_of_its_own_ticket() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    let locations = [Front::before(&server).await, Front::before(&server).await];
    let urls = locations.each_ref().map(|location| location.url.clone());
    seed.locate_by_rank(move |rank| vec![urls[rank as usize % 2].clone()]);
    let whole = Train { world_size: Some(2), lanes: Some(3), ..train(1) };
    let client = Client::new([seed.url.as_str()], config()).unwrap();
    let all_ranks = client.plan(&whole).await.unwrap();
    for rank in 0..2 {
        let request = Train { rank: Some(rank), ..whole.clone() };
        let expected = expected(&server, &request).await;
        // A plan of one rank, and a plan of all ranks of which one is selected.
        let mut shared = all_ranks.clone();
        shared.resolved.rank = Some(rank);
        for plan in [client.plan(&request).await.unwrap(), shared] {
            assert_eq!(all(client.start(plan).unwrap()).await, expected, "rank {rank}");
        }
        assert_eq!(locations[rank as usize].streams(), 6);
    }
    assert_eq!(seed.streams(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_locations_is_asked_for_once_and_its_streams_name_no_candidate() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (seed, located) = (Front::before(&server).await, Front::before(&server).await);
    let request = train(3);
    let config = Config { replan_interval: Duration::from_millis(100), ..config() };
    // Another training has locations, and asks for its plan at the same interval.
    located.locate([located.url.as_str()]);
    let _asking = started(&located.url, config.clone(), &train(100_000)).await;
    for locations in [&[][..], &["arrow-flight-reuse-connection://?"]] {
        seed.locate(locations.iter().copied());
        let before = seed.plans();
        let mut training = started(&seed.url, config.clone(), &request).await;
        training.next().await.unwrap().unwrap();
        let asked = located.plans();
        while located.plans() < asked + 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(all(training).await.len() + 1, expected(&server, &request).await.len());
        assert_eq!(seed.plans() - before, 1);
    }
    assert!(seed.header("forebay-candidate").is_empty() && seed.streams() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswering_location_costs_only_time() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    let expected = expected(&server, &train(1)).await;
    let refusing = refusing();
    let refused = format!("grpc://{}", refusing.local_addr().unwrap());
    let recorder = Recorder::at("127.0.0.1").await;
    let silent = format!("grpc://{}", recorder.address);
    let stuck = Proxy::before(&server, Fault::Stall(1_000_000)).await;
    let config = Config {
        connect_timeout: Duration::from_millis(500),
        attempt_timeout: Duration::from_millis(500),
        ..config()
    };
    let unknown = "grpc://a-name-that-does-not-exist.localhost.invalid:1";
    for locations in
        [vec![refused.as_str()], vec![&silent, &refused], vec![&stuck.url], vec![unknown, &stuck.url]]
    {
        seed.locate(locations.iter().copied());
        let found = all(started(&seed.url, config.clone(), &train(1)).await).await;
        assert!(found == expected, "{locations:?}");
    }
    assert!(seed.streams() >= 4, "the server of the client has served the rest");
    assert!(recorder.seen().0 > 0 && stuck.connections.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_never_sent_to_an_untrusted_host() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    let expected = expected(&server, &train(1)).await;
    // Another address of this machine.
    let recorder = Recorder::at("127.0.0.2").await;
    let location = format!("grpc://{}", recorder.address);
    let hidden = format!("grpc://forebay.example.com@{}", recorder.address);
    seed.locate([location.as_str(), &hidden]);
    let config = |trusted: &str| Config {
        token: Some(Token::new("secret")),
        trusted_hosts: vec![trusted.to_owned()],
        connect_timeout: Duration::from_secs(2),
        attempt_timeout: Duration::from_millis(300),
        // Plans and probes do not send anything either.
        replan_interval: Duration::from_millis(100),
        failback_interval: Duration::from_millis(100),
        ..config()
    };
    let mut training = started(&seed.url, config("forebay.example.com"), &train(1)).await;
    let mut found = vec![training.next().await.unwrap().unwrap().record_batch().unwrap()];
    let plans = seed.plans();
    while seed.plans() < plans + 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(training.skipped_locations(), 2);
    found.extend(all(training).await);
    assert_eq!(found, expected);
    assert_eq!(recorder.seen(), (0, 0));
    assert!(seed.header("authorization").iter().all(|token| token == "Bearer secret"));
    // The same location receives bytes as soon as it is trusted.
    let trusting = started(&seed.url, config("127.0.0.2"), &train(1)).await;
    assert_eq!(trusting.skipped_locations(), 1);
    assert_eq!(all(trusting).await, expected);
    assert!(recorder.seen().0 > 0 && recorder.seen().1 > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plaintext_location_is_refused_where_the_seed_uses_tls() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let identity = Identity::from_pem(made.cert.pem(), made.signing_key.serialize_pem());
    let tls = ServerTlsConfig::new().identity(identity);
    let seed = Front::with_tls(&server, tls.clone()).await;
    let location = Front::with_tls(&server, tls).await;
    let recorder = Recorder::at("127.0.0.1").await;
    let plaintext = format!("grpc://{}", recorder.address);
    let named = format!("grpc://localhost:{}", recorder.address.port());
    seed.locate([plaintext.as_str(), &named, &location.url]);
    let config = Config {
        token: Some(Token::new("secret")),
        tls: Tls { ca: Some(ca), ..Tls::default() },
        trusted_hosts: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
        ..config()
    };
    let training = started(&seed.url, config, &train(1)).await;
    assert_eq!(training.skipped_locations(), 2);
    assert_eq!(all(training).await, expected(&server, &train(1)).await);
    assert_eq!((recorder.seen(), seed.streams(), location.streams()), ((0, 0), 0, 1));
    assert_eq!(location.header("authorization"), ["Bearer secret"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_state_is_passed_over() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    // The same name, other rows, and a state of its own.
    let data = lineitem::at(&folder.path().join("other-data"), 0.02).unwrap();
    let mut other = settings(folder.path(), "other");
    other.state = Some(folder.path().join("other-state").display().to_string());
    other.datasets.clear();
    other.add_datasets(&[format!("lineitem={}", data.display())]).unwrap();
    let other = Server::start(other).await.unwrap();
    let (wrong, right) = (Front::before(&other).await, Front::before(&server).await);
    seed.locate([wrong.url.as_str(), &right.url]);
    let expected = expected(&server, &train(1)).await;
    assert_eq!(all(started(&seed.url, config(), &train(1)).await).await, expected);
    assert_eq!((wrong.header("forebay-candidate").len(), wrong.streams(), right.streams()), (1, 0, 1));
    // The servers of the client have the last word.
    seed.locate([wrong.url.as_str()]);
    assert_eq!(all(started(&seed.url, config(), &train(1)).await).await, expected);
    seed.judge_streams(|_| Err(Status::not_found("no such snapshot")));
    let mut training = started(&seed.url, config(), &train(1)).await;
    assert_eq!(training.next().await.unwrap().err().unwrap().code(), Some(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn locations_that_do_not_speak_flight_are_passed_over() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let seed = Front::before(&first).await;
    // The HTTP API answers a Flight call over HTTP/2 with 404. Two wrong answers in a row must not end the training.
    seed.locate([&first, &second].map(|server| format!("grpc://{}", server.http())));
    let expected = expected(&first, &train(1)).await;
    assert_eq!(all(started(&seed.url, config(), &train(1)).await).await, expected);
    assert_eq!(seed.streams(), 1, "the server of the client delivers the stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plan_of_the_same_request_is_an_error() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (seed, location) = (Front::before(&server).await, Front::before(&server).await);
    seed.locate([location.url.as_str()]);
    let config = Config { replan_interval: Duration::from_millis(100), prefetch_batches: 1, ..config() };
    // One of two servers answers with another plan.
    let second = Front::before(&server).await;
    second.locate([location.url.as_str()]);
    let client = Client::new([seed.url.as_str(), &second.url], config.clone()).unwrap();
    let mut training = client.train(&train(100_000)).await.unwrap();
    training.next().await.unwrap().unwrap();
    seed.answer_with_plan_hash("0123456789abcdef");
    while second.plans() < 3 {
        training.next().await.unwrap().unwrap();
    }
    location.answer_with_plan_hash("0123456789abcdef");
    second.answer_with_plan_hash("0123456789abcdef");
    let error = loop {
        if let Err(error) = training.next().await.unwrap() {
            break error;
        }
    };
    assert!(matches!(&error, Error::BatchMismatch(text) if text.contains("0123456789abcdef")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plan_of_one_server_ends_no_training_while_the_others_are_unreachable() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let [seed, second, location] =
        [Front::before(&server).await, Front::before(&server).await, Front::before(&server).await];
    seed.locate([location.url.as_str()]);
    second.locate([location.url.as_str()]);
    let config = Config { replan_interval: Duration::from_millis(100), prefetch_batches: 1, ..config() };
    let client = Client::new([seed.url.as_str(), &second.url], config.clone()).unwrap();
    let mut training = client.train(&train(100_000)).await.unwrap();
    training.next().await.unwrap().unwrap();
    for front in [&second, &location] {
        front.judge_plans(|_| Err(Status::unavailable("starting")));
    }
    seed.answer_with_plan_hash("0123456789abcdef");
    // All servers are asked again, while the streams continue.
    let plans = seed.plans();
    while seed.plans() < plans + 4 {
        training.next().await.unwrap().unwrap();
    }
    let plans = second.plans();
    second.judge_plans(|_| Ok(()));
    while second.plans() < plans + 2 {
        training.next().await.unwrap().unwrap();
    }
    drop(training);
    // If they stay unreachable, the training ends with both reasons.
    seed.answer_with_plan_hash("");
    let config = Config { retry_deadline: Duration::from_secs(10), ..config };
    let client = Client::new([seed.url.as_str(), &second.url], config).unwrap();
    let mut training = client.train(&train(100_000)).await.unwrap();
    training.next().await.unwrap().unwrap();
    second.judge_plans(|_| Err(Status::unavailable("starting")));
    seed.answer_with_plan_hash("0123456789abcdef");
    let error = loop {
        if let Err(error) = training.next().await.unwrap() {
            break error;
        }
    };
    let Error::BatchMismatch(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("plan hash 0123456789abcdef") && text.contains("no other server"), "{text}");
    assert!(text.ends_with("starting"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_stay_away_from_a_first_location_that_has_redirected_one() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let [seed, busy, second] =
        [Front::before(&server).await, Front::before(&server).await, Front::before(&server).await];
    busy.judge_streams(|_| {
        let mut status = Status::unavailable("over the bound");
        status.metadata_mut().insert("forebay-next", "1".parse().unwrap());
        Err(status)
    });
    seed.locate([busy.url.as_str(), &second.url]);
    // The first location may be asked again after several failback intervals, which are hours here.
    let config = Config { replan_interval: Duration::from_millis(100), prefetch_batches: 1, ..config() };
    let mut training = started(&seed.url, config, &train(100_000)).await;
    let plans = seed.plans();
    while seed.plans() < plans + 4 {
        training.next().await.unwrap().unwrap();
    }
    for _ in 0..4 {
        training.next().await.unwrap().unwrap();
    }
    assert_eq!(busy.header("forebay-candidate"), ["0"], "it is asked once");
    assert_eq!((second.streams(), training.stats().retries), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_dead_server_spread_over_the_others() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    let dying = Proxy::before(&server, Fault::Cut(1_000_000)).await;
    let others = [Front::before(&server).await, Front::before(&server).await];
    let (first, next) = (dying.url.clone(), others.each_ref().map(|front| front.url.clone()));
    seed.locate_by_rank(move |rank| {
        let (second, third) = (&next[rank as usize % 2], &next[(rank as usize + 1) % 2]);
        vec![first.clone(), second.clone(), third.clone()]
    });
    let ranks = (0..4).map(|rank| {
        let (server, seed) = (&server, &seed);
        async move {
            // One rank receives four times as many bytes as the connection to the dying server lets through.
            let request = Train { world_size: Some(4), rank: Some(rank), ..train(4) };
            let found = all(started(&seed.url, config(), &request).await).await;
            assert!(found == expected(server, &request).await, "rank {rank}");
        }
    });
    futures::future::join_all(ranks).await;
    assert_eq!(dying.connections.load(Ordering::Relaxed), 4);
    assert_eq!((others[0].streams(), others[1].streams(), seed.streams()), (2, 2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_moves_to_a_new_first_location_at_the_next_batch() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (seed, old, new) =
        (Front::before(&server).await, Front::before(&server).await, Front::before(&server).await);
    seed.locate([old.url.as_str()]);
    let request = Train { lanes: Some(2), ..train(20) };
    let config = Config { replan_interval: Duration::from_millis(100), prefetch_batches: 1, ..config() };
    let mut training = started(&seed.url, config, &request).await;
    let mut found = Vec::new();
    for _ in 0..10 {
        found.push(training.next().await.unwrap().unwrap().record_batch().unwrap());
    }
    // A location that does not answer is not moved to.
    let refusing = refusing();
    let refused = format!("grpc://{}", refusing.local_addr().unwrap());
    seed.locate([refused.as_str(), &old.url]);
    let plans = seed.plans();
    while seed.plans() < plans + 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    found.push(training.next().await.unwrap().unwrap().record_batch().unwrap());
    assert_eq!(old.streams(), 2);
    seed.locate([new.url.as_str(), &old.url]);
    while new.streams() < 2 {
        found.push(
            training.next().await.expect("the streams move before the end").unwrap().record_batch().unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(training.stats().retries, 0, "a move is not a failure");
    found.extend(all(training).await);
    assert!(found == expected(&server, &request).await);
    assert_eq!((old.streams(), new.streams(), seed.streams()), (2, 2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_returns_to_its_first_location_after_a_failure() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (seed, second) = (Front::before(&server).await, Front::before(&server).await);
    // Each connection is cut, and the next one is accepted.
    let first = Proxy::before(&server, Fault::Cut(1_000_000)).await;
    seed.locate([first.url.as_str(), &second.url]);
    let config = Config {
        replan_interval: Duration::from_secs(3),
        failback_interval: Duration::from_millis(100),
        prefetch_batches: 1,
        ..config()
    };
    let request = train(1000);
    let mut training = started(&seed.url, config, &request).await;
    let mut found = Vec::new();
    // The first stream, a probe, and a stream after the return. Then the rest of that stream, and a part of the next one.
    let mut rest = 40;
    while first.connections.load(Ordering::Relaxed) < 3 || rest > 0 {
        found.push(training.next().await.unwrap().unwrap().record_batch().unwrap());
        match first.connections.load(Ordering::Relaxed) {
            0..3 => tokio::time::sleep(Duration::from_millis(10)).await,
            _ => rest -= 1,
        }
    }
    assert!(second.streams() >= 1 && seed.streams() == 0);
    let mut undisturbed = started(&server.grpc().url(), self::config(), &request).await;
    for (number, batch) in found.iter().enumerate() {
        let expected = undisturbed.next().await.unwrap().unwrap().record_batch().unwrap();
        assert!(*batch == expected, "batch {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_stream_goes_to_the_next_location_and_the_last_one_serves() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let seed = Front::before(&server).await;
    let locations =
        [Front::before(&server).await, Front::before(&server).await, Front::before(&server).await];
    // As a server over its bound does: only the last candidate is served.
    for location in &locations {
        location.judge_streams(|headers| {
            if headers.get("forebay-candidate").is_some_and(|candidate| candidate == "last") {
                return Ok(());
            }
            let mut status = Status::unavailable("over the bound");
            status.metadata_mut().insert("forebay-next", "1".parse().unwrap());
            Err(status)
        });
    }
    seed.locate(locations.iter().map(|location| location.url.as_str()));
    let training = started(&seed.url, config(), &train(1)).await;
    let counters = training.counters();
    assert_eq!(all(training).await, expected(&server, &train(1)).await);
    assert_eq!(counters.stats().retries, 0);
    let asked = locations.each_ref().map(|location| location.header("forebay-candidate").join(" "));
    assert_eq!(asked, ["0", "1", "last"]);
    assert_eq!((locations[2].streams(), seed.streams()), (1, 0));
    // A last candidate that redirects nevertheless is a failure, and the servers of the client serve.
    locations[2].judge_streams(|_| {
        let mut status = Status::unavailable("over the bound");
        status.metadata_mut().insert("forebay-next", "1".parse().unwrap());
        Err(status)
    });
    let training = started(&seed.url, config(), &train(1)).await;
    let counters = training.counters();
    assert_eq!(all(training).await, expected(&server, &train(1)).await);
    assert_eq!((counters.stats().retries, seed.streams()), (1, 1));
    assert_eq!(seed.header("forebay-candidate"), ["last"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_follow_the_streams_to_their_location() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (seed, location) = (Front::before(&server).await, Front::before(&server).await);
    seed.locate([location.url.as_str()]);
    let training = started(&seed.url, Config { report: true, ..config() }, &train(100_000)).await;
    while location.shared.reports.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(training);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_that_does_not_know_a_field_is_passed_over_unless_all_are_older() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (old, new) = (Front::before(&server).await, Front::before(&server).await);
    let refusal = || Err(Status::invalid_argument("malformed Command: unknown field 5 in Shuffle"));
    old.judge_plans(move |_| refusal());
    let client = Client::new([old.url.as_str(), &new.url], config()).unwrap();
    assert_eq!(client.plan(&train(1)).await.unwrap().summary.rows, 60_175);
    new.judge_plans(move |_| refusal());
    let error = client.plan(&train(1)).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::InvalidArgument));
    assert!(error.to_string().contains("unknown field 5 in Shuffle"), "{error}");
    let asked = old.shared.headers.lock().len() + new.shared.headers.lock().len();
    assert_eq!(asked, 4, "each server is asked once per plan");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_settings_of_locations_are_rejected_before_a_connection() {
    for (config, name) in [
        (Config { replan_interval: Duration::ZERO, ..Config::default() }, "replan_interval"),
        (Config { trusted_hosts: vec!["a:1".into()], ..Config::default() }, "trusted_hosts"),
        (Config { zone: Some("a b".into()), ..Config::default() }, "zone"),
    ] {
        let error = Client::new(["grpc://127.0.0.1:1"], config).err().unwrap();
        assert!(matches!(&error, Error::Request(text) if text.starts_with(name)), "{error:?}");
    }
}
