//! Who gets in: TLS for what lies between, tokens for who may read what. Both are files that are read again when they
//! change.

mod access;
mod tls;
mod tokens;
mod watched;

use std::{path::Path, sync::Arc, time::SystemTime};

use http::{HeaderMap, header};
use tonic::Status;

pub(crate) use access::Access;
pub(crate) use tls::{Acceptor, Tls};
pub(crate) use tokens::Tokens;
pub(crate) use watched::Watched;

/// Lets callers in by their token; without a token file, everybody to everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Door {
    tokens: Option<Arc<Watched<Tokens>>>,
    /// Without tokens: whether everybody may also change things over HTTP.
    insecure: bool,
}

impl Door {
    /// The door of a server with the token file at `path`. Without one nobody changes anything over HTTP, unless it is `insecure`.
    ///
    /// # Errors
    /// When the file can't be read, or something in it is unknown or malformed.
    pub(crate) fn new(path: Option<&Path>, insecure: bool) -> anyhow::Result<Self> {
        let watch = |path: &Path| Watched::read(vec![path.to_owned()], |files| Tokens::parse(&files[0]));
        Ok(Self { tokens: path.map(watch).transpose()?.map(Arc::new), insecure })
    }

    /// What is behind it, to be watched.
    pub(crate) fn tokens(&self) -> Option<Arc<Watched<Tokens>>> {
        self.tokens.clone()
    }

    /// What the caller with these headers may read.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` when a token is wanted and none that is known and not expired is there.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Access, Status> {
        let Some(tokens) = &self.tokens else { return Ok(Access::without_tokens(self.insecure)) };
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Err(Status::unauthenticated(
                "there is no token; send the header 'authorization: Bearer TOKEN'",
            ));
        };
        let Some(secret) = tokens::secret_of(value.as_bytes()) else {
            return Err(Status::unauthenticated(
                "the authorization header can't be read; expected 'Bearer TOKEN'",
            ));
        };
        Access::of_token(Arc::clone(tokens), tokens::digest_of(&secret), SystemTime::now())
    }
}

#[cfg(test)]
mod tests;
