//! Reads the member list from the sources in the setting `members`.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, ensure};
use tokio::io::AsyncReadExt;

use super::source::{Address, Source, parse_file};

/// Maximum length of an address in a file, with its separator, in bytes.
const MAX_LINE_BYTES: u64 = 512;

/// Returns the addresses of all sources, without duplicates.
///
/// # Errors
/// If a source is malformed or can't be read within `timeout`, or if the sources have more than `max_addresses` addresses.
pub(super) async fn list(
    sources: &[Source],
    timeout: Duration,
    max_addresses: usize,
) -> anyhow::Result<Vec<Address>> {
    let mut listed = BTreeSet::new();
    for source in sources {
        let read = tokio::time::timeout(timeout, read(source, max_addresses)).await;
        let addresses = read.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {timeout:?}")));
        listed.extend(addresses.with_context(|| source.to_string())?);
        let (found, most) = (listed.len(), max_addresses);
        ensure!(found <= most, "{source}: more than {most} addresses (membership.max_members)");
    }
    Ok(listed.into_iter().collect())
}

async fn read(source: &Source, max_addresses: usize) -> anyhow::Result<Vec<Address>> {
    match source {
        Source::Server(address) => Ok(vec![address.clone()]),
        Source::File(path) => parse_file(&contents(path, max_addresses).await?),
        Source::Dns { name, port } => {
            let found = tokio::net::lookup_host((name.as_str(), *port)).await.context("lookup failed")?;
            Ok(found.map(|found| Address { text: found.to_string(), host: name.clone() }).collect())
        }
    }
}

async fn contents(path: &Path, max_addresses: usize) -> anyhow::Result<String> {
    let most = MAX_LINE_BYTES.saturating_mul(max_addresses as u64);
    let file = tokio::fs::File::open(path).await.context("can't open the file")?;
    let mut contents = String::new();
    let read = file.take(most + 1).read_to_string(&mut contents).await.context("can't read the file")?;
    ensure!(read as u64 <= most, "the file has more than {most} bytes");
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    async fn texts(sources: &[Source]) -> anyhow::Result<Vec<String>> {
        let listed = list(sources, TIMEOUT, 3).await?;
        Ok(listed.into_iter().map(|address| address.text).collect())
    }

    #[tokio::test]
    async fn a_file_that_is_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("members"), folder.path().join("new"));
        let sources = [Source::File(path.clone())];
        let error = format!("{:#}", texts(&sources).await.unwrap_err());
        assert!(error.contains("can't open the file") && error.contains("members"), "{error}");
        for (contents, expected) in [("a:1\nb:2\n", vec!["a:1", "b:2"]), ("c:3", vec!["c:3"]), ("", vec![])] {
            std::fs::write(&new, contents).unwrap();
            std::fs::rename(&new, &path).unwrap();
            assert_eq!(texts(&sources).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn several_sources_are_merged_without_duplicates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "b:2,a:1").unwrap();
        let server = Source::Server(Address::parse("a:1").unwrap());
        assert_eq!(texts(&[server, Source::File(path)]).await.unwrap(), ["a:1", "b:2"]);
    }

    #[tokio::test]
    async fn too_many_addresses_and_too_long_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        std::fs::write(&path, "a:1,b:1,c:1,d:1").unwrap();
        let error = format!("{:#}", texts(&[Source::File(path.clone())]).await.unwrap_err());
        assert!(error.contains("more than 3 addresses"), "{error}");
        std::fs::write(&path, "#".repeat(2000)).unwrap();
        let error = format!("{:#}", texts(&[Source::File(path)]).await.unwrap_err());
        assert!(error.contains("more than 1536 bytes"), "{error}");
    }

    #[tokio::test]
    async fn a_name_has_all_its_addresses_and_keeps_its_name_for_certificates() {
        let source = Source::Dns { name: "localhost".to_owned(), port: 8815 };
        let listed = list(&[source], TIMEOUT, 16).await.unwrap();
        assert!(listed.iter().any(|address| address.text == "127.0.0.1:8815"), "{listed:?}");
        assert!(listed.iter().all(|address| address.host == "localhost"), "{listed:?}");
    }
}
