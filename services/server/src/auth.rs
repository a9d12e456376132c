//! Authentication and authorization: TLS certificates and bearer tokens. Both are files that are reloaded when they change.

mod access;
mod holders;
mod tls;
mod tokens;
mod watched;

use std::{path::Path, sync::Arc, time::SystemTime};

use http::{HeaderMap, header};

use crate::{Error, address::Peer};

pub(crate) use access::Access;
pub(crate) use holders::{Held, HolderKey, credentials_are_missing, needs_credentials};
pub(crate) use tls::{Acceptor, Tls};
pub(crate) use tokens::{Tokens, without_quoted};
pub(crate) use watched::Watched;

/// Authenticates callers by their bearer token; without a token file every caller may read everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Authenticator {
    tokens: Option<Arc<Watched<Tokens>>>,
    /// True if, without a token file, every caller may also change the settings of batch queues over HTTP.
    insecure: bool,
    /// The only user whose processes may call the server over a Unix socket; `None` if file permissions decide alone.
    owner: Option<u32>,
    /// Key of the names of datasets that callers open with credentials; `None` if callers can't open any.
    holder_key: Option<HolderKey>,
}

impl Authenticator {
    /// Reads the token file at `path`. Without one, changes over HTTP are rejected unless the server is `insecure`.
    ///
    /// # Errors
    /// If the file can't be read or is malformed.
    pub(crate) fn new(path: Option<&Path>, insecure: bool) -> anyhow::Result<Self> {
        let watch = |path: &Path| Watched::read(vec![path.to_owned()], |files| Tokens::parse(&files[0]));
        Ok(Self {
            tokens: path.map(watch).transpose()?.map(Arc::new),
            insecure,
            owner: None,
            holder_key: None,
        })
    }

    /// Rejects callers over a Unix socket that are processes of another user than `owner`, and makes the others owners. Datasets that
    /// they open with credentials have names by `key`.
    pub(crate) fn for_owner(self, owner: u32, key: HolderKey) -> Self {
        Self { owner: Some(owner), holder_key: Some(key), ..self }
    }

    /// The token file, if there is one.
    pub(crate) fn tokens(&self) -> Option<Arc<Watched<Tokens>>> {
        self.tokens.clone()
    }

    /// Returns the permissions of the caller with these headers at the other end of a connection with `peer`.
    ///
    /// # Errors
    /// The errors of [`authenticate`](Self::authenticate); permission denied if the caller is a process of another user, and the
    /// server answers its owner only.
    pub(crate) fn authorize(&self, headers: &HeaderMap, peer: Option<Peer>) -> Result<Access, Error> {
        let mut access = self.authenticate(headers)?.at(peer.and_then(Peer::socket_address));
        if let Some(key) = &self.holder_key {
            access = access.holding(key.held(headers));
        }
        let (Some(owner), Some(Peer::User(user))) = (self.owner, peer) else { return Ok(access) };
        if user == Some(owner) {
            return Ok(access.of_owner());
        }
        let user = user.map_or_else(|| "unknown".to_owned(), |user| user.to_string());
        Err(Error::permission_denied(format!(
            "the server belongs to the user with id {owner} and answers only its processes; the caller has user id {user}"
        )))
    }

    /// Returns the permissions of the caller with these headers.
    ///
    /// # Errors
    /// Unauthenticated if a token is required, and the token is missing, unknown or expired.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<Access, Error> {
        let Some(tokens) = &self.tokens else { return Ok(Access::without_tokens(self.insecure)) };
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(Error::unauthenticated(
                "the token is missing; send the header 'authorization: Bearer TOKEN'",
            ));
        };
        let Some(secret) = tokens::token_of(value.as_bytes()) else {
            return Err(Error::unauthenticated(
                "the authorization header is malformed; expected 'Bearer TOKEN'",
            ));
        };
        Access::from_token(Arc::clone(tokens), tokens::digest_of(&secret), SystemTime::now())
    }
}

#[cfg(test)]
pub(crate) mod test_access;
#[cfg(test)]
mod tests;
