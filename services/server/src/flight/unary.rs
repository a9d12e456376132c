//! The service `forebay.v1.Online`: lookups for clients without Arrow.

use forebay_proto::v1::{self, LookupAnswer, online_server::Online};
use tonic::{Request, Response, Status, async_trait};

use super::{Context, call_layer, lookups::LookedUp, packed::pack};

/// The service `Online`.
pub(crate) struct Unary {
    pub(super) context: Context,
}

#[async_trait]
impl Online for Unary {
    async fn lookup(&self, request: Request<v1::Lookup>) -> Result<Response<LookupAnswer>, Status> {
        let access = call_layer::access(request.extensions())?;
        let trace = call_layer::trace(request.extensions());
        let found = self.context.look_up(&access, request.into_inner(), trace.as_ref()).await?;
        let LookedUp { schema, batch, about, permit: _permit } = found;
        let packed = self.context.services.online.work(batch.body.len(), move || pack(&schema, batch));
        Ok(Response::new(LookupAnswer { metadata: Some(about), columns: packed.await?? }))
    }
}
