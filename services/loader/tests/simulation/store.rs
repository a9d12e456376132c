//! Object store with delays, hangs and errors from a seed.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use tokio::time::{sleep, timeout};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Maximum number of errors per run, so that every run ends.
const MAX_ERRORS: u32 = 6;
/// Time after which a request that hangs is an error. The clients of real stores give up after `storage.retry_timeout`.
const DEADLINE: Duration = Duration::from_secs(600);

/// An in-memory store whose answers are late, errors, or never come, as a seed says.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<InMemory>,
    faults: Mutex<Faults>,
    /// Without faults if false.
    active: AtomicBool,
}

#[derive(Debug)]
struct Faults {
    random: fastrand::Rng,
    /// Mean of the usual delay in milliseconds.
    delay_ms: u64,
    errors: u32,
    error_share: f64,
    hung: u32,
}

/// Answer of the store to one request.
#[derive(Clone, Copy)]
enum Fate {
    Succeeds(Duration),
    Fails(Duration),
    Hangs,
}

impl Faults {
    fn next(&mut self) -> Fate {
        let usual = self.delay_ms * 2;
        let draw = self.random.u32(..400);
        let may_fail = self.errors < MAX_ERRORS;
        if draw == 2 && may_fail && self.error_share > 0.0 {
            (self.errors, self.hung) = (self.errors + 1, self.hung + 1);
            return Fate::Hangs;
        }
        let delay = match draw {
            // An answer that takes so long that every other stream moves on.
            0..2 => Duration::from_secs(self.random.u64(20..400)),
            _ => Duration::from_millis(self.random.u64(0..=usual)),
        };
        if self.random.f64() < self.error_share && may_fail {
            self.errors += 1;
            return Fate::Fails(delay);
        }
        Fate::Succeeds(delay)
    }
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<InMemory>, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let delay_ms = [0, 1, 30, 500][random.usize(..4)];
        let error_share = [0.0, 0.0, 0.01, 0.1][random.usize(..4)];
        let faults = Mutex::new(Faults { random, delay_ms, errors: 0, error_share, hung: 0 });
        Self { inner, faults, active: AtomicBool::new(false) }
    }

    /// Starts the faults.
    pub(crate) fn activate(&self) {
        self.active.store(true, Ordering::SeqCst);
    }

    /// Number of errors so far.
    pub(crate) fn errors(&self) -> u32 {
        self.faults.lock().unwrap().errors
    }

    /// Number of requests that hung so far.
    pub(crate) fn hung(&self) -> u32 {
        self.faults.lock().unwrap().hung
    }

    async fn answer(&self) -> Result<()> {
        if !self.active.load(Ordering::SeqCst) {
            return Ok(());
        }
        let fate = self.faults.lock().unwrap().next();
        let answer = async {
            match fate {
                Fate::Hangs => std::future::pending().await,
                Fate::Succeeds(delay) | Fate::Fails(delay) if !delay.is_zero() => sleep(delay).await,
                Fate::Succeeds(_) | Fate::Fails(_) => {}
            }
        };
        let error = |source: &'static str| {
            Err(object_store::Error::Generic { store: "simulated", source: source.into() })
        };
        match (timeout(DEADLINE, answer).await, fate) {
            (Err(_), _) => error("an injected request that hangs"),
            (Ok(()), Fate::Fails(_)) => error("an injected error"),
            (Ok(()), _) => Ok(()),
        }
    }
}

/// Replaces the time of the last change, which is different in each run. ETags tell versions apart.
fn without_time(meta: ObjectMeta) -> ObjectMeta {
    ObjectMeta { last_modified: "2100-01-01T00:00:00Z".parse().unwrap(), ..meta }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl ObjectStore for FaultyStore {
    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            self.answer().await?;
            let found = self.inner.get_opts(location, options).await?;
            Ok(GetResult { meta: without_time(found.meta), ..found })
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        use futures::StreamExt;
        self.inner.list(prefix).map(|meta| meta.map(without_time)).boxed()
    }

    crate::forward::forward_writes!();

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            let listed = self.inner.list_with_delimiter(prefix).await?;
            let objects = listed.objects.into_iter().map(without_time).collect();
            Ok(ListResult { objects, ..listed })
        })
    }
}
