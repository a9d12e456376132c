//! Properties of every history.

use std::collections::{BTreeMap, BTreeSet};

use forebay_placement::{Placement, Streams, View};

use crate::{
    history::Kind,
    ranks::{READ_TIMEOUT, batch, digest},
    world::World,
};

pub(crate) fn view_contains_its_server_and_no_stranger(view: &View, own: &str) {
    assert!(view.members.iter().any(|member| member.is_own && member.name == own));
    assert!(view.members.iter().all(|member| member.name.starts_with("server-")), "{view:?}");
    assert!(view.members.is_sorted_by(|a, b| a.name < b.name), "a name occurs twice: {view:?}");
}

pub(crate) fn shares_are_even(placement: &Placement, streams: &Streams<'_>) {
    let mut loads: BTreeMap<&str, u64> =
        placement.servers().map(|server| (server.name.as_str(), 0)).collect();
    for rank in 0..streams.ranks {
        let first = placement.first(rank).expect("a view contains a server");
        *loads.get_mut(first.name.as_str()).expect("a server of the placement") += 1;
    }
    if streams.partitions == 1 {
        assert!(loads.values().all(|load| [0, streams.ranks].contains(load)), "{loads:?}");
        return;
    }
    let count = loads.len() as u64;
    let (least, most) = (streams.ranks / count, streams.ranks.div_ceil(count));
    assert!(loads.values().all(|load| (least..=most).contains(load)), "{loads:?}");
}

/// If any one server fails, the second candidates of its streams give each other server its share of all streams.
pub(crate) fn shares_without_a_server_are_even(placement: &Placement, streams: &Streams<'_>) {
    let servers: Vec<&str> = placement.servers().map(|server| server.name.as_str()).collect();
    if servers.len() == 1 {
        return;
    }
    let mut loads: BTreeMap<&str, u64> = servers.iter().map(|server| (*server, 0)).collect();
    let mut moved: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for rank in 0..streams.ranks {
        let candidates = placement.candidates(rank);
        let (first, second) = (candidates[0].name.as_str(), candidates[1].name.as_str());
        assert_ne!(first, second);
        *loads.get_mut(first).expect("a server of the placement") += 1;
        *moved.entry(first).or_default().entry(second).or_default() += 1;
    }
    if streams.partitions == 1 {
        assert!(moved.values().all(|seconds| seconds.len() == 1), "{moved:?}");
        return;
    }
    let others = servers.len() as u64 - 1;
    let (least, most) = (streams.ranks / others, streams.ranks.div_ceil(others));
    for (failed, seconds) in &moved {
        for (server, load) in loads.iter().filter(|(server, _)| *server != failed) {
            let load = load + seconds.get(server).copied().unwrap_or(0);
            assert!(
                (least..=most).contains(&load),
                "{server} has {load} streams if {failed} fails: {moved:?}"
            );
        }
    }
}

pub(crate) fn placements_are_equal(a: &Placement, b: &Placement, streams: &Streams<'_>) {
    for rank in 0..streams.ranks {
        assert_eq!(a.first(rank), b.first(rank));
    }
    assert_eq!(a.candidates(0), b.candidates(0));
}

pub(crate) fn views_are_equal_and_right(world: &mut World) {
    let running: Vec<(String, Option<String>)> = (world.nodes.iter())
        .filter(|node| node.is_running)
        .map(|node| (node.name.clone(), node.zone.map(|zone| zone.to_string())))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    for node in &world.nodes {
        let Some(members) = &node.members else { continue };
        let servers = members.view().servers();
        assert!(servers.iter().all(|server| !server.is_draining));
        let seen: Vec<_> = servers.into_iter().map(|server| (server.name, server.zone)).collect();
        assert_eq!(seen, running, "view of {}", node.name);
    }
}

pub(crate) fn streams_are_at_their_servers(world: &mut World) {
    for rank in 0..world.ranks.len() {
        let first = world.locations(0, rank).first().copied();
        let current = world.ranks[rank].route.current;
        assert_eq!(current, first, "rank {rank} is not at its server");
    }
}

/// Each rank receives batches until `end`, and does not move any more. `settled_moves` are the moves of all ranks before.
pub(crate) fn streams_have_settled(world: &World, settled_moves: &[u64], end: u64) {
    for (rank, moves) in world.ranks.iter().zip(settled_moves) {
        assert_eq!(rank.moves, *moves, "rank {} moved after it had settled", rank.rank);
        let late = 2 * world.scenario.jobs[rank.job].compute + READ_TIMEOUT;
        assert!(rank.last_delivery + late >= end, "rank {} stopped at {}", rank.rank, rank.last_delivery);
        assert!(
            world.scenario.kind == Kind::Any || rank.moves == 0,
            "rank {} moved without a cause",
            rank.rank
        );
    }
}

pub(crate) fn batches_are_complete_and_in_order(world: &World) {
    for rank in &world.ranks {
        let job = &world.scenario.jobs[rank.job];
        let bytes = (0..rank.batches).map(|number| {
            let (epoch, step) = (number / job.blocks_per_rank, number % job.blocks_per_rank);
            batch(job, rank.rank, epoch, step)
        });
        assert!(rank.batches > 0 && bytes.fold(0, digest) == rank.digest, "rank {} of {job:?}", rank.rank);
    }
}

/// Each (cache, block) is decoded at most once: a stream that moves costs its blocks once more.
pub(crate) fn blocks_are_decoded_once_per_cache(world: &World) {
    for (index, job) in world.scenario.jobs.iter().enumerate() {
        let ranks = world.ranks.iter().filter(|rank| rank.job == index);
        let (blocks, bound) = if job.partitions > 1 {
            let caches: u64 = ranks.map(|rank| rank.caches.len() as u64).sum();
            (job.ranks * job.blocks_per_rank, caches * job.blocks_per_rank)
        } else {
            let caches: BTreeSet<_> = ranks.flat_map(|rank| rank.caches.iter().copied()).collect();
            (job.blocks_per_rank, caches.len() as u64 * job.blocks_per_rank)
        };
        let decoded = world.decoded[index];
        assert!(decoded <= bound, "job {index} decoded {decoded} blocks; at most {bound} were expected");
        if world.scenario.kind != Kind::Any {
            assert_eq!(decoded, blocks, "job {index} decoded a block twice, or read not all blocks");
        }
    }
}
