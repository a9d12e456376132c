//! Guarantees of lookups: each lookup returns the rows of its own keys, whatever happens to other lookups, connections and
//! servers.

use std::{
    sync::Arc,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use arrow_array::{Int64Array, RecordBatch, cast::AsArray, types::UInt8Type};
use arrow_schema::{DataType, Field, Schema};
use forebay::Server;
use forebay_client::{
    Client, Config, Connection, Error, Found, Lookups,
    proto::v1::{Lookup, Tensor, Train},
};
use futures::{StreamExt, future::join_all, stream};
use tempfile::TempDir;
use tonic::Code;

use crate::common::{Fault, Proxy, front::Front, http_get, settings, stopped};

const COLUMNS: [&str; 4] = ["l_orderkey", "l_linenumber", "l_quantity", "l_comment"];

fn config() -> Config {
    Config { retry_deadline: Duration::from_secs(60), ..Config::default() }
}

/// Starts a server with lookups of `lineitem`.
async fn server(folder: &TempDir, cache: &str) -> Server {
    let mut settings = settings(folder.path(), cache);
    settings.add_online(&["lineitem=l_orderkey,l_linenumber".to_owned()]).unwrap();
    let server = Server::start(settings).await.unwrap();
    // Retries until the lookups are ready.
    Client::new([server.grpc().url()], config()).unwrap().lookup(&wanted()).await.unwrap();
    server
}

fn wanted() -> Lookup {
    Lookup { dataset: "lineitem".into(), columns: COLUMNS.map(str::to_owned).into(), ..Lookup::default() }
}

/// Returns training batches, whose first two columns are keys.
async fn rows(server: &Server, count: u64) -> Vec<RecordBatch> {
    let columns = COLUMNS.map(str::to_owned).into();
    let train =
        Train { dataset: "lineitem".into(), batch_size: 100, columns, steps: count, ..Train::default() };
    let mut training = Client::new([server.grpc().url()], config()).unwrap().train(&train).await.unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = training.next().await {
        batches.push(batch.unwrap().record_batch().unwrap());
    }
    batches
}

fn keys(rows: &RecordBatch) -> RecordBatch {
    rows.project(&[0, 1]).unwrap()
}

fn assert_rows(found: &Found, expected: &RecordBatch) {
    let rows = found.batch.record_batch().unwrap();
    assert_eq!(rows.project(&[0, 1, 2, 3]).unwrap().columns(), expected.columns());
    let is_found = rows.column_by_name("found").unwrap().as_primitive::<UInt8Type>();
    assert!(is_found.values().iter().all(|found| *found == 1));
    assert_eq!(found.metadata.found, expected.num_rows() as u64);
    assert!(!found.metadata.snapshot.is_empty() && found.metadata.snapshot_age_seconds.is_some());
    assert_eq!(found.batch.body().as_ptr() as usize % 64, 0);
}

async fn assert_all(lookups: &Lookups, expected: &[RecordBatch]) {
    let found = join_all(expected.iter().map(|rows| async { lookups.get(&keys(rows)).await })).await;
    for (found, expected) in found.into_iter().zip(expected) {
        assert_rows(&found.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lookup_returns_its_own_rows_with_many_in_flight() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 200).await;
    for max_in_flight in [1, 3, 256] {
        let config = Config { max_in_flight, ..config() };
        let lookups = Client::new([server.grpc().url()], config).unwrap().lookup(&wanted()).await.unwrap();
        assert_eq!(lookups.schema().unwrap().field(4).name(), "found");
        assert_all(&lookups, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_keys_are_nulls_and_zeros() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let connection = Connection::open(&server.grpc().url(), Arc::new(config())).await.unwrap();
    let tensor = Tensor {
        name: "x".into(),
        columns: vec!["l_quantity".into()],
        dtype: "float32".into(),
        ..Tensor::default()
    };
    let wanted = Lookup { tensors: vec![tensor], ..wanted() };
    let lookups = connection.lookup(&wanted).await.unwrap();
    let schema = Schema::new(vec![
        Field::new("l_orderkey", DataType::Int64, true),
        Field::new("l_linenumber", DataType::Int64, true),
    ]);
    let columns: [Arc<Int64Array>; 2] = [
        Arc::new(Int64Array::from(vec![Some(1), Some(-5), None])),
        Arc::new(Int64Array::from(vec![Some(1), Some(1), Some(1)])),
    ];
    let keys = RecordBatch::try_new(Arc::new(schema), columns.map(|column| column as _).into()).unwrap();
    let found = lookups.get(&keys).await.unwrap();
    assert_eq!((found.metadata.found, found.batch.rows()), (1, 3));
    let rows = found.batch.record_batch().unwrap();
    assert_eq!(rows.column_by_name("l_comment").unwrap().null_count(), 2);
    assert_eq!(found.batch.column("found").unwrap().as_primitive::<UInt8Type>().values()[..], [1, 0, 0]);
    assert_eq!(found.batch.column("x").unwrap().null_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_lookups_do_not_affect_others() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 64).await;
    let config = Config { max_in_flight: 8, ..config() };
    let lookups = Client::new([server.grpc().url()], config).unwrap().lookup(&wanted()).await.unwrap();
    for millis in [0, 1, 2, 5] {
        let asked = expected.iter().enumerate().map(|(number, rows)| {
            let (lookups, limit) = (&lookups, Duration::from_millis(millis));
            async move {
                let get = lookups.get(&keys(rows)).await;
                (number, get)
            }
            .await_or_drop(number % 2 == 0, limit)
        });
        let done: Vec<_> = stream::iter(asked).buffer_unordered(64).collect().await;
        for (number, found) in done.into_iter().flatten() {
            assert_rows(&found.unwrap(), &expected[number]);
        }
    }
}

/// Drops a future after a time limit.
trait Within: Future + Sized {
    async fn await_or_drop(self, dropped: bool, limit: Duration) -> Option<Self::Output> {
        if dropped { tokio::time::timeout(limit, self).await.ok() } else { Some(self.await) }
    }
}

impl<F: Future> Within for F {}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_lookup_fails_alone() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 100).await;
    let lookups = Client::new([server.grpc().url()], config()).unwrap().lookup(&wanted()).await.unwrap();
    let too_many = Int64Array::from_iter_values(0..65_537);
    let columns = vec![Arc::new(too_many.clone()) as _, Arc::new(too_many) as _];
    let schema = expected[0].schema();
    let field =
        |name: &str| Field::new(name, DataType::Int64, schema.field_with_name(name).unwrap().is_nullable());
    let fields = Schema::new(vec![field("l_orderkey"), field("l_linenumber")]);
    let wide = |rows: &RecordBatch| {
        let columns = rows.columns()[..2].iter().map(|column| {
            let values = column.to_data();
            let ints: Int64Array = match values.data_type() {
                DataType::Int32 => column
                    .as_primitive::<arrow_array::types::Int32Type>()
                    .values()
                    .iter()
                    .map(|value| i64::from(*value))
                    .collect(),
                _ => column.as_primitive::<arrow_array::types::Int64Type>().clone(),
            };
            Arc::new(ints) as _
        });
        RecordBatch::try_new(Arc::new(fields.clone()), columns.collect()).unwrap()
    };
    let too_many = RecordBatch::try_new(Arc::new(fields.clone()), columns).unwrap();
    let others = join_all(expected.iter().map(|rows| async { lookups.get(&wide(rows)).await }));
    let (rejected, others) = tokio::join!(lookups.get(&too_many), others);
    // There are too many keys, and their message is too long.
    assert!(matches!(rejected.err().unwrap().code(), Some(Code::InvalidArgument | Code::OutOfRange)));
    for (found, expected) in others.into_iter().zip(&expected) {
        assert_rows(&found.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_lookups_do_not_fail_others_on_a_connection_without_retries() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 40).await;
    let connection = Connection::open(&server.grpc().url(), Arc::new(config())).await.unwrap();
    let lookups = connection.lookup(&wanted()).await.unwrap();
    let too_many =
        arrow_select::concat::concat_batches(&keys(&expected[0]).schema(), vec![&keys(&expected[0]); 700]);
    let too_many = too_many.unwrap();
    let others = join_all(expected.iter().map(|rows| async { lookups.get(&keys(rows)).await }));
    let rejected = join_all((0..3).map(|_| lookups.get(&too_many)));
    let (rejected, others) = tokio::join!(rejected, others);
    for rejected in rejected {
        let code = rejected.err().unwrap().code();
        assert!(matches!(code, Some(Code::InvalidArgument | Code::ResourceExhausted)), "{code:?}");
    }
    for (found, expected) in others.into_iter().zip(&expected) {
        assert_rows(&found.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_lookup_does_not_end_the_exchange_of_others() {
    let folder = TempDir::new().unwrap();
    let mut settings = settings(folder.path(), "cache");
    settings.add_online(&["lineitem=l_orderkey,l_linenumber".to_owned()]).unwrap();
    settings.lookups.max_keys = 100;
    let server = Server::start(settings).await.unwrap();
    let expected = rows(&server, 60).await;
    // Retries until the lookups are ready.
    Client::new([server.grpc().url()], config()).unwrap().lookup(&wanted()).await.unwrap();
    // Neither of them sends a lookup again.
    let _alone = ENDED_EXCHANGES.lock().await;
    let ended = ended_exchanges(&server).await;
    let client = Client::new([server.grpc().url()], config()).unwrap().lookup(&wanted()).await.unwrap();
    let connection = Connection::open(&server.grpc().url(), Arc::new(config())).await.unwrap();
    let connection = connection.lookup(&wanted()).await.unwrap();
    let pair = vec![&expected[0], &expected[1]];
    let too_many = arrow_select::concat::concat_batches(&expected[0].schema(), pair).unwrap();
    for lookups in [client, connection] {
        let asked = expected.iter().enumerate().map(|(number, rows)| {
            let (lookups, too_many) = (&lookups, &too_many);
            async move {
                if number % 3 == 1 {
                    let rejected = lookups.get(&keys(too_many)).await.err().unwrap();
                    assert_eq!(rejected.code(), Some(Code::InvalidArgument));
                    assert!(rejected.to_string().contains("200 at once, expected at most 100"), "{rejected}");
                }
                assert_rows(&lookups.get(&keys(rows)).await.unwrap(), rows);
            }
        });
        join_all(asked).await;
    }
    assert_eq!(ended_exchanges(&server).await, ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_lookup_fails_alone_at_a_server_that_ends_the_exchange() {
    let folder = TempDir::new().unwrap();
    let mut settings = settings(folder.path(), "cache");
    settings.add_online(&["lineitem=l_orderkey,l_linenumber".to_owned()]).unwrap();
    settings.lookups.max_keys = 100;
    let server = Server::start(settings).await.unwrap();
    let expected = rows(&server, 40).await;
    // Retries until the lookups are ready.
    Client::new([server.grpc().url()], config()).unwrap().lookup(&wanted()).await.unwrap();
    let _alone = ENDED_EXCHANGES.lock().await;
    let ended = ended_exchanges(&server).await;
    // A server of an earlier version does not know `continue_on_error`.
    let earlier = Front::before(&server).await;
    let lookups = Client::new([earlier.url.clone()], config()).unwrap().lookup(&wanted()).await.unwrap();
    let pair = vec![&expected[0], &expected[1]];
    let too_many = keys(&arrow_select::concat::concat_batches(&expected[0].schema(), pair).unwrap());
    let asked = expected.iter().enumerate().map(|(number, rows)| {
        let (lookups, too_many) = (&lookups, &too_many);
        async move {
            if number % 10 == 3 {
                let rejected = lookups.get(too_many).await.err().unwrap();
                assert_eq!(rejected.code(), Some(Code::InvalidArgument));
                assert!(rejected.to_string().contains("200 at once, expected at most 100"), "{rejected}");
            }
            assert_rows(&lookups.get(&keys(rows)).await.unwrap(), rows);
        }
    });
    join_all(asked).await;
    // Each of the four rejections has ended an exchange.
    assert!(earlier.shared.exchanges.load(Ordering::Relaxed) > 4);
    // The server may count them after the client has received the error. A test that counts exchanges must begin after that.
    let counted = async {
        while ended_exchanges(&server).await < ended + 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.expect("the server counts them");
}

/// Lock for tests that end exchanges with an error or count such exchanges. All servers of a process share their metrics, so these tests
/// must not run at the same time.
static ENDED_EXCHANGES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the number of exchanges that were ended by an invalid argument.
async fn ended_exchanges(server: &Server) -> u64 {
    let metrics = http_get(server, "/metrics").await;
    let calls = metrics.lines().filter(|line| line.starts_with("forebay_grpc_calls_total{"));
    let ended = calls.filter(|line| line.contains("DoExchange") && line.contains("INVALID_ARGUMENT"));
    ended.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_moves_to_the_next_server_after_half_of_its_time_without_data() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 60).await;
    // The first server is silent from the start, or after it has answered some lookups.
    for after in [0, 50_000] {
        let proxy = Proxy::before(&server, Fault::Stall(after)).await;
        let urls = [proxy.url.clone(), server.grpc().url()];
        let lookups = Client::new(urls, config()).unwrap().lookups(&wanted());
        for expected in &expected {
            let found = lookups.get_within(&keys(expected), Duration::from_secs(12)).await.unwrap();
            assert_rows(&found, expected);
        }
        assert_eq!(proxy.connections.load(Ordering::Relaxed), 1, "the silent server is not asked again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_of_short_timeouts_leave_a_server_that_is_silent_for_a_second() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 1).await;
    let proxy = Proxy::before(&server, Fault::Stall(0)).await;
    let urls = [proxy.url.clone(), server.grpc().url()];
    let lookups = Client::new(urls, config()).unwrap().lookups(&wanted());
    let answered =
        async { while lookups.get_within(&keys(&expected[0]), Duration::from_millis(50)).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(50), answered).await.expect("the next server answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_above_the_limit_of_a_message_are_rejected_before_they_are_sent() {
    let folder = TempDir::new().unwrap();
    let mut settings = settings(folder.path(), "cache");
    settings.add_online(&["lineitem=l_orderkey,l_linenumber".to_owned()]).unwrap();
    settings.limits.max_exchange_bytes = 1 << 16;
    let server = Server::start(settings).await.unwrap();
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let lookups = client.lookup(&wanted()).await.unwrap();
    let expected = rows(&server, 1).await;
    let many = vec![&keys(&expected[0]); 200].into_iter().cloned().collect::<Vec<_>>();
    let many = arrow_select::concat::concat_batches(&many[0].schema(), &many).unwrap();
    let error = lookups.get(&many).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
    assert!(
        error.to_string().contains("the limit of the server is 65536 (limits.max_exchange_bytes)"),
        "{error}"
    );
    assert_rows(&lookups.get(&keys(&expected[0])).await.unwrap(), &expected[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_lost_connections_only_delay_lookups() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 100).await;
    let proxy = Proxy::before(&server, Fault::Cut(100_000)).await;
    let lookups = Client::new([proxy.url.clone()], config()).unwrap().lookup(&wanted()).await.unwrap();
    for expected in expected.chunks(5) {
        assert_all(&lookups, expected).await;
    }
    assert!(proxy.connections.load(Ordering::Relaxed) > 3);

    let connection = Connection::open(&proxy.url, Arc::new(config())).await.unwrap();
    let lookups = connection.lookup(&wanted()).await.unwrap();
    let mut lost = 0;
    for expected in &expected {
        match lookups.get(&keys(expected)).await {
            Ok(found) => assert_rows(&found, expected),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                lost += 1;
            }
        }
    }
    assert!((1..expected.len()).contains(&lost), "{lost} were lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_move_to_another_server_when_theirs_is_drained() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(&folder, "first").await, server(&folder, "second").await);
    let expected = rows(&second, 100).await;
    let urls = [first.grpc().url(), second.grpc().url()];
    let lookups = Client::new(urls, config()).unwrap().lookup(&wanted()).await.unwrap();
    assert_all(&lookups, &expected).await;
    let drained = async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        stopped(first).await
    };
    let ((), _held) = tokio::join!(assert_all(&lookups, &expected), drained);
    assert_all(&lookups, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_exchange_is_closed_and_opened_again() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let expected = rows(&server, 3).await;
    let proxy = Proxy::before(&server, Fault::Cut(u64::MAX)).await;
    let idle_timeout = Duration::from_millis(500);
    let config = Config { idle_timeout, ..config() };
    let lookups = Client::new([proxy.url.clone()], config).unwrap().lookup(&wanted()).await.unwrap();
    for (number, expected) in expected.iter().enumerate() {
        let (before, began) = (proxy.connections.load(Ordering::Relaxed), Instant::now());
        assert_rows(&lookups.get(&keys(expected)).await.unwrap(), expected);
        let (connections, took) = (proxy.connections.load(Ordering::Relaxed), began.elapsed());
        // The first round uses the exchange that is already open. If more than half a second passed before it, that exchange was closed,
        // and the round opens one.
        let opened = connections - before;
        assert!(opened >= 1 || number == 0, "no connection");
        // If `idle_timeout` passes before the request is sent, the new exchange is closed, and the round opens another one.
        assert!(opened <= 1 || took >= idle_timeout, "{opened} connections");
        let closed = async {
            while proxy.closed.load(Ordering::Relaxed) < connections {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), closed).await.expect("an idle exchange is closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_lookup_fails_at_once_with_the_servers_message() {
    let folder = TempDir::new().unwrap();
    let server = server(&folder, "cache").await;
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let unknown = client.lookup(&Lookup { dataset: "lineitm".into(), ..wanted() }).await.err().unwrap();
    assert_eq!(unknown.code(), Some(Code::NotFound), "{unknown}");
    let lookups = client.lookup(&wanted()).await.unwrap();
    let rows = rows(&server, 2).await;
    assert_rows(&lookups.get(&keys(&rows[0])).await.unwrap(), &rows[0]);
    let other = lookups.get(&rows[0]).await.err().unwrap();
    assert!(matches!(&other, Error::Request(message) if message.contains("began with")), "{other}");
    assert_rows(&lookups.get(&keys(&rows[1])).await.unwrap(), &rows[1]);
}
