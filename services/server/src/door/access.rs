//! What one caller may read.

use std::{sync::Arc, time::SystemTime};

use tonic::Status;

use super::{
    Tokens, Watched,
    tokens::{Digest, Grant},
};

/// What one caller may read, as the token file stands whenever it is asked: a token that was taken out of it, or has
/// expired, reads nothing from then on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access {
    rights: Rights,
}

#[derive(Clone)]
enum Rights {
    /// Reads everything; changes what an admin may change only if it says so.
    Everything { admin: bool },
    /// What the file says of this token.
    Token(Arc<Watched<Tokens>>, Digest),
}

impl Access {
    /// Of the server itself.
    pub(crate) fn everything() -> Self {
        Self { rights: Rights::Everything { admin: true } }
    }

    /// Of everybody at a server without a token file.
    pub(super) fn without_tokens(admin: bool) -> Self {
        Self { rights: Rights::Everything { admin } }
    }

    /// Of the token with `digest`.
    pub(super) fn of_token(
        tokens: Arc<Watched<Tokens>>,
        digest: Digest,
        now: SystemTime,
    ) -> Result<Self, Status> {
        tokens.current().grant(&digest, now)?;
        Ok(Self { rights: Rights::Token(tokens, digest) })
    }

    /// Whether this caller may know of `dataset`.
    pub(crate) fn may_read(&self, dataset: &str) -> bool {
        self.check(dataset).is_ok()
    }

    /// Refuses a caller who may not read `dataset`, which need not exist.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, or `UNAUTHENTICATED` when the token isn't good any more.
    pub(crate) fn check(&self, dataset: &str) -> Result<(), Status> {
        self.ask(|grant| grant.covers(dataset), || format!("may not read dataset '{dataset}'"))
    }

    /// Refuses a caller who may not answer for a queue, which need not exist.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, or `UNAUTHENTICATED` when the token isn't good any more.
    pub(crate) fn check_worker(&self, queue: &str) -> Result<(), Status> {
        let refusal =
            || format!("may not serve queue '{queue}'; the token file names its queues in `serves`");
        self.ask(|grant| grant.serves(queue), refusal)
    }

    /// Refuses a caller who may not read all datasets.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, or `UNAUTHENTICATED` when the token isn't good any more.
    pub(crate) fn check_everything(&self) -> Result<(), Status> {
        self.ask(Grant::covers_everything, || {
            "is for some datasets; this wants one for all, [\"*\"]".to_owned()
        })
    }

    /// Refuses a caller who may not change how the server works.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, or `UNAUTHENTICATED` when the token isn't good any more.
    pub(crate) fn check_admin(&self) -> Result<(), Status> {
        if let Rights::Everything { admin: false } = self.rights {
            return Err(Status::permission_denied(
                "over HTTP this server is read-only; start it with --tokens and a token that has admin = true, \
                 or with --insecure",
            ));
        }
        self.ask(Grant::is_admin, || {
            "may not change anything; the token file says admin = true of those that may".to_owned()
        })
    }

    /// Refuses a caller whose token isn't good any more.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`.
    pub(crate) fn check_known(&self) -> Result<(), Status> {
        self.ask(|_| true, String::new)
    }

    /// The name of its token.
    pub(crate) fn name(&self) -> Option<String> {
        let Rights::Token(tokens, digest) = &self.rights else { return None };
        let tokens = tokens.current();
        Some(tokens.grant(digest, SystemTime::now()).ok()?.name.clone())
    }

    fn ask(&self, allows: impl Fn(&Grant) -> bool, refusal: impl Fn() -> String) -> Result<(), Status> {
        let Rights::Token(tokens, digest) = &self.rights else { return Ok(()) };
        let tokens = tokens.current();
        let grant = tokens.grant(digest, SystemTime::now())?;
        if allows(grant) {
            return Ok(());
        }
        Err(Status::permission_denied(crate::status::clip(&format!("token '{}' {}", grant.name, refusal()))))
    }
}
