//! Small documents that are kept in the state for later: one object each, by a name of the caller's, in a folder a kind.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::PutMode;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Location, State, envelope::Envelope, request};

/// The documents of one kind, at `<folder>/<name>.<kind>` in the state. Cheap to clone.
///
/// A name holds letters, digits, `-` and `_` alone.
#[derive(Clone, Debug)]
pub struct Records {
    location: Location,
    folder: &'static str,
    envelope: Envelope,
    max_bytes: u64,
}

/// A document as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its name.
    pub name: String,
    /// Bytes of it, with what seals it.
    pub bytes: u64,
    /// When it was written last.
    pub written: DateTime<Utc>,
}

impl State {
    /// The documents of a kind, each of at most `max_bytes`.
    pub fn records(&self, folder: &'static str, kind: &'static str, max_bytes: u64) -> Records {
        let location = self.location().clone();
        Records { location, folder, envelope: Envelope { kind, version: 1 }, max_bytes }
    }
}

impl Records {
    /// All of them, the one that was written last first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn list(&self) -> Result<Vec<Recorded>, Error> {
        let (path, url) = (self.location.child(self.folder)?, self.location.child_url(self.folder));
        let suffix = format!(".{}", self.envelope.kind);
        let mut objects = self.location.store().list(Some(&path));
        let mut found = Vec::new();
        loop {
            let meta = match objects.try_next().await {
                Ok(Some(meta)) => meta,
                // A folder that nothing was written to yet.
                Ok(None) | Err(object_store::Error::NotFound { .. }) => break,
                Err(error) => return Err(request::unavailable(&url, error)),
            };
            let name = meta.location.filename().and_then(|name| name.strip_suffix(&suffix));
            let Some(name) = name.filter(|name| is_name(name)) else { continue };
            found.push(Recorded { name: name.to_owned(), bytes: meta.size, written: meta.last_modified });
        }
        found.sort_by(|a, b| b.written.cmp(&a.written).then_with(|| a.name.cmp(&b.name)));
        Ok(found)
    }

    /// The document of that name, if there is one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is truncated, altered or foreign, [`Error::Limit`] for one that is too long,
    /// [`Error::Unavailable`] when the store fails.
    pub async fn find<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        if !is_name(name) {
            return Ok(None);
        }
        let (relative, url) = self.place(name);
        let path = self.location.child(&relative)?;
        let Some(meta) = request::head(&self.location, &path, &url).await? else { return Ok(None) };
        self.check_length(&url, meta.size)?;
        let Some(sealed) = request::get(&self.location, &path, &url).await? else { return Ok(None) };
        let json = self.envelope.open(&sealed).map_err(|detail| Error::corrupt(&url, detail))?;
        serde_json::from_slice(&json).map(Some).map_err(|error| Error::corrupt(&url, error.to_string()))
    }

    /// Keeps a document, in the place of an older one of that name.
    ///
    /// # Errors
    /// [`Error::Limit`] for one that is too long, [`Error::Invalid`] for a name that is none, [`Error::Unavailable`] when the
    /// store fails.
    pub async fn keep(&self, name: &str, document: &impl Serialize) -> Result<(), Error> {
        let (relative, url) = self.place(name);
        let invalid = |detail: String| Error::Invalid { url: url.clone(), detail };
        if !is_name(name) {
            return Err(invalid(format!("'{name}' is no name of a document")));
        }
        let json = serde_json::to_vec(document).map_err(|error| invalid(error.to_string()))?;
        let sealed = self.envelope.seal(&json);
        self.check_length(&url, sealed.len() as u64)?;
        let path = self.location.child(&relative)?;
        request::put(&self.location, &path, &url, sealed, PutMode::Overwrite).await
    }

    /// Forgets the document of that name, if there is one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let (relative, url) = self.place(name);
        let path = self.location.child(&relative)?;
        match object_store::ObjectStoreExt::delete(self.location.store(), &path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(Error::Unavailable { location: url, source: Arc::new(source) }),
        }
    }

    fn place(&self, name: &str) -> (String, String) {
        let relative = format!("{}/{name}.{}", self.folder, self.envelope.kind);
        let url = self.location.child_url(&relative);
        (relative, url)
    }

    fn check_length(&self, url: &str, bytes: u64) -> Result<(), Error> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let what = "bytes of one document";
        Err(Error::Limit { location: url.to_owned(), what, limit: self.max_bytes, found: bytes })
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(legal)
}

#[cfg(test)]
mod tests;
