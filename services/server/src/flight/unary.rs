//! The service `forebay.v1.Online`: lookups for clients without Arrow.

use std::sync::Arc;

use forebay_proto::v1::{Lookup, LookupAnswer, online_server::Online};
use tonic::{Request, Response, Status, async_trait};

use super::{call_layer, methods::Methods};

/// The service `Online`.
pub(crate) struct Unary {
    pub(super) methods: Arc<dyn Methods>,
}

#[async_trait]
impl Online for Unary {
    async fn lookup(&self, request: Request<Lookup>) -> Result<Response<LookupAnswer>, Status> {
        let access = call_layer::access(request.extensions())?;
        let trace = call_layer::trace(request.extensions());
        self.methods.look_up_packed(access, trace, request.into_inner()).await
    }
}
