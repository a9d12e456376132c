//! A loaded snapshot: its index and its views.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use forebay_loader::{LookupReservation, LookupRows};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use tokio::sync::OnceCell;

use crate::index::KeyIndex;

/// A snapshot that lookups are answered from.
pub(super) struct LoadedSnapshot {
    pub(super) reader: Reader,
    pub(super) index: Arc<KeyIndex>,
    /// Memory of the index.
    _reservation: LookupReservation,
    views: Mutex<HashMap<ViewKey, View>>,
}

/// Rows of a snapshot for one selection, loaded on first use.
#[derive(Clone)]
pub(super) struct View {
    pub(super) selection: v1::Train,
    pub(super) rows: Arc<OnceCell<Arc<LookupRows>>>,
    /// Logical time of the last use; 0 for a view without uses.
    pub(super) last_use: Arc<AtomicU64>,
}

/// Identifies a view: its encoded selection.
pub(super) type ViewKey = Vec<u8>;

impl View {
    /// A view that is not loaded.
    pub(super) fn new(selection: v1::Train) -> Self {
        Self { selection, rows: Arc::default(), last_use: Arc::default() }
    }
}

impl LoadedSnapshot {
    pub(super) fn new(
        reader: Reader,
        index: Arc<KeyIndex>,
        reservation: LookupReservation,
        views: HashMap<ViewKey, View>,
    ) -> Self {
        Self { reader, index, _reservation: reservation, views: Mutex::new(views) }
    }

    pub(super) fn id(&self) -> &str {
        self.reader.snapshot().id()
    }

    /// Returns the loaded views that were used; if none was used, all loaded views.
    pub(super) fn used_views(&self) -> HashMap<ViewKey, View> {
        let mut views = self.views().clone();
        views.retain(|_, view| view.rows.initialized());
        if views.values().any(|view| view.last_use.load(Ordering::Relaxed) > 0) {
            views.retain(|_, view| view.last_use.load(Ordering::Relaxed) > 0);
        }
        views
    }

    pub(super) fn views(&self) -> MutexGuard<'_, HashMap<ViewKey, View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the key of a selection's view.
pub(super) fn view_key(selection: &v1::Train) -> ViewKey {
    Encoding::Protobuf.encode(selection)
}
