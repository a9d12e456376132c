//! State of the gRPC methods.

use crate::services::Services;

/// State of the gRPC methods. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) services: Services,
}
