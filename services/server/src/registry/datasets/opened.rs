//! Datasets that callers add at run time: their names, and their URLs in the state.
//!
//! A name is a function of the URL, so that all servers of a state have the same name for the same files. The URLs are in the
//! state, so that a server knows the datasets of tickets after a restart, or from another server.

use forebay_storage::{Documents, State, check_url, shown_url};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::Error;

/// Maximum number of datasets of a server that accepts further ones.
pub(super) const MAX_DATASETS: usize = 1024;
/// Maximum size of a document in the state, in bytes.
const MAX_DOCUMENT_BYTES: u64 = 64 << 10;
/// Maximum length of the readable part of a name.
const MAX_READABLE: usize = 48;

/// A dataset as a caller opened it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Path or URL.
    pub(crate) url: String,
    /// Columns of the key of lookups; empty if the dataset serves none.
    pub(crate) key: Vec<String>,
}

impl Opened {
    /// Name of the dataset: the last part of its URL, and a hash of the URL.
    pub(crate) fn name(&self) -> String {
        let url = self.url.trim_end_matches('/');
        let last = url.rsplit('/').next().unwrap_or_default();
        let readable = last.strip_suffix(".parquet").unwrap_or(last);
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let readable: String = readable.chars().map(legal).take(MAX_READABLE).collect();
        let hash = xxh3_64(url.as_bytes()) >> 16;
        match readable.trim_matches('-') {
            "" => format!("dataset-{hash:012x}"),
            readable => format!("{readable}-{hash:012x}"),
        }
    }

    /// Checks that the URL does not depend on the current directory of a process.
    ///
    /// # Errors
    /// Invalid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_url(&self.url)?;
        if self.url.starts_with('/') || self.url.contains("://") {
            return Ok(());
        }
        let shown = shown_url(&self.url);
        Err(Error::invalid(format!("url: is '{shown}', expected an absolute path or a URL")))
    }
}

/// The opened datasets in the state. Cheap to clone.
///
/// Datasets with a key and datasets without one have documents of their own, because several servers write them at the same
/// time: a document without a key never replaces one with a key.
#[derive(Clone)]
pub(super) struct Record {
    with_key: Documents,
    without_key: Documents,
}

impl Record {
    pub(super) fn new(state: &State) -> Self {
        Self {
            with_key: state.documents("datasets", "keyed-dataset", MAX_DOCUMENT_BYTES),
            without_key: state.documents("datasets", "dataset", MAX_DOCUMENT_BYTES),
        }
    }

    /// Notes that a dataset is open. A key that was noted before stays if `opened` has none.
    ///
    /// # Errors
    /// If the state can't be written.
    pub(super) async fn put(&self, name: &str, opened: &Opened) -> Result<(), Error> {
        let documents = if opened.key.is_empty() { &self.without_key } else { &self.with_key };
        match documents.get::<Opened>(name).await {
            // An earlier version noted keys in the documents without one.
            Ok(Some(before)) if before == *opened || opened.key.is_empty() => Ok(()),
            // A damaged document is replaced.
            Ok(_) | Err(_) => Ok(documents.put(name, opened).await?),
        }
    }

    /// Returns the dataset that was opened as `name` by any server of the state, with its key if any caller gave one.
    ///
    /// # Errors
    /// If the state can't be read.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Opened>, Error> {
        for documents in [&self.with_key, &self.without_key] {
            let opened: Option<Opened> = documents.get(name).await?;
            if let Some(opened) = opened.filter(|opened| opened.name() == name) {
                return Ok(Some(opened));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use forebay_storage::{Config, Location};

    use super::*;

    fn record(folder: &std::path::Path) -> Record {
        let config = Config::default();
        let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
        Record::new(&State::open(location, None, &config))
    }

    fn name(url: &str) -> String {
        Opened { url: url.to_owned(), key: Vec::new() }.name()
    }

    #[test]
    fn names_are_readable_and_differ_for_different_urls() {
        for (url, readable) in [
            ("/data/clicks", "clicks-"),
            ("/data/clicks 2024.parquet", "clicks-2024-"),
            ("s3://bucket/a/b/", "b-"),
            ("s3://bucket", "bucket-"),
            ("/", "dataset-"),
            ("/data/\u{fc}", "dataset-"),
        ] {
            let name = name(url);
            let hash = name.strip_prefix(readable).unwrap_or_else(|| panic!("{name} for {url}"));
            assert_eq!(hash.len(), 12, "{name}");
        }
        assert_eq!(name("/data/clicks"), name("/data/clicks/"));
        assert_ne!(name("/data/clicks"), name("/other/clicks"));
        assert_eq!(name(&format!("/{}", "x".repeat(300))).len(), MAX_READABLE + 13);
    }

    #[tokio::test]
    async fn a_key_is_kept_when_others_open_the_dataset_without_one_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let record = record(folder.path());
        for number in 0..50 {
            let with_key = Opened { url: format!("/data/{number}"), key: vec!["id".to_owned()] };
            let without_key = Opened { key: Vec::new(), ..with_key.clone() };
            let name = with_key.name();
            let (first, second) = tokio::join!(record.put(&name, &without_key), record.put(&name, &with_key));
            first.and(second).unwrap();
            record.put(&name, &without_key).await.unwrap();
            assert_eq!(record.get(&name).await.unwrap(), Some(with_key));
        }
    }

    #[tokio::test]
    async fn a_key_that_an_earlier_version_noted_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened { url: "/data/users".to_owned(), key: vec!["id".to_owned()] };
        let record = record(folder.path());
        record.without_key.put(&opened.name(), &opened).await.unwrap();
        record.put(&opened.name(), &Opened { key: Vec::new(), ..opened.clone() }).await.unwrap();
        assert_eq!(record.get(&opened.name()).await.unwrap(), Some(opened));
    }

    #[test]
    fn relative_paths_are_rejected() {
        let check = |url: &str| Opened { url: url.to_owned(), key: Vec::new() }.check();
        assert!(
            check("data/clicks").unwrap_err().message().contains("'data/clicks', expected an absolute path")
        );
        assert!(check("").is_err());
        for url in
            ["https:/u:SECRET@h/x", "u:SECRET@h/x", "https://h/x.parquet#SECRET", "az://c/x?sig=SECRET"]
        {
            assert!(!check(url).unwrap_err().message().contains("SECRET"), "{url}");
        }
        check("/data").and(check("s3://bucket/data")).unwrap();
    }
}
