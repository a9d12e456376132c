//! A loaded snapshot: its index and its views.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forebay_loader::{Error, LookupReservation, LookupRows, Tenant};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::index::KeyIndex;

/// A snapshot that lookups are answered from.
pub(super) struct LoadedSnapshot {
    pub(super) reader: Reader,
    pub(super) index: Arc<KeyIndex>,
    /// Memory of the index.
    pub(super) _reservation: LookupReservation,
    pub(super) views: Mutex<HashMap<ViewKey, View>>,
    /// Time at which the snapshot became the current one, as [`View::last_use`].
    pub(super) since: u64,
}

/// Rows of a snapshot for one selection, loaded on first use.
#[derive(Clone)]
pub(super) struct View {
    pub(super) selection: Arc<v1::Train>,
    pub(super) rows: Rows,
    /// Time of the last use in microseconds since the dataset was created; 0 for a view without uses.
    pub(super) last_use: Arc<AtomicU64>,
    /// True if every snapshot has the view and keeps it.
    pub(super) is_declared: bool,
    /// Tenant that loaded the view.
    pub(super) loaded_by: Tenant,
}

/// Rows of a view, once they are loaded.
pub(super) type Rows = Arc<OnceCell<Arc<LookupRows>>>;

/// Identifies a view: its encoded selection.
pub(super) type ViewKey = Vec<u8>;

impl View {
    /// A view that is not loaded, of `tenant`.
    pub(super) fn new(selection: v1::Train, tenant: Tenant) -> Self {
        Self {
            selection: Arc::new(selection),
            rows: Arc::default(),
            last_use: Arc::default(),
            is_declared: false,
            loaded_by: tenant,
        }
    }
}

impl LoadedSnapshot {
    pub(super) fn id(&self) -> &str {
        self.reader.snapshot().id()
    }

    /// Returns the view with `key`. A new one belongs to `tenant` and is not loaded.
    pub(super) fn view(&self, key: &[u8], tenant: Tenant) -> Result<View, Error> {
        let known = self.views.lock().get(key).cloned();
        if let Some(view) = known {
            return Ok(view);
        }
        let view = View::new(selection(key)?, tenant);
        // Another call may have added the view in the meantime.
        Ok(self.views.lock().entry(key.to_vec()).or_insert(view).clone())
    }

    /// Returns a guard for a call that loads the view with `key` and these rows, or waits for them.
    pub(super) fn loading<'a>(&'a self, key: &'a [u8], rows: Rows) -> Loading<'a> {
        Loading { snapshot: self, key, rows }
    }

    /// Number of loaded views.
    pub(super) fn loaded_views(&self) -> u64 {
        self.views.lock().values().filter(|view| view.rows.initialized()).count() as u64
    }

    /// Returns the loaded views that were used since the snapshot became the current one; if none was used, all loaded views.
    pub(super) fn used_views(&self) -> HashMap<ViewKey, View> {
        let mut views = self.views.lock().clone();
        views.retain(|_, view| view.rows.initialized());
        let is_used = |view: &View| view.last_use.load(Ordering::Relaxed) > self.since;
        if views.values().any(is_used) {
            views.retain(|_, view| is_used(view));
        }
        views
    }
}

/// A call that loads the rows of a view, or waits until another call has loaded them. If it ends without rows, and no other call waits
/// for them, the view is removed: views that are not loaded cannot be evicted.
pub(super) struct Loading<'a> {
    snapshot: &'a LoadedSnapshot,
    key: &'a [u8],
    pub(super) rows: Rows,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if self.rows.initialized() {
            return;
        }
        let mut views = self.snapshot.views.lock();
        // The view and this call.
        let is_last = |view: &View| Arc::ptr_eq(&view.rows, &self.rows) && Arc::strong_count(&self.rows) <= 2;
        if views.get(self.key).is_some_and(is_last) {
            views.remove(self.key);
        }
    }
}

/// Returns the key of the view that is evicted after `tenant` has loaded the view with `key`, if there are more than `max` undeclared
/// views, or more of `tenant` than its share: seven eighths, or all without tokens. It is the least recently used one of `tenant`. If
/// `tenant` has no other, and there are too many, it is one of the tenant with the most views. Views that are being loaded do not count.
pub(super) fn surplus(
    views: &HashMap<ViewKey, View>,
    key: &[u8],
    tenant: Tenant,
    max: usize,
) -> Option<ViewKey> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for view in views.values().filter(|view| !view.is_declared && view.rows.initialized()) {
        *counts.entry(view.loaded_by.id()).or_default() += 1;
    }
    let own = counts.get(&tenant.id()).copied().unwrap_or(0);
    let share = if tenant.id() == Tenant::SERVER.id() { max } else { max - max / 8 };
    let are_too_many = counts.values().sum::<usize>() > max;
    if own <= share && !are_too_many {
        return None;
    }
    let is_evictable = |(other, view): &(&ViewKey, &View)| {
        other.as_slice() != key
            && view.rows.initialized()
            && !view.is_declared
            && (are_too_many || view.loaded_by.id() == tenant.id())
    };
    let order = |(other, view): &(&ViewKey, &View)| {
        let (owner, last_use) = (view.loaded_by.id(), view.last_use.load(Ordering::Relaxed));
        (owner != tenant.id(), Reverse(counts.get(&owner).copied()), last_use, (*other).clone())
    };
    views.iter().filter(is_evictable).min_by_key(order).map(|(key, _)| key.clone())
}

/// Returns the key of a selection's view.
pub(super) fn view_key(selection: &v1::Train) -> ViewKey {
    Encoding::Protobuf.encode(selection)
}

/// Returns the selection of the view with `key`.
fn selection(key: &[u8]) -> Result<v1::Train, Error> {
    let decoded = Encoding::Protobuf.decode("Train", key);
    decoded.map_err(|error| Error::Internal(format!("the key of a view: {error}")))
}
