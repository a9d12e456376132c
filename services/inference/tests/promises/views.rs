//! Promises of views of lookups: which ones a snapshot is loaded with, and which ones are evicted.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, cast::AsArray, types::Int64Type};
use forebay_inference::{Config, KeyIndex, LookupMemory, OnlineDataset, Requirements};
use forebay_loader::{Error, Loader, Tenant};
use forebay_proto::v1::Train;
use futures::FutureExt;

use crate::fixture::{Fixture, blocks, encoded, ids, online_with_views, pool, rows, spec, users};

fn view(select: &str) -> Train {
    Train { select: vec![select.to_owned()], ..Train::default() }
}

async fn version(online: &OnlineDataset, wanted: &Train) -> Result<i64, Error> {
    let answer = online.lookup(wanted, vec![]).look_up(&ids([1])).await?;
    Ok(rows(&answer)["version"].as_primitive::<Int64Type>().value(0))
}

fn views(online: &OnlineDataset) -> u64 {
    online.progress().ready.unwrap().views
}

#[tokio::test]
async fn a_snapshot_whose_rows_cannot_be_read_does_not_replace_one_that_works() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..5000, 1)).await;
    let online = online_with_views(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default(), &[]);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!(version(&online, &Train::default()).await.unwrap(), 1);
    fixture.write(0, &users(0..5000, 2)).await;
    let next = fixture.reader().await;
    // The index of the next snapshot is read from the disk. Its file was replaced in the meantime.
    KeyIndex::build(&next, &spec(&["user_id"], None), &blocks(), 1, |_| {})
        .await
        .unwrap()
        .save(folder.path(), &next, &spec(&["user_id"], None))
        .unwrap();
    fixture.write(0, &users(0..5000, 3)).await;
    let error = online.load_snapshot(next).await.unwrap_err();
    assert!(matches!(error, Error::Storage(forebay_storage::Error::Changed { .. })), "{error}");
    assert_eq!(online.progress().error, Some(error.to_string()));
    assert_eq!(version(&online, &Train::default()).await.unwrap(), 1);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!(version(&online, &Train::default()).await.unwrap(), 3);
}

#[tokio::test]
async fn a_declared_view_is_loaded_before_the_first_lookup_and_a_snapshot_without_it_is_not_used() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..100, 1)).await;
    let declared = Train { columns: vec!["version".into(), "y".into()], ..view("100 / (version - 2) AS y") };
    let key = spec(&["user_id"], None);
    let online =
        online_with_views(key, 1 << 28, folder.path(), Config::default(), std::slice::from_ref(&declared));
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!(views(&online), 1);
    // Another view that fails does not count.
    let other = Train { columns: vec!["version".into(), "z".into()], ..view("100 / (version - 3) AS z") };
    assert_eq!(version(&online, &other).await.unwrap(), 1);
    fixture.write(0, &users(0..100, 2)).await;
    let error = online.load_snapshot(fixture.reader().await).await.unwrap_err();
    assert!(error.to_string().contains("Divide by zero"), "{error}");
    assert_eq!(version(&online, &declared).await.unwrap(), 1);
    fixture.write(0, &users(0..100, 3)).await;
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!(version(&online, &declared).await.unwrap(), 3);
    assert!(version(&online, &other).await.unwrap_err().to_string().contains("Divide by zero"));
}

#[tokio::test]
async fn views_without_a_use_since_the_last_snapshot_are_not_loaded_again_unless_declared() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let declared = view("name || 'd' AS d");
    let key = spec(&["user_id"], None);
    let online = online_with_views(key, 1 << 28, folder.path(), Config::default(), &[declared]);
    let mut snapshot = 0;
    let mut load = async || {
        snapshot += 1;
        fixture.write(0, &users(0..100, snapshot)).await;
        online.load_snapshot(fixture.reader().await).await.unwrap();
        views(&online)
    };
    assert_eq!(load().await, 1);
    let [one, other] = [Train::default(), view("version")];
    for wanted in [&one, &other] {
        version(&online, wanted).await.unwrap();
    }
    assert_eq!(views(&online), 3);
    assert_eq!(load().await, 3);
    version(&online, &other).await.unwrap();
    assert_eq!(load().await, 2);
    // Without any use, nothing tells them apart.
    assert_eq!(load().await, 2);
}

#[tokio::test]
async fn a_view_that_does_not_fit_evicts_others_that_were_not_used_for_a_minute_but_never_a_declared_one() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..80_000, 1)).await;
    // There is room for the index and two of these views.
    let config = Config::default();
    let names = |letter: &str| Train {
        columns: vec!["name".into()],
        filter: format!("name <> '{letter}'"),
        ..Train::default()
    };
    let (key, declared) = (spec(&["user_id"], None), [names("d")]);
    let online = online_with_views(key, 5 << 20, folder.path(), config, &declared);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let look_up = async |letter: &str| online.lookup(&names(letter), vec![]).look_up(&ids([1])).await;
    look_up("a").await.unwrap();
    let error = look_up("b").await.err().unwrap();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(views(&online), 2);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    look_up("b").await.unwrap();
    assert_eq!(views(&online), 2);
    look_up("d").await.unwrap();
    assert!(matches!(look_up("a").await.err().unwrap(), Error::TooLarge { .. }), "`b` was just used");
}

#[tokio::test]
async fn a_tenant_that_loads_many_views_evicts_its_own_and_not_those_of_others() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..100, 1)).await;
    let online = online_with_views(
        spec(&["user_id"], None),
        1 << 28,
        folder.path(),
        Config { max_views: 8, ..Config::default() },
        &[view("name || 'd' AS declared")],
    );
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let tenant = |id| Tenant::new(id, NonZeroU32::MIN);
    let load = async |id, number: u64| {
        let wanted = view(&format!("version + {number} AS v{number}"));
        let mut lookup = online.lookup(&wanted, vec![]).of_tenant(tenant(id));
        lookup.lookup_rows().await.unwrap().remove(0)
    };
    let production = [load(1, 1001).await, load(1, 1002).await];
    for number in 0..20 {
        load(2, number).await;
    }
    assert_eq!(views(&online), 1 + 8, "six views of the other tenant are kept");
    for (number, rows) in [1001, 1002].into_iter().zip(&production) {
        assert!(Arc::ptr_eq(rows, &load(1, number).await), "view {number} was loaded again");
    }
    // A tenant without a view gets the place of the tenant with the most.
    let third = load(3, 3000).await;
    load(2, 30).await;
    assert!(Arc::ptr_eq(&third, &load(3, 3000).await));
    for (number, rows) in [1001, 1002].into_iter().zip(&production) {
        assert!(Arc::ptr_eq(rows, &load(1, number).await), "view {number} was loaded again");
    }
}

#[tokio::test]
async fn views_whose_loading_was_cancelled_take_no_place() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..100, 1)).await;
    let config = Config { max_views: 2, ..Config::default() };
    let online = online_with_views(spec(&["user_id"], None), 1 << 28, folder.path(), config, &[]);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let tenant = |id| Tenant::new(id, NonZeroU32::MIN);
    for number in 0..20 {
        let wanted = view(&format!("version + {number} AS v{number}"));
        let mut lookup = online.lookup(&wanted, vec![]).of_tenant(tenant(1));
        assert!(lookup.lookup_rows().now_or_never().is_none(), "the rows are read first");
    }
    let kept = view("version + 100 AS kept");
    let load = async |wanted: &Train| {
        online.lookup(wanted, vec![]).of_tenant(tenant(2)).lookup_rows().await.unwrap().remove(0)
    };
    let rows = load(&kept).await;
    online.lookup(&view("version + 200 AS other"), vec![]).of_tenant(tenant(3)).lookup_rows().await.unwrap();
    assert!(Arc::ptr_eq(&rows, &load(&kept).await), "the two places are free");
}

#[tokio::test]
async fn a_lookup_keeps_its_request_once_and_loads_its_view_from_it() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..100, 1)).await;
    let online = online_with_views(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default(), &[]);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    // A filter with many spaces.
    let wanted = Train { filter: format!("{:50000}", "user_id = 1"), ..view("version") };
    let mut lookup = online.lookup(&wanted, vec!["user_id".to_owned()]);
    let bytes = lookup.request_bytes();
    assert!((50_000..50_200).contains(&bytes), "{bytes}");
    let answer = lookup.look_up(&ids([1, 2])).await.unwrap();
    assert_eq!((rows(&answer)["version"].as_primitive::<Int64Type>().value(0), answer.found), (1, vec![1]));
    assert_eq!(lookup.clone().join(lookup).request_bytes(), 2 * bytes);
}

#[tokio::test]
async fn one_tenant_leaves_an_eighth_of_the_views_to_others_and_all_callers_without_tokens_have_all() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..100, 1)).await;
    for (tenant, expected) in [(Tenant::new(1, NonZeroU32::MIN), 7), (Tenant::SERVER, 8)] {
        let config = Config { max_views: 8, ..Config::default() };
        let declared = [view("name || 'd' AS declared")];
        let key = spec(&["user_id"], None);
        let online = online_with_views(key, 1 << 28, folder.path(), config, &declared);
        online.load_snapshot(fixture.reader().await).await.unwrap();
        for number in 0..12 {
            let wanted = view(&format!("version + {number} AS v{number}"));
            online.lookup(&wanted, vec![]).of_tenant(tenant).lookup_rows().await.unwrap();
        }
        assert_eq!(views(&online), 1 + expected);
    }
}

/// Two datasets, `users` and `others`, in one memory of `memory_bytes` bytes.
fn two_datasets(memory_bytes: u64, folder: &std::path::Path) -> [OnlineDataset; 2] {
    let loader = Loader::new(2 * memory_bytes, forebay_loader::Config::default(), pool());
    loader.reserve_for_lookups(memory_bytes).unwrap();
    let memory = LookupMemory::new(loader);
    ["users", "others"].map(|name| {
        OnlineDataset::new(
            name,
            spec(&["user_id"], None),
            Config::default(),
            memory.clone(),
            (pool(), pool()),
            folder.join(name),
            Requirements::default(),
        )
    })
}

/// A view of the names, which takes about 1.4 MB for 80,000 users.
fn names(letter: &str) -> Train {
    Train { columns: vec!["name".into()], filter: format!("name <> '{letter}'"), ..Train::default() }
}

#[tokio::test]
async fn undeclared_views_give_way_to_the_next_snapshots_of_all_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let [users_files, others_files] = [Fixture::new(), Fixture::new()];
    users_files.write(0, &users(0..80_000, 1)).await;
    others_files.write(0, &users(0..80_000, 1)).await;
    let [users_online, others] = two_datasets(16 << 20, folder.path());
    users_online.load_snapshot(users_files.reader().await).await.unwrap();
    others.load_snapshot(others_files.reader().await).await.unwrap();
    // A caller fills the memory.
    let mut loaded = 0;
    for letter in 'a'..='z' {
        let wanted = names(&letter.to_string());
        match users_online.lookup(&wanted, vec![]).look_up(&ids([1])).await {
            Ok(_) => loaded += 1,
            Err(error) => {
                assert!(matches!(error, Error::TooLarge { .. }), "{error}");
                break;
            }
        }
    }
    assert!((3..20).contains(&loaded), "{loaded} views");
    // All of these views were used a moment ago, and still both datasets follow their files.
    for (files, online) in [(&others_files, &others), (&users_files, &users_online)] {
        files.write(0, &users(0..80_000, 2)).await;
        online.load_snapshot(files.reader().await).await.unwrap();
        assert_eq!(online.progress().error, None);
    }
    assert_eq!(version(&others, &Train::default()).await.unwrap(), 2);
    assert!(
        users_online.progress().ready.unwrap().views > 0,
        "the last used views that fit are loaded again"
    );
}

#[tokio::test]
async fn a_tenant_leaves_an_eighth_of_the_memory_and_shares_it_equally_with_the_next_one() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..80_000, 1)).await;
    let [online, _] = two_datasets(32 << 20, folder.path());
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let tenant = |id| Tenant::new(id, NonZeroU32::MIN);
    let load = async |id, letter: String| {
        let mut lookup = online.lookup(&names(&letter), vec![]).of_tenant(tenant(id));
        lookup.lookup_rows().await.map(drop)
    };
    let count = async |id| {
        let mut loaded = 0;
        // No more than the maximum number of views of one token.
        while loaded < 7 && load(id, format!("{id} {loaded}")).await.is_ok() {
            loaded += 1;
        }
        loaded
    };
    let flood = count(1).await;
    assert!(flood >= 2, "{flood}");
    let calm = count(2).await;
    assert!(calm >= 1, "{flood} views and {calm} views");
}

#[tokio::test]
async fn a_key_column_of_a_type_that_cannot_be_a_key_is_a_permanent_error() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let scores: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::NAN]));
    fixture.write(0, &RecordBatch::try_from_iter([("user_id", scores)]).unwrap()).await;
    let online = online_with_views(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default(), &[]);
    let mut lookup = online.lookup(&Train::default(), vec![]);
    assert!(matches!(lookup.look_up(&ids([1])).await, Err(Error::Unavailable(_))), "it is not loaded yet");
    let failed = online.load_snapshot(fixture.reader().await).await.unwrap_err();
    online.failed(&failed);
    let error = lookup.look_up(&ids([1])).await.err().unwrap();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("'user_id' is of type Float64, expected integers, decimals"), "{message}");
    online.failed(&Error::Unavailable("the store does not answer".to_owned()));
    let error = lookup.key_columns().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(
        error.to_string().ends_with("for lookups: the store does not answer: try again later"),
        "{error}"
    );
}

/// Lookups have the error of the file, without advice to try again, however the failure was reported.
#[tokio::test]
async fn lookups_of_a_dataset_with_a_corrupt_file_name_the_file_and_the_column() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let mut content = encoded(&users(0..100, 1));
    // The header of the first page of the first column. The footer is intact.
    content[4..40].fill(0xff);
    fixture.put(0, content).await;
    let online = online_with_views(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default(), &[]);
    let reader = fixture.reader().await;
    let loaded = online.load_snapshot(reader.clone()).await.unwrap_err();
    let check = |error: Error| {
        let Error::Storage(forebay_storage::Error::Corrupt { file, column, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!((file.ends_with(".parquet"), column.as_deref()), (true, Some("user_id")), "{error}");
        assert!(!error.to_string().contains("try again"), "{error}");
    };
    let mut lookup = online.lookup(&Train::default(), vec![]);
    check(lookup.look_up(&ids([1])).await.err().unwrap());
    online.failed(&loaded);
    check(lookup.look_up(&ids([1])).await.err().unwrap());
    check(lookup.key_columns().unwrap_err());
    check(online.pin_first(reader).await.unwrap_err());
    let unsupported = forebay_storage::Error::Unsupported { location: "a".into(), detail: "b".into() };
    online.failed(&unsupported.into());
    let error = lookup.key_columns().unwrap_err();
    assert_eq!(error.to_string(), "a is not supported: b");
}
