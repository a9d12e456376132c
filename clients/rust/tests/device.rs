//! The guarantees for consumers on a device: the host, a GPU, and the mock driver in `device/driver.c`, which executes the work of
//! a GPU late and in pieces.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.
#![cfg(feature = "cuda")]

mod common;

use std::{
    collections::HashSet,
    ffi::{c_long, c_void},
    process::Command,
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
    for count in [1, 3] {
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
            assert!(addresses.len() <= 3, "{} buffers for one batch in use", addresses.len());
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

    // A column that is not an array of plain values is an error. The other columns are available.
    let batch = training.next().await.unwrap().unwrap();
    assert_eq!(batch.names().collect::<Vec<_>>(), ["l_orderkey", "l_shipmode", "x"]);
    assert_eq!(batch.tensor("x").unwrap().shape, [1000, 3]);
    let error = batch.tensor("l_shipmode").unwrap_err().to_string();
    assert!(error.contains("'l_shipmode' is of type Utf8"), "{error}");
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
        Err(error) => return println!("skipped: {error}"),
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
fn a_stream_captures_a_graph() {
    let Some(mock) = std::env::var_os(MOCK) else {
        return println!("skipped: only the mock driver says which calls disturb a capture");
    };
    // SAFETY: the mock driver is loaded already, and its functions have these types.
    let (_library, capture, allocations) = unsafe {
        let library = libloading::Library::new(mock).unwrap();
        let capture = *library.get::<extern "C" fn(*mut c_void)>("driver_capture").unwrap();
        let allocations = *library.get::<extern "C" fn() -> c_long>("driver_allocations").unwrap();
        (library, capture, allocations)
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = TempDir::new().unwrap();
        let server = server(folder.path(), "cache").await;
        let expected = expected(&server).await;
        let mut consumer = OnCuda::new().unwrap();
        let mut training = start(&server, &consumer.device(), &request()).await;
        let first = training.next().await.unwrap().unwrap();
        consumer.take(&first);
        capture(consumer.stream as *mut c_void);
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
        assert!(allocations() > 0, "the memory of the first batch");
        capture(std::ptr::null_mut());
        while allocations() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(consumer.taken() == expected[..2]);
    });
}

#[test]
fn the_error_for_a_missing_device_contains_its_number() {
    let error = Device::cuda(999).unwrap_err().to_string();
    assert!(error.starts_with("no CUDA device 999: this machine has "), "{error}");
}
