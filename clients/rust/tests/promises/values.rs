//! Guarantees of filters that refer to sets of values.

use std::{collections::BTreeMap, path::Path, time::Duration};

use arrow_array::{
    Array, ArrayRef, Decimal128Array, Int64Array, StringArray, UInt64Array,
    cast::AsArray,
    types::{Decimal128Type, Int64Type},
};
use arrow_flight::{FlightData, FlightDescriptor, PutResult, flight_service_client::FlightServiceClient};
use forebay::Server;
use forebay_client::{
    Client, Config, Error, Training, ValueSet,
    proto::{
        Encoding,
        v1::{CountResult, Mixed, PutValues, PutValuesResult, Train},
    },
};
use futures::{Stream, StreamExt};
use tempfile::TempDir;
use tonic::{Code, transport::Endpoint};

use crate::common::{http_get, restarted, server, settings, stopped, train};

fn config() -> Config {
    Config { retry_deadline: Duration::from_secs(60), prefetch_batches: 1, ..Config::default() }
}

fn filtered(filter: &str, sets: &[(&str, &ValueSet)]) -> Train {
    let values = sets.iter().map(|(name, set)| set.named(*name)).collect();
    let columns = ["l_orderkey", "l_comment", "l_extendedprice"].map(str::to_owned).to_vec();
    Train { filter: filter.into(), values, columns, ..train(1) }
}

/// Rows as (key, comment, price in cents), sorted.
async fn rows(mut training: Training) -> Vec<(i64, String, i128)> {
    let mut rows = Vec::new();
    while let Some(batch) = training.next().await {
        let batch = batch.unwrap().record_batch().unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap().clone();
        let (keys, comments, prices) = (column("l_orderkey"), column("l_comment"), column("l_extendedprice"));
        let keys = keys.as_primitive::<Int64Type>().values().iter().copied();
        let comments = (0..comments.len()).map(|row| text(&comments, row));
        let prices = prices.as_primitive::<Decimal128Type>().values().to_vec();
        rows.extend(keys.zip(comments).zip(prices).map(|((key, comment), price)| (key, comment, price)));
    }
    rows.sort_unstable();
    rows
}

fn text(array: &ArrayRef, row: usize) -> String {
    match array.as_string_opt::<i32>() {
        Some(array) => array.value(row).to_owned(),
        None => array.as_string_view().value(row).to_owned(),
    }
}

/// Removes the stored sets of values, as if the state had been emptied.
fn empty(folder: &Path) {
    std::fs::remove_dir_all(folder.join("state").join("values")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_with_100_000_values_keeps_the_rows_of_a_join() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let columns = filtered("", &[]).columns;
    let all = rows(client.train(&Train { columns, ..train(1) }).await.unwrap()).await;
    // Keys of which some are beyond the column, comments of which most are of no row, and prices with another scale.
    let keys: Vec<u64> = (0..100_000).map(|number| number * 7).chain([u64::MAX]).collect();
    let comments: Vec<String> = all.iter().step_by(3).map(|row| row.1.clone()).collect();
    let comments: Vec<String> =
        comments.into_iter().chain((0..100_000).map(|number| format!("none {number}"))).collect();
    let prices: Vec<i128> =
        all.iter().step_by(2).map(|row| row.2 * 10).chain(all.iter().map(|row| row.2 * 10 + 1)).collect();
    let ids = ValueSet::new(&UInt64Array::from(keys.clone())).unwrap();
    let texts = ValueSet::new(&StringArray::from(comments.clone())).unwrap();
    let costs = Decimal128Array::from(prices.clone()).with_precision_and_scale(20, 3).unwrap();
    let costs = ValueSet::new(&costs).unwrap();
    assert!(ids.len() > 100_000 && texts.len() > 100_000);
    let client = client.with_values([ids.clone(), texts.clone(), costs.clone()]);
    let is_key = |row: &(i64, String, i128)| keys.binary_search(&(row.0 as u64)).is_ok();
    let (comments, prices): (std::collections::HashSet<_>, std::collections::HashSet<_>) =
        (comments.into_iter().collect(), prices.into_iter().collect());
    for (request, keeps) in [
        (filtered("l_orderkey IN (:ids)", &[("ids", &ids)]), &is_key as &dyn Fn(&_) -> bool),
        (filtered("l_orderkey NOT IN (:ids)", &[("ids", &ids)]), &|row| !is_key(row)),
        (filtered("l_comment IN (:texts)", &[("texts", &texts)]), &|row: &(i64, String, i128)| {
            comments.contains(&row.1)
        }),
        (
            filtered("l_extendedprice IN (:a) AND l_orderkey IN (:b)", &[("a", &costs), ("b", &ids)]),
            &|row: &(i64, String, i128)| prices.contains(&(row.2 * 10)) && is_key(row),
        ),
    ] {
        let found = rows(client.train(&request).await.unwrap()).await;
        let expected: Vec<_> = all.iter().filter(|row| keeps(row)).cloned().collect();
        assert!(!expected.is_empty() && expected.len() < all.len());
        assert!(found == expected, "{}: {} rows, expected {}", request.filter, found.len(), expected.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_stored_once_and_serves_all_servers_of_the_state_and_resumed_trainings() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (server(folder.path(), "first").await, server(folder.path(), "second").await);
    let ids = ValueSet::new(&Int64Array::from_iter_values(0..100_000)).unwrap();
    let request = Train { epochs: Some(2), ..filtered("l_orderkey IN (:ids)", &[("ids", &ids)]) };
    let alone = Client::new([second.grpc().url()], config()).unwrap();
    let missing = alone.plan(&request).await.err().unwrap();
    assert_eq!(missing.code(), Some(Code::FailedPrecondition), "{missing}");
    assert!(missing.to_string().contains("values: ':ids' ("), "{missing}");
    assert_eq!(missing.missing_values(), [ids.sha256()]);

    let client = Client::new([first.grpc().url()], config()).unwrap().with_values([ids.clone()]);
    let mut training = client.train(&request).await.unwrap();
    let before = training.next().await.unwrap().unwrap();
    let (plan, cursor) = (training.plan().clone(), training.cursor());
    let after = training.next().await.unwrap().unwrap();
    drop(training);
    assert_eq!(plan.resolved.values, [ids.named("ids")]);
    // Another server needs no upload, also without the values.
    let resumed =
        Train { start_step: cursor.step, snapshot: plan.summary.snapshot.clone(), ..request.clone() };
    let mut resumed = alone.train(&resumed).await.unwrap();
    assert_eq!(resumed.plan().summary.plan_hash, plan.summary.plan_hash);
    assert_eq!(resumed.next().await.unwrap().unwrap().body(), after.body());
    assert_ne!(before.body(), after.body());
    let other = ValueSet::new(&Int64Array::from_iter_values(0..100_001)).unwrap();
    let other_plan = client.with_values([other.clone()]);
    let other_plan = other_plan.plan(&Train { values: vec![other.named("ids")], ..request }).await.unwrap();
    assert_ne!(
        other_plan.summary.plan_hash, plan.summary.plan_hash,
        "equal rows of other values are another plan"
    );
    let mut stored: BTreeMap<String, usize> = BTreeMap::new();
    for file in std::fs::read_dir(folder.path().join("state/values")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        *stored.entry(name.rsplit_once('.').unwrap().1.to_owned()).or_default() += 1;
    }
    assert_eq!(stored, [("charge".to_owned(), 2), ("values".to_owned(), 2)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_sends_its_values_again_to_a_server_whose_state_was_emptied() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "first").await;
    let ids = ValueSet::new(&Int64Array::from_iter_values((0..100_000).map(|number| number * 3))).unwrap();
    let request = Train { epochs: Some(3), ..filtered("l_orderkey IN (:ids)", &[("ids", &ids)]) };
    let client = Client::new([server.grpc().url()], config()).unwrap().with_values([ids]);
    let whole = rows(client.train(&request).await.unwrap()).await;
    let mut training = client.train(&request).await.unwrap();
    let first = training.next().await.unwrap().unwrap();
    let address = server.grpc().to_string();
    let held = stopped(server).await;
    empty(folder.path());
    let mut again = settings(folder.path(), "again");
    again.grpc = address.parse().unwrap();
    let _server = restarted(again, held).await;
    let rest = rows(training).await;
    assert_eq!(first.rows() as usize + rest.len(), whole.len());
    assert!(folder.path().join("state/values").exists(), "the values were sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_sends_its_values_again_if_the_stored_ones_are_damaged() {
    let folder = TempDir::new().unwrap();
    let ids = ValueSet::new(&Int64Array::from_iter_values((0..100_000).map(|number| number * 3))).unwrap();
    let request = filtered("l_orderkey IN (:ids)", &[("ids", &ids)]);
    let stored = folder.path().join(format!("state/values/{}.values", ids.sha256()));
    let (mut lengths, mut whole) = (Vec::new(), Vec::new());
    // The sets of a server that uses them are in its memory.
    for (number, length) in [None, Some(1000), Some(64 << 20)].into_iter().enumerate() {
        if let Some(length) = length {
            std::fs::OpenOptions::new().write(true).open(&stored).unwrap().set_len(length).unwrap();
        }
        let server = server(folder.path(), &format!("cache {number}")).await;
        let client = Client::new([server.grpc().url()], config()).unwrap().with_values([ids.clone()]);
        whole.push(rows(client.train(&request).await.unwrap()).await);
        lengths.push(std::fs::metadata(&stored).unwrap().len());
    }
    assert!(!whole[0].is_empty() && whole.iter().all(|rows| *rows == whole[0]));
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_blocks_that_can_have_one_of_the_values_are_read_to_count_the_rows() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let counted = async |keys: Vec<i64>| {
        let ids = ValueSet::new(&Int64Array::from(keys)).unwrap();
        let request = filtered("l_orderkey IN (:ids)", &[("ids", &ids)]);
        let client = client.with_values([ids]);
        let action = Encoding::Json.encode(&forebay_client::proto::v1::Command::from(request));
        let results = client.action("count-rows", &action).await.unwrap();
        Encoding::Json.decode::<CountResult>("CountResult", results.last().unwrap()).unwrap()
    };
    // The file is sorted by the key. Its statistics exclude all of these.
    let beyond = counted((1_000_000..1_100_000).chain(-100..0).collect()).await;
    assert_eq!((beyond.blocks_read, beyond.rows_kept), (0, 0));
    assert!(beyond.rows > 50_000);
    let some = counted((1_000_000..1_100_000).chain([1]).collect()).await;
    assert!(some.blocks_read > 0 && some.rows_kept > 0 && some.rows_kept < 20, "{some:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mix_has_the_rows_of_the_values_of_each_of_its_datasets() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let all = rows(client.train(&filtered("", &[])).await.unwrap()).await;
    let keys = |remainder: i64| (0..200_000).filter(move |key| key % 4 == remainder);
    let [own, mixed] =
        [1, 2].map(|remainder| ValueSet::new(&Int64Array::from_iter_values(keys(remainder))).unwrap());
    let other = Mixed {
        dataset: "lineitem".into(),
        fraction: 0.25,
        filter: "l_orderkey IN (:mixed)".into(),
        ..Mixed::default()
    };
    let request =
        Train { mix: vec![other], ..filtered("l_orderkey IN (:own)", &[("own", &own), ("mixed", &mixed)]) };
    let client = client.with_values([own, mixed]);
    let found = rows(client.train(&request).await.unwrap()).await;
    let of = |remainder: i64| {
        let rows = found.iter().filter(move |row| row.0 % 4 == remainder);
        rows.cloned().collect::<Vec<_>>()
    };
    let (own_rows, mixed_rows) = (of(1), of(2));
    assert_eq!(own_rows.len() + mixed_rows.len(), found.len(), "no other keys");
    let expected: Vec<_> = all.iter().filter(|row| row.0 % 4 == 1).cloned().collect();
    // The last rows do not fill a batch.
    let missing = expected.len() - own_rows.len();
    assert!((missing as u64) < request.batch_size, "{} rows, expected {}", own_rows.len(), expected.len());
    let mut rest = expected.iter();
    assert!(own_rows.iter().all(|row| rest.any(|other| other == row)), "other rows, or some of them twice");
    let share = mixed_rows.len() as f64 / found.len() as f64;
    assert!((0.24..0.26).contains(&share), "{share}");
    // A set that only the filter of a mixed dataset uses is missing as any other.
    empty(folder.path());
    let other = self::server(folder.path(), "other").await;
    let alone = Client::new([other.grpc().url()], config()).unwrap();
    let missing = alone.plan(&request).await.err().unwrap();
    assert_eq!(missing.missing_values().len(), 2, "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_does_not_fit_in_memory_is_refused_with_both_sizes() {
    let folder = TempDir::new().unwrap();
    let mut small = settings(folder.path(), "cache");
    small.cache_memory = "16MiB".parse().unwrap();
    let server = Server::start(small).await.unwrap();
    let large = ValueSet::new(&Int64Array::from_iter_values(0..1_200_000)).unwrap();
    let some = ValueSet::new(&Int64Array::from_iter_values(0..1000)).unwrap();
    let client = Client::new([server.grpc().url()], config()).unwrap();
    let client = client.with_values([large.clone(), some.clone()]);
    let error = client.plan(&filtered("l_orderkey IN (:ids)", &[("ids", &large)])).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::ResourceExhausted), "{error}");
    let message = error.to_string();
    assert!(
        message
            .contains("values: the set ':ids' needs 9600016 bytes, the limit is 4194304: use fewer values"),
        "{message}"
    );
    client.plan(&filtered("l_orderkey IN (:ids)", &[("ids", &some)])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_of_trainings_that_ended_leave_their_memory_to_those_of_the_next_ones() {
    let folder = TempDir::new().unwrap();
    let mut small = settings(folder.path(), "cache");
    small.cache_memory = "32MiB".parse().unwrap();
    let server = Server::start(small).await.unwrap();
    // The encoded set and its values take 6.4 of the 8.4 MB that all sets in use may have.
    for first in 0..4 {
        let ids = ValueSet::new(&Int64Array::from_iter_values(first..first + 400_000)).unwrap();
        let client = Client::new([server.grpc().url()], config()).unwrap().with_values([ids.clone()]);
        let request = Train { epochs: Some(1), ..filtered("l_orderkey IN (:ids)", &[("ids", &ids)]) };
        assert!(!rows(client.train(&request).await.unwrap()).await.is_empty());
    }
}

/// Sends a set in parts, as any Flight client can.
async fn put(url: &str, command: &PutValues, parts: &[&[u8]]) -> Result<Vec<PutResult>, tonic::Status> {
    put_until(url, command, parts, futures::stream::empty()).await
}

/// As [`put`]. The upload ends with `end`.
async fn put_until(
    url: &str,
    command: &PutValues,
    parts: &[&[u8]],
    end: impl Stream<Item = FlightData> + Send + 'static,
) -> Result<Vec<PutResult>, tonic::Status> {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let mut flight = FlightServiceClient::new(channel);
    let descriptor = FlightDescriptor::new_cmd(Encoding::Json.encode(command));
    let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
    let part = |part: &&[u8]| FlightData { data_body: part.to_vec().into(), ..FlightData::default() };
    let messages: Vec<_> = std::iter::once(first).chain(parts.iter().map(part)).collect();
    let mut results = flight.do_put(futures::stream::iter(messages).chain(end)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(result) = results.message().await? {
        all.push(result);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_not_what_it_was_announced_as_is_refused() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let set = ValueSet::new(&Int64Array::from(vec![1, 2, 3])).unwrap();
    let encoded = set.encoded();
    let (sha256, bytes) = (set.sha256().to_owned(), encoded.len() as u64);
    let right = PutValues { sha256, bytes };
    let url = server.grpc().url();
    let stored = put(&url, &right, &[&encoded[..10], &[], &encoded[10..]]).await.unwrap();
    let [PutResult { app_metadata }] = &stored[..] else { panic!("{stored:?}") };
    let result: PutValuesResult = Encoding::Json.decode("PutValuesResult", app_metadata).unwrap();
    assert_eq!(result.count, 3);
    let mut other = encoded.to_vec();
    other[16] = 0;
    let too_large = PutValues { bytes: 33 << 20, ..right.clone() };
    let unannounced = PutValues { bytes: bytes - 1, ..right.clone() };
    for (command, parts, code, reason) in [
        (&right, vec![&other[..]], Code::InvalidArgument, "has the SHA-256"),
        (&right, vec![&encoded[..20]], Code::InvalidArgument, "has 20 bytes, expected the announced 40"),
        (&unannounced, vec![&encoded[..]], Code::InvalidArgument, "more than the announced 39 bytes"),
        (&too_large, vec![], Code::ResourceExhausted, "has 34603008 bytes, the limit is 33554432"),
        (&PutValues { bytes: 4, ..right.clone() }, vec![b"FBV1"], Code::InvalidArgument, "a header of 16"),
    ] {
        let status = put(&url, command, &parts).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(reason), "{status}");
    }
    let error = Client::new([url], config()).unwrap().plan(&filtered("l_orderkey IN (:ids)", &[])).await;
    let Err(Error::Status(status)) = error else { panic!("a plan without its values") };
    assert!(status.message().contains("there are no values ':ids' here"), "{status}");
}

/// Uploads that never end hold no more than what they announced, and only for the time of a request.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_never_end_are_bounded_and_dropped() {
    let folder = TempDir::new().unwrap();
    let mut strict = settings(folder.path(), "cache");
    strict.limits.request_timeout = Duration::from_secs(2);
    let server = Server::start(strict).await.unwrap();
    let set = ValueSet::new(&Int64Array::from_iter_values(0..100_000)).unwrap();
    let (encoded, url) = (set.encoded(), server.grpc().url());
    let right = PutValues { sha256: set.sha256().to_owned(), bytes: encoded.len() as u64 };
    let parts = [&encoded[..1000]];
    let empty = || {
        futures::stream::repeat_with(FlightData::default).then(|message| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            message
        })
    };
    // Silent ones, and ones that send a part from time to time.
    let upload = |number: usize| match number % 2 {
        0 => put_until(&url, &right, &parts, futures::stream::pending().boxed()),
        _ => put_until(&url, &right, &parts, empty().boxed()),
    };
    let ended = futures::future::join_all((0..8).map(upload)).await;
    for ended in ended {
        let status = ended.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().contains("limits.request_timeout"), "{status}");
    }
    assert!(!folder.path().join("state/values").exists(), "nothing was stored");
    let callers = http_get(&server, "/api/v1/callers").await;
    assert!(callers.contains("\"incoming_bytes\",\"used\":0"), "{callers}");
    // A message cannot be longer than what was announced.
    let short = PutValues { bytes: 100, ..right.clone() };
    let status = put(&url, &short, &[encoded]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    put(&url, &right, &[encoded]).await.unwrap();
}

/// Any sequence of parts stores the announced set, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_with_any_changes_store_the_announced_set_or_nothing() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let url = server.grpc().url();
    // A linear congruential generator, with Knuth's constants.
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut stored, mut refused) = (0, 0);
    for round in 0..200_i64 {
        let set =
            ValueSet::new(&Int64Array::from_iter_values((0..50).map(|number| number * 7 + round))).unwrap();
        let mut bytes = set.encoded().to_vec();
        let mut command = PutValues { sha256: set.sha256().to_owned(), bytes: bytes.len() as u64 };
        match random(8) {
            0 => bytes.truncate(random(bytes.len())),
            1 => bytes.extend(vec![0; 1 + random(100)]),
            2 => {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            3 => {
                let at = 16 + random(bytes.len() - 16);
                bytes.swap(random(16), at);
            }
            4 => command.bytes = random(1 << 26) as u64,
            5 => command.sha256 = command.sha256.replace('a', "b"),
            _ => {}
        }
        let mut parts = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, others) = rest.split_at(random(rest.len() + 1));
            parts.push(part);
            rest = others;
        }
        let is_right = bytes == set.encoded()[..]
            && command.bytes == bytes.len() as u64
            && command.sha256 == set.sha256();
        let file = folder.path().join("state/values").join(format!("{}.values", set.sha256()));
        match put(&url, &command, &parts).await {
            Ok(_) => stored += 1,
            Err(status) => {
                refused += 1;
                let expected = [Code::InvalidArgument, Code::ResourceExhausted];
                assert!(expected.contains(&status.code()), "round {round}: {status}");
            }
        }
        assert_eq!(file.exists(), is_right, "round {round}: {command:?}");
    }
    assert!(stored > 30 && refused > 30, "{stored} stored, {refused} refused");
}
