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
/// If a server fails, each of its groups moves to its second candidate. The second candidates are a stable matching, too: of the groups
/// of that server with the other servers, such that the numbers of groups of the others then differ by at most one. The groups of the
/// other servers do not move. Further candidates are ordered by score alone.
///
/// If a server joins or leaves, few streams of the other servers move. Tests pin their fraction.
///
/// The time to compute a placement is proportional to n·(m + n): a few ms for 4,096 groups and 100 servers. Callers should store the
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
    /// Indices of the server of each group and of its second candidate. Empty if all streams have the same key, or if there are more
    /// than [`MAX_MATCHED_GROUPS`].
    matched: Vec<Matched>,
}

/// Indices of the servers that are matched with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Matched {
    first: usize,
    /// Server that takes the group if the first fails; `None` if there is only one server.
    second: Option<usize>,
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
            placement.matched = placement.match_groups();
        }
        placement
    }

    /// Returns the server of the stream of `rank`: the first of its [`candidates`](Self::candidates).
    pub fn first(&self, rank: u64) -> Option<&Server> {
        self.first_index(rank).map(|index| &self.servers[index].0)
    }

    /// Returns the servers for the stream of `rank` in the order of preference: its matched server, the one that is matched with it if
    /// the first fails, then the others by their scores for the stream.
    ///
    /// The list contains every server of the placement. It is empty for a cluster without servers, and for a `rank` that is not a rank
    /// of the job.
    pub fn candidates(&self, rank: u64) -> Vec<&Server> {
        let Some(first) = self.first_index(rank) else { return Vec::new() };
        let second = self.matched(rank).and_then(|matched| matched.second);
        let key = self.key(self.group(rank));
        let mut order: Vec<usize> = (0..self.servers.len()).collect();
        order.sort_by_cached_key(|&index| {
            (index != first, Some(index) != second, Reverse(self.servers[index].1.score(key)), index)
        });
        order.into_iter().map(|index| &self.servers[index].0).collect()
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
        if let Some(matched) = self.matched(rank) {
            return Some(matched.first);
        }
        let key = self.key(self.group(rank));
        (0..self.servers.len()).max_by_key(|index| (self.servers[*index].1.score(key), Reverse(*index)))
    }

    fn matched(&self, rank: u64) -> Option<Matched> {
        let group = usize::try_from(self.group(rank)).ok()?;
        self.matched.get(group).copied()
    }

    fn match_groups(&self) -> Vec<Matched> {
        let count = self.servers.len();
        if count == 0 {
            return Vec::new();
        }
        let capacities = self.capacities(None);
        let firsts = self.matching(0..self.groups, &capacities);
        let mut by_server: Vec<Vec<u64>> = vec![Vec::new(); count];
        for (group, first) in (0..self.groups).zip(&firsts) {
            by_server[*first].push(group);
        }
        let mut matched: Vec<Matched> =
            firsts.into_iter().map(|first| Matched { first, second: None }).collect();
        if count == 1 {
            return matched;
        }
        for (lost, groups) in by_server.into_iter().enumerate() {
            if groups.is_empty() {
                continue;
            }
            // No server takes fewer groups without the lost one.
            let room: Vec<usize> = (self.capacities(Some(lost)).into_iter().zip(&capacities).enumerate())
                .map(|(index, (without, with))| if index == lost { 0 } else { without - with })
                .collect();
            let seconds = self.matching(groups.iter().copied(), &room);
            for (group, second) in groups.into_iter().zip(seconds) {
                matched[index_of(group)].second = Some(second);
            }
        }
        matched
    }

    /// Returns the number of groups that each server takes, if the server `without` takes none.
    fn capacities(&self, without: Option<usize>) -> Vec<usize> {
        let key = Key::of_dataset(&self.dataset);
        let mut by_score: Vec<usize> =
            (0..self.servers.len()).filter(|index| Some(*index) != without).collect();
        by_score.sort_unstable_by_key(|index| (Reverse(self.servers[*index].1.score(key)), *index));
        let (groups, count) = (index_of(self.groups), by_score.len());
        let mut capacities = vec![0; self.servers.len()];
        for (place, index) in by_score.into_iter().enumerate() {
            capacities[index] = groups / count + usize::from(place < groups % count);
        }
        capacities
    }

    /// Returns the server of each of `groups` by deferred acceptance (Gale and Shapley, 1962). The order in which the groups propose
    /// does not affect the result.
    ///
    /// The capacities of the servers must add up to the number of groups, or more.
    fn matching(&self, groups: impl IntoIterator<Item = u64>, capacities: &[usize]) -> Vec<usize> {
        // Servers without capacity would reject every group.
        let open: Vec<usize> = (0..self.servers.len()).filter(|index| capacities[*index] > 0).collect();
        let digests: Vec<ServerDigest> = open.iter().map(|index| self.servers[*index].1).collect();
        let groups: Vec<u64> = groups.into_iter().collect();
        let keys: Vec<Key> = groups.iter().map(|group| self.key(*group)).collect();
        // The group with the lowest score is the first to be rejected; of equal scores, the last one.
        let mut accepted: Vec<BinaryHeap<(Reverse<u64>, u64, usize)>> = vec![BinaryHeap::new(); open.len()];
        // Score and server of the last request of each group.
        let mut asked: Vec<Option<(u64, Reverse<usize>)>> = vec![None; keys.len()];
        for place in 0..groups.len() {
            let mut unmatched = Some(place);
            while let Some(place) = unmatched {
                let choice = next_choice(&digests, keys[place], asked[place]);
                let (score, Reverse(server)) = choice.expect("the capacities add up to the number of groups");
                asked[place] = Some((score, Reverse(server)));
                accepted[server].push((Reverse(score), groups[place], place));
                let is_full = accepted[server].len() > capacities[open[server]];
                unmatched = if is_full { accepted[server].pop().map(|(_, _, place)| place) } else { None };
            }
        }
        let mut matched = vec![0; groups.len()];
        for (server, groups) in accepted.iter().enumerate() {
            for (_, _, place) in groups {
                matched[*place] = open[server];
            }
        }
        matched
    }
}

/// Converts the index of a group that is matched, or the number of these groups.
fn index_of(group: u64) -> usize {
    usize::try_from(group).expect("the number of matched groups is limited")
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
