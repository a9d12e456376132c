//! Addresses of the hosts of stores.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{sync::Semaphore, time::Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of concurrent lookups, each of which blocks a thread.
const MAX_LOOKUPS: usize = 64;
/// Age at which a lookup is no longer shared. Otherwise, a lookup that hangs would make its host unreachable.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Looks up host names with the resolver of the system, which blocks a thread for each lookup.
///
/// Requests that look up a name at the same time share one lookup. If the name servers do not answer, the lookups therefore block
/// one thread per name, and not one per connection.
#[derive(Debug)]
pub(super) struct Names {
    running: Mutex<HashMap<String, (Instant, Lookup)>>,
    permits: Arc<Semaphore>,
    resolved: AtomicU64,
}

type Lookup = Shared<BoxFuture<'static, Result<Arc<[SocketAddr]>, LookupError>>>;

/// Reason why a name has no address.
#[derive(Debug, Clone, thiserror::Error)]
#[error("can't look up the host name: {0}")]
pub(super) struct LookupError(pub(super) Arc<io::Error>);

impl From<io::Error> for LookupError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl Default for Names {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Self { running: Mutex::default(), permits, resolved: AtomicU64::default() }
    }
}

impl Names {
    /// Returns the running lookup of `name`, or a new one. A lookup starts when a request waits for it, and then runs to its end.
    fn lookup(
        &self,
        name: &str,
        look_up: impl FnOnce(&str) -> io::Result<Arc<[SocketAddr]>> + Send + 'static,
    ) -> Lookup {
        let is_shared =
            |(begun, lookup): &(Instant, Lookup)| lookup.peek().is_none() && begun.elapsed() < MAX_AGE;
        let mut running = self.running.lock();
        running.retain(|_, entry| is_shared(entry));
        if let Some((_, lookup)) = running.get(name) {
            return lookup.clone();
        }
        let (key, permits) = (name.to_owned(), Arc::clone(&self.permits));
        let lookup = async move {
            let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
            let blocking = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                look_up(&key)
            });
            Ok(blocking.await.map_err(io::Error::from)??)
        };
        let lookup = lookup.boxed().shared();
        running.insert(name.to_owned(), (Instant::now(), lookup.clone()));
        lookup
    }

    /// Returns a pseudorandom index below `addresses`. The next connection tries that address first, so that connections spread over all
    /// servers of a store.
    fn first(&self, addresses: usize) -> usize {
        let random = xxh3_64(&self.resolved.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        random.checked_rem(addresses as u64).unwrap_or_default() as usize
    }
}

/// Resolver of the HTTP client of one store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resolver {
    pub(super) names: &'static Names,
    /// True if connections are to be spread over all addresses of a host.
    pub(super) randomizes: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = self.names.lookup(name.as_str(), |name| Ok((name, 0).to_socket_addrs()?.collect()));
        let Self { names, randomizes } = *self;
        async move {
            let addresses = lookup.await?;
            let first = if randomizes { names.first(addresses.len()) } else { 0 };
            let (before, after) = addresses.split_at(first);
            let addresses: Addrs = Box::new([after, before].concat().into_iter());
            Ok(addresses)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn address(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 0).into()
    }

    fn unexpected(_: &str) -> io::Result<Arc<[SocketAddr]>> {
        panic!("a second lookup of the name")
    }

    #[tokio::test]
    async fn requests_for_a_name_that_is_being_looked_up_share_its_lookup() {
        let names = Names::default();
        let (answer, answers) = mpsc::channel();
        let first = names.lookup("store", move |_| answers.recv().map_err(io::Error::other));
        let first = tokio::spawn(first);
        let others: Vec<_> = (0..100).map(|_| names.lookup("store", unexpected)).collect();
        let other_name = names.lookup("other", |_| Ok([address(2)].into())).await.expect("an address");
        assert_eq!(*other_name, [address(2)]);
        answer.send([address(1)].into()).expect("the lookup waits");
        assert_eq!(*first.await.expect("no panic").expect("an address"), [address(1)]);
        for lookup in others {
            assert_eq!(*lookup.await.expect("an address"), [address(1)]);
        }
        let later = names.lookup("store", |_| Ok([address(3)].into())).await.expect("an address");
        assert_eq!(*later, [address(3)], "a request after the end of a lookup must start a new one");
    }

    #[tokio::test]
    async fn a_request_that_is_cancelled_leaves_the_lookup_to_others() {
        let names = Names::default();
        let (answer, answers) = mpsc::channel();
        let first = names.lookup("store", move |_| answers.recv().map_err(io::Error::other));
        assert!(tokio::time::timeout(Duration::from_millis(1), first).await.is_err(), "nothing was answered");
        let second = names.lookup("store", unexpected);
        answer.send([address(1)].into()).expect("the lookup waits");
        assert_eq!(*second.await.expect("an address"), [address(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_never_ends_is_replaced_after_thirty_seconds() {
        let names = Names::default();
        let (_answer, answers) = mpsc::channel::<Arc<[SocketAddr]>>();
        let hanging = tokio::spawn(names.lookup("store", move |_| answers.recv().map_err(io::Error::other)));
        tokio::time::advance(MAX_AGE - Duration::from_secs(1)).await;
        assert!(names.lookup("store", unexpected).now_or_never().is_none(), "it is shared");
        tokio::time::advance(Duration::from_secs(1)).await;
        let fresh = names.lookup("store", |_| Ok([address(1)].into())).await.expect("an address");
        assert_eq!(*fresh, [address(1)]);
        assert!(!hanging.is_finished());
    }

    #[tokio::test]
    async fn a_lookup_that_panics_fails_its_requests_and_no_later_one() {
        let names = Names::default();
        names.lookup("store", |_| panic!("a fault of the resolver")).await.expect_err("no address");
        let later = names.lookup("store", |_| Ok([address(1)].into())).await.expect("an address");
        assert_eq!(*later, [address(1)]);
    }

    #[tokio::test]
    async fn lookups_of_different_names_are_limited() {
        let names = Names::default();
        let mut answers = Vec::new();
        let mut begin = |name: &str| {
            let (answer, waits) = mpsc::channel::<Arc<[SocketAddr]>>();
            answers.push(answer);
            tokio::spawn(names.lookup(name, move |_| waits.recv().map_err(io::Error::other)))
        };
        let hanging: Vec<_> = (0..MAX_LOOKUPS).map(|number| begin(&number.to_string())).collect();
        while names.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let (begun, begins) = mpsc::channel();
        let next = names.lookup("next", move |_| {
            begun.send(()).map_err(io::Error::other)?;
            Ok([address(1)].into())
        });
        assert!(next.clone().now_or_never().is_none(), "there is no thread for it");
        begins.try_recv().expect_err("it waits for a permit");
        drop(answers);
        assert_eq!(*next.await.expect("an address"), [address(1)]);
        for lookup in hanging {
            lookup.await.expect("no panic").expect_err("no answer was sent");
        }
    }

    #[test]
    fn connections_begin_with_all_addresses_of_a_host() {
        let names = Names::default();
        let mut counts = [0; 3];
        (0..3000).for_each(|_| counts[names.first(3)] += 1);
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_eq!(names.first(0), 0);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_an_error_with_the_reason() {
        let names = Names::default();
        let found = names.lookup("store", |_| Err(io::Error::other("no such name"))).await;
        let error = found.expect_err("there is no address").to_string();
        assert_eq!(error, "can't look up the host name: no such name");
    }
}
