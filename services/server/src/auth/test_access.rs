//! Permissions of a token, for tests of other modules.

use http::HeaderValue;

use super::*;

/// Permissions of a token for all datasets with this weight.
pub(crate) fn of_weight(weight: u32) -> Access {
    let folder = tempfile::tempdir().unwrap();
    let (path, sha256) = (folder.path().join("tokens.toml"), hex::encode(tokens::digest_of(b"secret")));
    let text = format!("[team]\nsha256 = \"{sha256}\"\ndatasets = [\"*\"]\nweight = {weight}\n");
    std::fs::write(&path, text).unwrap();
    let bearer = (header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
    let authenticator = Authenticator::new(Some(&path), false).unwrap();
    authenticator.authenticate(&HeaderMap::from_iter([bearer])).unwrap()
}
