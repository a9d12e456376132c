//! What the two sides of a batch queue are promised: every request its own answer or an error, whatever becomes of others,
//! of workers and of connections.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

#[path = "common/broker.rs"]
mod broker;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::{Int64Array, RecordBatch, cast::AsArray, types::Int64Type};
use arrow_schema::{DataType, Field, Schema};
use broker::Broker;
use forebay_client::{Answer, Caller, Client, Config, Connection, Error, Work, Worker};
use futures::future::join_all;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

fn config() -> Config {
    let grace = Duration::from_millis(100);
    Config { deadline: Duration::from_secs(20), answer_grace: grace, ..Config::default() }
}

fn schema(name: &str) -> Schema {
    Schema::new(vec![Field::new(name, DataType::Int64, true)])
}

fn rows(name: &str, values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let values = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_new(Arc::new(schema(name)), vec![values]).unwrap()
}

fn client(broker: &Broker) -> Client {
    Client::new([broker.url.clone()], config()).unwrap()
}

/// What the model makes of it: each value doubled.
fn doubled(work: &Work) -> RecordBatch {
    let values = work.batch.column("id").unwrap();
    rows("score", values.as_primitive::<Int64Type>().values().iter().map(|value| value * 2))
}

fn assert_doubled(answer: &Answer, keys: &RecordBatch) {
    let scores = answer.rows.column("score").unwrap();
    let keys = keys.column(0).as_primitive::<Int64Type>().values().iter().map(|key| key * 2);
    assert!(scores.as_primitive::<Int64Type>().values().iter().copied().eq(keys));
}

/// Replies to everything, the later one of two first where it has two.
fn working(mut worker: Worker) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(first) = worker.next().await.unwrap() {
            let second = tokio::time::timeout(Duration::from_millis(1), worker.next()).await;
            if let Ok(Ok(Some(second))) = second {
                let scores = doubled(&second);
                drop(second.reply(&scores));
            }
            let scores = doubled(&first);
            // Of an exchange that is over it is another worker's.
            drop(first.reply(&scores));
        }
    }))
}

async fn assert_all(caller: &Caller, count: i64) {
    let asked = (0..count).map(|number| async move {
        let keys = rows("id", number * 10..number * 10 + number % 7 + 1);
        assert_doubled(&caller.ask(&keys, None).await.unwrap(), &keys);
    });
    join_all(asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_gets_its_own_answer_in_whatever_order_they_come() {
    let broker = Broker::of(&schema("id")).await;
    let client = client(&broker);
    let workers = [client.serve("ranker", 0).await.unwrap(), client.serve("ranker", 5).await.unwrap()];
    let _working = workers.map(working);
    let caller = client.infer("ranker").await.unwrap();
    assert_all(&caller, 500).await;
    assert_eq!(broker.asked.load(Ordering::Relaxed), 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_a_reply_is_an_error_to_its_callers_and_to_no_other() {
    let broker = Broker::of(&schema("id")).await;
    let client = client(&broker);
    let mut worker = client.serve("ranker", 1).await.unwrap();
    let caller = client.infer("ranker").await.unwrap();
    let keys = rows("id", 0..3);
    let refused = async |worker: &mut Worker, treat: fn(Work)| {
        let (asked, ()) = tokio::join!(caller.ask(&keys, None), async {
            treat(worker.next().await.unwrap().unwrap());
        });
        match asked {
            Err(Error::Refused { code: Code::Internal, message, retry_after }) => {
                assert_eq!(retry_after, Some(Duration::from_millis(250)));
                message
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&mut worker, drop).await.contains("without a reply"));
    assert_eq!(refused(&mut worker, |work| work.fail("out of memory")).await, "out of memory");
    let too_few = refused(&mut worker, |work| {
        let error = work.reply(&rows("score", 0..2)).err().unwrap();
        assert!(matches!(&error, Error::Request(words) if words.contains("2 rows, expected 3")), "{error}");
    });
    assert!(too_few.await.contains("expected 3"));
    let (answer, ()) = tokio::join!(caller.ask(&keys, None), async {
        let work = worker.next().await.unwrap().unwrap();
        let scores = doubled(&work);
        work.reply(&scores).unwrap();
    });
    assert_doubled(&answer.unwrap(), &keys);
    let other_columns = refused(&mut worker, |work| {
        let error = work.reply(&rows("other", 0..3)).err().unwrap();
        assert!(matches!(&error, Error::Request(words) if words.contains("began with")), "{error}");
    });
    assert!(other_columns.await.contains("other Int64"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_disturb_no_other() {
    let broker = Broker::of(&schema("id")).await;
    let config = Config { max_requests: 16, ..config() };
    let client = Client::new([broker.url.clone()], config).unwrap();
    let caller = client.infer("ranker").await.unwrap();
    let impatient = join_all((0..10).map(|_| async {
        let keys = rows("id", 0..1);
        tokio::time::timeout(Duration::from_millis(20), caller.ask(&keys, None)).await.is_err()
    }));
    assert!(impatient.await.into_iter().all(|late| late));
    let _working = working(client.serve("ranker", 0).await.unwrap());
    assert_all(&caller, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_answer_is_an_error_in_time() {
    let broker = Broker::of(&schema("id")).await;
    let caller = client(&broker).infer("ranker").await.unwrap();
    let (began, keys) = (Instant::now(), rows("id", 0..1));
    let late = caller.ask(&keys, Some(Duration::from_millis(50))).await.err().unwrap();
    assert_eq!(late.code(), Some(Code::DeadlineExceeded), "{late}");
    assert!((150..1000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let never = caller.ask(&keys, Some(Duration::ZERO)).await.err().unwrap();
    assert_eq!(never.code(), Some(Code::DeadlineExceeded), "{never}");
    drop(caller.ask(&keys, Some(Duration::MAX)));
    let unknown = client(&broker).infer("rankr").await.err().unwrap();
    assert_eq!(unknown.code(), Some(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_go_on_over_drains_and_what_was_on_its_way_is_not_asked_again() {
    let broker = Broker::of(&schema("id")).await;
    let client = client(&broker);
    let _working = working(client.serve("ranker", 0).await.unwrap());
    let caller = client.infer("ranker").await.unwrap();
    assert_all(&caller, 10).await;
    let (mut answered, mut lost) = (0, 0);
    for round in 0..20 {
        let keys = rows("id", round..round + 5);
        let asked = join_all((0..10).map(|_| caller.ask(&keys, None)));
        let (asked, ()) = tokio::join!(asked, async {
            tokio::time::sleep(Duration::from_millis(round as u64 % 4)).await;
            broker.drain();
        });
        for asked in asked {
            match asked {
                Ok(answer) => {
                    assert_doubled(&answer, &keys);
                    answered += 1;
                }
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    lost += 1;
                }
            }
        }
    }
    assert!(broker.asked.load(Ordering::Relaxed) <= 210, "some were asked again");
    assert!(answered > 0 && lost > 0, "{answered} answered, {lost} lost");
    assert_all(&caller, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_leaves_its_batches_to_another_and_its_replies_arrive() {
    let broker = Broker::of(&schema("id")).await;
    let client = client(&broker);
    let caller = client.infer("ranker").await.unwrap();
    let mut first = client.serve("ranker", 3).await.unwrap();
    let keys: Vec<_> = (0..3).map(|number| rows("id", number..number + 1)).collect();
    let asked = join_all(keys.iter().map(|keys| caller.ask(keys, None)));
    let work = async {
        let work = first.next().await.unwrap().unwrap();
        // The others were received, and not handed over.
        while broker.given.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let scores = doubled(&work);
        work.reply(&scores).unwrap();
        first.close().await;
        Some(working(client.serve("ranker", 0).await.unwrap()))
    };
    let (answers, _working) = tokio::join!(asked, work);
    for (answer, keys) in answers.into_iter().zip(&keys) {
        assert_doubled(&answer.unwrap(), keys);
    }
    assert_eq!(broker.given.load(Ordering::Relaxed), 5, "one was answered before its worker went");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_connection_what_is_lost_is_told() {
    let broker = Broker::of(&schema("id")).await;
    let connection = Connection::open(&broker.url, Arc::new(config())).await.unwrap();
    let mut worker = connection.serve("ranker", 0).await.unwrap();
    let caller = connection.infer("ranker").await.unwrap();
    let keys = rows("id", 0..1);
    let (asked, work) = tokio::join!(caller.ask(&keys, None), async {
        let work = worker.next().await.unwrap().unwrap();
        broker.drain();
        work
    });
    assert!(asked.err().unwrap().is_transient());
    assert!(worker.next().await.err().unwrap().is_transient());
    assert!(worker.next().await.unwrap().is_none(), "after an error it is over");
    let scores = doubled(&work);
    // It may be noticed, or not.
    drop(work.reply(&scores));
    let _working = working(connection.serve("ranker", 0).await.unwrap());
    assert_doubled(&caller.ask(&keys, None).await.unwrap(), &keys);
}
