//! A value that is parsed from files and reloaded when they change.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use parking_lot::RwLock;

/// Time for which changed files must remain the same before they are used, because a program may still be writing them.
const SETTLE_TIME: Duration = Duration::from_millis(200);

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync>;

/// A value parsed from files. If the files become invalid, or contain nothing any more, the previous value is kept.
pub(crate) struct Watched<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    read: RwLock<Vec<Vec<u8>>>,
    current: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads `files`; `parse` receives their contents in the same order.
    ///
    /// # Errors
    /// If a file can't be read, or `parse` fails.
    pub(super) fn read(
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let read = contents(&files)?;
        let current = parse(&read).with_context(|| names(&files))?;
        let (read, current) = (RwLock::new(read), RwLock::new(Arc::new(current)));
        Ok(Self { files, parse: Box::new(parse), read, current })
    }

    /// Value of the last valid contents.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }

    /// Reloads the files every `interval`; never returns. An invalid change is ignored and passed to `failed` once.
    pub(crate) async fn watch(self: Arc<Self>, interval: Duration, failed: impl Fn(&anyhow::Error) + Send) {
        let mut readable = true;
        loop {
            tokio::time::sleep(interval).await;
            let this = Arc::clone(&self);
            // A panic counts as a failed reload.
            let reloaded = tokio::task::spawn_blocking(move || this.reload()).await;
            match reloaded.unwrap_or_else(|error| Err(error.into())) {
                Ok(changed) => {
                    readable = true;
                    if changed {
                        tracing::info!(files = names(&self.files), "credentials reloaded");
                    }
                }
                Err(error) => {
                    metrics::counter!("forebay_reload_errors_total").increment(1);
                    if std::mem::replace(&mut readable, false) {
                        failed(&error);
                    }
                }
            }
        }
    }

    /// Reloads the files. Returns true if the value changed. Files that are being written are left for the next call. Blocks.
    ///
    /// # Errors
    /// If a file can't be read or is invalid.
    pub(super) fn reload(&self) -> anyhow::Result<bool> {
        let read = contents(&self.files)?;
        if *self.read.read() == read {
            return Ok(false);
        }
        std::thread::sleep(SETTLE_TIME);
        if contents(&self.files)? != read {
            return Ok(false);
        }
        let current = Arc::new((self.parse)(&read).with_context(|| names(&self.files))?);
        *self.read.write() = read;
        *self.current.write() = current;
        Ok(true)
    }
}

fn contents(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<u8>>> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("can't read {}", path.display()));
    files.iter().map(read).collect()
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}
