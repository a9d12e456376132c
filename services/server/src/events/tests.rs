use super::*;
use crate::door::Door;

fn ids(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.id).collect()
}

#[test]
fn the_oldest_go_and_a_number_of_another_life_means_all() {
    let (events, access) = (Events::new(3), Access::everything());
    assert!(events.after(0, &access).is_empty());
    for _ in 0..5 {
        events.note(Note::new(Kind::Draining, "x"));
    }
    assert_eq!(ids(&events.after(0, &access)), [3, 4, 5]);
    assert_eq!(ids(&events.after(4, &access)), [5]);
    assert!(events.after(5, &access).is_empty());
    assert_eq!(ids(&events.after(6, &access)), [3, 4, 5]);
}

#[test]
fn an_event_is_for_those_who_may_read_what_it_is_about() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"; // of "test"
    std::fs::write(&file, format!("[a]\nsha256 = \"{digest}\"\ndatasets = [\"users\", \"items\"]")).unwrap();
    let door = Door::new(Some(&file), false).unwrap();
    let bearer = http::HeaderValue::from_static("Bearer test");
    let reader = door.admit(&http::HeaderMap::from_iter([(http::header::AUTHORIZATION, bearer)])).unwrap();

    let events = Events::new(10);
    events.note(Note::new(Kind::DatasetOpen, "1").dataset("users"));
    events.note(Note::new(Kind::DatasetOpen, "2").dataset("payments"));
    events.note(Note::new(Kind::WorkerJoined, "3").queue("ranker", ["users", "items"].into_iter()));
    events.note(Note::new(Kind::WorkerJoined, "4").queue("fraud", ["users", "payments"].into_iter()));
    events.note(Note::new(Kind::ReloadFailed, "5: says where files are"));
    events.note(Note::new(Kind::Draining, "6"));
    assert_eq!(ids(&events.after(0, &reader)), [1, 3, 6]);
    assert_eq!(ids(&events.after(0, &Access::everything())), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn who_watches_hears_of_an_event_and_then_finds_it() {
    let events = Events::new(10);
    let mut watched = events.watch();
    let noting = events.clone();
    let noted = tokio::spawn(async move { noting.note(Note::new(Kind::Draining, "x")) });
    watched.changed().await.unwrap();
    assert_eq!(ids(&events.after(0, &Access::everything())), [*watched.borrow()]);
    noted.await.unwrap();
}

#[test]
fn a_kind_is_named_in_the_api_as_in_the_metrics() {
    for kind in [Kind::DatasetOpen, Kind::SessionFailed, Kind::VerdictChanged, Kind::LabelSkew] {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}
