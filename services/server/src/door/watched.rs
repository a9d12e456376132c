//! A value that is read from files, and read again when they change.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;

use crate::events::{Events, Kind, Note};

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync>;

/// What the files say; what they said before while they make no sense.
pub(crate) struct Watched<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    read: RwLock<Vec<Vec<u8>>>,
    current: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads `files`; `parse` gets their contents in the same order.
    ///
    /// # Errors
    /// When one can't be read, or `parse` fails.
    pub(super) fn read(
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let read = contents(&files)?;
        let current = parse(&read).with_context(|| names(&files))?;
        let (read, current) = (RwLock::new(read), RwLock::new(Arc::new(current)));
        Ok(Self { files, parse: Box::new(parse), read, current })
    }

    /// What the files said when they last made sense.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the files every `interval`; never returns. What makes no sense is noted once, and changes nothing.
    pub(crate) async fn watch(self: Arc<Self>, interval: Duration, events: Events) {
        let mut readable = true;
        loop {
            tokio::time::sleep(interval).await;
            let this = Arc::clone(&self);
            // A panic in there is a reload that did not happen.
            let looked = tokio::task::spawn_blocking(move || this.look()).await;
            match looked.unwrap_or_else(|error| Err(error.into())) {
                Ok(changed) => {
                    readable = true;
                    if changed {
                        tracing::info!(files = names(&self.files), "read again");
                    }
                }
                Err(error) => {
                    metrics::counter!("forebay_reload_errors_total").increment(1);
                    if std::mem::replace(&mut readable, false) {
                        let words = format!("what was read before still holds: {error:#}");
                        events.note(Note::new(Kind::ReloadFailed, &words));
                    }
                }
            }
        }
    }

    /// Reads the files again; whether that changed anything.
    ///
    /// # Errors
    /// When one can't be read, or makes no sense.
    pub(super) fn look(&self) -> anyhow::Result<bool> {
        let read = contents(&self.files)?;
        if *self.read.read().unwrap_or_else(PoisonError::into_inner) == read {
            return Ok(false);
        }
        let current = Arc::new((self.parse)(&read).with_context(|| names(&self.files))?);
        *self.read.write().unwrap_or_else(PoisonError::into_inner) = read;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
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
