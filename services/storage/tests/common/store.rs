//! In-memory store that counts reads and can inject failures.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

#[derive(Debug, Default)]
pub(crate) struct TestStore {
    pub(crate) inner: InMemory,
    pub(crate) reads: AtomicU64,
    /// If true, every read fails.
    pub(crate) down: AtomicBool,
    /// If true, ETags are weak.
    pub(crate) weak: AtomicBool,
    /// If true, there are no ETags.
    pub(crate) without_etags: AtomicBool,
    /// If true, a listing has no ETags, but objects do.
    pub(crate) listed_without_etags: AtomicBool,
    /// If true, a listing returns the object `x.txt` again and again.
    pub(crate) endless: AtomicBool,
}

impl TestStore {
    pub(crate) async fn with(files: &[(&str, &[u8])]) -> Arc<Self> {
        let store = Arc::new(Self::default());
        for (path, bytes) in files {
            store.write(path, bytes).await;
        }
        store
    }

    pub(crate) async fn write(&self, path: &str, bytes: &[u8]) {
        self.inner.put(&Path::from(path), bytes.to_vec().into()).await.unwrap();
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    fn meta(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if self.without_etags.load(Ordering::SeqCst) {
            meta.e_tag = None;
        } else if self.weak.load(Ordering::SeqCst) {
            meta.e_tag = meta.e_tag.map(|etag| format!("W/{etag}"));
        }
        meta
    }
}

impl fmt::Display for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestStore")
    }
}

impl ObjectStore for TestStore {
    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            if self.down.load(Ordering::SeqCst) {
                return Err(object_store::Error::Generic {
                    store: "test",
                    source: "the store is down".into(),
                });
            }
            let mut found = self.inner.get_opts(location, options).await?;
            found.meta = self.meta(found.meta);
            Ok(found)
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.endless.load(Ordering::SeqCst) {
            let location = prefix.cloned().unwrap_or_default().join("x.txt");
            let last_modified = chrono::DateTime::UNIX_EPOCH;
            let object = ObjectMeta { location, last_modified, size: 1, e_tag: None, version: None };
            let listed = stream::repeat(object).then(|object| async move {
                // Lets a time limit of the caller end.
                tokio::task::yield_now().await;
                Ok(object)
            });
            return listed.boxed();
        }
        let weak = self.weak.load(Ordering::SeqCst);
        let none =
            self.without_etags.load(Ordering::SeqCst) || self.listed_without_etags.load(Ordering::SeqCst);
        let shown = Self { weak: weak.into(), without_etags: none.into(), ..Self::default() };
        self.inner.list(prefix).map(move |meta| meta.map(|meta| shown.meta(meta))).boxed()
    }

    super::forward::forward_writes!();

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        self.inner.list_with_delimiter(prefix)
    }
}
