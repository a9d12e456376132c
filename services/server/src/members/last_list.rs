//! The last adopted member list. It is stored in the cache directory, for a restart while the sources can't be read.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use forebay_cache::private;
use serde::{Deserialize, Serialize};

use super::source::Address;

/// Name of the file in the cache directory.
pub(super) const FILE: &str = "members.json";
/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The file with the last list.
#[derive(Clone)]
pub(super) struct LastList {
    path: PathBuf,
    /// The setting `members`. A stored list of another setting is not used.
    sources: String,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    sources: String,
    addresses: Vec<StoredAddress>,
}

#[derive(Serialize, Deserialize)]
struct StoredAddress {
    address: String,
    host: String,
}

impl LastList {
    pub(super) fn new(cache_dir: &Path, sources: &str) -> Self {
        Self { path: cache_dir.join(FILE), sources: sources.to_owned() }
    }

    /// Returns the list; `None` if no list of these sources is stored, or it is damaged. An address that can't be parsed is left out,
    /// with a warning. Blocks.
    pub(super) fn load(&self) -> Option<Vec<Address>> {
        if fs::metadata(&self.path).ok()?.len() > MAX_BYTES {
            return None;
        }
        let stored: Stored = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        if stored.sources != self.sources {
            return None;
        }
        let path = self.path.display();
        let address = |stored: StoredAddress| match Address::parse(&stored.address) {
            Ok(parsed) => Some(Address { host: stored.host, ..parsed }),
            Err(error) => {
                tracing::warn!(%path, "an address of the stored list of members is left out: {error:#}");
                None
            }
        };
        let addresses: Vec<Address> = stored.addresses.into_iter().filter_map(address).collect();
        (!addresses.is_empty()).then_some(addresses)
    }

    /// Replaces the list. Blocks.
    ///
    /// # Errors
    /// If the file can't be written. The previous list then remains.
    pub(super) fn save(&self, addresses: &[Address]) -> io::Result<()> {
        let stored =
            |address: &Address| StoredAddress { address: address.text.clone(), host: address.host.clone() };
        let stored =
            Stored { sources: self.sources.clone(), addresses: addresses.iter().map(stored).collect() };
        let new = self.path.with_extension("new");
        let file = private::file_options().create(true).truncate(true).write(true).open(&new)?;
        serde_json::to_writer(&file, &stored)?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| Address::parse(text).unwrap()).collect()
    }

    #[test]
    fn the_last_list_survives_a_restart_but_not_another_setting() {
        let folder = tempfile::tempdir().unwrap();
        let list = LastList::new(folder.path(), "dns:a:1");
        assert_eq!(list.load(), None);
        list.save(&addresses(&["a:1", "b:2"])).unwrap();
        let mut named = addresses(&["10.0.0.1:1"]);
        named[0].host = "a".to_owned();
        list.save(&named).unwrap();
        assert_eq!(LastList::new(folder.path(), "dns:a:1").load(), Some(named));
        assert_eq!(LastList::new(folder.path(), "dns:b:1").load(), None);
    }

    #[test]
    fn an_address_that_cannot_be_parsed_does_not_take_the_others_along() {
        let folder = tempfile::tempdir().unwrap();
        let list = LastList::new(folder.path(), "dns:a:1");
        let scoped = Address { text: "[fe80::1%2]:1".to_owned(), host: "a".to_owned() };
        let [first, last] = ["10.0.0.1:1", "[fd00::1]:1"].map(|text| Address::parse(text).unwrap());
        list.save(&[first.clone(), scoped, last.clone()]).unwrap();
        assert_eq!(list.load(), Some(vec![first, last]));
    }

    #[test]
    fn a_damaged_list_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let list = LastList::new(folder.path(), "a:1");
        list.save(&addresses(&["a:1"])).unwrap();
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        for damaged in [&text[..text.len() / 2], "", &text.replace("a:1\",\"host", "a\",\"host")] {
            fs::write(folder.path().join(FILE), damaged).unwrap();
            assert_eq!(list.load(), None, "{damaged}");
        }
    }
}
