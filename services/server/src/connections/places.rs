//! Limits on the number of connections: of a listener, and of one peer.
//!
//! A new connection above a limit replaces the oldest one that has made no authenticated request. So a client that opens
//! many connections and sends nothing mostly replaces its own, and locks out no other client.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::Arc,
};

use metrics::counter;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use crate::{address, callers::Caller};

/// Connections beyond [`Config::max`] that may still make a request to a probe.
const RESERVED: usize = 16;

/// Places of the connections of a listener. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places {
    config: Config,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    /// By number, in the order in which they were taken.
    places: BTreeMap<u64, Entry>,
    next: u64,
    /// Number of reserved places.
    reserved: usize,
    /// Number of connections of each host that count towards its limit.
    by_host: HashMap<IpAddr, usize>,
    /// Number of connections of each caller with an authenticated request.
    by_caller: HashMap<Caller, usize>,
}

struct Entry {
    /// Client host; `None` for a Unix socket.
    host: Option<IpAddr>,
    /// True if the connection counts towards the limit of its host.
    counts: bool,
    /// Caller of the first authenticated request.
    caller: Option<Caller>,
    is_reserved: bool,
    replaced: CancellationToken,
}

/// Place of one connection, which is free again after it is dropped.
pub(crate) struct Place {
    /// True if the connection is above the limit of its listener, so that only probes are answered.
    pub(super) is_reserved: bool,
    /// Cancelled when another connection has got the place. This one must be closed then.
    pub(super) replaced: CancellationToken,
    number: u64,
    places: Places,
}

impl Places {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, taken: Arc::default() }
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.taken.lock().places.len()
    }

    /// Total number of connections since the start.
    pub(crate) fn total(&self) -> u64 {
        self.taken.lock().next
    }

    /// Takes a place for a connection from `address`, which is `None` for Unix sockets. Returns `None` if the peer has too many
    /// authenticated connections.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Option<Place> {
        let mut taken = self.taken.lock();
        let host = address.map(address::host);
        let of_host = host.map_or(0, |host| taken.by_host.get(&host).copied().unwrap_or(0));
        if host.is_some()
            && of_host >= self.config.max_per_peer
            && !taken.replace("peer", |entry| entry.counts && entry.host == host && entry.caller.is_none())
        {
            count("peer");
            return None;
        }
        let is_full = taken.places.len() - taken.reserved >= self.config.max;
        // Of the host with the most of them, so that one that opens many replaces its own.
        let busiest = if is_full { taken.busiest_host() } else { None };
        let is_replaceable =
            |entry: &Entry| entry.caller.is_none() && !entry.is_reserved && Some(entry.host) == busiest;
        let is_reserved = is_full && !taken.replace("all", is_replaceable);
        if is_reserved && taken.reserved >= RESERVED {
            taken.replace("all", |entry| entry.is_reserved);
        }
        taken.reserved += usize::from(is_reserved);
        if let Some(host) = host {
            *taken.by_host.entry(host).or_default() += 1;
        }
        let (number, replaced) = (taken.next, CancellationToken::new());
        taken.next += 1;
        let entry =
            Entry { host, counts: host.is_some(), caller: None, is_reserved, replaced: replaced.clone() };
        taken.places.insert(number, entry);
        Some(Place { is_reserved, replaced, number, places: self.clone() })
    }
}

/// Counts a connection that is closed because of a limit.
fn count(limit: &'static str) {
    counter!("forebay_connections_refused_total", "limit" => limit).increment(1);
}

impl Taken {
    /// Replaces the oldest connection that `is_replaceable`. Returns false if no connection is.
    fn replace(&mut self, limit: &'static str, is_replaceable: impl Fn(&Entry) -> bool) -> bool {
        let oldest = self.places.iter().find(|(_, entry)| is_replaceable(entry)).map(|(number, _)| *number);
        let Some(entry) = oldest.and_then(|number| self.remove(number)) else { return false };
        count(limit);
        entry.replaced.cancel();
        true
    }

    /// Host with the most connections without an authenticated request, outside of the reserved places.
    fn busiest_host(&self) -> Option<Option<IpAddr>> {
        let mut counts: HashMap<Option<IpAddr>, (usize, Reverse<u64>)> = HashMap::new();
        for (number, entry) in &self.places {
            if entry.caller.is_none() && !entry.is_reserved {
                counts.entry(entry.host).or_insert((0, Reverse(*number))).0 += 1;
            }
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(host, _)| host)
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.places.remove(&number)?;
        self.reserved -= usize::from(entry.is_reserved);
        if let Some(host) = entry.host.filter(|_| entry.counts) {
            discount(&mut self.by_host, &host);
        }
        if let Some(caller) = &entry.caller {
            discount(&mut self.by_caller, caller);
        }
        Some(entry)
    }
}

fn discount<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}

impl Place {
    /// Notes that the connection made an authenticated request of `caller`: it is not replaced by others any more. Returns false,
    /// without a change, if the caller has seven eighths of all connections.
    pub(super) fn authenticated(&self, caller: &Caller) -> bool {
        let mut taken = self.places.taken.lock();
        let taken = &mut *taken;
        let Some(entry) = taken.places.get_mut(&self.number) else { return true };
        let count = taken.by_caller.entry(caller.clone()).or_default();
        if *count >= self.places.config.max - self.places.config.max / 8 {
            return false;
        }
        *count += 1;
        entry.caller = Some(caller.clone());
        if self.places.config.counts_until_authenticated
            && let Some(host) = entry.host.filter(|_| entry.counts)
        {
            entry.counts = false;
            discount(&mut taken.by_host, &host);
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max: usize, max_per_peer: usize) -> Places {
        Places::new(Config { max, max_per_peer, ..Config::default() })
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn is_replaced(place: &Place) -> bool {
        place.replaced.is_cancelled()
    }

    #[test]
    fn a_peer_above_its_limit_replaces_its_own_oldest_connection_without_a_request() {
        let places = places(100, 2);
        let other = places.take(address("10.0.0.2")).unwrap();
        let first = places.take(address("10.0.0.1")).unwrap();
        let second = places.take(address("::ffff:10.0.0.1")).unwrap();
        first.authenticated(&Caller::Local);
        let third = places.take(address("10.0.0.1")).unwrap();
        assert_eq!([&other, &first, &second, &third].map(is_replaced), [false, false, true, false]);
        third.authenticated(&Caller::Local);
        assert!(places.take(address("10.0.0.1")).is_none(), "both are in use");
        drop((first, second));
        assert!(places.take(address("10.0.0.1")).is_some());
    }

    #[test]
    fn authenticated_connections_do_not_count_where_tokens_are_required() {
        let config =
            Config { max: 100, max_per_peer: 1, counts_until_authenticated: true, ..Config::default() };
        let places = Places::new(config);
        let held: Vec<_> = (0..10).map(|_| places.take(address("10.0.0.1")).unwrap()).collect();
        assert_eq!(held.iter().filter(|place| is_replaced(place)).count(), 9);
        held[9].authenticated(&Caller::Local);
        let _next = places.take(address("10.0.0.1")).unwrap();
        assert!(!is_replaced(&held[9]));
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_are_one_peer() {
        let places = places(100, 1);
        let first = places.take(address("2001:db8::1")).unwrap();
        let _other = places.take(address("2001:db8:0:1::1")).unwrap();
        assert!(!is_replaced(&first));
        let _same = places.take(address("2001:db8::ffff:1")).unwrap();
        assert!(is_replaced(&first));
    }

    #[test]
    fn unix_sockets_have_no_limit_per_peer() {
        let places = places(3, 1);
        let held = [places.take(None).unwrap(), places.take(None).unwrap(), places.take(None).unwrap()];
        assert!(held.iter().all(|place| !place.is_reserved && !is_replaced(place)));
    }

    #[test]
    fn above_the_limit_of_all_only_probes_are_answered_if_all_connections_are_in_use() {
        let places = places(2, 1000);
        let [silent, used] = [places.take(None).unwrap(), places.take(None).unwrap()];
        used.authenticated(&Caller::Local);
        let newer = places.take(None).unwrap();
        assert!(is_replaced(&silent) && !newer.is_reserved);
        newer.authenticated(&Caller::Local);
        let reserved: Vec<_> = (0..=RESERVED).map(|_| places.take(None).unwrap()).collect();
        assert!(reserved.iter().all(|place| place.is_reserved));
        assert_eq!(reserved.iter().filter(|place| is_replaced(place)).count(), 1, "the oldest");
        drop(used);
        assert!(!places.take(None).unwrap().is_reserved);
    }

    #[test]
    fn a_client_with_many_new_connections_replaces_its_own_when_all_are_taken() {
        let places = places(8, 1000);
        let good = places.take(address("10.0.0.1")).unwrap();
        let flood: Vec<_> = (0..100).map(|_| places.take(address("10.0.0.2")).unwrap()).collect();
        assert!(!is_replaced(&good) && !flood[99].is_reserved);
        assert_eq!(flood.iter().filter(|place| !is_replaced(place)).count(), 7);
    }

    #[test]
    fn one_caller_leaves_an_eighth_of_the_connections_to_others() {
        let places = places(16, 1000);
        let held: Vec<_> = (0..16).map(|_| places.take(None).unwrap()).collect();
        let caller = |name: &str| Caller::Token(name.to_owned());
        assert_eq!(held.iter().filter(|place| place.authenticated(&caller("greedy"))).count(), 14);
        assert!(held[15].authenticated(&caller("other")));
    }

    #[test]
    fn nothing_is_left_of_closed_connections() {
        let places = places(1, 2);
        let held: Vec<_> =
            (0..40).filter_map(|number: u8| places.take(Some([10, 0, 0, number % 3].into()))).collect();
        for place in held.iter().step_by(2) {
            place.authenticated(&Caller::Local);
        }
        drop(held);
        let taken = places.taken.lock();
        assert!(taken.places.is_empty() && taken.by_host.is_empty() && taken.by_caller.is_empty());
        assert_eq!(taken.reserved, 0);
    }
}
