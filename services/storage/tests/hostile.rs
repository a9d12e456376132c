//! Malicious and damaged files: an error, never a panic, an abort or a large allocation.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;
#[path = "hostile/encodings.rs"]
mod encodings;
#[path = "hostile/expansion.rs"]
mod expansion;
#[path = "hostile/fuzzed.rs"]
mod fuzzed;
#[path = "hostile/int96.rs"]
mod int96;
#[path = "hostile/memory.rs"]
mod memory;
#[path = "hostile/pages.rs"]
mod pages;
#[path = "hostile/written.rs"]
mod written;

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, ListArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Field;
use common::{batch, integers, parquet_bytes, read_all, store::TestStore, strings};
use forebay_storage::{Config, Error, Location, Reader, State, take_snapshot};
use object_store::memory::InMemory;
use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::{WriterProperties, WriterVersion},
};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn config() -> Config {
    Config { max_page_bytes: 4 * MIB as u64, max_block_bytes: 16 * MIB as u64, ..Config::default() }
}

/// Memory of [`read`]: the decoded block twice, because the batches are joined at the end, and its pages.
const BOUNDS: memory::Bounds = memory::Bounds { largest: 64 * MIB, total: 64 * MIB };

/// Takes a snapshot of a dataset of one file and reads it. Asserts that the memory does not exceed the limits by far.
#[track_caller]
fn read(file: &[u8]) -> Result<RecordBatch, Error> {
    silence_decoder_panics();
    memory::run_within(BOUNDS, async {
        let config = config();
        let store = TestStore::with(&[("a.parquet", file)]).await;
        let location = Location::with_store("mem://", store, "");
        let state = State::open(Location::with_store("mem://", Arc::new(InMemory::new()), ""), None, &config);
        let snapshot = Arc::new(take_snapshot("test", &location, &state, &config, |_, _| {}).await?);
        read_all(&Reader::new(snapshot, location, &state, config)).await
    })
}

/// Silences panics of the decoder, which are expected and caught.
fn silence_decoder_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_decoder = |file: &str| {
                ["parquet-", "arrow-", "bytes-", "/rustc/"].iter().any(|part| file.contains(part))
            };
            if !panic.location().is_some_and(|at| is_decoder(at.file())) {
                show(panic);
            }
        }));
    });
}

fn file(footer: &[u8]) -> Vec<u8> {
    let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [&b"PAR1"[..], &[0; 8], footer, &length, b"PAR1"].concat()
}

fn is_corrupt(bytes: &[u8]) -> bool {
    matches!(read(bytes), Err(Error::Corrupt { file, .. }) if file.ends_with("a.parquet"))
}

#[test]
fn counts_in_footers_are_checked() {
    let row_groups =
        [0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0x15, 0, 0, 0x16, 0, 0x19, 0xfc, 255, 255, 255, 255, 7, 0];
    let schema = [0x15, 2, 0x19, 0xfc, 255, 255, 255, 255, 7, 0];
    let children =
        [0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0x15, 254, 255, 255, 255, 15, 0, 0x16, 0, 0x19, 0x0c, 0];
    for footer in [&row_groups[..], &schema, &children] {
        assert!(is_corrupt(&file(footer)));
    }
}

#[test]
fn a_file_that_is_not_parquet_is_corrupt() {
    for bytes in [&b"x"[..], b"PAR1PAR1", b"PAR1\0\0\0\0PAR1", b"hello, this is a text file", &file(&[])] {
        assert!(is_corrupt(bytes), "{bytes:?}");
    }
    let mut overlapping = parquet_bytes(&sample(), None);
    let tail = overlapping.len() - 8;
    let claimed = u32::try_from(tail - 3).unwrap();
    overlapping[tail..tail + 4].copy_from_slice(&claimed.to_le_bytes());
    assert!(is_corrupt(&overlapping));
}

#[test]
fn encrypted_files_are_not_supported() {
    let mut bytes = parquet_bytes(&sample(), None);
    let tail = bytes.len() - 4;
    bytes[tail..].copy_from_slice(b"PARE");
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("encrypted"), "{error}");
}

#[test]
fn a_footer_over_the_limit_is_rejected() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let config = Config { max_footer_bytes: 100, ..Config::default() };
        let store = TestStore::with(&[("a.parquet", &parquet_bytes(&sample(), None))]).await;
        let location = Location::with_store("mem://", store, "");
        let state = State::open(Location::with_store("mem://", Arc::new(InMemory::new()), ""), None, &config);
        take_snapshot("test", &location, &state, &config, |_, _| {}).await
    });
    assert!(matches!(outcome, Err(Error::Limit { limit: 100, .. })));
}

#[test]
fn a_long_value_that_is_repeated_often_is_stopped_at_the_limit() {
    // One string of 1 MiB, which the dictionary page stores once.
    let long = "x".repeat(MIB);
    let column = StringArray::from_iter_values(std::iter::repeat_n(&long, 40));
    let bytes = parquet_bytes(&batch([("s", Arc::new(column) as ArrayRef)]), Some(compressed()));
    assert!(bytes.len() < MIB / 10);
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, Error::Limit { limit, .. } if limit == 16 * MIB as u64), "{error}");
}

#[test]
fn a_long_dictionary_of_short_values_is_read() {
    let words: Vec<String> = (0..20_000).map(|row| format!("{:030}", row % 9000)).collect();
    let written = batch([("s", strings(words.iter().map(String::as_str)))]);
    assert_eq!(read(&parquet_bytes(&written, Some(compressed()))).unwrap(), written);
}

#[test]
fn a_page_over_the_limit_is_rejected() {
    let long = "x".repeat(6 * MIB);
    let bytes = parquet_bytes(&batch([("s", strings([long.as_str()]))]), Some(compressed()));
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, Error::Limit { limit, .. } if limit == 4 * MIB as u64), "{error}");
}

#[test]
fn counts_in_pages_are_checked() {
    let words = strings(std::iter::repeat_n("same", 100));
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        let properties = WriterProperties::builder().set_writer_version(WriterVersion::PARQUET_2_0);
        let properties = properties.set_dictionary_enabled(false).set_encoding(encoding).build();
        let sound = parquet_bytes(&batch([("s", Arc::clone(&words))]), Some(properties));
        // Blocks of 128 values in 4 miniblocks, and 100 lengths; then the first value, and deltas of width 0.
        let header = [0x80, 1, 4, 100];
        let starts: Vec<usize> =
            (0..sound.len() - 8).filter(|start| sound[*start..].starts_with(&header)).collect();
        assert!(!starts.is_empty());
        for start in starts {
            let mut bytes = sound.clone();
            // 2^47 lengths, which cannot fit in the page.
            bytes[start + 3..start + 10].copy_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20]);
            assert!(is_corrupt(&bytes));
        }
    }
}

#[test]
fn fixed_width_values_over_the_limit_are_rejected_before_decoding() {
    let properties = WriterProperties::builder().set_max_row_group_row_count(None).build();
    let bytes = parquet_bytes(&batch([("x", integers(std::iter::repeat_n(1, 5 * MIB)))]), Some(properties));
    let error = read(&bytes);
    assert!(matches!(error, Err(Error::Limit { .. })), "{error:?}");
}

fn compressed() -> WriterProperties {
    let codec = Compression::ZSTD(ZstdLevel::default());
    WriterProperties::builder().set_compression(codec).set_dictionary_page_size_limit(8 * MIB).build()
}

/// A batch with dictionaries, plain strings, booleans, nulls and lists of structs.
fn sample() -> RecordBatch {
    let words = ["one", "two", "three", "two", "one", "four", "two", "one"];
    let structs = StructArray::new(
        vec![Field::new("n", arrow_schema::DataType::Int32, true)].into(),
        vec![integers(0..8)],
        None,
    );
    let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
    let list =
        ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1, 0, 3, 1, 1, 0]), Arc::new(structs), None);
    let flags =
        BooleanArray::from(vec![Some(true), None, Some(false), None, None, Some(true), Some(true), None]);
    batch([
        ("x", integers([1, 2, 3, 4, 5, 6, 7, 8])),
        ("s", strings(words)),
        ("b", Arc::new(flags) as ArrayRef),
        ("l", Arc::new(list)),
    ])
}

fn samples() -> Vec<Vec<u8>> {
    let build = |version, codec, dictionary| {
        let properties = WriterProperties::builder().set_writer_version(version).set_compression(codec);
        parquet_bytes(&sample(), Some(properties.set_dictionary_enabled(dictionary).build()))
    };
    vec![
        build(WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED, true),
        build(WriterVersion::PARQUET_2_0, Compression::SNAPPY, true),
        build(WriterVersion::PARQUET_2_0, Compression::UNCOMPRESSED, false),
    ]
}

#[test]
fn every_flipped_byte_results_in_rows_or_an_error() {
    for sound in samples() {
        assert_eq!(read(&sound).unwrap(), sample());
        for index in 0..sound.len() {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                let mut bytes = sound.clone();
                bytes[index] ^= flip;
                let _ = read(&bytes);
            }
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    for sound in samples() {
        for length in 0..sound.len() {
            assert!(read(&sound[..length]).is_err(), "{length}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]
    #[test]
    fn random_damage_results_in_rows_or_an_error(
        which in 0..3_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = samples().swap_remove(which);
        for (index, value) in damage {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        let _ = read(&bytes);
    }
}
