//! Byte budget that tenants share by weight. A source that stops answering usually cannot use up the budget.
//!
//! The next bytes go to the waiting tenant that has the least in relation to its weight, which is weighted max-min
//! fairness. Tenants that have the same, which is usual if one caller needs most of the budget, receive bytes in turn, by weight. The
//! flows of one tenant receive bytes in turn, too, and the callers of one flow in the order of arrival. A caller that waits for loads of
//! a source delays only callers of that source.
//!
//! A reservation for values that are being loaded is charged to their sources. A source that is already charged is
//! charged more only while enough stays free. This is the dynamic threshold of shared-memory switches
//! (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). The first
//! reservation of a source is limited only by the free bytes.

mod turns;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::turns::Turns;
use crate::Tenant;

/// Maximum of a source's bytes that are being loaded, as a multiple of the bytes that stay free.
const MAX_LOADING_PER_FREE: u64 = 4;

/// Identifies where values are loaded from, such as the URL of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

/// A byte budget. Cheap to clone; clones share the budget.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
    tenant: Tenant,
    flow: u64,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget of {} bytes", self.capacity_bytes())
    }
}

struct Shared {
    capacity_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reserved_bytes: u64,
    /// Part of `reserved_bytes` in [long-lived](Reservation::keep) reservations.
    kept_bytes: u64,
    /// Part of `kept_bytes` for values [outside](Reservation::keep_outside) of the memory tier.
    outside_bytes: u64,
    /// Bytes that are being loaded from each source that has some.
    loading_bytes: HashMap<SourceId, u64>,
    /// Reserved bytes of each tenant that has some.
    tenant_bytes: HashMap<u64, u64>,
    /// Turns of the tenants, in bytes divided by weight.
    tenant_turns: Turns,
    /// Turns of the flows of each tenant that has waiting callers.
    turns: HashMap<u64, Turns>,
    /// Callers by ascending rank, and callers of one rank by arrival. Ranks of different tenants are not comparable.
    waiting: VecDeque<Waiting>,
    /// Number of callers that have arrived.
    arrivals: u64,
}

struct Waiting {
    bytes: u64,
    tenant: Tenant,
    flow: u64,
    /// Place in the [`Turns`] of the tenant.
    rank: u64,
    /// Number of callers that arrived before.
    arrival: u64,
    sources: Arc<[SourceId]>,
    /// Sources that still delay the caller. One is removed when it is within its limit and delays no earlier caller, and is not
    /// checked again. Otherwise two busy sources could permanently delay a caller of both.
    must_load_first: Vec<SourceId>,
    granted: oneshot::Sender<Result<Reservation, TooLarge>>,
}

/// Error of a reservation that cannot fit in the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Requested bytes.
    pub bytes: u64,
    /// Bytes of the budget outside of long-lived reservations.
    pub available_bytes: u64,
}

/// Reserved part of a [`Budget`]. Dropping it releases the bytes.
pub struct Reservation {
    bytes: u64,
    is_kept: bool,
    is_outside: bool,
    tenant: Tenant,
    sources: Arc<[SourceId]>,
    /// Bytes that are charged to each of `sources`.
    loading_bytes: u64,
    shared: Arc<Shared>,
}

impl Budget {
    /// Creates a budget of `capacity_bytes`, whose reservations belong to [`Tenant::SERVER`] and to one flow.
    pub fn new(capacity_bytes: u64) -> Self {
        let shared = Arc::new(Shared { capacity_bytes, state: Mutex::default() });
        Self { shared, tenant: Tenant::SERVER, flow: 0 }
    }

    /// Returns a handle of this budget, whose reservations belong to `tenant`.
    #[must_use]
    pub fn of_tenant(&self, tenant: Tenant) -> Self {
        Self { tenant, ..self.clone() }
    }

    /// Returns a handle of this budget, whose reservations belong to `flow`. The waiting flows of a tenant receive bytes in turn, so
    /// that a flow with many callers delays another one only by as many bytes as that one receives.
    #[must_use]
    pub fn of_flow(&self, flow: u64) -> Self {
        Self { flow, ..self.clone() }
    }

    /// Size of the whole budget in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes
    }

    /// Bytes outside of long-lived reservations: the largest reservation that can be granted.
    pub fn available_bytes(&self) -> u64 {
        self.shared.available_bytes(&self.shared.state.lock())
    }

    /// Bytes that the values of the memory tier may have: all but those of values [outside](Reservation::keep_outside) of it.
    pub fn tier_bytes(&self) -> u64 {
        self.shared.capacity_bytes.saturating_sub(self.shared.state.lock().outside_bytes)
    }

    /// Bytes that are currently reserved. May exceed the capacity after a reservation was [raised](Reservation::raise).
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.state.lock().reserved_bytes
    }

    /// Reserves `bytes`, and charges them to `sources` until [`Reservation::loaded`] is called.
    ///
    /// Waits until the bytes are free. A source from which something else is being loaded also delays the
    /// caller, until its loading bytes plus `bytes` are at most four times what would stay free. Once that held, the source is not
    /// checked again.
    /// The callers of a flow receive their bytes in order, with one exception: a caller that must wait for loads of a source
    /// delays only callers of this source. Cancel-safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// [`TooLarge`] as soon as `bytes` exceeds [`available_bytes`](Self::available_bytes).
    pub async fn reserve(&self, bytes: u64, sources: &[SourceId]) -> Result<Reservation, TooLarge> {
        // `leaving` is declared first, so that it is dropped after the receiver of a cancelled wait.
        let mut leaving = LeaveOnDrop { shared: Some(&self.shared) };
        let (granted, grant) = oneshot::channel();
        {
            let mut state = self.shared.state.lock();
            let available_bytes = self.shared.available_bytes(&state);
            if bytes > available_bytes {
                return Err(TooLarge { bytes, available_bytes });
            }
            let rank = state.next_rank(self.tenant, self.flow);
            let arrival = state.arrivals;
            state.arrivals += 1;
            let at = state.waiting.partition_point(|waiting| waiting.rank <= rank);
            state.waiting.insert(
                at,
                Waiting {
                    bytes,
                    tenant: self.tenant,
                    flow: self.flow,
                    rank,
                    arrival,
                    sources: sources.into(),
                    must_load_first: sources.into(),
                    granted,
                },
            );
        }
        self.shared.grant();
        let granted = grant.await.expect("the queue lives as long as the budget");
        leaving.shared = None;
        granted
    }

    /// Returns true if [`try_reserve`](Self::try_reserve) would return a reservation.
    pub fn has_room(&self, bytes: u64, sources: &[SourceId]) -> bool {
        self.shared.has_room(&mut self.shared.state.lock(), bytes, sources)
    }

    /// Like [`reserve`](Self::reserve), but returns `None` where that would wait.
    pub fn try_reserve(&self, bytes: u64, sources: &[SourceId]) -> Option<Reservation> {
        let mut state = self.shared.state.lock();
        if !self.shared.has_room(&mut state, bytes, sources) {
            return None;
        }
        Some(self.shared.take(&mut state, bytes, self.tenant, sources.into()))
    }

    /// Returns true if another tenant waits only for free bytes, and its bytes divided by its weight would be below those of this
    /// tenant after the grant. This tenant should then release what it does not need now.
    pub fn should_yield(&self) -> bool {
        let state = self.shared.state.lock();
        let relative_bytes = state.relative_bytes(self.tenant, 0);
        state.waiting.iter().any(|waiting| {
            waiting.tenant.id() != self.tenant.id()
                && waiting.must_load_first.is_empty()
                && state.relative_bytes(waiting.tenant, waiting.bytes) < relative_bytes
        })
    }
}

/// Removes cancelled waits from the queue, and grants those behind them.
struct LeaveOnDrop<'a> {
    shared: Option<&'a Arc<Shared>>,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared {
            shared.state.lock().remove_cancelled();
            shared.grant();
        }
    }
}

impl State {
    /// Returns true if something is being loaded from `source`, and `bytes` more would exceed its limit.
    fn is_over(&self, capacity_bytes: u64, bytes: u64, source: SourceId) -> bool {
        let free_bytes = capacity_bytes.saturating_sub(self.reserved_bytes).saturating_sub(bytes);
        let limit = free_bytes.saturating_mul(MAX_LOADING_PER_FREE);
        self.loading_bytes.get(&source).is_some_and(|loading| loading.saturating_add(bytes) > limit)
    }

    /// Bytes of a tenant after it receives `more`, divided by its weight.
    fn relative_bytes(&self, tenant: Tenant, more: u64) -> f64 {
        let bytes = self.tenant_bytes.get(&tenant.id()).copied().unwrap_or(0).saturating_add(more);
        bytes as f64 / f64::from(tenant.weight().get())
    }

    /// Rank of the next caller of a flow.
    fn next_rank(&self, tenant: Tenant, flow: u64) -> u64 {
        let of_flow = |waiting: &&Waiting| waiting.tenant.id() == tenant.id() && waiting.flow == flow;
        let last = self.waiting.iter().rfind(of_flow).map(|last| (last.rank, last.bytes));
        let first = Turns::default();
        self.turns.get(&tenant.id()).unwrap_or(&first).rank(flow, last)
    }

    /// Records that a caller, which has left the queue, received its bytes.
    fn granted(&mut self, tenant: Tenant, flow: u64, (rank, bytes): (u64, u64)) {
        let start = self.tenant_turns.rank(tenant.id(), None);
        self.tenant_turns.granted(tenant.id(), (start, bytes / u64::from(tenant.weight().get())));
        if self.waiting.iter().any(|waiting| waiting.tenant.id() == tenant.id()) {
            self.turns.entry(tenant.id()).or_default().granted(flow, (rank, bytes));
        } else {
            self.turns.remove(&tenant.id());
        }
    }

    /// Tenants that wait, in the order in which they receive bytes: by their bytes, their turns, and their first arrivals.
    fn tenants_in_turn(&self) -> Vec<Tenant> {
        // There are few tenants and often many callers.
        let mut tenants: Vec<(Tenant, u64)> = Vec::new();
        for Waiting { tenant, arrival, .. } in &self.waiting {
            match tenants.iter_mut().find(|(known, _)| known.id() == tenant.id()) {
                Some((_, first)) => *first = (*first).min(*arrival),
                None => tenants.push((*tenant, *arrival)),
            }
        }
        let turn = |(tenant, arrival): &(Tenant, u64)| (self.tenant_turns.rank(tenant.id(), None), *arrival);
        tenants.sort_by(|one, other| {
            let bytes = self.relative_bytes(one.0, 0).total_cmp(&self.relative_bytes(other.0, 0));
            bytes.then_with(|| turn(one).cmp(&turn(other)))
        });
        tenants.into_iter().map(|(tenant, _)| tenant).collect()
    }

    /// Updates `must_load_first`. Returns the position of the first caller that waits only for free bytes, and the
    /// sources that delay callers before it.
    fn next_to_grant(&mut self, capacity_bytes: u64) -> (Option<usize>, Vec<SourceId>) {
        let tenants = self.tenants_in_turn();
        let (mut delaying, mut waiting) = (Vec::new(), std::mem::take(&mut self.waiting));
        let mut is_free = |waiting: &mut Waiting| {
            let bytes = waiting.bytes;
            waiting.must_load_first.retain(|source| {
                let is_delayed = delaying.contains(source);
                let must_load = is_delayed || self.is_over(capacity_bytes, bytes, *source);
                if must_load && !is_delayed {
                    delaying.push(*source);
                }
                must_load
            });
            waiting.must_load_first.is_empty()
        };
        let first = tenants.into_iter().find_map(|tenant| {
            waiting.iter_mut().position(|waiting| waiting.tenant.id() == tenant.id() && is_free(waiting))
        });
        self.waiting = waiting;
        (first, delaying)
    }

    fn remove_cancelled(&mut self) {
        self.waiting.retain(|waiting| !waiting.granted.is_closed());
    }

    /// Changes the reserved bytes of a tenant.
    fn charge_tenant(&mut self, tenant: Tenant, change: impl Fn(u64) -> u64) {
        change_bytes(&mut self.tenant_bytes, tenant.id(), change);
    }

    /// Changes the bytes that are being loaded from `sources`.
    fn charge(&mut self, sources: &[SourceId], change: impl Fn(u64) -> u64) {
        for source in sources {
            change_bytes(&mut self.loading_bytes, *source, &change);
        }
    }
}

/// Changes the bytes of `key`, which has no entry while it has no bytes.
fn change_bytes<K: Hash + Eq>(bytes: &mut HashMap<K, u64>, key: K, change: impl Fn(u64) -> u64) {
    match change(bytes.get(&key).copied().unwrap_or(0)) {
        0 => drop(bytes.remove(&key)),
        changed => drop(bytes.insert(key, changed)),
    }
}

impl Shared {
    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.reserved_bytes.saturating_add(bytes) <= self.capacity_bytes
    }

    fn available_bytes(&self, state: &State) -> u64 {
        self.capacity_bytes.saturating_sub(state.kept_bytes)
    }

    /// Returns true if `bytes` are free, none of `sources` must load first, and no waiting caller comes first.
    fn has_room(&self, state: &mut State, bytes: u64, sources: &[SourceId]) -> bool {
        let is_over = |source: &SourceId| state.is_over(self.capacity_bytes, bytes, *source);
        if !self.fits(state, bytes) || sources.iter().any(is_over) {
            return false;
        }
        state.remove_cancelled();
        let (first, delaying) = state.next_to_grant(self.capacity_bytes);
        first.is_none() && !sources.iter().any(|source| delaying.contains(source))
    }

    fn take(
        self: &Arc<Self>,
        state: &mut State,
        bytes: u64,
        tenant: Tenant,
        sources: Arc<[SourceId]>,
    ) -> Reservation {
        state.reserved_bytes += bytes;
        state.charge_tenant(tenant, |reserved| reserved + bytes);
        state.charge(&sources, |loading| loading + bytes);
        let shared = Arc::clone(self);
        Reservation {
            bytes,
            is_kept: false,
            is_outside: false,
            tenant,
            sources,
            loading_bytes: bytes,
            shared,
        }
    }

    /// Grants reservations in turn while they fit.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            let (Some(first), _) = state.next_to_grant(self.capacity_bytes) else { return };
            let is_cancelled = state.waiting[first].granted.is_closed();
            if !is_cancelled && !self.fits(&state, state.waiting[first].bytes) {
                return;
            }
            let Some(Waiting { bytes, tenant, flow, rank, sources, granted, .. }) =
                state.waiting.remove(first)
            else {
                return;
            };
            if is_cancelled {
                continue;
            }
            state.granted(tenant, flow, (rank, bytes));
            let reservation = self.take(&mut state, bytes, tenant, sources);
            drop(state);
            // If the wait was cancelled in the meantime, dropping the reservation releases the bytes.
            drop(granted.send(Ok(reservation)));
        }
    }

    /// Rejects waiting callers that request more than is available.
    fn reject(&self) {
        let mut state = self.state.lock();
        let available_bytes = self.available_bytes(&state);
        let (kept, rejected): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|waiting| waiting.bytes <= available_bytes);
        state.waiting = kept;
        drop(state);
        for Waiting { bytes, granted, .. } in rejected {
            drop(granted.send(Err(TooLarge { bytes, available_bytes })));
        }
    }
}

impl Reservation {
    /// Reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the reservation to `bytes`, for values that are larger than estimated. Does not wait: the budget may be
    /// exceeded, and no other reservation is granted until enough bytes are released. A smaller value has no effect.
    pub fn raise(&mut self, bytes: u64) {
        self.try_raise(bytes, u64::MAX);
    }

    /// Like [`raise`](Self::raise), if all reservations of the budget then have at most `max_reserved_bytes`. Otherwise returns false,
    /// without an effect.
    pub fn try_raise(&mut self, bytes: u64, max_reserved_bytes: u64) -> bool {
        let extra = bytes.saturating_sub(self.bytes);
        let mut state = self.shared.state.lock();
        if extra > 0 && state.reserved_bytes.saturating_add(extra) > max_reserved_bytes {
            return false;
        }
        state.reserved_bytes += extra;
        state.charge_tenant(self.tenant, |reserved| reserved + extra);
        state.kept_bytes += if self.is_kept { extra } else { 0 };
        state.outside_bytes += if self.is_outside { extra } else { 0 };
        self.bytes += extra;
        drop(state);
        if self.is_kept {
            self.shared.reject();
        }
        true
    }

    /// Reports that the values are loaded. The bytes stay reserved, and no longer count for their sources.
    pub fn loaded(&mut self) {
        let loading_bytes = std::mem::take(&mut self.loading_bytes);
        if loading_bytes > 0 && !self.sources.is_empty() {
            self.shared.state.lock().charge(&self.sources, |loading| loading.saturating_sub(loading_bytes));
            self.shared.grant();
        }
    }

    /// Charges all bytes of the reservation to its sources again, without a check of their limits.
    pub fn loading(&mut self) {
        let extra = self.bytes.saturating_sub(self.loading_bytes);
        if extra > 0 && !self.sources.is_empty() {
            self.loading_bytes += extra;
            self.shared.state.lock().charge(&self.sources, |loading| loading + extra);
        }
    }

    /// Reports that the values come from `source` alone. The other sources are no longer charged for them.
    pub fn load_only_from(&mut self, source: SourceId) {
        if self.sources[..] == [source] {
            return;
        }
        let others: Vec<_> = self.sources.iter().copied().filter(|other| *other != source).collect();
        self.shared.state.lock().charge(&others, |loading| loading.saturating_sub(self.loading_bytes));
        self.sources = [source].into();
        self.shared.grant();
    }

    /// Splits off a reservation of `bytes`; `None` if this one has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        let loading_bytes = bytes.min(self.loading_bytes);
        self.loading_bytes -= loading_bytes;
        let (sources, shared) = (Arc::clone(&self.sources), Arc::clone(&self.shared));
        let Self { is_kept, is_outside, tenant, .. } = *self;
        Some(Self { bytes, is_kept, is_outside, tenant, sources, loading_bytes, shared })
    }

    /// Adds the bytes of `other`, of the same budget and tenant, to this reservation. They are then charged to no source. Both must
    /// be long-lived, or neither, and for values of the same place.
    pub fn merge(&mut self, mut other: Self) {
        other.loaded();
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Marks the reservation as long-lived. Waiting callers that request more than the rest of the budget are rejected.
    pub fn keep(&mut self) {
        if !self.is_kept {
            self.is_kept = true;
            self.shared.state.lock().kept_bytes += self.bytes;
            self.shared.reject();
            self.shared.grant();
        }
    }

    /// Marks the reservation as long-lived, like [`keep`](Self::keep), and as one for values that are not in the memory tier. The tier
    /// evicts values with the next load, to leave room for them.
    pub fn keep_outside(&mut self) {
        if !self.is_outside {
            self.is_outside = true;
            self.shared.state.lock().outside_bytes += self.bytes;
        }
        self.keep();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.reserved_bytes = state.reserved_bytes.saturating_sub(self.bytes);
            state.charge_tenant(self.tenant, |reserved| reserved.saturating_sub(self.bytes));
            state.kept_bytes -= if self.is_kept { self.bytes } else { 0 };
            state.outside_bytes -= if self.is_outside { self.bytes } else { 0 };
            state.charge(&self.sources, |loading| loading.saturating_sub(self.loading_bytes));
        }
        if self.bytes > 0 {
            self.shared.grant();
        }
    }
}

#[cfg(test)]
mod tests;
