//! Distribution of the streams of a job over servers: rendezvous hashing with capacities.

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::score::{Key, ServerDigest};

/// Maximum number of groups that are matched with capacities. If a job has more groups, each is placed on the server with its highest
/// score. This limits the time to compute a placement.
pub const MAX_MATCHED_GROUPS: u64 = 65_536;

/// A server on which streams can be placed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Name of the server: its setting `advertise`, a `HOST:PORT`. Scores are hashes of the name, so that they do not depend on addresses.
    pub name: String,
    /// Zone of the server; `None` if it has none.
    pub zone: Option<String>,
    /// True if the server is shutting down. No streams are placed on it, unless all servers are shutting down.
    pub is_draining: bool,
}

/// The streams of a job, one per rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams<'a> {
    /// Name of the dataset.
    pub dataset: &'a str,
    /// Number of partitions of the order (K). With 1, all ranks read all blocks. All ranks of all such jobs of the dataset share one
    /// server, which decodes each block once for all of them.
    pub partitions: u64,
    /// Number of ranks (W).
    pub ranks: u64,
}

/// The assignment of the streams of a job to servers, and the servers that replace each of these.
///
/// With more ranks than partitions, the consecutive ranks that read the same partition form a group. Otherwise each rank is a
/// group of its own. All streams of a group are placed on one server, which therefore decodes their blocks once.
///
/// Each of m groups has a score for each of n servers. The groups are matched with the servers: each server takes m/n groups,
/// rounded down or up. The servers with the highest scores for the dataset take m/n rounded up. The matching is stable: no group
/// and server that are not matched would both have a higher score for each other than for their matches. Groups and servers compare
/// by the same score. Therefore, only one stable matching exists, and the result does not depend on the order of evaluation.
///
/// If a server joins or leaves, few streams of the other servers move. Tests pin their fraction.
///
/// The time to compute a placement is proportional to m and n: a few ms for 4,096 groups and 100 servers. Callers should store the
/// placement of a job while their view has the same [`revision`](crate::View::revision).
#[derive(Debug, Clone)]
pub struct Placement {
    /// Servers in the order of their names.
    servers: Vec<(Server, ServerDigest)>,
    dataset: String,
    partitions: u64,
    ranks: u64,
    /// Number of groups: the minimum of K and W.
    groups: u64,
    /// Index of the server of each group. Empty if all streams have the same key, or if there are more than [`MAX_MATCHED_GROUPS`].
    matched: Vec<usize>,
}

impl Placement {
    /// Matches `streams` with `servers`.
    ///
    /// Draining servers are not used, unless all are draining. If some of the remaining servers are in `zone`, only these are used.
    /// Servers with the same name count as one. Without servers, streams have no candidates.
    pub fn new(servers: &[Server], streams: &Streams<'_>, zone: Option<&str>) -> Self {
        let servers = eligible(servers, zone);
        let mut placement = Self {
            servers: servers
                .into_iter()
                .map(|server| (server.clone(), ServerDigest::new(&server.name)))
                .collect(),
            dataset: streams.dataset.to_owned(),
            partitions: streams.partitions,
            ranks: streams.ranks,
            groups: streams.partitions.min(streams.ranks),
            matched: Vec::new(),
        };
        if !placement.is_shared() && placement.groups <= MAX_MATCHED_GROUPS {
            placement.matched = placement.matching(0..placement.groups);
        }
        placement
    }

    /// Returns the server of the stream of `rank`: the first of its [`candidates`](Self::candidates).
    pub fn first(&self, rank: u64) -> Option<&Server> {
        self.first_index(rank).map(|index| &self.servers[index].0)
    }

    /// Returns the servers for the stream of `rank` in the order of preference: its matched server, then the others by their scores for
    /// the stream.
    ///
    /// The list contains every server of the placement. It is empty for a cluster without servers, and for a `rank` that is not a rank
    /// of the job.
    pub fn candidates(&self, rank: u64) -> Vec<&Server> {
        let Some(first) = self.first_index(rank) else { return Vec::new() };
        let key = self.key(self.group(rank));
        let mut order: Vec<(bool, Reverse<u64>, usize)> = (self.servers.iter().enumerate())
            .map(|(index, (_, digest))| (index != first, Reverse(digest.score(key)), index))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, index)| &self.servers[index].0).collect()
    }

    /// Returns the servers of the placement, in the order of their names.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().map(|(server, _)| server)
    }

    /// Returns whether all streams have the same key.
    fn is_shared(&self) -> bool {
        self.partitions <= 1
    }

    /// Returns the index of the group of a rank.
    fn group(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.groups) / u128::from(self.ranks.max(1))) as u64
    }

    fn key(&self, group: u64) -> Key {
        if self.is_shared() {
            return Key::of_dataset(&self.dataset);
        }
        Key::of_streams(&self.dataset, self.partitions, self.groups, group)
    }

    fn first_index(&self, rank: u64) -> Option<usize> {
        if rank >= self.ranks {
            return None;
        }
        let group = self.group(rank);
        if let Some(index) = usize::try_from(group).ok().and_then(|group| self.matched.get(group)) {
            return Some(*index);
        }
        let key = self.key(group);
        (0..self.servers.len()).max_by_key(|index| (self.servers[*index].1.score(key), Reverse(*index)))
    }

    /// Returns the number of groups that each server takes.
    fn capacities(&self) -> Vec<usize> {
        let count = self.servers.len();
        let groups = usize::try_from(self.groups).expect("the number of matched groups is limited");
        let key = Key::of_dataset(&self.dataset);
        let mut by_score: Vec<usize> = (0..count).collect();
        by_score.sort_unstable_by_key(|index| (Reverse(self.servers[*index].1.score(key)), *index));
        let mut capacities = vec![groups / count; count];
        for index in by_score.into_iter().take(groups % count) {
            capacities[index] += 1;
        }
        capacities
    }

    /// Returns the server of each group by deferred acceptance (Gale and Shapley, 1962). The groups propose in the order of `order`, which
    /// does not affect the result.
    fn matching(&self, order: impl IntoIterator<Item = u64>) -> Vec<usize> {
        if self.servers.is_empty() {
            return Vec::new();
        }
        let capacities = self.capacities();
        // Servers without capacity would reject every group.
        let open: Vec<usize> = (0..self.servers.len()).filter(|index| capacities[*index] > 0).collect();
        let digests: Vec<ServerDigest> = open.iter().map(|index| self.servers[*index].1).collect();
        let keys: Vec<Key> = (0..self.groups).map(|group| self.key(group)).collect();
        // The group with the lowest score is the first to be rejected; of equal scores, the last one.
        let mut accepted: Vec<BinaryHeap<(Reverse<u64>, usize)>> = vec![BinaryHeap::new(); open.len()];
        // Score and server of the last request of each group.
        let mut asked: Vec<Option<(u64, Reverse<usize>)>> = vec![None; keys.len()];
        for group in order {
            let mut unmatched =
                Some(usize::try_from(group).expect("the number of matched groups is limited"));
            while let Some(group) = unmatched {
                let choice = next_choice(&digests, keys[group], asked[group]);
                let (score, Reverse(server)) = choice.expect("the capacities add up to the number of groups");
                asked[group] = Some((score, Reverse(server)));
                accepted[server].push((Reverse(score), group));
                let is_full = accepted[server].len() > capacities[open[server]];
                unmatched = if is_full { accepted[server].pop().map(|(_, group)| group) } else { None };
            }
        }
        let mut matched = vec![0; keys.len()];
        for (server, groups) in accepted.iter().enumerate() {
            for (_, group) in groups {
                matched[*group] = open[server];
            }
        }
        matched
    }
}

/// Returns the best server after `last`, with its score. Of equal scores, the first name is best.
fn next_choice(
    digests: &[ServerDigest],
    key: Key,
    last: Option<(u64, Reverse<usize>)>,
) -> Option<(u64, Reverse<usize>)> {
    // The loop of `benches/placement.rs`: one hash of 16 bytes per server is cheaper than a sorted list per stream.
    let mut best = None;
    for (index, digest) in digests.iter().enumerate() {
        let choice = (digest.score(key), Reverse(index));
        if last.is_none_or(|last| choice < last) && best.is_none_or(|best| choice > best) {
            best = Some(choice);
        }
    }
    best
}

/// Returns the servers on which streams may be placed, in the order of their names.
fn eligible<'a>(servers: &'a [Server], zone: Option<&str>) -> Vec<&'a Server> {
    let mut eligible: Vec<&Server> = servers.iter().collect();
    // The server with the smallest fields represents all servers with its name, whatever the order of the list.
    eligible.sort_unstable();
    eligible.dedup_by(|a, b| a.name == b.name);
    if eligible.iter().any(|server| !server.is_draining) {
        eligible.retain(|server| !server.is_draining);
    }
    if zone.is_some() && eligible.iter().any(|server| server.zone.as_deref() == zone) {
        eligible.retain(|server| server.zone.as_deref() == zone);
    }
    eligible
}
