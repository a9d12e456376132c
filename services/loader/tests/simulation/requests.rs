//! Random requests, and the batches that they have without faults.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use forebay_loader::{Config, Error, Job, Loader, Pool, WireBatch};
use forebay_proto::v1::{self, BatchMetadata, Mixed, Shuffle, Train, shuffle};
use forebay_storage::{Location, Reader, State, take_snapshot};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};
use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{ids_of, of, ranked, views};

/// Number of rows of the dataset.
pub(crate) const ROWS: i64 = 2600;

/// Encoded files of the dataset. Their sizes differ.
fn files() -> &'static [Bytes] {
    static FILES: OnceLock<Vec<Bytes>> = OnceLock::new();
    FILES.get_or_init(|| {
        let ends: Vec<i64> = [0, 1, 300, 523, 700, 1046, 1400, 1569, 2092, 2300, ROWS].to_vec();
        ends.windows(2).map(|ends| encoded(ends[0]..ends[1])).collect()
    })
}

/// Encodes rows as a Parquet file.
pub(crate) fn encoded(rows: std::ops::Range<i64>) -> Bytes {
    let batch = ranked(rows);
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(200)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap().into()
}

/// Path of a file of the dataset.
pub(crate) fn path_of(file: usize) -> Path {
    Path::from(format!("data/part-{file:03}.parquet"))
}

/// Number of files of the dataset.
pub(crate) fn file_count() -> usize {
    files().len()
}

/// A new store with the files of the dataset.
pub(crate) async fn new_store() -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    for (file, bytes) in files().iter().enumerate() {
        store.put(&path_of(file), bytes.clone().into()).await.unwrap();
    }
    store
}

/// Takes a snapshot of the dataset.
pub(crate) async fn reader(store: Arc<dyn ObjectStore>, config: forebay_storage::Config) -> Reader {
    let location = Location::with_store("memory://data", store, "data");
    let state = Location::with_store("memory://state", Arc::new(InMemory::new()), "state");
    let state = State::open(state, None, &config);
    let snapshot = take_snapshot("d", &location, &state, &config, |_, _| {}).await.unwrap();
    Reader::new(Arc::new(snapshot), location, &state, config)
}

/// A random request.
pub(crate) fn request(random: &mut fastrand::Rng) -> Train {
    let shuffle = match random.u32(..10) {
        0 => Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() },
        1 => Shuffle { global: Some(shuffle::Global {}), ..Shuffle::default() },
        _ => Shuffle {
            window_rows: Some([1, 300, 600, 1200][random.usize(..4)]),
            keep_block_order: random.u32(..5) == 0,
            ..Shuffle::default()
        },
    };
    let world_size = random.u64(1..=3);
    // A third of the requests has two partitions. Each view, and each part of the mixture, has rows of four blocks or more.
    let partitions = if shuffle.none.is_none() && random.u32(..3) == 0 { 2 } else { 1 };
    let order = Train {
        dataset: "d".into(),
        seed: random.u64(..3),
        batch_size: ([10, 50, 200, 700][random.usize(..4)] / world_size).next_multiple_of(partitions),
        world_size: Some(world_size),
        lanes: Some(random.u64(1..=2)),
        epochs: Some(random.u64(1..=2)),
        shuffle: Some(shuffle),
        ..Train::default()
    };
    if random.u32(..4) == 0 {
        let mixture = mixture(Train { batch_size: order.batch_size / 2 * 4, ..order });
        // A quarter of each batch is a multiple of two.
        let batch_size = mixture.batch_size.next_multiple_of(8);
        return if partitions > 1 {
            partitioned(partitions, Train { batch_size, ..mixture })
        } else {
            mixture
        };
    }
    let views = views();
    let (_, view, _) = &views[random.usize(..views.len())];
    let request = of(view, Train { remainder: v1::Remainder::Short.into(), ..order });
    // Packs cannot be combined with partitions.
    if partitions > 1 && request.max_pack_rows == 0 { partitioned(partitions, request) } else { request }
}

fn partitioned(partitions: u64, request: Train) -> Train {
    let shuffle = request.shuffle.map(|shuffle| Shuffle { partitions: Some(partitions), ..shuffle });
    Train { shuffle, ..request }
}

/// First row of the other dataset of a mixture.
const FIRST_MIXED: i64 = 1500;

/// A request that takes a quarter of each batch from the rows from [`FIRST_MIXED`] on, and the others from the rows before.
fn mixture(order: Train) -> Train {
    Train {
        filter: format!("id < {FIRST_MIXED}"),
        columns: ["id", "x", "name"].map(str::to_owned).to_vec(),
        mix: vec![Mixed {
            dataset: "d".into(),
            fraction: 0.25,
            filter: format!("id >= {FIRST_MIXED}"),
            ..Mixed::default()
        }],
        ..order
    }
}

/// Identity of a batch: its position and all of its bytes.
pub(crate) fn digest(metadata: &BatchMetadata, batch: &WireBatch) -> u64 {
    let place = xxh3_64(format!("{metadata:?}").as_bytes());
    xxh3_64(&[&place.to_le_bytes()[..], &batch.header[..], &batch.body.to_vec()].concat())
}

/// Digests of the batches of each rank and lane, rank-major, and the memory that the job needs in bytes.
pub(crate) struct Expected {
    pub(crate) streams: Vec<Vec<u64>>,
    pub(crate) window_bytes: u64,
}

/// Returns what a request delivers without faults. Checks that every row is delivered once per epoch.
pub(crate) fn expected(train: &Train) -> Arc<Expected> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Arc<Expected>>>> = OnceLock::new();
    let key = format!("{train:?}");
    if let Some(known) = KNOWN.get_or_init(Mutex::default).lock().unwrap().get(&key) {
        return Arc::clone(known);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let made = Arc::new(runtime.block_on(without_faults(train)));
    KNOWN.get_or_init(Mutex::default).lock().unwrap().insert(key, Arc::clone(&made));
    made
}

async fn without_faults(train: &Train) -> Expected {
    let reader = reader(new_store().await, forebay_storage::Config::default()).await;
    let loader = Loader::new(1 << 30, Config::default(), Pool::simulated(1, || Duration::ZERO));
    let job = loader.job(train.clone(), reader.clone(), vec![reader; train.mix.len()]).await.unwrap();
    let (mut streams, mut ids) = (Vec::new(), Vec::new());
    for (rank, lane) in job.endpoints(None, None) {
        let (mut batches, mut digests) = (loader.batches(Arc::clone(&job), rank, lane), Vec::new());
        while let Some(batch) = batches.next().await {
            let (metadata, batch) = batch.unwrap();
            digests.push(digest(&metadata, &batch));
            let at = (metadata.epoch, metadata.step, metadata.rank);
            ids.push((at, ids_of(&metadata, &batch, &job)));
        }
        streams.push(digests);
    }
    ids.sort_unstable();
    match train.mix.is_empty() {
        true => check_rows(&job, &ids),
        false => check_mixture(&job, &ids),
    }
    // A loader with almost no memory says what the job needs.
    let tiny = Loader::new(1, Config::default(), Pool::simulated(1, || Duration::ZERO));
    let Err(Error::TooLarge { needed: window_bytes, .. }) = tiny.admit(&job) else {
        return Expected { streams, window_bytes: 1 };
    };
    Expected { streams, window_bytes }
}

/// Ids of a batch, with its epoch, step and rank.
type BatchIds = ((u64, u64, u64), Vec<i64>);

/// Checks that each epoch has each kept row once.
fn check_rows(job: &Job, ids: &[BatchIds]) {
    for epoch in 0..job.train().epochs.unwrap_or(1) {
        assert_eq!(different(of_epoch(ids, epoch)), job.epoch_rows(), "rows of epoch {epoch}");
    }
}

/// Ids of the rows of an epoch, in the order of the global batches.
fn of_epoch(ids: &[BatchIds], epoch: u64) -> impl Iterator<Item = i64> {
    ids.iter().filter(move |((of, ..), _)| *of == epoch).flat_map(|(_, ids)| ids.iter().copied())
}

/// Number of ids, which have to be different.
fn different(ids: impl Iterator<Item = i64>) -> u64 {
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|ids| ids[0] < ids[1]), "a row was delivered twice");
    ids.len() as u64
}

/// Checks that each epoch of a mixture has a whole number of steps of different rows of its own dataset, and that no row of the
/// other dataset repeats before all rows of its partition were delivered.
fn check_mixture(job: &Job, ids: &[BatchIds]) {
    let train = job.train();
    let per_step = train.batch_size * train.world_size.unwrap_or(1);
    for epoch in 0..train.epochs.unwrap_or(1) {
        let own = different(of_epoch(ids, epoch).filter(|id| *id < FIRST_MIXED));
        assert_eq!(own, job.steps() * per_step / 4 * 3, "rows of the own dataset in epoch {epoch}");
    }
    let mixed: Vec<i64> =
        ids.iter().flat_map(|(_, ids)| ids).copied().filter(|id| *id >= FIRST_MIXED).collect();
    let mut times = vec![0_u64; (ROWS - FIRST_MIXED) as usize];
    mixed.iter().for_each(|id| times[(id - FIRST_MIXED) as usize] += 1);
    assert_eq!(mixed.len() as u64, train.epochs.unwrap_or(1) * job.steps() * per_step / 4);
    let partitions = train.shuffle.and_then(|shuffle| shuffle.partitions).unwrap_or(1);
    let (rows, taken) = (times.len() as u64, mixed.len() as u64 / partitions);
    times.sort_unstable();
    let is_in_turn = match partitions {
        1 => times == in_turn(taken, rows),
        // The test does not know which rows are in which partition, only that there are two.
        _ => (1..rows).any(|first| {
            let mut expected = [in_turn(taken, first), in_turn(taken, rows - first)].concat();
            expected.sort_unstable();
            times == expected
        }),
    };
    assert!(is_in_turn, "rows of the other dataset were delivered {times:?} times");
    if partitions == 1 {
        let rounds = mixed.chunks(rows as usize).map(|round| different(round.iter().copied()));
        assert_eq!(rounds.sum::<u64>(), mixed.len() as u64);
    }
}

/// Number of deliveries of each of `rows` rows if `taken` rows are taken in rounds, in ascending order.
fn in_turn(taken: u64, rows: u64) -> Vec<u64> {
    (0..rows).map(|row| taken / rows + u64::from(row >= rows - taken % rows)).collect()
}
