//! Guarantees of a training: the batches of a rank in order, each exactly once, whatever happens to the servers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arrow_array::RecordBatch;
use forebay::Server;
use forebay_client::{
    Client, Config, Connection, Cursor, Error, Tls, Token, Training,
    proto::v1::{Remainder, Train},
};
use tempfile::TempDir;
use tonic::Code;

use crate::common::{Fault, Proxy, server, settings, stopped, train};

fn client(urls: &[String], config: Config) -> Client {
    Client::new(urls, config).unwrap()
}

/// Returns settings with a short retry deadline.
fn config() -> Config {
    Config { retry_deadline: Duration::from_secs(60), ..Config::default() }
}

async fn all(mut training: Training) -> Result<Vec<RecordBatch>, Error> {
    let mut batches = Vec::new();
    while let Some(batch) = training.next().await {
        batches.push(batch?.record_batch()?);
    }
    Ok(batches)
}

async fn undisturbed(server: &Server, train: &Train) -> Vec<RecordBatch> {
    let client = client(&[server.grpc().url()], config());
    all(client.train(train).await.unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_merged_into_the_order_of_steps() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = client(&[server.grpc().url()], config());
    let expected = undisturbed(&server, &train(2)).await;
    let unhashed = Train { content_hash: Some(false), ..train(2) };
    assert_eq!(undisturbed(&server, &unhashed).await, expected);
    for lanes in [2, 3, 7] {
        let train = Train { lanes: Some(lanes), ..train(2) };
        let found = all(client.train(&train).await.unwrap()).await.unwrap();
        assert_eq!(found, expected, "{lanes} lanes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_one_lane_delivers_its_batches_over_all_epochs() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = client(&[server.grpc().url()], config());
    let whole = Train { epochs: Some(2), start_step: 1, ..train(2) };
    let expected = undisturbed(&server, &whole).await;
    for lanes in [1, 2, 5] {
        for lane in 0..lanes {
            let train = Train { lanes: Some(lanes), lane: Some(lane), ..whole.clone() };
            let training = client.train(&train).await.unwrap();
            assert_eq!(training.cursor(), training.plan().cursor(lane));
            let found = all(training).await.unwrap();
            let of_lane: Vec<_> =
                expected.iter().skip(lane as usize).step_by(lanes as usize).cloned().collect();
            assert_eq!(found, of_lane, "lane {lane} of {lanes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_receives_the_planned_batches_for_any_world_size() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = client(&[server.grpc().url()], config());
    for (batch_size, world_size, remainder) in [
        (777, 3, Remainder::Short),
        (777, 3, Remainder::Drop),
        (20_000, 4, Remainder::Short),
        (1, 7, Remainder::Drop),
    ] {
        for rank in 0..world_size {
            let train = Train {
                batch_size,
                world_size: Some(world_size),
                rank: Some(rank),
                remainder: remainder.into(),
                start_step: 1,
                steps: 100,
                ..train(3)
            };
            let training = client.train(&train).await.unwrap();
            let expected = (training.plan().batches(), training.plan().total_records);
            let found = all(training).await.unwrap();
            let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
            assert_eq!((found.len() as u64, rows as i64), expected, "{train:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_lost_connections_only_delay_a_training() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    for (cut, lanes, train) in [
        (500_000, 1, Train { batch_size: 150, ..train(2) }),
        (3_000_000, 3, train(2)),
        (700_001, 2, Train { start_step: 7, steps: 50, batch_size: 900, ..train(2) }),
    ] {
        let proxy = Proxy::before(&server, Fault::Cut(cut)).await;
        let expected = undisturbed(&server, &train).await;
        let client = client(std::slice::from_ref(&proxy.url), config());
        let train = Train { lanes: Some(lanes), ..train };
        let training = client.train(&train).await.unwrap();
        let failures = training.failures();
        let found = all(training).await.unwrap();
        assert_eq!(found, expected, "cut after {cut}");
        assert!(failures.count() > 3 && failures.last().unwrap().contains("lost the connection"));
        let connections = proxy.connections.load(Ordering::Relaxed);
        assert!(connections > lanes + 3, "{connections} connections, expected more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_survives_a_drained_and_a_stopped_server() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let urls = [first.grpc().url(), second.grpc().url()];
    let request = train(40);
    let expected = undisturbed(&second, &request).await;
    let slow = Config { prefetch_bytes: 1 << 20, ..config() };
    let mut training = client(&urls, slow).train(&request).await.unwrap();
    let (mut first, mut held, mut found) = (Some(first), None, Vec::new());
    while let Some(batch) = training.next().await {
        found.push(batch.unwrap().record_batch().unwrap());
        if found.len() == 30 {
            held = Some(stopped(first.take().unwrap()).await);
        }
    }
    assert_eq!(found, expected);
    let again = all(client(&urls, config()).train(&train(1)).await.unwrap()).await.unwrap();
    assert_eq!(again, expected[..again.len()], "the first server has stopped");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_resumes_at_its_cursor_on_any_server() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let expected = undisturbed(&first, &train(2)).await;
    let mut training = client(&[first.grpc().url()], config()).train(&train(2)).await.unwrap();
    let mut found = Vec::new();
    for _ in 0..77 {
        found.push(training.next().await.unwrap().unwrap().record_batch().unwrap());
    }
    let (Cursor { epoch, step }, steps) = (training.cursor(), training.plan().summary.steps);
    assert_eq!((epoch, step), (77 / steps, 77 % steps));
    let snapshot = training.plan().resolved.snapshot.clone();
    drop((training, first));
    let rest = Train { snapshot, epoch, epochs: Some(2 - epoch), start_step: step, ..train(1) };
    found.extend(undisturbed(&second, &rest).await);
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_received_again_and_never_delivered() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let request = Train { steps: 20, ..train(1) };
    let expected = undisturbed(&server, &request).await;
    let mut hashes = 0;
    for at in (200_000..2_000_000).step_by(150_007) {
        let proxy = Proxy::before(&server, Fault::Flip(at)).await;
        let mut training = client(std::slice::from_ref(&proxy.url), config()).train(&request).await.unwrap();
        let failures = training.failures();
        let mut found = Vec::new();
        while let Some(batch) = training.next().await {
            found.push(batch.unwrap().record_batch().unwrap());
        }
        assert!(found == expected, "wrong data came through");
        // A bit in an HTTP/2 frame header is a lost connection.
        hashes += u32::from(failures.last().unwrap().contains("received with hash"));
    }
    assert!(hashes >= 8, "{hashes} of 12");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_corrupted_twice_is_an_error() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let request = Train { steps: 20, ..train(1) };
    let expected = undisturbed(&server, &request).await;
    let proxies = [
        Proxy::before(&server, Fault::FlipEach(100_000)).await,
        Proxy::before(&server, Fault::FlipEach(110_000)).await,
    ];
    let urls = proxies.each_ref().map(|proxy| proxy.url.clone());
    let mut training = client(&urls, config()).train(&request).await.unwrap();
    let error = training.next().await.unwrap().err().unwrap();
    assert!(matches!(&error, Error::BatchMismatch(message) if message.contains("hash")), "{error:?}");
    assert!(training.next().await.is_none(), "the training ends after an error");
    assert!(proxies[1].sent.load(Ordering::Relaxed) > 110_000, "the other server was asked");
    let healthy = [urls[0].clone(), server.grpc().url()];
    let found = all(client(&healthy, config()).train(&request).await.unwrap()).await.unwrap();
    assert!(found == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_return_is_a_final_error_at_the_retry_deadline() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let config =
        Config { retry_deadline: Duration::from_secs(10), prefetch_bytes: 1 << 20, ..Config::default() };
    let client = client(&[server.grpc().url()], config);
    let mut training = client.train(&train(1000)).await.unwrap();
    training.next().await.unwrap().unwrap();
    let _held = stopped(server).await;
    let error = loop {
        match training.next().await.expect("1000 epochs are not over") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let Error::RetryDeadlineExceeded { waited, attempts, last } = &error else { panic!("{error:?}") };
    assert!((10..60).contains(&waited.as_secs()) && *attempts >= 1 && last.is_transient(), "{error}");
    let unreachable = client.train(&train(1)).await.err().unwrap();
    assert!(matches!(unreachable, Error::RetryDeadlineExceeded { .. }), "{unreachable}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_retried_after_a_lost_connection() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let proxy = Proxy::before(&server, Fault::Cut(30)).await;
    let urls = [proxy.url.clone(), server.grpc().url()];
    let plan = client(&urls, config()).plan(&train(1)).await.unwrap();
    assert_eq!(plan.summary.rows, 60_175);
    assert!(proxy.connections.load(Ordering::Relaxed) >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_server_is_used_if_the_first_does_not_complete_the_tls_handshake() {
    let folder = TempDir::new().unwrap();
    let (server, config) = secured(&folder).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.grpc().to_string().rsplit(':').next().unwrap().to_owned();
    let urls = [format!("https://{}", silent.local_addr().unwrap()), format!("https://localhost:{port}")];
    let config = Config { connect_timeout: Duration::from_secs(2), ..config };
    assert_eq!(client(&urls, config).plan(&train(1)).await.unwrap().summary.rows, 60_175);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_can_be_replaced_while_a_stream_runs() {
    let folder = TempDir::new().unwrap();
    let (server, config) = secured(&folder).await;
    let port = server.grpc().to_string().rsplit(':').next().unwrap().to_owned();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let config = Config { token: Some(Token::file(&token)), prefetch_batches: 1, ..config };
    let client = client(&[format!("https://localhost:{port}")], config);
    let mut training = client.train(&train(50)).await.unwrap();
    training.next().await.unwrap().unwrap();
    // printf %s another | sha256sum
    let digest = "ae448ac86c4e8e4dec645729708ef41873ae79c6dff84eff73360989487f08e5";
    std::fs::write(&token, "another").unwrap();
    // The file is renamed, because the server could read one that is half written.
    let new = folder.path().join("tokens.toml.new");
    std::fs::write(&new, format!("[a]\nsha256 = \"{digest}\"\ndatasets = [\"*\"]")).unwrap();
    std::fs::rename(new, folder.path().join("tokens.toml")).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut batches = 1;
    while let Some(batch) = training.next().await {
        batch.unwrap();
        batches += 1;
    }
    assert_eq!(batches, training.plan().batches());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_a_final_error_at_the_retry_deadline() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = Config { retry_deadline: Duration::from_millis(300), ..Config::default() };
    let silent = client(&[url], config).plan(&train(1)).await.err().unwrap();
    assert!(matches!(silent, Error::RetryDeadlineExceeded { .. }), "{silent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_request_fails_at_once_with_the_servers_message() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = client(&[server.grpc().url()], config());
    let rejected = async |train: Train| client.train(&train).await.err().unwrap();
    let unknown = rejected(Train { dataset: "lineitm".into(), ..train(1) }).await;
    assert_eq!(unknown.code(), Some(Code::NotFound));
    assert!(unknown.to_string().contains("did you mean 'lineitem'"), "{unknown}");
    let column = rejected(Train { columns: vec!["l_orderkei".into()], ..train(1) }).await;
    assert!(column.to_string().contains("l_orderkey"), "{column}");
    let rank = rejected(Train { world_size: Some(4), ..train(1) }).await;
    assert!(matches!(&rank, Error::Request(message) if message.contains("rank")), "{rank}");
}

/// Starts a server with TLS and the token `secret`.
pub(crate) async fn secured(folder: &TempDir) -> (Server, Config) {
    let pem = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(pem("server.pem"), made.cert.pem()).unwrap();
    std::fs::write(pem("server.key"), made.signing_key.serialize_pem()).unwrap();
    // printf %s secret | sha256sum
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    std::fs::write(pem("tokens.toml"), format!("[a]\nsha256 = \"{digest}\"\ndatasets = [\"line*\"]"))
        .unwrap();
    let mut settings = settings(folder.path(), "cache");
    settings.tls =
        Some(forebay::Tls { certificate: pem("server.pem"), key: pem("server.key"), client_ca: None });
    settings.tokens = Some(pem("tokens.toml"));
    settings.credentials_reload_interval = Duration::from_millis(20);
    let server = Server::start(settings).await.unwrap();
    let tls = Tls { ca: Some(pem("server.pem")), ..Tls::default() };
    (server, Config { tls, token: Some(Token::new("secret")), ..config() })
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_token_are_required() {
    let folder = TempDir::new().unwrap();
    let (server, config) = secured(&folder).await;
    let port = server.grpc().to_string().rsplit(':').next().unwrap().to_owned();
    let url = format!("https://localhost:{port}");
    let asked = async |config: Config| client(std::slice::from_ref(&url), config).train(&train(1)).await;
    let found = all(asked(config.clone()).await.unwrap()).await.unwrap();
    assert!(!found.is_empty());

    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    asked(Config { token: Some(Token::file(&token)), ..config.clone() }).await.unwrap();

    let rejected = asked(Config { token: Some(Token::new("wrong")), ..config.clone() }).await.err().unwrap();
    assert_eq!(rejected.code(), Some(Code::Unauthenticated));
    assert_eq!(
        asked(Config { token: None, ..config.clone() }).await.err().unwrap().code(),
        Some(Code::Unauthenticated)
    );
    // A client would try again until its retry deadline.
    let untrusting = Config { tls: Tls::default(), ..config.clone() };
    let untrusted = Connection::open(&url, Arc::new(untrusting)).await.err().unwrap();
    assert!(matches!(untrusted, Error::Connect { .. }), "{untrusted:?}");
    let absent = Token::file(folder.path().join("absent"));
    let missing = asked(Config { token: Some(absent.clone()), ..config }).await.err().unwrap();
    assert!(matches!(&missing, Error::Request(message) if message.contains("absent")), "{missing}");
    assert!(!format!("{:?}", Token::new("secret")).contains("secret"));
}
