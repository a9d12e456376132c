//! Small named JSON documents in the durable state: one object per document, one folder per kind.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::{ObjectMeta, PutMode};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Error, Location, State,
    store::{envelope::Envelope, local_object, request, retries::tracked},
};

/// The documents of one kind, stored as `<folder>/<name>.<kind>`. Cheap to clone.
///
/// A name consists of ASCII letters, digits, `-` and `_`.
#[derive(Clone, Debug)]
pub struct Documents {
    location: Location,
    folder: &'static str,
    envelope: Envelope,
    max_bytes: u64,
}

/// Metadata of a listed document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentMeta {
    /// Name of the document.
    pub name: String,
    /// Size of the stored object in bytes, including its envelope.
    pub bytes: u64,
    /// Time of the last write.
    pub last_modified: DateTime<Utc>,
    /// Entity tag of the stored object, if the store has them.
    pub e_tag: Option<String>,
}

impl DocumentMeta {
    fn of(name: String, meta: ObjectMeta) -> Self {
        Self { name, bytes: meta.size, last_modified: meta.last_modified, e_tag: meta.e_tag }
    }
}

impl State {
    /// Returns the documents of one kind. `max_bytes` is the maximum size of each, including its envelope.
    pub fn documents(&self, folder: &'static str, kind: &'static str, max_bytes: u64) -> Documents {
        let location = self.location().clone();
        Documents { location, folder, envelope: Envelope { kind, version: 1 }, max_bytes }
    }
}

impl Documents {
    /// Lists the documents, the most recently written first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn list(&self) -> Result<Vec<DocumentMeta>, Error> {
        tracked(self.walk()).await.0
    }

    async fn walk(&self) -> Result<Vec<DocumentMeta>, Error> {
        let (path, url) = self.location.child(self.folder)?;
        let suffix = format!(".{}", self.envelope.kind);
        let name_of = |meta: &ObjectMeta| {
            let name = meta.location.filename()?.strip_suffix(&suffix)?;
            is_name(name).then(|| name.to_owned())
        };
        let listed = request::list(&self.location, &path, |meta| name_of(meta).is_some()).await;
        let mut found = Vec::new();
        for meta in listed.map_err(|error| self.failed(Error::unavailable(&url, &error)))? {
            let Some(name) = name_of(&meta) else { continue };
            found.push(DocumentMeta::of(name, meta));
        }
        found.sort_by(|a, b| b.last_modified.cmp(&a.last_modified).then_with(|| a.name.cmp(&b.name)));
        Ok(found)
    }

    /// Returns the metadata of the document `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn head(&self, name: &str) -> Result<Option<DocumentMeta>, Error> {
        if !is_name(name) {
            return Ok(None);
        }
        let (path, url) = self.location.child(&self.path(name))?;
        let meta = request::head(&self.location, &path, &url).await.map_err(|error| self.failed(error))?;
        Ok(meta.map(|meta| DocumentMeta::of(name.to_owned(), meta)))
    }

    /// Reads the document `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a document that is truncated, altered or of another kind, [`Error::Limit`] for one that
    /// exceeds the maximum size, [`Error::Unavailable`] when the store fails.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(json) = self.get_bytes(name).await? else { return Ok(None) };
        let corrupt = |error: serde_json::Error| {
            Error::corrupt(self.location.child_url(&self.path(name)), error.to_string())
        };
        serde_json::from_slice(&json).map(Some).map_err(corrupt)
    }

    /// Reads the bytes of the document `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_bytes(&self, name: &str) -> Result<Option<Bytes>, Error> {
        let Some(meta) = self.head(name).await? else { return Ok(None) };
        let (path, url) = self.location.child(&self.path(name))?;
        self.check_length(&url, meta.bytes)?;
        let sealed = request::get(&self.location, &path, &url).await.map_err(|error| self.failed(error))?;
        let Some(sealed) = sealed else { return Ok(None) };
        self.envelope.open(&sealed).map(Some).map_err(|detail| Error::corrupt(&url, detail))
    }

    /// Writes the document `name`, replacing an existing one.
    ///
    /// # Errors
    /// [`Error::Limit`] for a document that exceeds the maximum size, [`Error::Invalid`] for an invalid name,
    /// [`Error::Unavailable`] when the store fails.
    pub async fn put(&self, name: &str, document: &impl Serialize) -> Result<(), Error> {
        self.write(name, document, PutMode::Overwrite).await
    }

    /// Writes bytes as the document `name`, replacing an existing one.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.write_bytes(name, bytes, PutMode::Overwrite).await
    }

    /// Writes the document `name`. With [`PutMode::Create`] an existing document stays.
    async fn write(&self, name: &str, document: &impl Serialize, mode: PutMode) -> Result<(), Error> {
        let json = serde_json::to_vec(document).map_err(|error| Error::Invalid {
            url: self.location.child_url(&self.path(name)),
            detail: error.to_string(),
        })?;
        self.write_bytes(name, &json, mode).await
    }

    async fn write_bytes(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<(), Error> {
        let invalid =
            |detail: String| Error::Invalid { url: self.location.child_url(&self.path(name)), detail };
        if !is_name(name) {
            return Err(invalid(format!(
                "invalid document name '{name}', expected letters, digits, '-' and '_'"
            )));
        }
        let sealed = self.envelope.seal(bytes);
        let (path, url) = self.location.child(&self.path(name))?;
        self.check_length(&url, sealed.len() as u64)?;
        request::put(&self.location, &path, &url, sealed, mode).await.map_err(|error| self.failed(error))
    }

    /// Writes the document `name` if it does not exist, and returns the stored one. Of several concurrent calls, one writes, and all
    /// return the same document.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put) and [`get`](Self::get); [`Error::Unavailable`] if the document was deleted in the meantime.
    pub async fn get_or_create<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        document: &T,
    ) -> Result<T, Error> {
        if let Some(stored) = self.get(name).await? {
            return Ok(stored);
        }
        self.write(name, document, PutMode::Create).await?;
        let missing = || {
            let location = self.location.child_url(&self.path(name));
            let source: Box<dyn std::error::Error + Send + Sync> =
                "it was deleted after it was written".into();
            Error::Unavailable { location, source: Arc::from(source) }
        };
        self.get(name).await?.ok_or_else(missing)
    }

    /// Deletes the document `name`, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let (path, url) = self.location.child(&self.path(name))?;
        let store = Arc::clone(self.location.store());
        let deletion = async move { object_store::ObjectStoreExt::delete(&store, &path).await };
        match tracked(request::in_time(&self.location, 0, deletion)).await.0 {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(Error::unavailable(url, &error))),
        }
    }

    /// Removes the temporary files that interrupted writes of documents have left in the folder, if they were last written more than `age` ago.
    /// Object stores discard interrupted writes themselves.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails, or with the first file that can't be removed. All others are removed.
    pub async fn remove_interrupted(&self, age: Duration) -> Result<(), Error> {
        if self.location.local_reads().is_none() {
            return Ok(());
        }
        let (path, url) = self.location.child(self.folder)?;
        let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let removal = local_object::remove_interrupted(path, before);
        let removed = request::in_time(&self.location, 0, removal).await;
        removed.map_err(|error| self.failed(Error::unavailable(url, &error)))
    }

    fn failed(&self, error: Error) -> Error {
        error.of_state(self.location.url())
    }

    /// Path below the state's location.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}.{}", self.folder, self.envelope.kind)
    }

    fn check_length(&self, url: &str, bytes: u64) -> Result<(), Error> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        Err(Error::limit(url, "size of the document in bytes", self.max_bytes, bytes))
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(legal)
}

#[cfg(test)]
mod tests;
