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
    /// `None`: everything.
    token: Option<(Arc<Watched<Tokens>>, Digest)>,
}

impl Access {
    /// Of a server without a token file, and of the server itself.
    pub(crate) fn everything() -> Self {
        Self { token: None }
    }

    /// Of the token with `digest`.
    pub(super) fn of_token(
        tokens: Arc<Watched<Tokens>>,
        digest: Digest,
        now: SystemTime,
    ) -> Result<Self, Status> {
        tokens.current().grant(&digest, now)?;
        Ok(Self { token: Some((tokens, digest)) })
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

    fn ask(&self, allows: impl Fn(&Grant) -> bool, refusal: impl Fn() -> String) -> Result<(), Status> {
        let Some((tokens, digest)) = &self.token else { return Ok(()) };
        let tokens = tokens.current();
        let grant = tokens.grant(digest, SystemTime::now())?;
        if allows(grant) {
            return Ok(());
        }
        Err(Status::permission_denied(crate::status::clip(&format!("token '{}' {}", grant.name, refusal()))))
    }
}
