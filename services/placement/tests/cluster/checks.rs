//! What holds in every history.

use std::collections::{BTreeMap, BTreeSet};

use forebay_placement::{Placement, Streams, View};

use crate::history::Kind;
use crate::world::World;

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
