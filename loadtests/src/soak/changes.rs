//! A dataset that changes: two files exchange their contents, a copy of a file is added, or an added copy is removed.

use std::{fs, path::Path, sync::Arc};

use anyhow::Context;
use object_store::{ObjectStore, ObjectStoreExt, local::LocalFileSystem, path::Path as Location};

/// Maximum number of added files.
const MAX_ADDED: usize = 3;

/// A folder or a bucket with the files of a dataset.
pub(super) struct Changing {
    store: Arc<dyn ObjectStore>,
    /// The original files.
    files: Vec<Location>,
    added: Vec<Location>,
    changes: u64,
}

impl Changing {
    /// Fills `folder` with hard links to the files below `original`, which is on the same file system.
    pub(super) fn folder(original: &Path, folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir(folder)?;
        let names = names(original)?;
        for name in &names {
            let (from, to) = (original.join(name), folder.join(name));
            fs::hard_link(&from, &to).with_context(|| format!("can't link {}", to.display()))?;
        }
        Ok(Self::new(Arc::new(LocalFileSystem::new_with_prefix(folder)?), names))
    }

    /// Puts the files below `original` into `bucket`.
    pub(super) async fn bucket(original: &Path, bucket: impl ObjectStore) -> anyhow::Result<Self> {
        let names = names(original)?;
        for name in &names {
            let content = fs::read(original.join(name))?;
            bucket.put(&Location::from(name.as_str()), content.into()).await?;
        }
        Ok(Self::new(Arc::new(bucket), names))
    }

    fn new(store: Arc<dyn ObjectStore>, names: Vec<String>) -> Self {
        let files = names.into_iter().map(Location::from).collect();
        Self { store, files, added: Vec::new(), changes: 0 }
    }

    /// Makes one change, selected at random. If it selects one file twice to exchange contents, it changes nothing.
    pub(super) async fn change(&mut self) -> anyhow::Result<()> {
        self.changes += 1;
        match fastrand::u8(0..3) {
            0 if self.added.len() < MAX_ADDED => {
                let added = Location::from(format!("added-{:06}.parquet", self.changes));
                self.store.copy(self.any_file(), &added).await?;
                self.added.push(added);
            }
            1 if !self.added.is_empty() => {
                let removed = self.added.swap_remove(fastrand::usize(0..self.added.len()));
                self.store.delete(&removed).await?;
            }
            _ => {
                let (one, other, temporary) = (self.any_file(), self.any_file(), Location::from("temporary"));
                if one != other {
                    self.store.rename(one, &temporary).await?;
                    self.store.rename(other, one).await?;
                    self.store.rename(&temporary, other).await?;
                }
            }
        }
        Ok(())
    }

    fn any_file(&self) -> &Location {
        &self.files[fastrand::usize(0..self.files.len())]
    }
}

/// Returns the names of the files in `folder` in ascending order.
fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
