//! A dataset whose files change: hard links to generated files, which exchange their contents, are added and are removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Maximum number of added files.
const MAX_ADDED: usize = 3;

/// A folder of hard links to the files of a dataset.
pub(super) struct Changing {
    folder: PathBuf,
    /// Names of the original files.
    files: Vec<String>,
    added: Vec<String>,
    changes: u64,
}

impl Changing {
    /// Fills `folder` with hard links to the files below `original`, which is on the same file system.
    pub(super) fn new(original: &Path, folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&folder)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(original).with_context(|| format!("can't list {}", original.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let (from, to) = (original.join(&name), folder.join(&name));
            fs::hard_link(&from, &to).with_context(|| format!("can't link {}", to.display()))?;
            files.push(name);
        }
        files.sort();
        Ok(Self { folder, files, added: Vec::new(), changes: 0 })
    }

    /// Makes one change, selected at random: exchanges the contents of two files, adds a copy of a file, or removes one of these
    /// copies.
    pub(super) fn change(&mut self) -> anyhow::Result<()> {
        self.changes += 1;
        match fastrand::u8(0..3) {
            0 if self.added.len() < MAX_ADDED => {
                let name = format!("added-{:06}.parquet", self.changes);
                fs::hard_link(self.folder.join(self.any_file()), self.folder.join(&name))?;
                self.added.push(name);
            }
            1 if !self.added.is_empty() => {
                let name = self.added.swap_remove(fastrand::usize(0..self.added.len()));
                fs::remove_file(self.folder.join(name))?;
            }
            _ => {
                let (one, other) = (self.folder.join(self.any_file()), self.folder.join(self.any_file()));
                let temporary = self.folder.join("temporary");
                if one != other {
                    fs::rename(&one, &temporary)?;
                    fs::rename(&other, &one)?;
                    fs::rename(&temporary, &other)?;
                }
            }
        }
        Ok(())
    }

    fn any_file(&self) -> &str {
        &self.files[fastrand::usize(0..self.files.len())]
    }
}
