//! A state that fails or hangs delays the streams that need it, and no others.

use std::{fmt, pin::Pin, sync::Arc};

use forebay_loader::Config;
use forebay_proto::v1::Train;
use forebay_storage::{Location, Reader, State, take_snapshot};
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};

use crate::fixture::{drain, job, loader, numbered, store};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Outcome of a read of stored counts.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Hang,
    Fail,
}

/// A store from which counts cannot be read.
#[derive(Debug)]
struct WithoutCounts {
    inner: InMemory,
    fault: Fault,
}

impl fmt::Display for WithoutCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithoutCounts")
    }
}

impl ObjectStore for WithoutCounts {
    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            match self.fault {
                _ if location.extension() != Some("counts") => self.inner.get_opts(location, options).await,
                Fault::Hang => std::future::pending().await,
                Fault::Fail => {
                    Err(object_store::Error::Generic { store: "test", source: "the store is down".into() })
                }
            }
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        self.inner.list_with_delimiter(prefix)
    }

    crate::forward::forward_writes!();
}

async fn reader(fault: Fault) -> Reader {
    let (config, files) = (forebay_storage::Config::default(), store(&[numbered(0..3000)], 1000).await);
    let location = Location::with_store("memory://data", files, "data");
    let state = Arc::new(WithoutCounts { inner: InMemory::new(), fault });
    let state = State::open(Location::with_store("memory://state", state, ""), None, &config);
    let snapshot = take_snapshot("d", &location, &state, &config, |_, _| {}).await.unwrap();
    Reader::new(Arc::new(snapshot), location, &state, config)
}

#[tokio::test(start_paused = true)]
async fn rows_are_counted_again_if_the_stored_counts_cannot_be_read() {
    for fault in [Fault::Hang, Fault::Fail] {
        let reader = reader(fault).await;
        let request =
            Train { dataset: "d".into(), filter: "id < 2100".into(), batch_size: 10, ..Train::default() };
        let counts = loader(1 << 24, 2, Config::default()).count(&request, &reader, |_| {}).await.unwrap();
        assert_eq!(counts.unwrap().rows().iter().sum::<u32>(), 2100, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_filter_needs_no_state() {
    let reader = reader(Fault::Hang).await;
    let job = job(&Train { batch_size: 1000, ..Train::default() }, &reader);
    let batches = drain(loader(1 << 24, 2, Config::default()).batches(job, 0, 0)).await.unwrap();
    assert_eq!(batches.len(), 3);
}
