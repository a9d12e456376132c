use super::*;

fn servers(names: impl IntoIterator<Item = usize>) -> Vec<Server> {
    names
        .into_iter()
        .map(|number| Server { name: format!("server-{number}:7050"), zone: None, is_draining: false })
        .collect()
}

fn partitioned(ranks: u64) -> Streams<'static> {
    Streams { dataset: "clicks", partitions: ranks, ranks }
}

fn firsts(servers: &[Server], streams: &Streams<'_>) -> Vec<String> {
    let placement = Placement::new(servers, streams, None);
    (0..streams.ranks).map(|rank| placement.first(rank).unwrap().name.clone()).collect()
}

fn loads(firsts: &[String]) -> Vec<usize> {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for name in firsts {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_values().collect()
}

#[test]
fn every_server_takes_its_share_of_the_streams() {
    for (ranks, count) in [(8, 4), (64, 8), (64, 12), (3, 8), (256, 64), (1, 1)] {
        let loads = loads(&firsts(&servers(0..count), &partitioned(ranks)));
        let (least, most) = (ranks as usize / count, (ranks as usize).div_ceil(count));
        assert!(loads.iter().all(|load| (least..=most).contains(load)), "{ranks} on {count}: {loads:?}");
        assert_eq!(loads.iter().sum::<usize>(), ranks as usize);
    }
}

#[test]
fn jobs_without_partitions_share_one_server_per_dataset() {
    let tier = servers(0..16);
    let mut used = std::collections::BTreeSet::new();
    for dataset in ["clicks", "dlrm", "text", "images"] {
        let of = |ranks| firsts(&tier, &Streams { dataset, partitions: 1, ranks });
        let first = of(1)[0].clone();
        assert!(of(8).iter().chain(&of(64)).all(|name| *name == first));
        used.insert(first);
    }
    assert!(used.len() > 1, "different datasets are on different servers: {used:?}");
}

#[test]
fn a_lost_server_of_a_dataset_is_replaced_by_the_next_candidate() {
    let tier = servers(0..8);
    let streams = Streams { dataset: "clicks", partitions: 1, ranks: 4 };
    let before = Placement::new(&tier, &streams, None);
    let candidates = before.candidates(2);
    let left: Vec<Server> = tier.iter().filter(|server| *server != candidates[0]).cloned().collect();
    assert_eq!(Placement::new(&left, &streams, None).first(0), Some(candidates[1]));
}

#[test]
fn candidates_are_all_servers_once_and_differ_between_the_streams_of_a_server() {
    let tier = servers(0..8);
    let placement = Placement::new(&tier, &partitioned(64), None);
    let mut seconds = std::collections::BTreeSet::new();
    for rank in 0..64 {
        let candidates = placement.candidates(rank);
        assert_eq!(Some(candidates[0]), placement.first(rank));
        let mut sorted: Vec<_> = candidates.iter().copied().cloned().collect();
        sorted.sort();
        assert_eq!(sorted, tier);
        if candidates[0] == &tier[0] {
            seconds.insert(candidates[1].name.clone());
        }
    }
    assert!(seconds.len() > 2, "a lost server's streams go to several servers: {seconds:?}");
}

#[test]
fn ranks_of_one_partition_share_a_server_and_the_partitions_are_shared_evenly() {
    let tier = servers(0..4);
    for (partitions, ranks) in [(8_u64, 256_u64), (8, 24), (8, 20), (6, 7)] {
        let placement = Placement::new(&tier, &Streams { dataset: "clicks", partitions, ranks }, None);
        let of_rank = |rank: u64| (placement.candidates(rank), rank * partitions / ranks);
        let mut by_partition = std::collections::BTreeMap::new();
        for (candidates, partition) in (0..ranks).map(of_rank) {
            assert_eq!(by_partition.entry(partition).or_insert_with(|| candidates.clone()), &candidates);
        }
        let names: Vec<String> = by_partition.values().map(|candidates| candidates[0].name.clone()).collect();
        let (least, most) = (partitions as usize / 4, (partitions as usize).div_ceil(4));
        assert!(loads(&names).iter().all(|load| (least..=most).contains(load)), "{names:?}");
        // As many ranks as partitions have the same placement.
        let even = Streams { dataset: "clicks", partitions, ranks: partitions };
        assert_eq!(firsts(&tier, &even), names);
    }
}

#[test]
fn ranks_that_do_not_exist_and_empty_clusters_have_no_candidates() {
    assert!(Placement::new(&[], &partitioned(4), None).candidates(0).is_empty());
    assert!(Placement::new(&servers(0..3), &partitioned(4), None).candidates(4).is_empty());
    assert!(Placement::new(&servers(0..3), &partitioned(0), None).candidates(0).is_empty());
    assert_eq!(Placement::new(&servers(0..3), &partitioned(4), None).first(u64::MAX), None);
}

#[test]
fn jobs_with_very_many_ranks_are_placed_by_score() {
    let tier = servers(0..4);
    let placement = Placement::new(&tier, &partitioned(u64::MAX), None);
    assert_eq!(placement.candidates(u64::MAX - 1).len(), 4);
    let used: std::collections::BTreeSet<_> = (0..64).map(|rank| placement.first(rank)).collect();
    assert_eq!(used.len(), 4);
}

#[test]
fn draining_servers_take_streams_only_if_all_are_draining() {
    let mut tier = servers(0..3);
    tier[1].is_draining = true;
    assert!(!firsts(&tier, &partitioned(9)).contains(&tier[1].name));
    for server in &mut tier {
        server.is_draining = true;
    }
    assert_eq!(loads(&firsts(&tier, &partitioned(9))), [3, 3, 3]);
}

#[test]
fn a_zone_keeps_its_streams_unless_it_has_no_server() {
    let mut tier = servers(0..6);
    for (number, server) in tier.iter_mut().enumerate() {
        server.zone = Some(if number < 3 { "a".into() } else { "b".into() });
    }
    let count = |tier: &[Server], zone| Placement::new(tier, &partitioned(6), Some(zone)).candidates(0).len();
    assert_eq!(count(&tier, "a"), 3);
    assert_eq!(count(&tier, "c"), 6);
    for server in &mut tier[..3] {
        server.is_draining = true;
    }
    assert_eq!(count(&tier, "a"), 3, "servers of another zone replace a zone that drains");
    assert!(Placement::new(&tier, &partitioned(6), Some("a")).servers().all(|server| !server.is_draining));
}

#[test]
fn a_repeated_name_counts_once_whatever_its_order() {
    let mut twice = servers([0, 1, 1]);
    twice[2].zone = Some("a".into());
    let forward = Placement::new(&twice, &partitioned(4), None);
    twice.reverse();
    let backward = Placement::new(&twice, &partitioned(4), None);
    assert_eq!(forward.servers().count(), 2);
    assert!(forward.servers().eq(backward.servers()));
}
