use super::*;
use crate::auth::Authenticator;

fn ids(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.id).collect()
}

#[test]
fn the_oldest_events_are_dropped_and_an_id_from_before_a_restart_returns_all() {
    let (events, access) = (Events::new(3), Access::everything());
    assert!(events.after(0, &access).is_empty());
    for _ in 0..5 {
        events.note(Event::new(Kind::Draining, "x"));
    }
    assert_eq!(ids(&events.after(0, &access)), [3, 4, 5]);
    assert_eq!(ids(&events.after(4, &access)), [5]);
    assert!(events.after(5, &access).is_empty());
    assert_eq!(ids(&events.after(6, &access)), [3, 4, 5]);
}

#[test]
fn events_of_one_dataset_do_not_displace_those_of_others() {
    let (events, access) = (Events::new(10), Access::everything());
    for dataset in ["users", "items", "users"] {
        events.note(Event::new(Kind::DatasetOpen, "x").dataset(dataset));
    }
    events.note(Event::new(Kind::ReloadFailed, "x"));
    for _ in 0..1000 {
        events.note(Event::new(Kind::SessionStarted, "x").dataset("flood"));
    }
    assert_eq!(ids(&events.after(0, &access)), [1, 2, 3, 4, 999, 1000, 1001, 1002, 1003, 1004]);
    assert_eq!(ids(&events.after(3, &access))[..2], [4, 999]);
}

#[test]
fn an_event_is_visible_to_callers_that_may_read_its_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"; // of "test"
    std::fs::write(&file, format!("[a]\nsha256 = \"{digest}\"\ndatasets = [\"users\", \"items\"]")).unwrap();
    let authenticator = Authenticator::new(Some(&file), false).unwrap();
    let bearer = http::HeaderValue::from_static("Bearer test");
    let reader = authenticator
        .authenticate(&http::HeaderMap::from_iter([(http::header::AUTHORIZATION, bearer)]))
        .unwrap();

    let events = Events::new(10);
    events.note(Event::new(Kind::DatasetOpen, "1").dataset("users"));
    events.note(Event::new(Kind::DatasetOpen, "2").dataset("payments"));
    events.note(Event::new(Kind::WorkerJoined, "3").queue("ranker", ["users", "items"].into_iter()));
    events.note(Event::new(Kind::WorkerJoined, "4").queue("fraud", ["users", "payments"].into_iter()));
    events.note(Event::new(Kind::ReloadFailed, "5: contains a path"));
    events.note(Event::new(Kind::Draining, "6"));
    assert_eq!(ids(&events.after(0, &reader)), [1, 3, 6]);
    assert_eq!(ids(&events.after(0, &Access::everything())), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn subscribers_are_notified_after_an_event_is_stored() {
    let events = Events::new(10);
    let mut watched = events.watch();
    let noting = events.clone();
    let noted = tokio::spawn(async move { noting.note(Event::new(Kind::Draining, "x")) });
    watched.changed().await.unwrap();
    assert_eq!(ids(&events.after(0, &Access::everything())), [*watched.borrow()]);
    noted.await.unwrap();
}

#[test]
fn a_kind_is_named_in_the_api_as_in_the_metrics() {
    for kind in [Kind::DatasetOpen, Kind::SessionFailed, Kind::BottleneckChanged, Kind::LabelSkew] {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}
