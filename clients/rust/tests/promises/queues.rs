//! Guarantees of batch queues: each request receives its own answer or an error, whatever happens to other requests, workers and
//! servers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_array::{Int64Array, RecordBatch, StringArray, cast::AsArray, types::Int64Type};
use forebay::{QueueSpec, Server};
use forebay_client::{
    Answer, Caller, Client, Config, Connection, Error, InferenceBatch, Worker, proto::v1::Lookup,
};
use futures::future::join_all;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::common::{Fault, Proxy, http_get, settings, stopped};

const KEY: &str = "l_orderkey";

fn config() -> Config {
    let grace = Duration::from_millis(100);
    Config { retry_deadline: Duration::from_secs(120), answer_grace: grace, ..Config::default() }
}

/// Starts a server with a queue whose feature is the key of each row.
async fn server(folder: &TempDir, cache: &str) -> Server {
    limited_server(folder, cache, None).await
}

/// As [`server`], with a limit for the size of messages in bytes.
async fn limited_server(folder: &TempDir, cache: &str, max_exchange_bytes: Option<usize>) -> Server {
    let mut settings = settings(folder.path(), cache);
    settings.add_online(&[format!("lineitem={KEY}")]).unwrap();
    settings.limits.max_exchange_bytes = max_exchange_bytes.unwrap_or(settings.limits.max_exchange_bytes);
    let features = Lookup { dataset: "lineitem".into(), columns: vec![KEY.into()], ..Lookup::default() };
    let mut queue = QueueSpec { features, ..QueueSpec::default() };
    queue.batching.default_timeout = Duration::from_secs(120);
    // Requests are never refused because a worker was slow for a while.
    queue.batching.max_predicted_wait = Duration::from_secs(3600);
    // Each worker that ends in these tests can cost a request one attempt.
    queue.batching.max_attempts = 10;
    settings.queues.insert("ranker".into(), queue.clone());
    let server = Server::start(settings).await.unwrap();
    // Retries until the lookups are ready.
    client(&[&server], config()).lookup(&queue.features).await.unwrap();
    server
}

fn client(servers: &[&Server], config: Config) -> Client {
    Client::new(servers.iter().map(|server| server.grpc().url()), config).unwrap()
}

fn rows(name: &str, values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let values = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_from_iter([(name, values as _)]).unwrap()
}

/// Returns existing keys: TPC-H uses the first eight of every 32 order numbers, from 1.
fn keys(orders: impl IntoIterator<Item = i64>) -> RecordBatch {
    rows(KEY, orders.into_iter().map(|order| (order + 1) / 8 * 32 + (order + 1) % 8))
}

/// Computes the reply of the model: each value doubled.
fn doubled(work: &InferenceBatch) -> RecordBatch {
    let values = work.batch.column(KEY).unwrap();
    rows("score", values.as_primitive::<Int64Type>().values().iter().map(|value| value * 2))
}

fn assert_doubled(answer: &Answer, keys: &RecordBatch) {
    let scores = answer.rows.column("score").unwrap();
    let keys = keys.column(0).as_primitive::<Int64Type>().values().iter().map(|key| key * 2);
    assert!(scores.as_primitive::<Int64Type>().values().iter().copied().eq(keys));
}

/// Runs a worker that replies to every batch.
fn working(mut worker: Worker) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(work) = worker.next().await.unwrap() {
            let scores = doubled(&work);
            // Fails if the exchange has ended; another worker then receives the batch.
            drop(work.reply(&scores));
        }
    }))
}

async fn assert_all(caller: &Caller, count: i64) {
    let asked = (0..count).map(|number| async move {
        let keys = keys(number * 10..number * 10 + number % 7 + 1);
        assert_doubled(&caller.ask(&keys, None).await.unwrap(), &keys);
    });
    join_all(asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_receives_its_own_answer_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], config());
    let workers = [client.worker("ranker", 0).await.unwrap(), client.worker("ranker", 5).await.unwrap()];
    let _working = workers.map(working);
    let caller = client.infer("ranker").await.unwrap();
    assert_all(&caller, 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_a_reply_is_an_error_only_for_its_callers() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], config());
    let mut worker = client.worker("ranker", 1).await.unwrap();
    let caller = client.infer("ranker").await.unwrap();
    let keys = keys(0..3);
    let rejected = async |worker: &mut Worker, treat: fn(InferenceBatch)| {
        let (asked, ()) = tokio::join!(caller.ask(&keys, None), async {
            treat(worker.next().await.unwrap().unwrap());
        });
        match asked {
            Err(Error::RequestRejected { code: Code::Internal, message, retry_after: None }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(rejected(&mut worker, drop).await.contains("without a reply"));
    let failed = rejected(&mut worker, |work| work.fail("out of memory")).await;
    assert_eq!(failed, "the worker failed: out of memory");
    let too_few = rejected(&mut worker, |work| {
        let error = work.reply(&rows("score", 0..2)).err().unwrap();
        assert!(
            matches!(&error, Error::Request(message) if message.contains("2 rows, expected 3")),
            "{error}"
        );
    });
    assert!(too_few.await.contains("expected 3"));
    // From its fourth batch on, a worker that is late by a second is overdue, and its requests go to another one.
    drop(worker);
    let mut worker = client.worker("ranker", 1).await.unwrap();
    let (answer, ()) = tokio::join!(caller.ask(&keys, None), async {
        let work = worker.next().await.unwrap().unwrap();
        let scores = doubled(&work);
        work.reply(&scores).unwrap();
    });
    assert_doubled(&answer.unwrap(), &keys);
    let other_columns = rejected(&mut worker, |work| {
        let error = work.reply(&rows("other", 0..3)).err().unwrap();
        assert!(matches!(&error, Error::Request(message) if message.contains("began with")), "{error}");
    });
    assert!(other_columns.await.contains("other Int64"));
}

/// Returns a reply with a text of 10,000 bytes for each row.
fn long_texts(work: &InferenceBatch) -> RecordBatch {
    let texts = StringArray::from(vec!["x".repeat(10_000); work.metadata.valid_rows as usize]);
    RecordBatch::try_from_iter([("text", Arc::new(texts) as _)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_above_the_limit_divides_its_batch_and_the_worker_continues() {
    let folder = tempfile::tempdir().unwrap();
    let server = limited_server(&folder, "cache", Some(1 << 16)).await;
    let client = client(&[&server], config());
    let caller = client.infer("ranker").await.unwrap();
    // Either the first batch or the second one has at least seven requests.
    let keys: Vec<_> = (0..14).map(|number| keys(number..number + 1)).collect();
    let asked = join_all(keys.iter().map(|keys| caller.ask(keys, None)));
    let mut worker = client.worker("ranker", 1).await.unwrap();
    let (mut sizes, mut rejected) = (Vec::new(), 0);
    let working = async {
        while let Some(work) = worker.next().await.unwrap() {
            if sizes.is_empty() {
                // Until the queue has all requests, so that the next batch has all that this one does not have.
                while admitted(&server).await < keys.len() as u64 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            sizes.push(work.metadata.valid_rows);
            let rows = long_texts(&work);
            match work.reply(&rows) {
                Ok(()) => {}
                Err(Error::Status(status)) if status.code() == Code::ResourceExhausted => rejected += 1,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let asking = async {
        for answer in asked.await {
            assert_eq!(
                answer.unwrap().rows.column("text").unwrap().as_string::<i32>().value(0).len(),
                10_000
            );
        }
        // A request whose own reply is too large fails with the sizes.
        let error = caller.ask(&self::keys(0..10), None).await.err().unwrap();
        assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
        let message = error.to_string();
        assert!(message.contains("the reply of 10 rows is too large: the message has 100"), "{message}");
        assert!(
            message.contains("the limit of the server is 65536 (limits.max_exchange_bytes)"),
            "{message}"
        );
        // The worker continues.
        assert_eq!(answer_size(&caller).await, 10_000);
    };
    tokio::select! {
        () = working => panic!("the worker ended"),
        () = asking => {}
    }
    assert!(rejected > 0, "{sizes:?}");
}

/// Returns the number of requests that the queue has admitted.
async fn admitted(server: &Server) -> u64 {
    let queue = http_get(server, "/api/v1/queues/ranker").await;
    let (_, admitted) = queue.split_once("\"admitted\":").unwrap_or_else(|| panic!("{queue}"));
    let digits: String = admitted.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Returns the size of the text of the answer to a request of one row.
async fn answer_size(caller: &Caller) -> usize {
    let answer = caller.ask(&keys(0..1), None).await.unwrap();
    answer.rows.column("text").unwrap().as_string::<i32>().value(0).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_of_a_failed_batch_may_have_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], config());
    let mut worker = client.worker("ranker", 1).await.unwrap();
    let caller = client.infer("ranker").await.unwrap();
    let keys = keys(0..3);
    for _ in 0..2 {
        let (asked, ()) = tokio::join!(caller.ask(&keys, None), async {
            worker.next().await.unwrap().unwrap().fail(format!("first {} last", "x".repeat(400_000)));
        });
        let error = asked.err().unwrap();
        assert_eq!(error.code(), Some(Code::Internal), "{error}");
        assert!(error.to_string().contains("first x") && error.to_string().ends_with("x last"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_above_the_limit_fails_before_it_is_sent_and_others_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let limits = ["first", "second"].map(|cache| limited_server(&folder, cache, Some(1 << 16)));
    let [first, second] = limits;
    let (first, second) = (first.await, second.await);
    for servers in [vec![&first], vec![&first, &second]] {
        let client = client(&servers, config());
        let caller = client.infer("ranker").await.unwrap();
        let keys = keys(0..3);
        let mut started = None;
        let (answer, ()) = tokio::join!(caller.ask(&keys, None), async {
            // The other request is in flight, because there is no worker.
            let error = caller.ask(&self::keys(0..20_000), None).await.err().unwrap();
            assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
            assert!(error.to_string().contains("the limit of the server is 65536"), "{error}");
            let worker = self::client(&[&first], config()).worker("ranker", 0).await.unwrap();
            started = Some(working(worker));
        });
        assert_doubled(&answer.unwrap(), &keys);
        drop(started);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_finds_the_server_with_the_workers_whatever_the_order_of_its_servers() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (server(&folder, "first").await, server(&folder, "second").await);
    let _working = working(client(&[&first, &second], config()).worker("ranker", 0).await.unwrap());
    let keys = keys(0..5);
    for servers in [[&first, &second], [&second, &first]] {
        let caller = client(&servers, config()).infer("ranker").await.unwrap();
        for _ in 0..3 {
            assert_doubled(&caller.ask(&keys, Some(Duration::from_secs(10))).await.unwrap(), &keys);
        }
    }
    // A connection has no other server.
    let connection = Connection::open(&second.grpc().url(), Arc::new(config())).await.unwrap();
    let alone = connection.infer("ranker").await.unwrap();
    let error = alone.ask(&keys, Some(Duration::from_secs(2))).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::Unavailable), "{error}");
    assert!(error.to_string().contains("no worker serves the queue"), "{error}");
    // A client of one server asks it again until the deadline.
    let alone = client(&[&second], config()).infer("ranker").await.unwrap();
    let error = alone.ask(&keys, Some(Duration::from_secs(2))).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::DeadlineExceeded), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_sent_to_the_next_server_if_the_first_one_is_silent_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let silent = Proxy::before(&server, Fault::Stall(0)).await;
    let _working = working(client(&[&server], config()).worker("ranker", 0).await.unwrap());
    let urls = [silent.url.clone(), server.grpc().url()];
    let caller = Client::new(urls, config()).unwrap().caller("ranker");
    let keys = keys(0..5);
    assert_doubled(&caller.ask(&keys, Some(Duration::from_secs(20))).await.unwrap(), &keys);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_python_values_have_the_types_of_the_first_reply() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], config());
    let mut worker = client.worker("ranker", 1).await.unwrap();
    let caller = client.infer("ranker").await.unwrap();
    let keys = keys(0..2);
    let replies: [arrow_array::ArrayRef; 3] = [
        Arc::new(arrow_array::Float64Array::from(vec![0.5, 1.0])),
        Arc::new(Int64Array::from(vec![1, 2])),
        Arc::new(arrow_array::NullArray::new(2)),
    ];
    for reply in replies {
        let rows = RecordBatch::try_from_iter_with_nullable([("x", reply, true)]).unwrap();
        let (answer, ()) = tokio::join!(caller.ask(&keys, None), async {
            worker.next().await.unwrap().unwrap().reply(&rows).unwrap();
        });
        let answer = answer.unwrap();
        let column = answer.rows.column("x").unwrap();
        assert_eq!(column.data_type(), &arrow_schema::DataType::Float64);
        assert_eq!(
            column.null_count(),
            if rows.column(0).data_type() == &arrow_schema::DataType::Null { 2 } else { 0 }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_requests_do_not_affect_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], Config { max_in_flight: 16, ..config() });
    let caller = client.infer("ranker").await.unwrap();
    let timed_out = join_all((0..10).map(|_| async {
        tokio::time::timeout(Duration::from_millis(20), caller.ask(&keys(0..1), None)).await.is_err()
    }));
    assert!(timed_out.await.into_iter().all(|late| late));
    let _working = working(client.worker("ranker", 0).await.unwrap());
    assert_all(&caller, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_leaves_the_queue() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let grace = Duration::from_secs(10);
    let client = client(&[&server], Config { max_in_flight: 1, answer_grace: grace, ..config() });
    let caller = client.infer("ranker").await.unwrap();
    tokio::time::timeout(Duration::from_millis(50), caller.ask(&keys(0..5), None)).await.unwrap_err();
    // With one request in flight at most, this one is sent after the other is cancelled.
    // The second request may time out before the first is cancelled. It is then never sent and fails with a different error, so it is
    // tried again.
    let expired = async {
        loop {
            let expired = caller.ask(&keys(0..1), Some(Duration::from_secs(3))).await.err().unwrap();
            if expired.to_string().contains("no worker serves the queue") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired).await.expect("the first request is cancelled");
    let mut worker = client.worker("ranker", 0).await.unwrap();
    let keys = keys(0..3);
    let (asked, worked) = tokio::join!(caller.ask(&keys, None), async {
        let work = worker.next().await.unwrap().unwrap();
        let (rows, scores) = (work.metadata.valid_rows, doubled(&work));
        work.reply(&scores).unwrap();
        rows
    });
    assert_doubled(&asked.unwrap(), &keys);
    assert_eq!(worked, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_answer_is_an_error_after_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let client = client(&[&server], config());
    let caller = client.infer("ranker").await.unwrap();
    let (began, keys) = (Instant::now(), keys(0..1));
    let late = caller.ask(&keys, Some(Duration::from_millis(50))).await.err().unwrap();
    assert_eq!(late.code(), Some(Code::DeadlineExceeded), "{late}");
    // The default timeout is 120 s.
    assert!((50..120_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let never = caller.ask(&keys, Some(Duration::ZERO)).await.err().unwrap();
    assert_eq!(never.code(), Some(Code::DeadlineExceeded), "{never}");
    drop(caller.ask(&keys, Some(Duration::MAX)));
    let unknown = client.infer("rankr").await.err().unwrap();
    assert_eq!(unknown.code(), Some(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_and_workers_move_to_another_server_when_theirs_is_drained() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (server(&folder, "first").await, server(&folder, "second").await);
    let client = client(&[&first, &second], config());
    let _working = working(client.worker("ranker", 0).await.unwrap());
    let caller = client.infer("ranker").await.unwrap();
    assert_all(&caller, 10).await;
    let keys = keys(0..5);
    let asked = join_all((0..100).map(|_| caller.ask(&keys, None)));
    let (asked, _held) = tokio::join!(asked, stopped(first));
    for asked in asked {
        match asked {
            Ok(answer) => assert_doubled(&answer, &keys),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    // Requests can also fail until the client has detected that the server has stopped.
    let answered = async {
        while let Err(error) = caller.ask(&keys, None).await {
            assert!(error.is_transient(), "{error}");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await.unwrap();
    assert_all(&caller, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replies_of_a_closed_worker_arrive_and_its_batches_move_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    // `close` waits until the server has received the reply.
    let client = client(&[&server], Config { answer_grace: Duration::from_secs(10), ..config() });
    let caller = client.infer("ranker").await.unwrap();
    let mut first = client.worker("ranker", 1).await.unwrap();
    let keys: Vec<_> = (0..3).map(|number| keys(number..number + 1)).collect();
    let work = async {
        let work = first.next().await.unwrap().unwrap();
        let scores = doubled(&work);
        work.reply(&scores).unwrap();
        first.close().await;
        let dying = client.worker("ranker", 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(dying);
        Some(working(client.worker("ranker", 0).await.unwrap()))
    };
    let ask = async {
        let mut answers = vec![caller.ask(&keys[0], None).await];
        answers.extend(join_all(keys[1..].iter().map(|keys| caller.ask(keys, None))).await);
        answers
    };
    let (answers, _working) = tokio::join!(ask, work);
    for (answer, keys) in answers.into_iter().zip(&keys) {
        assert_doubled(&answer.unwrap(), keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_reports_lost_requests() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder, "cache").await;
    let connection = Connection::open(&server.grpc().url(), Arc::new(config())).await.unwrap();
    let caller = connection.infer("ranker").await.unwrap();
    let mut worker = client(&[&server], config()).worker("ranker", 0).await.unwrap();
    let keys = keys(0..1);
    let (asked, _held) = tokio::join!(caller.ask(&keys, None), async {
        let work = worker.next().await.unwrap().unwrap();
        let held = stopped(server).await;
        let scores = doubled(&work);
        // Fails if the worker has detected the end of the exchange.
        drop(work.reply(&scores));
        held
    });
    assert!(asked.err().unwrap().is_transient());
    assert!(caller.ask(&keys, None).await.err().unwrap().is_transient());
}
