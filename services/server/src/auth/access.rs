//! Permissions of a caller.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use forebay_loader::Tenant;

use crate::{Error, address::host, callers::Caller};

use super::{
    Held, Tokens, Watched, credentials_are_missing,
    holders::suffix_of,
    tokens::{Digest, Grant},
};

/// Permissions of a caller. Every check uses the current token file, so a removed or expired token is rejected at once. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct Access {
    rights: Rights,
    /// Address and port of the client; `None` for a Unix socket and for the server itself.
    peer: Option<SocketAddr>,
    /// True for a process of the user that runs the server, over a Unix socket of a server with `open_datasets`.
    is_owner: bool,
    /// Credentials that the caller has shown to have. `None` if it may read all datasets that were opened with credentials, as the server
    /// itself, and every caller of a server without `open_datasets`.
    held: Option<Held>,
    /// True if the caller is shown which datasets were opened with credentials of others.
    is_shown_all: bool,
}

#[derive(Clone)]
enum Rights {
    /// Reads everything, and administers the server only if `admin` is true.
    Everything { admin: bool },
    /// The permissions of this token in the token file.
    Token(Arc<Watched<Tokens>>, Digest),
}

impl Access {
    /// Permissions of the server itself.
    pub(crate) fn everything() -> Self {
        Self::with(Rights::Everything { admin: true })
    }

    /// Permissions of every caller of a server without a token file.
    pub(super) fn without_tokens(admin: bool) -> Self {
        Self::with(Rights::Everything { admin })
    }

    fn with(rights: Rights) -> Self {
        Self { rights, peer: None, is_owner: false, held: None, is_shown_all: false }
    }

    /// Permissions of the token with `digest`.
    pub(super) fn from_token(
        tokens: Arc<Watched<Tokens>>,
        digest: Digest,
        now: SystemTime,
    ) -> Result<Self, Error> {
        tokens.current().grant(&digest, now)?;
        Ok(Self::with(Rights::Token(tokens, digest)))
    }

    /// The permissions of a client with this address and port.
    pub(crate) fn at(self, peer: Option<SocketAddr>) -> Self {
        Self { peer, ..self }
    }

    /// The permissions of a process of the user that runs the server.
    pub(super) fn of_owner(self) -> Self {
        Self { is_owner: true, ..self }
    }

    /// The permissions of a caller that has shown to have these credentials. It may not read what others opened with theirs.
    pub(super) fn holding(self, held: Held) -> Self {
        Self { held: Some(held), ..self }
    }

    /// The permissions of a caller that is shown the names and sizes of all datasets that it may read but for the credentials with which
    /// they were opened, as on the dashboard. It may not read them.
    pub(crate) fn shown_all(self) -> Self {
        Self { is_shown_all: true, ..self }
    }

    /// Checks that the caller has shown to have the credentials with `proof`.
    ///
    /// # Errors
    /// Permission denied.
    pub(crate) fn check_holds(&self, proof: &[u8; 32]) -> Result<(), Error> {
        if self.held.as_ref().is_some_and(|held| held.has(proof)) {
            return Ok(());
        }
        Err(Error::permission_denied(
            "the header 'authorization: Bearer PROOF' has no proof of the credentials in the request",
        ))
    }

    /// Address of the client; `None` for a Unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip())
    }

    /// Address and port of the client; `None` for a Unix socket.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Identity to which the caller's work is charged.
    pub(crate) fn caller(&self) -> Caller {
        match (self.name(), self.peer()) {
            (Some(token), _) => Caller::Token(token),
            (None, Some(address)) => Caller::Address(host(address)),
            (None, None) => Caller::Local,
        }
    }

    /// Tenant of the caller: its token, with the weight in the token file, or the server without tokens.
    pub(crate) fn tenant(&self) -> Tenant {
        let Rights::Token(tokens, digest) = &self.rights else { return Tenant::SERVER };
        let tokens = tokens.current();
        tokens.grant(digest, SystemTime::now()).map_or(Tenant::SERVER, Grant::tenant)
    }

    /// True if this caller may read `dataset`, or is shown it.
    pub(crate) fn may_read(&self, dataset: &str) -> bool {
        match self.is_shown_all {
            true => self.covers(dataset).is_ok(),
            false => self.check(dataset).is_ok(),
        }
    }

    /// Checks that the caller may read `dataset`, which need not exist.
    ///
    /// # Errors
    /// Permission denied, or unauthenticated if the token is no longer valid. Unavailable if the dataset was opened with credentials before
    /// this server was started.
    pub(crate) fn check(&self, dataset: &str) -> Result<(), Error> {
        self.covers(dataset)?;
        let (Some(held), Some(suffix)) = (&self.held, suffix_of(dataset)) else { return Ok(()) };
        match held.opens(suffix) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::permission_denied(format!(
                "dataset '{dataset}' was opened with credentials, and the caller has not shown to have them; open it with forebay.open in \
                 its process"
            ))),
            None => Err(credentials_are_missing(dataset)),
        }
    }

    fn covers(&self, dataset: &str) -> Result<(), Error> {
        self.check_grant(|grant| grant.covers(dataset), || format!("may not read dataset '{dataset}'"))
    }

    /// Checks that the caller may be a worker of `queue`, which need not exist.
    ///
    /// # Errors
    /// Permission denied, or unauthenticated if the token is no longer valid.
    pub(crate) fn check_worker(&self, queue: &str) -> Result<(), Error> {
        let refusal =
            || format!("may not serve queue '{queue}'; the token file lists its queues in `serves`");
        self.check_grant(|grant| grant.serves(queue), refusal)
    }

    /// Checks that the caller may call the action.
    ///
    /// # Errors
    /// Permission denied, or unauthenticated if the token is no longer valid.
    pub(crate) fn check_action(&self, action: &str) -> Result<(), Error> {
        let refusal =
            || format!("may not call action '{action}'; the token file lists its actions in `actions`");
        self.check_grant(|grant| grant.permits(action), refusal)
    }

    /// Checks that the caller may make the server open files.
    ///
    /// # Errors
    /// Permission denied.
    pub(crate) fn check_owner(&self) -> Result<(), Error> {
        if self.is_owner {
            return Ok(());
        }
        Err(Error::permission_denied(
            "only a process of the user that runs the server may open datasets, over the Unix socket of a server with \
             --open-datasets",
        ))
    }

    /// Checks that the caller may read all datasets.
    ///
    /// # Errors
    /// Permission denied, or unauthenticated if the token is no longer valid.
    pub(crate) fn check_all_datasets(&self) -> Result<(), Error> {
        self.check_grant(Grant::covers_everything, || {
            "does not cover all datasets; this requires datasets = [\"*\"]".to_owned()
        })
    }

    /// Checks that the caller may change the settings of batch queues and pin snapshots of lookups.
    ///
    /// # Errors
    /// Permission denied, or unauthenticated if the token is no longer valid.
    pub(crate) fn check_admin(&self) -> Result<(), Error> {
        if let Rights::Everything { admin: false } = self.rights {
            return Err(Error::permission_denied(
                "this server is read-only for callers without a token; start it with --tokens and a token that has \
                 admin = true, or with --insecure",
            ));
        }
        self.check_grant(Grant::is_admin, || {
            "may not change anything; this requires admin = true in the token file".to_owned()
        })
    }

    /// Checks that the token is still valid.
    ///
    /// # Errors
    /// Unauthenticated.
    pub(crate) fn check_known(&self) -> Result<(), Error> {
        self.check_grant(|_| true, String::new)
    }

    /// Name of the caller's token.
    pub(crate) fn name(&self) -> Option<String> {
        let Rights::Token(tokens, digest) = &self.rights else { return None };
        let tokens = tokens.current();
        Some(tokens.grant(digest, SystemTime::now()).ok()?.name.clone())
    }

    fn check_grant(
        &self,
        allows: impl Fn(&Grant) -> bool,
        refusal: impl Fn() -> String,
    ) -> Result<(), Error> {
        let Rights::Token(tokens, digest) = &self.rights else { return Ok(()) };
        let tokens = tokens.current();
        let grant = tokens.grant(digest, SystemTime::now())?;
        if allows(grant) {
            return Ok(());
        }
        Err(Error::permission_denied(format!("token '{}' {}", grant.name, refusal())))
    }
}
