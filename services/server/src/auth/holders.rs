//! Datasets that callers opened with credentials of their own, which only callers with the same credentials may read.
//!
//! The name of such a dataset ends with a keyed hash of the credentials. A caller shows that it has them with their
//! [proof](forebay_storage::Credentials::proof), as a bearer token: `Bearer PROOF[.PROOF]...`, one for each kind of store.

use std::sync::{Arc, OnceLock};

use forebay_storage::{Documents, State};
use http::{HeaderMap, header};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};

use crate::Error;

/// Name of the document with the key, in the state.
const DOCUMENT: &str = "names";
/// Maximum size of that document in bytes.
const MAX_DOCUMENT_BYTES: u64 = 1024;
/// Size of the key in bytes.
const KEY_BYTES: usize = 32;
/// First characters of the suffix of a name. [`HASH_DIGITS`] hexadecimal digits follow.
const MARK: &str = "-k";
/// Number of digits of the hash in a name.
const HASH_DIGITS: usize = 16;
/// Maximum number of proofs of a caller. Further ones are ignored.
const MAX_PROOFS: usize = 8;

/// Hash that only a process with certain credentials can compute.
type Proof = [u8; 32];

/// Key of the hashes in the names of datasets. It is in the state, so that all servers of the state have the same names. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HolderKey {
    documents: Documents,
    loaded: Arc<OnceLock<hmac::Key>>,
}

/// Credentials that a caller has shown to have. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Held {
    key: HolderKey,
    proofs: Arc<[Proof]>,
}

/// Keyed hash of credentials.
pub(crate) struct Holding {
    /// End of the names of datasets that were opened with them.
    pub(crate) suffix: String,
    /// Separates what is cached of these datasets.
    pub(crate) scope: u128,
}

impl HolderKey {
    pub(crate) fn new(state: &State) -> Self {
        let documents = state.documents("credentials", "key", MAX_DOCUMENT_BYTES);
        Self { documents, loaded: Arc::default() }
    }

    /// Returns the keyed hash of the credentials with `proof`, for names and caches. Creates the key if this is the first call for the
    /// state.
    ///
    /// # Errors
    /// If the state can't be read or written.
    pub(crate) async fn holding(&self, proof: &Proof) -> Result<Holding, Error> {
        if self.loaded.get().is_none() {
            let mut new = [0; KEY_BYTES];
            SystemRandom::new()
                .fill(&mut new)
                .map_err(|_| Error::internal("the system has no random numbers"))?;
            let stored = self.documents.get_or_create(DOCUMENT, &hex::encode(new)).await?;
            let key = hex::decode(&stored).ok().filter(|key| key.len() == KEY_BYTES);
            let key = key.ok_or_else(|| {
                Error::internal(format!("credentials/{DOCUMENT}.key in the state is damaged; remove it"))
            })?;
            // Another call may have loaded the same one.
            self.loaded.set(hmac::Key::new(hmac::HMAC_SHA256, &key)).ok();
        }
        let key = self.loaded.get().expect("it was just loaded");
        Ok(holding(key, proof))
    }

    /// Returns the credentials that a caller with these headers has shown to have.
    pub(super) fn held(&self, headers: &HeaderMap) -> Held {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let proofs = value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        let proofs = proofs.split('.').filter_map(|proof| Proof::try_from(hex::decode(proof).ok()?).ok());
        Held { key: self.clone(), proofs: proofs.take(MAX_PROOFS).collect() }
    }
}

impl Held {
    /// True if the credentials with `proof` are among them.
    pub(super) fn has(&self, proof: &Proof) -> bool {
        self.proofs.contains(proof)
    }

    /// True if datasets whose name has this end were opened with one of them. `None` if no dataset was opened with credentials since the
    /// server was started.
    pub(super) fn opens(&self, suffix: &str) -> Option<bool> {
        let key = self.key.loaded.get()?;
        Some(self.proofs.iter().any(|proof| holding(key, proof).suffix == suffix))
    }
}

/// Returns the end of the name of a dataset that was opened with credentials; `None` for the names of others.
pub(super) fn suffix_of(name: &str) -> Option<&str> {
    let suffix = name.get(name.len().checked_sub(MARK.len() + HASH_DIGITS)?..)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    suffix.strip_prefix(MARK)?.bytes().all(is_digit).then_some(suffix)
}

/// True for the name of a dataset that was opened with credentials.
pub(crate) fn needs_credentials(name: &str) -> bool {
    suffix_of(name).is_some()
}

/// Error for a dataset that was opened with credentials before this server was started.
pub(crate) fn credentials_are_missing(name: &str) -> Error {
    Error::unavailable(format!(
        "dataset '{name}' needs the credentials of its caller, which this server does not have yet; the caller passes them again"
    ))
}

fn holding(key: &hmac::Key, proof: &Proof) -> Holding {
    let tag = hmac::sign(key, proof);
    let tag = tag.as_ref();
    let (scope, rest) = tag.split_first_chunk::<16>().expect("SHA-256 has 32 bytes");
    // The scope is in keys of caches, the digits are in answers: neither tells the other.
    let digits = hex::encode(&rest[..HASH_DIGITS / 2]);
    Holding { suffix: format!("{MARK}{digits}"), scope: u128::from_le_bytes(*scope) }
}

#[cfg(test)]
mod tests {
    use forebay_storage::{Config, Location};
    use http::HeaderValue;

    use super::*;

    fn key(folder: &std::path::Path) -> HolderKey {
        let config = Config::default();
        let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
        HolderKey::new(&State::open(location, None, &config))
    }

    fn headers(bearer: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {bearer}")).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[tokio::test]
    async fn servers_of_a_state_have_the_same_names_and_those_of_another_state_have_others() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let suffix = key(folder.path()).holding(&[7; 32]).await.unwrap().suffix;
        assert_eq!(key(folder.path()).holding(&[7; 32]).await.unwrap().suffix, suffix);
        assert_ne!(key(folder.path()).holding(&[8; 32]).await.unwrap().suffix, suffix);
        assert_ne!(key(other.path()).holding(&[7; 32]).await.unwrap().suffix, suffix);
        assert_eq!(suffix_of(&format!("clicks-0123456789ab{suffix}")), Some(suffix.as_str()));
    }

    #[test]
    fn names_without_credentials_have_no_suffix() {
        let names = ["", "clicks", "x-0123456789ab", "x-k0123456789abcdeg", "x-k0123456789abcde"];
        for name in names.into_iter().chain(["\u{fc}-k0123456789abcde", "-K0123456789abcdef"]) {
            assert_eq!(suffix_of(name), None, "{name}");
        }
    }

    #[tokio::test]
    async fn a_caller_opens_what_it_has_proofs_of() {
        let folder = tempfile::tempdir().unwrap();
        let key = key(folder.path());
        let (one, other) = ([1; 32], [2; 32]);
        let both = key.held(&headers(&format!("{}.{}", hex::encode(one), hex::encode(other))));
        assert_eq!(both.opens("-k0123456789abcdef"), None, "no key was loaded");
        for proof in [one, other] {
            let suffix = key.holding(&proof).await.unwrap().suffix;
            assert!(both.has(&proof));
            assert_eq!(both.opens(&suffix), Some(true));
        }
        let suffix = key.holding(&[3; 32]).await.unwrap().suffix;
        assert_eq!((both.has(&[3; 32]), both.opens(&suffix)), (false, Some(false)));
        let (short, long) = (hex::encode([1; 31]), "00".repeat(1000));
        for nothing in ["", "secret", "..", short.as_str(), long.as_str()] {
            assert!(key.held(&headers(nothing)).proofs.is_empty(), "{nothing}");
        }
        assert_eq!(key.held(&headers(&vec![hex::encode(one); 100].join("."))).proofs.len(), MAX_PROOFS);
        assert!(key.held(&HeaderMap::new()).proofs.is_empty());
    }
}
