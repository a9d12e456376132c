//! A store that never answers delays the streams that read it, and no others.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use forebay_loader::{Config, Loader, Pool};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::{Location, Reader, State, take_snapshot};
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::fixture::{drain, job, numbered, store};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

const FILES: i64 = 24;
const FILE_ROWS: i64 = 1000;
/// More streams than there is memory for, at one window each.
const STREAMS: u64 = 12;

/// A store whose reads are pending while it hangs.
#[derive(Debug)]
struct Hanging {
    inner: Arc<InMemory>,
    /// Cancelled when reads are answered.
    answers: Mutex<CancellationToken>,
}

impl Hanging {
    fn hang(&self) {
        *self.answers.lock() = CancellationToken::new();
    }

    fn answer(&self) {
        self.answers.lock().cancel();
    }
}

impl fmt::Display for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hanging")
    }
}

impl ObjectStore for Hanging {
    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            let answers = self.answers.lock().clone();
            answers.cancelled().await;
            self.inner.get_opts(location, options).await
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

/// A dataset with a URL of its own, in a store of its own.
async fn dataset(name: &str) -> (Arc<Hanging>, Reader) {
    let files: Vec<_> = (0..FILES).map(|file| numbered(file * FILE_ROWS..(file + 1) * FILE_ROWS)).collect();
    let answers = CancellationToken::new();
    answers.cancel();
    let hanging =
        Arc::new(Hanging { inner: store(&files, FILE_ROWS as usize).await, answers: Mutex::new(answers) });
    let (config, state) = (forebay_storage::Config::default(), Arc::new(InMemory::new()));
    let location = Location::with_store(format!("memory://{name}"), hanging.clone(), "data");
    let state = State::open(Location::with_store("memory://state", state, "state"), None, &config);
    let snapshot = take_snapshot(name, &location, &state, &config, |_, _| {}).await.unwrap();
    (hanging, Reader::new(Arc::new(snapshot), location, &state, config))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_stops_no_stream_of_another_store() {
    let (hanging, hung) = dataset("hung").await;
    let (_, other) = dataset("other").await;
    let shuffle = Shuffle { window_rows: Some(3 * FILE_ROWS as u64), ..Shuffle::default() };
    let train =
        |seed| Train { seed, batch_size: 500, epochs: Some(1), shuffle: Some(shuffle), ..Train::default() };
    let window = job(&train(0), &hung).summary().window_bytes;
    // Memory for eight windows, and to fetch about as many blocks.
    let config = Config { decode_bytes: Some(8 * window), ..Config::default() };
    let loader = Loader::new(8 * window, config, Pool::simulated(1, || Duration::from_millis(1)));
    hanging.hang();
    let waiting: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let batches = loader.batches(job(&train(seed), &hung), 0, 0);
            AbortOnDropHandle::new(tokio::spawn(drain(batches)))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(loader.reserved_bytes() > window, "no stream waits for the store");

    // The helper gives both datasets one name, and windows of one name and seed are shared.
    for seed in STREAMS..STREAMS + 3 {
        let batches = drain(loader.batches(job(&train(seed), &other), 0, 0));
        let batches = timeout(Duration::from_secs(60), batches).await.expect("the stream waits").unwrap();
        assert_eq!(
            batches.iter().map(|(metadata, _)| metadata.rows).sum::<u64>(),
            (FILES * FILE_ROWS) as u64
        );
    }
    assert!(waiting.iter().all(|stream| !stream.is_finished()));

    hanging.answer();
    for stream in waiting {
        assert_eq!(stream.await.unwrap().unwrap().len() as i64, FILES * FILE_ROWS / 500);
    }
}
