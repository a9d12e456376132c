//! The published view of the cluster, and the placements of streams in it.

use std::{collections::HashMap, ops::Range, sync::Arc};

use forebay_placement::{ListHold, Member, Placement, Server, Streams, View};
use forebay_proto::v1::Train;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::locations::Locations;
use crate::{Error, partitions::partitions};

/// Maximum number of stored placements. All are dropped when one more is computed, and when the view changes.
const MAX_PLACEMENTS: usize = 256;
/// Minimum number of pairs of a rank and a server at which a placement is computed on a blocking thread. Fewer take less than 1 ms.
const MANY_PAIRS: u64 = 16_384;

/// The view of this server: the members of its cluster.
pub(crate) struct ClusterView {
    /// The setting `members`.
    pub(crate) sources: String,
    /// The members; `None` before the id of the state is known.
    pub(crate) view: Option<View>,
    /// A member list that is not adopted yet.
    pub(crate) held: Option<ListHold>,
    /// Reason why the last read of the member list failed; `None` if it succeeded.
    pub(crate) list_error: Option<String>,
    /// Zero of the times in the view.
    pub(crate) started: Instant,
}

/// State of a member, for metrics and the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberState {
    Ready,
    Draining,
    Silent,
}

impl MemberState {
    pub(crate) fn of(member: &Member) -> Self {
        match (member.answers, member.is_draining) {
            (false, _) => Self::Silent,
            (true, true) => Self::Draining,
            (true, false) => Self::Ready,
        }
    }
}

impl ClusterView {
    /// Returns the numbers of ready, draining and silent members, and of refused addresses.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 4] {
        let members = || self.view.iter().flat_map(|view| &view.members);
        let count = |state| members().filter(|member| MemberState::of(member) == state).count();
        let refused = self.view.iter().flat_map(|view| &view.others).filter(|other| other.refusal.is_some());
        [
            ("ready", count(MemberState::Ready)),
            ("draining", count(MemberState::Draining)),
            ("silent", count(MemberState::Silent)),
            ("refused", refused.count()),
        ]
    }
}

/// The published view, and the placements that were computed from it.
pub(super) struct Cluster {
    /// Scheme of the URIs of all members, such as `grpc+tls`.
    scheme: &'static str,
    /// Zone of this server; empty for none.
    zone: String,
    view: RwLock<Arc<ClusterView>>,
    placements: Mutex<Placements>,
}

/// Placements that were computed from one revision of the view.
#[derive(Default)]
struct Placements {
    revision: u64,
    by_key: HashMap<Key, Arc<Placement>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    dataset: String,
    partitions: u64,
    ranks: u64,
    zone: Option<String>,
}

impl Key {
    fn new(train: &Train, zone: Option<String>) -> Self {
        Self {
            dataset: train.dataset.clone(),
            partitions: partitions(train),
            ranks: train.world_size.unwrap_or(1),
            zone,
        }
    }

    fn place(&self, servers: &[Server]) -> Placement {
        let Self { dataset, partitions, ranks, zone } = self;
        let streams = Streams { dataset, partitions: *partitions, ranks: *ranks };
        Placement::new(servers, &streams, zone.as_deref())
    }
}

impl Cluster {
    pub(super) fn new(settings: &crate::Settings, zone: &str) -> Self {
        let scheme = if settings.tls.is_some() { "grpc+tls" } else { "grpc" };
        let view = ClusterView {
            sources: settings.members.clone().unwrap_or_default(),
            view: None,
            held: None,
            list_error: None,
            started: Instant::now(),
        };
        Self {
            scheme,
            zone: zone.to_owned(),
            view: RwLock::new(Arc::new(view)),
            placements: Mutex::default(),
        }
    }

    /// Replaces the view.
    pub(super) fn publish(&self, view: ClusterView) {
        let before = std::mem::replace(&mut *self.view.write(), Arc::new(view));
        drop(before);
    }

    /// Returns the current view.
    pub(super) fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.read())
    }

    /// Returns whether another member is ready.
    pub(super) fn has_others(&self) -> bool {
        let view = self.view();
        let mut members = view.view.iter().flat_map(|view| &view.members);
        members.any(|member| !member.is_own && MemberState::of(member) == MemberState::Ready)
    }

    /// Returns the locations of `rank`, or of all ranks. There are none before the id of the state is known.
    ///
    /// # Errors
    /// Internal, if the computation panicked.
    pub(super) async fn locations(
        &self,
        train: &Train,
        rank: Option<u64>,
        zone: Option<String>,
    ) -> Result<Locations, Error> {
        let key = Key::new(train, zone);
        let ranks = rank.map_or(0..key.ranks, |rank| rank..rank + 1);
        let Some(placement) = self.placement(key).await? else { return Ok(Locations::default()) };
        let (scheme, pairs) = (self.scheme, pairs(&ranks, placement.servers().count()));
        compute(pairs, move || Locations::new(&placement, ranks, scheme)).await
    }

    /// Returns whether this server, `name`, is the first candidate of the stream of `rank`, among all servers or among those of its
    /// zone. Returns `None` before the id of the state is known.
    ///
    /// # Errors
    /// Internal, if the computation panicked.
    pub(super) async fn is_first(&self, name: &str, train: &Train, rank: u64) -> Result<Option<bool>, Error> {
        let zone = Some(self.zone.clone()).filter(|zone| !zone.is_empty());
        let zones = [None].into_iter().chain(zone.map(Some));
        let mut known = None;
        for zone in zones {
            let Some(placement) = self.placement(Key::new(train, zone)).await? else { return Ok(None) };
            let is_first = placement.first(rank).is_some_and(|first| first.name == name);
            known = Some(known.unwrap_or(false) || is_first);
        }
        Ok(known)
    }

    async fn placement(&self, key: Key) -> Result<Option<Arc<Placement>>, Error> {
        let view = self.view();
        let Some(view) = &view.view else { return Ok(None) };
        if let Some(kept) = self.placements.lock().get(view.revision, &key) {
            return Ok(Some(kept));
        }
        let (servers, revision) = (view.servers(), view.revision);
        // The second candidates depend on each pair of two servers.
        let (pairs, placed) =
            (pairs(&(0..key.ranks.saturating_add(servers.len() as u64)), servers.len()), key.clone());
        let placement = Arc::new(compute(pairs, move || placed.place(&servers)).await?);
        self.placements.lock().keep(revision, key, Arc::clone(&placement));
        Ok(Some(placement))
    }
}

impl Placements {
    fn get(&self, revision: u64, key: &Key) -> Option<Arc<Placement>> {
        self.by_key.get(key).filter(|_| self.revision == revision).cloned()
    }

    fn keep(&mut self, revision: u64, key: Key, placement: Arc<Placement>) {
        if revision < self.revision {
            return;
        }
        if revision > self.revision || self.by_key.len() >= MAX_PLACEMENTS {
            self.by_key.clear();
            self.revision = revision;
        }
        self.by_key.insert(key, placement);
    }
}

fn pairs(ranks: &Range<u64>, servers: usize) -> u64 {
    (ranks.end - ranks.start).saturating_mul(servers as u64)
}

/// Runs `work` on this thread, or on a blocking thread if it takes long.
async fn compute<T: Send + 'static>(
    pairs: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    if pairs < MANY_PAIRS {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::internal(error.to_string()))
}

#[cfg(test)]
mod tests;
