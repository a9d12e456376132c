//! Removal of the oldest row counts from the state: callers make one object with each new filter or key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use object_store::{ObjectMeta, ObjectStoreExt, path::Path};

use crate::{Error, Location, store::request};

/// Folder of the manifests and counts, with one folder per dataset.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// Extension of the objects of counts.
pub(crate) const EXTENSION: &str = "counts";

/// Decides when to look for old counts. Cheap to clone; clones share the number of counts that were stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    stored: Arc<AtomicUsize>,
}

impl Due {
    /// Notes that counts were stored. Returns true for the first ones of a process, and then once for each sixteenth of
    /// `max_counts`.
    pub(crate) fn note(&self, max_counts: usize) -> bool {
        self.stored.fetch_add(1, Ordering::Relaxed).is_multiple_of(max_counts.div_ceil(16).max(1))
    }
}

/// Removes the counts of each dataset, of all its snapshots together, except the `max_counts` most recently written.
///
/// # Errors
/// [`Error::Unavailable`] when the store fails.
pub(crate) async fn remove(location: &Location, max_counts: usize) -> Result<(), Error> {
    let (path, url) = location.child(SNAPSHOTS)?;
    let unavailable = |error| Error::unavailable(&url, &error).of_state(location.url());
    let is_counts = |meta: &ObjectMeta| meta.location.extension() == Some(EXTENSION);
    let counts = request::list(location, &path, is_counts).await.map_err(unavailable)?;
    for path in beyond(counts, max_counts) {
        let store = Arc::clone(location.store());
        let deletion = async move { store.delete(&path).await };
        match request::in_time(location, 0, deletion).await {
            // Another server may have removed it.
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(unavailable(error)),
        }
    }
    Ok(())
}

/// Paths of all but the `max_counts` most recently written objects of each folder.
fn beyond(counts: Vec<ObjectMeta>, max_counts: usize) -> Vec<Path> {
    let mut folders: BTreeMap<String, Vec<ObjectMeta>> = BTreeMap::new();
    for meta in counts {
        let path = meta.location.as_ref();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        folders.entry(folder).or_default().push(meta);
    }
    let mut old = Vec::new();
    for mut of_folder in folders.into_values() {
        of_folder
            .sort_by(|a, b| b.last_modified.cmp(&a.last_modified).then_with(|| a.location.cmp(&b.location)));
        old.extend(of_folder.into_iter().skip(max_counts).map(|meta| meta.location));
    }
    old
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn the_oldest_counts_of_each_dataset_are_beyond_the_limit() {
        let counts = |path: &str, second| ObjectMeta {
            location: path.into(),
            last_modified: DateTime::from_timestamp(second, 0).unwrap(),
            size: 1,
            e_tag: None,
            version: None,
        };
        let all = vec![
            counts("s/snapshots/a/1.x.counts", 3),
            counts("s/snapshots/a/1.y.counts", 1),
            counts("s/snapshots/a/2.x.counts", 2),
            counts("s/snapshots/b/1.x.counts", 0),
        ];
        let old = |max| beyond(all.clone(), max).into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(old(2), ["s/snapshots/a/1.y.counts"]);
        assert_eq!(old(1), ["s/snapshots/a/2.x.counts", "s/snapshots/a/1.y.counts"]);
        assert_eq!(old(3), [""; 0]);
    }

    #[test]
    fn old_counts_are_looked_for_at_first_and_then_from_time_to_time() {
        let due = Due::default();
        let found: Vec<bool> = (0..9).map(|_| due.clone().note(64)).collect();
        assert_eq!(found, [true, false, false, false, true, false, false, false, true]);
        assert!((0..3).all(|_| Due::default().note(0)));
    }
}
