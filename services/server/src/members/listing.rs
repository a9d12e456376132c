//! Reads the member list from the sources in the setting `members`.

use std::{collections::BTreeSet, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, ensure};
use tokio::io::AsyncReadExt;

use super::source::{Address, Source, parse_file};

/// Maximum length of an address in a file, with its separator, in bytes.
const MAX_LINE_BYTES: u64 = 512;

/// Addresses of all sources.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Addresses in ascending order, without duplicates.
    pub(super) addresses: Vec<Address>,
    /// Results of DNS that are no addresses of members, because they are valid only on one network interface of this machine.
    pub(super) scoped: BTreeSet<SocketAddr>,
}

/// Returns the addresses of all sources.
///
/// # Errors
/// If a source is malformed or can't be read within `timeout`, or if the sources have more than `max_addresses` addresses.
pub(super) async fn list(
    sources: &[Source],
    timeout: Duration,
    max_addresses: usize,
) -> anyhow::Result<Listed> {
    let (mut listed, mut scoped) = (BTreeSet::new(), BTreeSet::new());
    for source in sources {
        let read = tokio::time::timeout(timeout, read(source, max_addresses)).await;
        let read = read.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {timeout:?}")));
        let read = read.with_context(|| source.to_string())?;
        listed.extend(read.addresses);
        scoped.extend(read.scoped);
        let (found, most) = (listed.len(), max_addresses);
        ensure!(found <= most, "{source}: more than {most} addresses (membership.max_members)");
    }
    Ok(Listed { addresses: listed.into_iter().collect(), scoped })
}

async fn read(source: &Source, max_addresses: usize) -> anyhow::Result<Listed> {
    let addresses = match source {
        Source::Server(address) => vec![address.clone()],
        Source::File(path) => {
            let addresses = parse_file(&contents(path, max_addresses).await?)?;
            ensure!(!addresses.is_empty(), "the file has no address, expected at least that of this server");
            addresses
        }
        Source::Dns { name, port } => {
            let found = tokio::net::lookup_host((name.as_str(), *port)).await.context("lookup failed")?;
            return Ok(resolved(name, found));
        }
    };
    Ok(Listed { addresses, scoped: BTreeSet::new() })
}

/// Returns the addresses to which `name` was resolved. Scoped IPv6 addresses are apart: other servers and clients can't use them.
fn resolved(name: &str, found: impl Iterator<Item = SocketAddr>) -> Listed {
    let is_scoped = |found: &SocketAddr| matches!(found, SocketAddr::V6(found) if found.scope_id() != 0);
    let (scoped, usable): (Vec<_>, Vec<_>) = found.partition(is_scoped);
    let address = |found: SocketAddr| Address { text: found.to_string(), host: name.to_owned() };
    Listed { addresses: usable.into_iter().map(address).collect(), scoped: scoped.into_iter().collect() }
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

    const TIMEOUT: Duration = Duration::from_secs(60);

    async fn texts(sources: &[Source]) -> anyhow::Result<Vec<String>> {
        let listed = list(sources, TIMEOUT, 3).await?;
        Ok(listed.addresses.into_iter().map(|address| address.text).collect())
    }

    #[tokio::test]
    async fn a_file_that_is_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("members"), folder.path().join("new"));
        let sources = [Source::File(path.clone())];
        let error = format!("{:#}", texts(&sources).await.unwrap_err());
        assert!(error.contains("can't open the file") && error.contains("members"), "{error}");
        for (contents, expected) in [("a:1\nb:2\n", vec!["a:1", "b:2"]), ("c:3", vec!["c:3"])] {
            std::fs::write(&new, contents).unwrap();
            std::fs::rename(&new, &path).unwrap();
            assert_eq!(texts(&sources).await.unwrap(), expected);
        }
        for nothing in ["", "# written by srun\n"] {
            std::fs::write(&path, nothing).unwrap();
            let error = format!("{:#}", texts(&sources).await.unwrap_err());
            assert!(error.contains("the file has no address"), "{error}");
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
        let listed = list(&[source], TIMEOUT, 16).await.unwrap().addresses;
        assert!(listed.iter().any(|address| address.text == "127.0.0.1:8815"), "{listed:?}");
        assert!(listed.iter().all(|address| address.host == "localhost"), "{listed:?}");
    }

    #[test]
    fn scoped_addresses_are_apart_from_those_that_other_machines_can_use() {
        use std::net::SocketAddrV6;
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 8815, 0, 2));
        let found = ["10.0.0.1:8815", "[fd00::1]:8815"].map(|text| text.parse().unwrap());
        let Listed { addresses, scoped: apart } = resolved("a", [found[0], scoped, found[1]].into_iter());
        assert_eq!(addresses.len(), 2);
        for (address, expected) in addresses.iter().zip(["10.0.0.1:8815", "[fd00::1]:8815"]) {
            assert_eq!((&*address.text, &*address.host), (expected, "a"));
            Address::parse(&address.text).unwrap();
        }
        assert_eq!(apart, [scoped].into());
    }
}
