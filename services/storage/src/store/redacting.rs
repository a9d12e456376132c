//! A store whose errors contain no secrets of its variables and of the requests that were sent, and whose panics are errors.
//!
//! The clients of `object_store` panic if the URL or a header of a request is malformed, which a temporary credential can cause.

use std::{any::Any, fmt, ops::Range, panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
    path::Path,
};

use super::secrets::Secrets;

/// Store that replaces secrets in the errors of another one, also in those of its streams, and returns its panics as errors.
pub(super) struct Redacting {
    inner: Arc<dyn ObjectStore>,
    secrets: Secrets,
}

impl Redacting {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, secrets: Secrets) -> Self {
        Self { inner, secrets }
    }

    async fn redacted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        redacted(&self.secrets, work).await
    }

    fn redacted_stream<T: 'static>(
        &self,
        stream: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let secrets = self.secrets.clone();
        // The stream ends after a panic.
        let outcomes = AssertUnwindSafe(stream).catch_unwind();
        outcomes.map(move |outcome| without_secrets(&secrets, outcome)).boxed()
    }
}

/// Runs a request.
async fn redacted<T>(secrets: &Secrets, work: impl Future<Output = Result<T>>) -> Result<T> {
    // Neither the store nor its credentials are behind a lock that a panic leaves locked.
    without_secrets(secrets, AssertUnwindSafe(work).catch_unwind().await)
}

/// Returns the outcome of a request or its panic, without secrets.
fn without_secrets<T>(
    secrets: &Secrets,
    outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>,
) -> Result<T> {
    let panicked = |_| {
        let source = "the client of the store panicked, because a setting or a credential is malformed or because of a bug; the \
                      log has the message";
        Err(object_store::Error::Generic { store: "object store", source: source.into() })
    };
    outcome.unwrap_or_else(panicked).map_err(|error| secrets.redact_error(error))
}

impl fmt::Display for Redacting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Redacting {
    /// Without the fields of the store, which have the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Redacting {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.redacted(self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.redacted(self.inner.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(RedactingUpload { inner, secrets: self.secrets.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.redacted(self.inner.get_opts(location, options)).await?;
        let payload = match found.payload {
            GetResultPayload::Stream(stream) => GetResultPayload::Stream(self.redacted_stream(stream)),
            file @ GetResultPayload::File(..) => file,
        };
        Ok(GetResult { payload, ..found })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.redacted(self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.redacted_stream(self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.redacted_stream(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.redacted_stream(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.redacted(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.redacted(self.inner.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.redacted(self.inner.rename_opts(from, to, options)).await
    }
}

/// Upload to a [`Redacting`] store.
struct RedactingUpload {
    inner: Box<dyn MultipartUpload>,
    secrets: Secrets,
}

impl fmt::Debug for RedactingUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedactingUpload")
    }
}

#[async_trait]
impl MultipartUpload for RedactingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, secrets) = (self.inner.put_part(data), self.secrets.clone());
        Box::pin(async move { redacted(&secrets, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        redacted(&self.secrets, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        redacted(&self.secrets, self.inner.abort()).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, memory::InMemory};

    use super::*;

    #[test]
    fn no_error_of_the_store_contains_a_secret() {
        let secrets = Secrets::of(&[("AWS_SECRET_ACCESS_KEY", "hidden")]);
        let store = Redacting::new(Arc::new(InMemory::new()), secrets);
        let (hidden, other) = (Path::from("hidden/x"), Path::from("other"));
        let errors = [
            store.get(&hidden).now_or_never().unwrap().map(drop).unwrap_err(),
            store.get_ranges(&hidden, &[0..1, 2..3]).now_or_never().unwrap().map(drop).unwrap_err(),
            store.copy(&hidden, &other).now_or_never().unwrap().unwrap_err(),
            store.rename(&hidden, &other).now_or_never().unwrap().unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, object_store::Error::NotFound { .. }), "{error:?}");
            assert!(error.to_string().contains("(value of AWS_SECRET_ACCESS_KEY)/x"), "{error}");
            assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        }
    }
    #[tokio::test]
    async fn a_panic_of_the_client_is_an_error() {
        // No request can be sent to this endpoint. The checks of variables refuse it before.
        let builder = object_store::aws::AmazonS3Builder::new().with_bucket_name("b").with_region("r");
        let builder =
            builder.with_access_key_id("a").with_secret_access_key("b").with_endpoint("localhost:1");
        let store = Redacting::new(Arc::new(builder.build().unwrap()), Secrets::default());
        let path = Path::from("x");
        let listed = store.list(None).next().await.expect("an item").map(drop);
        for outcome in [store.get(&path).await.map(drop), store.head(&path).await.map(drop), listed] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("the client of the store panicked"), "{error}");
        }
    }
}
