use forebay_placement::{Config, Hello, Members};
use forebay_proto::v1::Train;

use super::*;
use crate::Settings;

const STATE: &str = "0123456789abcdef";

fn hello(name: &str, zone: Option<&str>) -> Hello {
    Hello {
        name: name.to_owned(),
        instance: name.bytes().map(u64::from).sum(),
        version: "1.0".to_owned(),
        state: STATE.to_owned(),
        zone: zone.map(str::to_owned),
        is_draining: false,
    }
}

/// The cluster as `own` sees it after all of `others` have answered.
fn cluster(own: Hello, others: Vec<Hello>) -> Cluster {
    let settings = Settings { members: Some("file:/m".to_owned()), ..Settings::default() };
    let cluster = Cluster::new(&settings, own.zone.as_deref().unwrap_or_default());
    let mut members = Members::new(Config::default(), own);
    let now = std::time::Duration::ZERO;
    members.on_list(now, Ok(others.iter().map(|other| other.name.clone())));
    for other in others {
        members.on_hello(now, &other.name.clone(), Ok(other));
    }
    cluster.publish(ClusterView {
        sources: String::new(),
        view: Some(members.view()),
        held: None,
        list_error: None,
        started: Instant::now(),
    });
    cluster
}

fn names() -> Vec<String> {
    (0..5).map(|number| format!("server-{number}:8815")).collect()
}

/// The cluster of five servers as server `own` sees it. Servers with an odd number are in zone `b`, the others in zone `a`.
fn seen_by(own: usize) -> Cluster {
    let hello =
        |number: usize, name: &String| hello(name, Some(if number.is_multiple_of(2) { "a" } else { "b" }));
    let mut all: Vec<Hello> = names().iter().enumerate().map(|(number, name)| hello(number, name)).collect();
    let own = all.remove(own);
    cluster(own, all)
}

fn train(dataset: &str, world_size: u64) -> Train {
    Train { dataset: dataset.to_owned(), world_size: Some(world_size), ..Train::default() }
}

async fn of(cluster: &Cluster, train: &Train, rank: u64, zone: Option<&str>) -> Vec<String> {
    let locations = cluster.locations(train, Some(rank), zone.map(str::to_owned)).await.unwrap();
    locations.of(u32::try_from(rank).unwrap()).to_vec()
}

#[tokio::test]
async fn locations_are_equal_whichever_server_is_asked() {
    for dataset in ["clicks", "tensor", "text"] {
        let train = train(dataset, 4);
        let expected = of(&seen_by(0), &train, 3, None).await;
        assert_eq!(expected.len(), 4);
        assert_eq!(expected[3], "arrow-flight-reuse-connection://?");
        for own in 1..5 {
            assert_eq!(of(&seen_by(own), &train, 3, None).await, expected);
        }
    }
}

#[tokio::test]
async fn exactly_one_server_is_the_first_of_a_stream() {
    for dataset in ["clicks", "tensor", "text", "images"] {
        let mut firsts = Vec::new();
        for (own, name) in names().into_iter().enumerate() {
            let cluster = cluster(
                hello(&name, None),
                names().iter().filter(|other| **other != name).map(|name| hello(name, None)).collect(),
            );
            if cluster.is_first(&name, &train(dataset, 2), 1).await.unwrap().unwrap() {
                firsts.push(own);
            }
        }
        assert_eq!(firsts.len(), 1, "{dataset}: {firsts:?}");
    }
}

#[tokio::test]
async fn a_zone_limits_locations_to_its_servers() {
    let (cluster, train) = (seen_by(0), train("clicks", 2));
    let in_zone = of(&cluster, &train, 0, Some("b")).await;
    assert_eq!(in_zone.len(), 3, "two servers and the same connection: {in_zone:?}");
    assert!(
        in_zone[..2].iter().all(|uri| uri.contains("server-1:") || uri.contains("server-3:")),
        "{in_zone:?}"
    );
    let unknown = of(&cluster, &train, 0, Some("c")).await;
    assert_eq!(unknown, of(&cluster, &train, 0, None).await, "a zone without servers does not limit them");
}

#[tokio::test]
async fn a_server_that_does_not_know_its_state_gives_no_locations() {
    let settings = Settings { members: Some("a:1".to_owned()), ..Settings::default() };
    let cluster = Cluster::new(&settings, "");
    assert_eq!(cluster.locations(&train("clicks", 2), None, None).await.unwrap(), Locations::default());
    assert_eq!(cluster.is_first("a:1", &train("clicks", 2), 0).await.unwrap(), None);
    assert!(!cluster.has_others());
}

#[tokio::test]
async fn placements_follow_the_view_and_are_limited() {
    let cluster = seen_by(0);
    for number in 0..2 * MAX_PLACEMENTS {
        of(&cluster, &train(&format!("dataset-{number}"), 2), 0, None).await;
        assert!(cluster.placements.lock().by_key.len() <= MAX_PLACEMENTS);
    }
    let alone = super::tests::cluster(hello("server-0:8815", None), Vec::new());
    let view = Arc::into_inner(alone.view.into_inner()).unwrap();
    let mut view = ClusterView { view: view.view, ..view };
    let revision = cluster.view().view.as_ref().unwrap().revision + 1;
    view.view.as_mut().unwrap().revision = revision;
    cluster.publish(view);
    let locations = of(&cluster, &train("dataset-0", 2), 0, None).await;
    assert_eq!(locations, ["grpc://server-0:8815", "arrow-flight-reuse-connection://?"]);
}

#[tokio::test]
async fn locations_of_many_streams_are_computed_on_a_blocking_thread_with_the_same_result() {
    let cluster = seen_by(0);
    let train = train("clicks", 4096);
    let all = cluster.locations(&train, None, None).await.unwrap();
    const { assert!(4096 * 5 >= MANY_PAIRS) };
    for rank in [0, 1, 4095] {
        assert_eq!(all.of(rank), of(&cluster, &train, u64::from(rank), None).await);
    }
}
