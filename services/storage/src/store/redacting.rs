//! A store whose errors contain no secrets of the variables with which it was built.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
    path::Path,
};

use super::secrets::Secrets;

/// Store that replaces secrets in the errors of another one, also in those of its streams.
pub(super) struct Redacting {
    inner: Arc<dyn ObjectStore>,
    secrets: Secrets,
}

impl Redacting {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, secrets: Secrets) -> Self {
        Self { inner, secrets }
    }

    fn redacted<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.secrets.redact_error(error))
    }

    fn redacted_stream<T: 'static>(
        &self,
        stream: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let secrets = self.secrets.clone();
        stream.map_err(move |error| secrets.redact_error(error)).boxed()
    }
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
        self.redacted(self.inner.put_opts(location, payload, opts).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.redacted(self.inner.put_multipart_opts(location, opts).await)?;
        Ok(Box::new(RedactingUpload { inner, secrets: self.secrets.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.redacted(self.inner.get_opts(location, options).await)?;
        let payload = match found.payload {
            GetResultPayload::Stream(stream) => GetResultPayload::Stream(self.redacted_stream(stream)),
            file @ GetResultPayload::File(..) => file,
        };
        Ok(GetResult { payload, ..found })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.redacted(self.inner.get_ranges(location, ranges).await)
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
        self.redacted(self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.redacted(self.inner.copy_opts(from, to, options).await)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.redacted(self.inner.rename_opts(from, to, options).await)
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
        Box::pin(async move { part.await.map_err(|error| secrets.redact_error(error)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await.map_err(|error| self.secrets.redact_error(error))
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await.map_err(|error| self.secrets.redact_error(error))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
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
}
