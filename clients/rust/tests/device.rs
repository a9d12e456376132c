//! The guarantees for consumers on a device: the host, a GPU, and the mock driver in `device/driver.c`, which executes the work of
//! a GPU late and in pieces.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.
#![cfg(feature = "cuda")]

mod common;
#[path = "../../../.ci/skips.rs"]
mod skips;

use std::{
    collections::HashSet,
    ffi::{c_int, c_long, c_void},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow_array::cast::AsArray;
use common::{server, train};
use cudarc::driver::{result, sys};
use forebay::Server;
use forebay_client::{
    Client, Config, Device, DeviceBatch, Error, Place, Training,
    proto::v1::{Tensor, Train},
};
use tempfile::TempDir;

/// A consumer of batches.
trait Consumer {
    fn device(&self) -> Device;

    /// Starts to read the values of `x` and `l_orderkey` after its earlier work. Does not wait.
    fn take(&mut self, batch: &DeviceBatch);

    /// Waits for the reads and returns their values.
    fn taken(&mut self) -> Vec<Vec<u8>>;
}

const TAKEN: [&str; 2] = ["x", "l_orderkey"];
/// Values of `l_shipmode`.
const MODES: [&str; 7] = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"];

struct OnHost(Vec<Vec<u8>>);

impl Consumer for OnHost {
    fn device(&self) -> Device {
        Device::host()
    }

    fn take(&mut self, batch: &DeviceBatch) {
        self.0.extend(TAKEN.map(|name| batch.read(name).unwrap()));
    }

    fn taken(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0)
    }
}

/// A consumer with its own CUDA stream.
struct OnCuda {
    device: Device,
    context: usize,
    stream: usize,
    taken: Vec<Vec<u8>>,
}

impl OnCuda {
    fn new() -> Result<Self, Error> {
        let device = Device::cuda(0)?;
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(result::device::get(0).unwrap()) }.unwrap();
        // SAFETY: the context was retained above.
        unsafe { result::ctx::set_current(context) }.unwrap();
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        Ok(Self { device, context: context as usize, stream: stream as usize, taken: Vec::new() })
    }

    fn enter(&self) {
        // SAFETY: the context is retained until the drop.
        unsafe { result::ctx::set_current(self.context as sys::CUcontext) }.unwrap();
    }
}

impl Consumer for OnCuda {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn take(&mut self, batch: &DeviceBatch) {
        self.enter();
        let stream = self.stream as sys::CUstream;
        // SAFETY: the stream outlives the batches.
        unsafe { batch.ready_on(stream.cast()) }.unwrap();
        for name in TAKEN {
            let tensor = batch.tensor(name).unwrap();
            let mut values = vec![0_u8; tensor.len_bytes()];
            // SAFETY: `taken` keeps the memory at its address until the stream is synchronized.
            unsafe { result::memcpy_dtoh_async(&mut values, tensor.address, stream) }.unwrap();
            self.taken.push(values);
        }
    }

    fn taken(&mut self) -> Vec<Vec<u8>> {
        self.enter();
        // SAFETY: the stream lives until the drop.
        unsafe { result::stream::synchronize(self.stream as sys::CUstream) }.unwrap();
        std::mem::take(&mut self.taken)
    }
}

impl Drop for OnCuda {
    fn drop(&mut self) {
        self.enter();
        // SAFETY: neither is used after this.
        unsafe {
            result::stream::destroy(self.stream as sys::CUstream).unwrap();
            result::primary_ctx::release(result::device::get(0).unwrap()).unwrap();
        }
    }
}

fn request() -> Train {
    let x = Tensor {
        name: "x".into(),
        columns: vec!["l_quantity".into(), "l_discount".into(), "l_tax".into()],
        dtype: "float32".into(),
        ..Tensor::default()
    };
    let columns = vec!["l_orderkey".into(), "l_shipmode".into()];
    Train { tensors: vec![x], columns, ..train(1) }
}

async fn start(server: &Server, device: &Device, train: &Train) -> Training<DeviceBatch> {
    let client = Client::new([server.grpc().url()], Config::default()).unwrap();
    client.start_on(client.plan(train).await.unwrap(), device).unwrap()
}

/// Returns the values of batches in host memory.
async fn expected(server: &Server) -> Vec<Vec<u8>> {
    let client = Client::new([server.grpc().url()], Config::default()).unwrap();
    let mut training = client.train(&request()).await.unwrap();
    let mut expected = Vec::new();
    while let Some(batch) = training.next().await {
        let batch = batch.unwrap().record_batch().unwrap();
        let x = batch["x"].as_fixed_size_list().values().to_data();
        expected.push(x.buffers()[0].as_slice().to_vec());
        expected.push(batch["l_orderkey"].to_data().buffers()[0].as_slice().to_vec());
    }
    expected
}

/// Verifies each guarantee of a device.
async fn verify_guarantees(mut consumer: impl Consumer) {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path(), "cache").await;
    let (device, expected) = (consumer.device(), expected(&server).await);
    let lanes = |lanes| Train { lanes: Some(lanes), ..request() };

    // Batches have the same values as on the host, in order, and are overwritten only after the consumer's stream has read them.
    for (count, prefetch) in [(1, 1), (3, 1), (2, 4)] {
        let device = device.clone().with_prefetch(prefetch).unwrap();
        let mut training = start(&server, &device, &lanes(count)).await;
        let mut addresses = HashSet::new();
        while let Some(batch) = training.next().await {
            let batch = batch.unwrap();
            assert_eq!(batch.place(), device.place());
            addresses.insert(batch.tensor("l_orderkey").unwrap().address);
            consumer.take(&batch);
        }
        assert!(consumer.taken() == expected, "{count} lanes: other values than on the host");
        let stats = training.stats();
        assert_eq!((stats.batches * 2, stats.rows), (expected.len() as u64, training.plan().summary.rows));
        if device.place() != Place::Host {
            assert!(addresses.len() <= prefetch + 2, "{} buffers for one batch in use", addresses.len());
        }
    }

    // Kept batches stay valid after the training is dropped.
    let mut training = start(&server, &device, &request()).await;
    let mut kept = Vec::new();
    for _ in 0..12 {
        kept.push(training.next().await.unwrap().unwrap());
    }
    assert_eq!(training.cursor().step, 12);
    drop(training);
    for batch in &kept {
        consumer.take(batch);
    }
    let clones = kept.clone();
    drop(kept);
    assert!(consumer.taken() == expected[..24]);
    for (batch, expected) in clones.iter().zip(expected.chunks(2)) {
        assert!([batch.read("x").unwrap(), batch.read("l_orderkey").unwrap()] == *expected);
    }
    drop(clones);

    // Batches are ready for a consumer without a stream.
    let mut training = start(&server, &device, &request()).await;
    for expected in expected.chunks(2).take(5) {
        let batch = training.next().await.unwrap().unwrap();
        batch.ready_unordered().unwrap();
        assert!(batch.read("x").unwrap() == expected[0]);
    }

    // A column that is not an array of plain values is in host memory. The other columns are on the device.
    let batch = training.next().await.unwrap().unwrap();
    assert_eq!(batch.names().collect::<Vec<_>>(), ["l_orderkey", "l_shipmode", "x"]);
    assert_eq!(batch.tensor("x").unwrap().shape, [1000, 3]);
    let error = batch.tensor("l_shipmode").unwrap_err().to_string();
    assert!(error.contains("'l_shipmode' is of type Utf8"), "{error}");
    let shipmode = batch.on_host("l_shipmode").unwrap().unwrap();
    assert!(shipmode.as_string::<i32>().iter().all(|mode| MODES.contains(&mode.unwrap())));
    assert!(batch.on_host("x").unwrap().is_none() && batch.on_host("l_orderkey").unwrap().is_none());
    let error = batch.lists("x").unwrap_err().to_string();
    assert!(error.contains("'x' has one value per row, expected lists"), "{error}");
    let error = batch.tensor("y").unwrap_err().to_string();
    assert!(error.contains("no column 'y', expected one of l_orderkey, l_shipmode, x"), "{error}");

    // A training can be dropped at any time.
    drop((batch, training));
    for taken in 0..6 {
        let mut training = start(&server, &device, &lanes(2)).await;
        for _ in 0..taken {
            drop(training.next().await.unwrap().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_fulfils_the_guarantees_of_a_device() {
    verify_guarantees(OnHost(Vec::new())).await;
}

#[test]
fn a_gpu_fulfils_the_guarantees_of_a_device() {
    let consumer = match OnCuda::new() {
        Ok(consumer) => consumer,
        Err(error) => {
            println!("{error}");
            return skips::skip("no CUDA device on this machine");
        }
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(verify_guarantees(consumer));
}

/// Path of the mock driver, in the processes that use it.
const MOCK: &str = "FOREBAY_MOCK_DRIVER";

/// Runs a test of this file with the mock driver.
fn with_mock_driver(test: &str) {
    let folder = TempDir::new().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device/driver.c");
    let library = folder.path().join("libcuda.so");
    let flags = ["-shared", "-fPIC", "-O1", "-pthread", "-o"];
    let built = Command::new("cc").args(flags).arg(&library).arg(source).status().unwrap();
    assert!(built.success());
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env(MOCK, library)
        .output()
        .unwrap();
    let output =
        format!("{}{}", String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    assert!(again.status.success() && output.contains("1 passed") && !output.contains("skipped"), "{output}");
}

#[test]
fn the_guarantees_of_a_device_hold_with_a_slow_driver() {
    with_mock_driver("a_gpu_fulfils_the_guarantees_of_a_device");
}

#[test]
fn a_capture_of_a_graph_is_refused_by_name_and_not_disturbed() {
    with_mock_driver("a_stream_captures_a_graph");
}

#[test]
fn batches_are_copied_ahead_as_far_as_requested_with_a_slow_driver() {
    with_mock_driver("batches_are_copied_ahead_as_far_as_requested");
}

#[test]
fn released_memory_is_bounded_with_a_slow_driver() {
    with_mock_driver("released_memory_is_bounded");
}

#[test]
fn released_memory_is_bounded_during_a_capture_with_a_slow_driver() {
    with_mock_driver("released_memory_is_bounded_during_a_capture");
}

#[test]
fn pinned_batches_are_in_page_locked_memory_with_a_slow_driver() {
    with_mock_driver("pinned_batches_are_in_page_locked_memory");
}

/// Functions of the mock driver for the tests.
struct Mock {
    capture: extern "C" fn(*mut c_void),
    allocations: extern "C" fn() -> c_long,
    peak_allocations: extern "C" fn() -> c_long,
    hold_freeing: extern "C" fn(c_int),
    is_pinned: extern "C" fn(*const c_void, usize) -> c_int,
    _library: libloading::Library,
}

impl Mock {
    /// Returns `None` in a process that does not use the mock driver.
    fn load() -> Option<Self> {
        let Some(path) = std::env::var_os(MOCK) else {
            skips::skip("requires the mock driver");
            return None;
        };
        // SAFETY: the mock driver is loaded already, and its functions have these types.
        unsafe {
            let library = libloading::Library::new(path).unwrap();
            Some(Self {
                capture: *library.get(b"driver_capture").unwrap(),
                allocations: *library.get(b"driver_allocations").unwrap(),
                peak_allocations: *library.get(b"driver_peak_allocations").unwrap(),
                hold_freeing: *library.get(b"driver_hold_freeing").unwrap(),
                is_pinned: *library.get(b"driver_is_pinned").unwrap(),
                _library: library,
            })
        }
    }

    /// Waits until the number of allocations is `expected`.
    async fn wait_for_allocations(&self, expected: impl Fn(c_long) -> bool) {
        while !expected((self.allocations)()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Number of buffers that may wait to be freed when another one is allocated, as in `device/cuda/retire.rs`.
const MAX_WAITING: c_long = 32;

#[test]
fn batches_are_copied_ahead_as_far_as_requested() {
    let Some(mock) = Mock::load() else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let device = Device::cuda(0).unwrap();
        for refused in [0, 65] {
            let error = device.clone().with_prefetch(refused).unwrap_err().to_string();
            assert!(error.contains(&format!("is {refused}, expected 1 to 64")), "{error}");
        }
        // No batch is requested. Each copy has a buffer of its own.
        let mut training = start(&server, &device.with_prefetch(5).unwrap(), &request()).await;
        mock.wait_for_allocations(|allocations| allocations == 5).await;
        let kept = training.next().await.unwrap().unwrap();
        mock.wait_for_allocations(|allocations| allocations == 6).await;
        let mut count = 1;
        while let Some(batch) = training.next().await {
            batch.unwrap().ready_unordered().unwrap();
            count += 1;
        }
        assert_eq!(count, training.plan().batches());
        drop((kept, training));
    });
}

#[test]
fn released_memory_is_bounded() {
    let Some(mock) = Mock::load() else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let train = Train { epochs: Some(3), ..request() };
        let mut training = start(&server, &Device::cuda(0).unwrap(), &train).await;
        let batches = training.plan().batches();
        assert!(batches as c_long > 3 * MAX_WAITING);
        (mock.hold_freeing)(1);
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        let reader = tokio::spawn(async move {
            while let Some(batch) = training.next().await {
                // The memory of such a batch is not used again.
                batch.unwrap().ready_unordered().unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        mock.wait_for_allocations(|allocations| allocations >= MAX_WAITING).await;
        // No batch follows while none is freed. Without a bound, all of them would.
        let mut before = u64::MAX;
        while before != received.load(Ordering::Relaxed) {
            before = received.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(before < batches, "{before} batches");
        (mock.hold_freeing)(0);
        reader.await.unwrap();
        assert_eq!(received.load(Ordering::Relaxed), batches);
        // The batch in use, and one that was copied before the last one was released.
        let peak = (mock.peak_allocations)();
        assert!(peak <= MAX_WAITING + 2, "{peak} allocations");
        mock.wait_for_allocations(|allocations| allocations == 0).await;
    });
}

#[test]
fn released_memory_is_bounded_during_a_capture() {
    let Some(mock) = Mock::load() else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let consumer = OnCuda::new().unwrap();
        let train = Train { epochs: Some(3), ..request() };
        let mut training = start(&server, &consumer.device(), &train).await;
        (mock.capture)(consumer.stream as *mut c_void);
        let mut released = 0;
        let error = loop {
            match training.next().await.expect("the capture prevents the end of the training") {
                Ok(batch) => {
                    batch.ready_unordered().unwrap();
                    released += 1;
                }
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("batches were released while a stream captures a graph"), "{error}");
        assert!((MAX_WAITING..=MAX_WAITING + 2).contains(&released), "{released}");
        drop(training);
        (mock.capture)(std::ptr::null_mut());
        mock.wait_for_allocations(|allocations| allocations == 0).await;
    });
}

#[test]
fn pinned_batches_are_in_page_locked_memory() {
    let Some(mock) = Mock::load() else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let device = Device::cuda(0).unwrap();
        let client = Client::new([server.grpc().url()], Config::default()).unwrap();
        let plan = client.plan(&request()).await.unwrap();
        let trainings = [
            (client.start(plan.clone()).unwrap(), 0),
            (client.start_pinned(plan.clone(), &Device::host()).unwrap(), 0),
            (client.start_pinned(plan, &device).unwrap(), 1),
        ];
        for (mut training, is_pinned) in trainings {
            let mut kept = Vec::new();
            while let Some(batch) = training.next().await {
                let batch = batch.unwrap();
                let body = batch.body();
                assert_eq!((mock.is_pinned)(body.as_ptr().cast(), body.len()), is_pinned);
                if kept.len() < 3 {
                    kept.push(batch);
                }
            }
            let stats = training.stats();
            assert_eq!(stats.batches, training.plan().batches());
            drop(training);
            // Kept batches stay page-locked after the training is dropped.
            for batch in kept {
                let body = batch.body();
                assert_eq!((mock.is_pinned)(body.as_ptr().cast(), body.len()), is_pinned);
            }
        }
        // The mock driver verifies that nothing is page-locked when its last user is dropped.
        drop(device);
    });
}

#[test]
fn a_stream_captures_a_graph() {
    let Some(mock) = Mock::load() else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let expected = expected(&server).await;
        let mut consumer = OnCuda::new().unwrap();
        let mut training = start(&server, &consumer.device(), &request()).await;
        let first = training.next().await.unwrap().unwrap();
        consumer.take(&first);
        (mock.capture)(consumer.stream as *mut c_void);
        let second = training.next().await.unwrap().unwrap();
        // SAFETY: the stream outlives the batch.
        let refused = unsafe { second.ready_on(consumer.stream as *mut c_void) }.unwrap_err().to_string();
        assert!(refused.contains("cuda:0: the stream captures a graph"), "{refused}");
        // The memory of a batch that is dropped now may be a part of the graph. It is freed after the capture.
        drop(first);
        for _ in 0..5 {
            let batch = training.next().await.unwrap().unwrap();
            batch.ready_unordered().unwrap();
            drop(batch);
        }
        drop((second, training));
        assert!((mock.allocations)() > 0, "the memory of the first batch");
        (mock.capture)(std::ptr::null_mut());
        mock.wait_for_allocations(|allocations| allocations == 0).await;
        assert!(consumer.taken() == expected[..2]);
    });
}

#[test]
fn the_error_for_a_missing_device_contains_its_number() {
    let error = Device::cuda(999).unwrap_err().to_string();
    assert!(error.starts_with("no CUDA device 999: this machine has "), "{error}");
}
