//! State of the gRPC methods.

use forebay_loader::Loader;

use crate::{auth::Access, services::Services};

/// State of the gRPC methods. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) services: Services,
}

impl Context {
    /// Returns the loader for work of a caller, which shares the CPU time and the memory with other tenants by weight.
    pub(super) fn loader(&self, access: &Access) -> Loader {
        self.services.loader.of_tenant(access.tenant())
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;
    use crate::{Settings, auth::test_access};

    #[tokio::test]
    async fn the_jobs_and_streams_of_a_caller_belong_to_the_tenant_of_its_token() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_dir: folder.path().to_owned(), ..Settings::default() };
        let services = Services::build(&settings, &mut JoinSet::new()).await.unwrap();
        let access = test_access::of_weight(3);
        let loader = Context { services }.loader(&access);
        assert_eq!(loader.tenant(), access.tenant());
        assert_eq!(loader.tenant().weight().get(), 3);
    }
}
