//! Property of the fuzz target, checked for the inputs of its corpus.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, FixedSizeBinaryArray, Float64Array, Int8Array,
    Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray, TimestampMillisecondArray,
    UInt64Array, types::Int32Type,
};
use arrow_flight::FlightData;
use arrow_ipc::{
    reader::StreamReader,
    root_as_message,
    writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, StreamWriter},
};
use bytes::Bytes;

#[path = "../../../fuzz/properties/http_query.rs"]
mod http_query;
#[path = "../../../fuzz/properties/keys_ipc.rs"]
mod keys_ipc;
#[path = "../../../fuzz/properties/replay.rs"]
mod replay;
#[path = "../../../.ci/skips.rs"]
mod skips;

#[test]
fn keys_of_the_fuzzer_are_batches_or_an_error() {
    replay::replay("keys_ipc", 40, keys_ipc::check);
}

#[test]
fn http_requests_of_the_fuzzer_are_answered_or_rejected_with_a_reason() {
    replay::replay("http_query", 60, http_query::check);
}

#[test]
fn big_endian_keys_are_rejected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/keys_ipc");
    let messages = keys_ipc::messages(&fs::read(folder.join("found-big-endian")).unwrap());
    let (batches, error) = keys_ipc::check_messages(messages, 1 << 20);
    assert!(batches.is_empty());
    assert_eq!(
        error.unwrap(),
        "keys: big-endian batches are not supported; send them in little-endian order"
    );
}

/// Compares pairs of streams: a folder of streams that were written again, and the originals by the same numbers.
const COMPARE_WITH_PYARROW: &str = r#"
import pathlib, sys
import pyarrow.ipc

folder = pathlib.Path(sys.argv[1])
different = []
for written in sorted(folder.glob("*.written")):
    original = written.with_suffix(".original").read_text()
    ours, theirs = (pyarrow.ipc.open_stream(path).read_all() for path in (str(written), original))
    if not ours.equals(theirs):
        different.append(original)
sys.exit("\n".join(different) or 0)
"#;

/// ARROW_TEST_DATA is the folder `data` of a checkout of <https://github.com/apache/arrow-testing>, as in the tests of Arrow.
/// If ARROW_TEST_PYTHON is a Python with pyarrow, its reading of the same streams is compared, too.
#[test]
fn streams_of_arrow_testing_are_batches_or_an_error() {
    let Some(data) = env::var_os("ARROW_TEST_DATA") else {
        return skips::skip("ARROW_TEST_DATA is not set");
    };
    let folder = tempfile::tempdir().unwrap();
    let (mut read, mut rejected) = (0, 0);
    for path in files(&Path::new(&data).join("arrow-ipc-stream")) {
        let bytes = fs::read(&path).unwrap();
        let (batches, error) = keys_ipc::check_messages(stream_messages(&bytes), 1 << 20);
        let is_sound = path.extension().is_some_and(|extension| extension == "stream");
        if !is_sound {
            continue;
        }
        let name = path.display().to_string();
        if let Some(error) = error {
            let is_explained = match &name {
                name if name.contains("bigendian") => error.contains("big-endian"),
                name if name.contains("compression") => error.contains("send them uncompressed"),
                _ => error.contains("dictionary-encoded batches are not supported"),
            };
            assert!(is_explained, "{name}: {error}");
            rejected += 1;
            continue;
        }
        assert!(!name.contains("bigendian"), "{name}");
        let expected =
            StreamReader::try_new(&bytes[..], None).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        assert_eq!(batches, expected.unwrap(), "{name}");
        if let Some(first) = batches.first() {
            let written = fs::File::create(folder.path().join(format!("{read}.written"))).unwrap();
            let mut writer = StreamWriter::try_new(written, &first.schema()).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
            fs::write(folder.path().join(format!("{read}.original")), name).unwrap();
        }
        read += 1;
    }
    match env::var_os("ARROW_TEST_PYTHON") {
        None => skips::skip("ARROW_TEST_PYTHON is not set"),
        Some(python) => {
            let script = ["-c".as_ref(), COMPARE_WITH_PYARROW.as_ref(), folder.path().as_os_str()];
            let output = Command::new(python).args(script).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    eprintln!("{read} streams read, {rejected} rejected");
    assert!(read > 50, "only {read} streams were read");
}

#[test]
fn only_reasons_of_the_list_skip_a_test_if_skips_are_strict() {
    assert!(skips::is_allowed("ARROW_TEST_DATA is not set"));
    assert!(!skips::is_allowed("ARROW_TEST_DATA"));
    assert!(!skips::is_allowed("flights is unavailable"));
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    found.sort();
    found
}

/// Splits an IPC stream into messages, each a header and a body, up to the first malformed one.
fn stream_messages(mut bytes: &[u8]) -> Vec<(Bytes, Bytes)> {
    let mut messages = Vec::new();
    loop {
        // Streams before version 0.15 have no continuation marker.
        bytes = bytes.strip_prefix(&[0xff; 4]).unwrap_or(bytes);
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return messages };
        let Some((header, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
            return messages;
        };
        let Ok(message) = root_as_message(header) else { return messages };
        let body_length = usize::try_from(message.bodyLength()).unwrap_or(usize::MAX);
        let Some((body, rest)) = rest.split_at_checked(body_length) else { return messages };
        messages.push((Bytes::copy_from_slice(header), Bytes::copy_from_slice(body)));
        bytes = rest;
    }
}

/// Returns the messages of a stream of one batch, as in an input of the target.
fn input(batch: &RecordBatch, options: &IpcWriteOptions) -> Vec<u8> {
    let (generator, mut tracker) = (IpcDataGenerator::default(), DictionaryTracker::new(false));
    let schema = generator.schema_to_bytes_with_dictionary_tracker(&batch.schema(), &mut tracker, options);
    let (dictionaries, encoded) =
        generator.encode(batch, &mut tracker, options, &mut IpcWriteContext::default()).unwrap();
    let messages = [schema].into_iter().chain(dictionaries).chain([encoded]).map(FlightData::from);
    let message = |data: FlightData| {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_le_bytes();
        [&length(&data.data_header)[..], &length(&data.data_body), &data.data_header, &data.data_body]
            .concat()
    };
    messages.flat_map(message).collect()
}

/// Writes the inputs that fuzzing begins with.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/keys_ipc");
    fs::create_dir_all(&folder).unwrap();
    let words = [Some("ann"), None, Some("")];
    let numbers = [Some(1), None, Some(i64::MIN)];
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None, Some(vec![])]);
    let dictionary: arrow_array::DictionaryArray<arrow_array::types::Int8Type> = words.into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i64", Arc::new(Int64Array::from_iter(numbers))),
        ("i8", Arc::new(Int8Array::from(vec![1, -1, 0]))),
        ("u64", Arc::new(UInt64Array::from(vec![1, u64::MAX, 0]))),
        ("text", Arc::new(words.into_iter().collect::<StringArray>())),
        ("large", Arc::new(words.into_iter().collect::<LargeStringArray>())),
        ("binary", Arc::new(words.map(|word| word.map(str::as_bytes)).into_iter().collect::<BinaryArray>())),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_iter([[1, 2, 3], [0; 3], [255; 3]].into_iter()).unwrap()),
        ),
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("date", Arc::new(Date32Array::from(vec![Some(i32::MAX), None, Some(-1)]))),
        ("time", Arc::new(numbers.into_iter().collect::<TimestampMillisecondArray>())),
        (
            "zone",
            Arc::new(numbers.into_iter().collect::<TimestampMillisecondArray>().with_timezone("+01:00")),
        ),
        ("float", Arc::new(Float64Array::from(vec![1.5, f64::NAN, 0.0]))),
        ("list", Arc::new(list)),
        ("dictionary", Arc::new(dictionary)),
    ];
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
    let options = IpcWriteOptions::default();
    for (name, column) in &columns {
        let batch = RecordBatch::try_from_iter_with_nullable([(*name, Arc::clone(column), true)]).unwrap();
        write(name, input(&batch, &options));
    }
    let pair = columns.iter().take(4).map(|(name, column)| (*name, Arc::clone(column), true));
    let pair = RecordBatch::try_from_iter_with_nullable(pair).unwrap();
    write("several", input(&pair, &options));
    write("empty", input(&pair.slice(0, 0), &options));
}
