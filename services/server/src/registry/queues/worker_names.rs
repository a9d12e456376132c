//! Names of the connected workers of a queue, for operators.

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use forebay_inference::queue::WorkerId;
use parking_lot::Mutex;

use crate::auth::Access;

/// Where a worker is connected from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Name of the worker's token; `None` without tokens.
    token: Option<String>,
    /// Address and port of the worker; `None` for a Unix socket.
    address: Option<SocketAddr>,
}

impl Origin {
    pub(crate) fn new(access: &Access) -> Self {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self { token: access.name(), address: access.socket_address().map(canonical) }
    }

    /// Returns the part that is shown to callers that may see the queue, but not who else uses the server: with tokens, the name of the token
    /// without the address.
    pub(crate) fn public(&self) -> Self {
        match &self.token {
            Some(token) => Self { token: Some(token.clone()), address: None },
            None => self.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.token, self.address) {
            (Some(token), Some(address)) => write!(f, "token '{token}', {address}"),
            (Some(token), None) => write!(f, "token '{token}'"),
            (None, Some(address)) => address.fmt(f),
            (None, None) => f.write_str("Unix socket"),
        }
    }
}

/// Origins of the connected workers of a queue.
#[derive(Default)]
pub(crate) struct WorkerNames {
    origins: Mutex<BTreeMap<WorkerId, Origin>>,
}

impl WorkerNames {
    pub(crate) fn insert(&self, worker: WorkerId, origin: Origin) {
        self.origins.lock().insert(worker, origin);
    }

    pub(crate) fn remove(&self, worker: WorkerId) {
        self.origins.lock().remove(&worker);
    }

    /// Returns the name of a worker for a caller that may see the queue, such as `worker 3 (token 'ranker-gpu', 10.0.0.7:40312)`. If there are
    /// tokens, it has the address only for callers that may read all datasets.
    pub(crate) fn name(&self, worker: WorkerId, access: &Access) -> String {
        let origin = self.origins.lock().get(&worker).cloned();
        match (origin, access.check_all_datasets()) {
            (Some(origin), Ok(())) => name(worker, &origin),
            (Some(origin), Err(_)) => name(worker, &origin.public()),
            (None, _) => format!("worker {}", worker.0),
        }
    }
}

/// Name of a worker.
pub(crate) fn name(worker: WorkerId, origin: &Origin) -> String {
    format!("worker {} ({origin})", worker.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_named_by_its_id_its_token_and_its_address() {
        let address = Some(SocketAddr::from(([10, 0, 0, 7], 40312)));
        let of = |token: Option<&str>, address| Origin { token: token.map(str::to_owned), address };
        let named = |origin: &Origin| name(WorkerId(3), origin);
        assert_eq!(named(&of(Some("gpu"), address)), "worker 3 (token 'gpu', 10.0.0.7:40312)");
        assert_eq!(named(&of(Some("gpu"), None)), "worker 3 (token 'gpu')");
        assert_eq!(named(&of(None, address)), "worker 3 (10.0.0.7:40312)");
        assert_eq!(named(&of(None, None)), "worker 3 (Unix socket)");
        assert_eq!(of(Some("gpu"), address).public(), of(Some("gpu"), None));
        assert_eq!(of(None, address).public(), of(None, address), "there is no other name");
    }

    #[test]
    fn a_worker_that_has_left_is_named_by_its_id() {
        let (names, access) = (WorkerNames::default(), Access::everything());
        let origin = Origin { token: None, address: Some(SocketAddr::from(([10, 0, 0, 7], 40312))) };
        names.insert(WorkerId(3), origin);
        assert_eq!(names.name(WorkerId(3), &access), "worker 3 (10.0.0.7:40312)");
        names.remove(WorkerId(3));
        assert_eq!(names.name(WorkerId(3), &access), "worker 3");
    }
}
