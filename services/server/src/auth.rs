//! Authentication and authorization: TLS certificates and bearer tokens. Both are files that are reloaded when they change.

mod access;
mod tls;
mod tokens;
mod watched;

use std::{path::Path, sync::Arc, time::SystemTime};

use http::{HeaderMap, header};

use crate::Error;

pub(crate) use access::Access;
pub(crate) use tls::{Acceptor, Tls};
pub(crate) use tokens::Tokens;
pub(crate) use watched::Watched;

/// Authenticates callers by their bearer token; without a token file every caller may read everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Authenticator {
    tokens: Option<Arc<Watched<Tokens>>>,
    /// True if, without a token file, every caller may also change the settings of batch queues over HTTP.
    insecure: bool,
}

impl Authenticator {
    /// Reads the token file at `path`. Without one, changes over HTTP are rejected unless the server is `insecure`.
    ///
    /// # Errors
    /// If the file can't be read or is malformed.
    pub(crate) fn new(path: Option<&Path>, insecure: bool) -> anyhow::Result<Self> {
        let watch = |path: &Path| Watched::read(vec![path.to_owned()], |files| Tokens::parse(&files[0]));
        Ok(Self { tokens: path.map(watch).transpose()?.map(Arc::new), insecure })
    }

    /// The token file, if there is one.
    pub(crate) fn tokens(&self) -> Option<Arc<Watched<Tokens>>> {
        self.tokens.clone()
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
mod tests;
