//! Locations of endpoints: URIs of the servers to which a client can send a ticket, in the order of preference.

use std::{collections::BTreeMap, ops::Range};

use forebay_placement::Placement;

/// Maximum number of servers in the locations of an endpoint: the server that the placement assigns, and those that replace it.
const SERVERS: usize = 3;

/// URI that Flight defines for the connection on which GetFlightInfo was called.
const SAME_CONNECTION: &str = "arrow-flight-reuse-connection://?";

/// Locations by rank. By default no rank has any.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Locations {
    by_rank: BTreeMap<u64, Vec<String>>,
}

impl Locations {
    /// Returns the locations of `ranks`. `scheme` is the scheme of the URIs, such as `grpc+tls`.
    pub(super) fn new(placement: &Placement, ranks: Range<u64>, scheme: &str) -> Self {
        let uris = |rank| {
            let servers = placement.candidates(rank).into_iter().take(SERVERS);
            let uris = servers.map(|server| format!("{scheme}://{}", server.name));
            uris.chain([SAME_CONNECTION.to_owned()]).collect()
        };
        Self { by_rank: ranks.map(|rank| (rank, uris(rank))).collect() }
    }

    /// Returns the locations of all lanes of `rank`.
    pub(crate) fn of(&self, rank: u32) -> &[String] {
        self.by_rank.get(&u64::from(rank)).map_or(&[], Vec::as_slice)
    }

    /// Returns the total length of the locations of endpoints with these ranks, in bytes.
    pub(crate) fn bytes_of(&self, ranks: impl Iterator<Item = u32>) -> u64 {
        ranks.flat_map(|rank| self.of(rank)).map(|uri| uri.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use forebay_placement::{Server, Streams};

    use super::*;

    #[test]
    fn a_rank_has_its_server_the_next_two_and_the_same_connection() {
        let server = |name: &str| Server { name: name.to_owned(), zone: None, is_draining: false };
        let servers: Vec<Server> = ["a:1", "b:1", "c:1", "d:1"].map(server).into();
        let streams = Streams { dataset: "clicks", partitions: 8, ranks: 8 };
        let placement = Placement::new(&servers, &streams, None);
        let locations = Locations::new(&placement, 0..8, "grpc+tls");
        for rank in 0..8 {
            let expected: Vec<String> = placement.candidates(rank)[..3]
                .iter()
                .map(|server| format!("grpc+tls://{}", server.name))
                .chain(["arrow-flight-reuse-connection://?".to_owned()])
                .collect();
            assert_eq!(locations.of(u32::try_from(rank).unwrap()), expected);
        }
        assert_eq!(locations.of(8), &[] as &[String]);
        let bytes: usize = locations.of(3).iter().map(String::len).sum();
        assert_eq!(locations.bytes_of([3, 3].into_iter()), 2 * bytes as u64);
        assert_eq!(Locations::default().of(0), &[] as &[String]);
    }
}
