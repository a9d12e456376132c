use std::time::Duration;

use object_store::{
    ObjectStore, ObjectStoreExt,
    memory::InMemory,
    throttle::{ThrottleConfig, ThrottledStore},
};

use super::*;
use crate::{Config, State, store::old_counts};

/// More objects than two pages.
const OBJECTS: usize = 2 * PAGE_OBJECTS + 500;

/// A folder with [`OBJECTS`] counts and as many job records. A page of a listing takes less than the time limit of a request, and the
/// whole listing takes more.
async fn slow_folder(per_object: Duration) -> Location {
    let store = InMemory::new();
    for number in 0..OBJECTS {
        for path in [format!("state/snapshots/d/{number:032}.counts"), format!("state/jobs/{number:032}.job")]
        {
            store.put(&Path::from(path), "a".into()).await.unwrap();
        }
    }
    let waits = ThrottleConfig { wait_list_per_entry: per_object, ..ThrottleConfig::default() };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(store, waits));
    let limit = Duration::from_millis(100) * PAGE_OBJECTS as u32;
    let config = Config { request_timeout: limit + Duration::from_secs(1), ..Config::default() };
    Location::new("/state", store, "state".into(), Kind::Local, &config)
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_applies_to_each_page_of_a_listing() {
    let location = slow_folder(Duration::from_millis(100)).await;
    let state = State::open(location.clone(), None, &Config::default());
    assert_eq!(state.documents("jobs", "job", 1000).list().await.unwrap().len(), OBJECTS);

    old_counts::remove(&location, 10).await.unwrap();
    let path = location.child("snapshots").unwrap().0;
    let counts = list(&location, &path, |_| true).await.unwrap();
    assert_eq!(counts.len(), 10);
}

#[test]
fn a_missing_object_is_nothing_and_a_missing_bucket_is_an_error_of_the_state() {
    let missing = |code: &str| object_store::Error::NotFound {
        path: "a".to_owned(),
        source: format!("404 Not Found: <Error><Code>{code}</Code></Error>").into(),
    };
    assert_eq!(if_found::<()>(Err(missing("NoSuchKey")), "s3://b/a").unwrap(), None);
    let error = if_found::<()>(Err(missing("NoSuchBucket")), "s3://b/a").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let error = error.of_state("s3://b");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("the state at s3://b cannot be used"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_not_listed_in_time_is_an_error() {
    let location = slow_folder(Duration::from_millis(200)).await;
    let error = old_counts::remove(&location, 10).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let Error::Unavailable { source, .. } = error else { unreachable!() };
    assert!(source.to_string().contains("did not answer within"), "{source}");
}

#[tokio::test]
async fn a_listing_has_the_selected_objects_of_all_pages_and_none_of_a_missing_folder() {
    let location = slow_folder(Duration::ZERO).await;
    let path = location.child("jobs").unwrap().0;
    let is_tenth = |meta: &ObjectMeta| meta.location.as_ref().ends_with("0.job");
    assert_eq!(list(&location, &path, is_tenth).await.unwrap().len(), OBJECTS.div_ceil(10));
    let missing = location.child("missing").unwrap().0;
    assert_eq!(list(&location, &missing, |_| true).await.unwrap().len(), 0);
}
