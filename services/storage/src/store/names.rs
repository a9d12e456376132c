//! Addresses of the hosts of stores.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks up host names with the resolver of the system, which blocks a thread for each lookup.
///
/// Requests that look up a name at the same time share one lookup. If the name servers do not answer, the lookups therefore block
/// one thread per name, and not one per connection.
#[derive(Debug, Default)]
pub(super) struct Names {
    running: Arc<Mutex<HashMap<String, Lookup>>>,
    looked_up: AtomicUsize,
}

type Lookup = Shared<BoxFuture<'static, Result<Arc<[SocketAddr]>, LookupError>>>;

/// Reason why a name has no address.
#[derive(Debug, Clone, thiserror::Error)]
#[error("can't look up the host name: {0}")]
struct LookupError(Arc<io::Error>);

impl From<io::Error> for LookupError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl Names {
    /// Returns the running lookup of `name`, or starts one.
    fn lookup(
        &self,
        name: &str,
        look_up: impl FnOnce(&str) -> io::Result<Arc<[SocketAddr]>> + Send + 'static,
    ) -> Lookup {
        let mut running = self.running.lock();
        if let Some(lookup) = running.get(name) {
            return lookup.clone();
        }
        let (key, names) = (name.to_owned(), Arc::clone(&self.running));
        let blocking = tokio::task::spawn_blocking(move || {
            let found = look_up(&key);
            names.lock().remove(&key);
            found
        });
        let lookup = async { Ok(blocking.await.map_err(io::Error::from)??) }.boxed().shared();
        running.insert(name.to_owned(), lookup.clone());
        lookup
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = self.lookup(name.as_str(), |name| Ok((name, 0).to_socket_addrs()?.collect()));
        let turn = self.looked_up.fetch_add(1, Ordering::Relaxed);
        async move {
            let addresses = lookup.await?;
            // Each connection begins with another address, so that all servers of a store are used.
            let first = turn.checked_rem(addresses.len()).unwrap_or_default();
            let (before, after) = addresses.split_at(first);
            let addresses: Addrs = Box::new([after, before].concat().into_iter());
            Ok(addresses)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    fn address(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 0).into()
    }

    #[tokio::test]
    async fn requests_for_a_name_that_is_being_looked_up_share_its_lookup() {
        let names = Names::default();
        let (answer, answers) = mpsc::channel();
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&begun);
        let first = names.lookup("store", move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            answers.recv().map_err(io::Error::other)
        });
        let others: Vec<_> =
            (0..100).map(|_| names.lookup("store", |_| panic!("a second lookup of the name"))).collect();
        let other_name = names.lookup("other", |_| Ok([address(2)].into())).await.expect("an address");
        assert_eq!(*other_name, [address(2)]);
        answer.send([address(1)].into()).expect("the lookup waits");
        assert_eq!(*first.await.expect("an address"), [address(1)]);
        for lookup in others {
            assert_eq!(*lookup.await.expect("an address"), [address(1)]);
        }
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        let later = names.lookup("store", |_| Ok([address(3)].into())).await.expect("an address");
        assert_eq!(*later, [address(3)], "a request after the end of a lookup must start a new one");
    }

    #[tokio::test]
    async fn a_request_that_is_cancelled_leaves_the_lookup_to_others() {
        let names = Names::default();
        let (answer, answers) = mpsc::channel();
        let first = names.lookup("store", move |_| answers.recv().map_err(io::Error::other));
        assert!(tokio::time::timeout(Duration::from_millis(1), first).await.is_err(), "nothing was answered");
        let second = names.lookup("store", |_| panic!("a second lookup of the name"));
        answer.send([address(1)].into()).expect("the lookup waits");
        assert_eq!(*second.await.expect("an address"), [address(1)]);
    }

    #[tokio::test]
    async fn connections_begin_with_each_address_in_turn() {
        let names = Names::default();
        let mut first = Vec::new();
        for _ in 0..4 {
            let lookup = names.lookup("store", |_| Ok([address(1), address(2)].into()));
            lookup.clone().await.expect("addresses");
            // `resolve` shares the lookup that is registered.
            names.running.lock().insert("store".into(), lookup);
            let mut found = names.resolve("store".parse().expect("a name")).await.expect("addresses");
            first.push((found.next(), found.next(), found.next()));
            names.running.lock().clear();
        }
        let (one, two) =
            ((Some(address(1)), Some(address(2)), None), (Some(address(2)), Some(address(1)), None));
        assert_eq!(first, [one, two, one, two]);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_an_error_with_the_reason() {
        let names = Names::default();
        let found = names.lookup("store", |_| Err(io::Error::other("no such name"))).await;
        let error = found.expect_err("there is no address").to_string();
        assert_eq!(error, "can't look up the host name: no such name");
    }
}
