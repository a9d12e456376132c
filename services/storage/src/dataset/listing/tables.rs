//! Table formats, whose Parquet files hold the current rows only together with a log.
//!
//! A table keeps superseded files until it is cleaned up. A listing that ignores the log returns their rows as well.

use std::{io, iter::successors, sync::Arc};

use futures::{Stream, StreamExt, future::try_join_all};
use object_store::{ObjectMeta, path::Path};

use crate::{
    Error, Location,
    store::{
        file_system::{FileSystem, Mounts},
        location::LocalReads,
        request::observed,
    },
};

/// Folders in which the formats keep their logs.
const LOGS: [&str; 4] = ["_delta_log", ".hoodie", "_spark_metadata", "metadata"];

/// Maximum number of folders above a dataset that are searched for logs.
const MAX_PARENTS: usize = 8;

/// Maximum number of files of a folder that are searched for one of a log. One listing request returns as many.
const MAX_LISTED: usize = 1000;

/// Checks that a file of a listing, with the path `path` below the dataset, belongs to no log.
///
/// # Errors
/// [`Error::Unsupported`] with the folder of the table and its format.
pub(crate) fn check_file(location: &Location, path: &str) -> Result<(), Error> {
    let Some((folder, format)) = table(path) else { return Ok(()) };
    let url = if folder.is_empty() { location.url().to_owned() } else { location.child_url(folder) };
    Err(unsupported(location, &format!("{url} is {format}, because it holds {path}")))
}

/// Checks that none of the [`MAX_PARENTS`] folders above a dataset holds the log of a table.
///
/// Folders that may not be listed are skipped; for local datasets, all that cannot be listed.
///
/// # Errors
/// [`Error::Unsupported`] with the folder of the nearest table and its format, [`Error::Unavailable`] if the store
/// fails.
pub(crate) async fn check_parents(location: &Location) -> Result<(), Error> {
    let found = match location.local_reads() {
        None => {
            try_join_all(logs(location).map(|log| search(location, log))).await?.into_iter().flatten().next()
        }
        Some(reads) => search_local(location, reads).await,
    };
    let Some(Table { folder, file, format }) = found else { return Ok(()) };
    let detail = format!("the folder /{folder} above it is {format}, because it holds {file}");
    Err(unsupported(location, &detail))
}

/// A table above a dataset: its folder, the path of a file of its log below it, and its format.
struct Table {
    folder: Path,
    file: String,
    format: &'static str,
}

/// Returns the folders that are searched for logs, each as the folder above the dataset and its name below that one.
fn logs(location: &Location) -> impl Iterator<Item = (Path, &'static str)> + use<> {
    let parents = successors(location.root().parent(), Path::parent).take(MAX_PARENTS);
    parents.flat_map(|parent| LOGS.map(|name| (parent.clone(), name)))
}

async fn search(location: &Location, (folder, name): (Path, &'static str)) -> Result<Option<Table>, Error> {
    let log = folder.clone().join(name);
    let objects = location.store().list(Some(&log));
    let found = observed("list", file_of_log(name, &log, objects)).await;
    let found = found.map_err(|error| Error::unavailable(location.url(), &error))?;
    Ok(found.map(|(file, format)| Table { folder, file, format }))
}

/// Searches the folders above a local dataset one after another. One of them may be on another file system, which does
/// not answer. Then its thread and the permit remain in use, so at most one search of a dataset hangs.
async fn search_local(location: &Location, reads: &LocalReads) -> Option<Table> {
    let searching = async {
        let permit = Arc::clone(&reads.parents).acquire_owned().await.ok()?;
        let (location, max_calls) = (location.clone(), reads.file_system_calls);
        let search = tokio::spawn(async move {
            let _permit = permit;
            let mounts = Mounts::read();
            for log in logs(&location) {
                let device = mounts.device(&std::path::Path::new("/").join(log.0.as_ref()));
                let _call = FileSystem::of_device(device, max_calls).permit().await;
                match search(&location, log).await {
                    Ok(None) => {}
                    Ok(found) => return found,
                    Err(error) => {
                        tracing::debug!(%error, "a folder above a dataset could not be searched for tables");
                    }
                }
            }
            None
        });
        search.await.ok()?
    };
    let found = tokio::time::timeout(reads.timeout, searching).await;
    found.unwrap_or_else(|_| {
        tracing::warn!(
            dataset = location.url(),
            "the folders above the dataset were not searched for tables in time"
        );
        None
    })
}

fn unsupported(location: &Location, found: &str) -> Error {
    let detail = format!(
        "{found}, and its data files may contain superseded or deleted rows; export the current rows to Parquet \
         files in a folder outside of the table, and point the dataset at that folder"
    );
    Error::unsupported(location.url(), detail)
}

/// Returns the first of some `objects` in the folder `log` that belongs to a log: its path below the table, and the
/// format. `name` is the name of the folder.
async fn file_of_log(
    name: &str,
    log: &Path,
    objects: impl Stream<Item = object_store::Result<ObjectMeta>>,
) -> object_store::Result<Option<(String, &'static str)>> {
    let mut objects = std::pin::pin!(objects.take(MAX_LISTED));
    while let Some(object) = objects.next().await {
        let object = match object {
            Ok(object) => object,
            Err(error) if cannot_be_listed(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(below) = object.location.as_ref().strip_prefix(log.as_ref()) else { continue };
        if let Some(format) = format(name, below.trim_start_matches('/')) {
            return Ok(Some((format!("{name}{below}"), format)));
        }
    }
    Ok(None)
}

/// Returns true if the caller may not list a folder, or if the store reports that there is no such folder.
fn cannot_be_listed(error: &object_store::Error) -> bool {
    use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
    if matches!(error, NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. }) {
        return true;
    }
    // The type that holds the status of a failed listing is private to `object_store`, but its text is not.
    let text = error.to_string();
    let refused = ["401", "403", "404"].iter().any(|code| text.contains(&format!("status code: {code} ")));
    let causes = successors(std::error::Error::source(error), |cause| cause.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    refused || kinds.any(|kind| kind == io::ErrorKind::PermissionDenied)
}

/// Returns the folder of the outermost table that has a log file at `path`, and the format of the table.
fn table(path: &str) -> Option<(&str, &'static str)> {
    let mut start = 0;
    for name in path.split('/') {
        let end = start + name.len();
        let below = path[end..].trim_start_matches('/');
        if let Some(format) = format(name, below) {
            return Some((path[..start].trim_end_matches('/'), format));
        }
        start = end + 1;
    }
    None
}

/// Returns the format whose log is the folder `name`, which has a file at the path `below`.
fn format(name: &str, below: &str) -> Option<&'static str> {
    match name {
        "_delta_log" => Some("a Delta Lake table"),
        ".hoodie" => Some("an Apache Hudi table"),
        "_spark_metadata" => Some("the output of a Spark streaming query"),
        "metadata" if is_iceberg_metadata(below) => Some("an Apache Iceberg table"),
        _ => None,
    }
}

fn is_iceberg_metadata(name: &str) -> bool {
    // `v3.metadata.json`, `00003-UUID.metadata.json`, and with `.gz` before or after `.metadata.json`.
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let Some(version) = name.strip_suffix(".metadata.json") else { return false };
    let digits = version.strip_prefix('v').unwrap_or(version);
    let digits = digits.split(['-', '.']).next().unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use object_store::{RetryConfig, aws::AmazonS3Builder};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn a_table_is_recognised_by_its_log_at_any_depth() {
        let folder = |path| table(path).map(|(folder, _)| folder);
        assert_eq!(folder("_delta_log/0.json"), Some(""));
        assert_eq!(folder("a/b/_delta_log/_sidecars/0.parquet"), Some("a/b"));
        assert_eq!(folder("a/.hoodie"), Some("a"), "an empty object that represents the folder");
        assert_eq!(folder("a/_spark_metadata/0"), Some("a"));
        assert_eq!(folder("a/metadata/metadata/v1.gz.metadata.json"), Some("a/metadata"));
        assert_eq!(folder("metadata/v1.metadata.json.gz"), Some(""));
        for other in ["metadata", "metadata/v1.json", "metadata/a/v1.metadata.json", "_delta_logs/0.json", ""]
        {
            assert_eq!(folder(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_folder_above_the_dataset_that_may_not_be_listed_is_skipped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            for _ in LOGS {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    connection.read_buf(&mut request).await.unwrap();
                }
                let refusal = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                connection.write_all(refusal.as_bytes()).await.unwrap();
            }
        });
        let store =
            AmazonS3Builder::new().with_bucket_name("b").with_endpoint(endpoint).with_allow_http(true);
        let store = store.with_access_key_id("id").with_secret_access_key("secret");
        let store =
            store.with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }).build().unwrap();
        let location = Location::with_store("s3://b/d", Arc::new(store), "d");
        check_parents(&location).await.unwrap();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_above_the_dataset_that_cannot_be_listed_for_another_reason_is_an_error() {
        let log = Path::from("t/_delta_log");
        let listed = |source: io::Error| {
            let error = object_store::Error::Generic { store: "test", source: source.into() };
            file_of_log("_delta_log", &log, stream::iter([Err(error)]))
        };
        assert_eq!(listed(io::ErrorKind::PermissionDenied.into()).await.unwrap(), None);
        assert!(listed(io::ErrorKind::TimedOut.into()).await.is_err());
        assert!(listed(io::Error::other("status code: 500 Internal Server Error")).await.is_err());
    }
}
