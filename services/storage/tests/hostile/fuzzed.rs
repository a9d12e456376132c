//! Properties of the fuzz targets, checked for the inputs of their corpora.

use std::{fs, path::Path};

use arrow_array::{
    Array, BinaryArray, Date32Array, Decimal128Array, Decimal256Array, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float16Array, Float32Array, Float64Array, Int8Array, Int64Array, LargeStringArray,
    MapArray, NullArray, Time64MicrosecondArray, TimestampNanosecondArray, UInt64Array,
    builder::{Int32Builder, MapBuilder, StringBuilder},
    types::{Int8Type, Int32Type},
};
use arrow_buffer::i256;
use parquet::{
    basic::{BrotliLevel, GzipLevel},
    schema::types::ColumnPath,
};

use super::*;

#[allow(dead_code, reason = "the fuzz target has another entry")]
#[path = "../../../../fuzz/properties/parquet.rs"]
mod file;
#[path = "../../../../fuzz/properties/partition_paths.rs"]
mod partition_paths;
#[path = "../../../../fuzz/properties/replay.rs"]
pub(crate) mod replay;

/// Memory of [`file::read`], whose blocks have at most 4 MiB: what several batches and statistics at once take.
const FILE_BOUNDS: memory::Bounds = memory::Bounds { largest: 16 * MIB, total: 32 * MIB };

/// Checks the property of Parquet files, and the memory that it takes.
pub(crate) fn check_within_bounds(data: &[u8]) {
    silence_decoder_panics();
    if let Err(error) = memory::run_within(FILE_BOUNDS, file::read(data)) {
        // The store does not fail, so that only a panic makes the file unavailable.
        assert!(!matches!(error, Error::Unavailable { .. }), "{error}");
    }
}

#[test]
fn files_of_the_fuzzer_are_rows_or_an_error() {
    replay::replay("parquet", 30, check_within_bounds);
}

/// The nulls in the statistics of this file of 883 bytes took 512 MiB.
#[tokio::test]
async fn a_type_with_larger_values_than_a_block_is_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/parquet/found-long-fixed-list");
    let error = file::read(&fs::read(path).unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("size of one value in bytes (max_block_bytes) is 276824073"), "{error}");
}

#[test]
fn paths_of_the_fuzzer_are_a_dataset_or_an_error() {
    replay::replay("partition_paths", 40, partition_paths::check);
}

/// A batch of 6 rows with columns of most types.
fn all_types() -> RecordBatch {
    let words = [Some("a"), None, Some("bb"), Some("a"), Some(""), Some("a longer word")];
    let numbers = [Some(1_i64), None, Some(-3), Some(i64::MAX), Some(i64::MIN), Some(6)];
    let floats = [Some(0.5), None, Some(f64::NAN), Some(-0.0), Some(f64::INFINITY), Some(1e-300)];
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in 0..6_i32 {
        for entry in 0..row % 3 {
            map.keys().append_value(format!("k{entry}"));
            map.values().append_option((entry > 0).then_some(row));
        }
        map.append(row != 4).unwrap();
    }
    let map: MapArray = map.finish();
    let list =
        ListArray::from_iter_primitive::<Int32Type, _, _>((0..6).map(|row| {
            (row != 2).then(|| (0..row).map(|item| (item != 1).then_some(item)).collect::<Vec<_>>())
        }));
    let lists = ListArray::new(
        Arc::new(Field::new("item", list.data_type().clone(), true)),
        OffsetBuffer::from_lengths([1, 0, 2, 0, 0, 3]),
        Arc::new(list.clone()),
        None,
    );
    let fixed_list = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..6).map(|row| (row != 3).then(|| vec![Some(row), None])),
        2,
    );
    let fixed_binary = FixedSizeBinaryArray::try_from_sparse_iter_with_size(
        (0..6_u8).map(|row| (row != 1).then_some([row; 5])),
        5,
    );
    let small = |row: i64| (row != 4).then_some(row);
    let dictionary: DictionaryArray<Int8Type> = words.into_iter().collect();
    batch([
        ("i64", Arc::new(Int64Array::from_iter(numbers)) as ArrayRef),
        (
            "u64",
            Arc::new(
                numbers.map(|value| value.map(|value| value as u64)).into_iter().collect::<UInt64Array>(),
            ),
        ),
        ("i8", Arc::new((0..6).map(|row| small(row).map(|row| row as i8)).collect::<Int8Array>())),
        ("f16", Arc::new(Float16Array::from_iter(vec![None; 6]))),
        (
            "f32",
            Arc::new(
                floats.map(|value| value.map(|value| value as f32)).into_iter().collect::<Float32Array>(),
            ),
        ),
        ("f64", Arc::new(Float64Array::from_iter(floats))),
        ("bool", Arc::new((0..6).map(|row| small(row).map(|row| row % 2 == 0)).collect::<BooleanArray>())),
        ("text", Arc::new(words.into_iter().collect::<StringArray>())),
        ("large_text", Arc::new(words.into_iter().collect::<LargeStringArray>())),
        ("binary", Arc::new(words.map(|word| word.map(str::as_bytes)).into_iter().collect::<BinaryArray>())),
        ("fixed_binary", Arc::new(fixed_binary.unwrap())),
        ("dictionary", Arc::new(dictionary)),
        ("decimal128", Arc::new((0..6).map(|row| small(row).map(i128::from)).collect::<Decimal128Array>())),
        (
            "decimal256",
            Arc::new(
                (0..6)
                    .map(|row| small(row).map(|row| i256::from_i128(row.into())))
                    .collect::<Decimal256Array>(),
            ),
        ),
        ("date", Arc::new((0..6).map(|row| small(row).map(|row| row as i32)).collect::<Date32Array>())),
        ("time", Arc::new((0..6).map(small).collect::<Time64MicrosecondArray>())),
        (
            "timestamp",
            Arc::new((0..6).map(small).collect::<TimestampNanosecondArray>().with_timezone("+01:00")),
        ),
        ("list", Arc::new(list)),
        ("lists", Arc::new(lists)),
        ("fixed_list", Arc::new(fixed_list)),
        ("map", Arc::new(map)),
        ("null", Arc::new(NullArray::new(6))),
    ])
}

/// Writes the inputs that fuzzing begins with.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_corpora() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = fuzz.join("corpus").join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
    };
    for (number, sample) in samples().iter().enumerate() {
        write("parquet", &format!("sample-{number}"), sample);
    }
    let all = all_types();
    let plain =
        || WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(4));
    // One column a file keeps the files small, and their bytes worth changing.
    for (position, field) in all.schema().fields().iter().enumerate() {
        let one = all.project(&[position]).unwrap();
        let properties = plain().set_bloom_filter_enabled(true).set_bloom_filter_max_ndv(8).build();
        write("parquet", &format!("type-{}", field.name()), &parquet_bytes(&one, Some(properties)));
    }
    let codecs = [
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("lz4", Compression::LZ4),
        ("lz4-raw", Compression::LZ4_RAW),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
        ("snappy", Compression::SNAPPY),
    ];
    let text = batch([("s", strings(std::iter::repeat_n("compressible", 20)))]);
    for (name, codec) in codecs {
        for (version, writer) in [(1, WriterVersion::PARQUET_1_0), (2, WriterVersion::PARQUET_2_0)] {
            let properties = plain().set_compression(codec).set_writer_version(writer).build();
            write("parquet", &format!("codec-{name}-{version}"), &parquet_bytes(&text, Some(properties)));
        }
    }
    let encodings = [
        ("f64", Encoding::BYTE_STREAM_SPLIT),
        ("i64", Encoding::DELTA_BINARY_PACKED),
        ("i64", Encoding::BYTE_STREAM_SPLIT),
        ("i8", Encoding::DELTA_BINARY_PACKED),
        ("text", Encoding::DELTA_BYTE_ARRAY),
        ("text", Encoding::DELTA_LENGTH_BYTE_ARRAY),
        ("fixed_binary", Encoding::DELTA_BYTE_ARRAY),
        ("fixed_binary", Encoding::BYTE_STREAM_SPLIT),
        ("bool", Encoding::RLE),
    ];
    for (column, encoding) in encodings {
        let position = all.schema().index_of(column).unwrap();
        let one = all.project(&[position]).unwrap();
        let properties = plain().set_writer_version(WriterVersion::PARQUET_2_0);
        let properties = properties.set_column_encoding(ColumnPath::from(column), encoding).build();
        write("parquet", &format!("encoding-{encoding}-{column}"), &parquet_bytes(&one, Some(properties)));
    }
    write("parquet", "no-rows", &parquet_bytes(&all.project(&[0, 7]).unwrap().slice(0, 0), None));
    write("parquet", "not-parquet", b"hello");

    let three_rows = parquet_bytes(&crate::common::rows([1, 2, 3]), None);
    fs::write(fuzz.join("properties/three_rows.parquet"), three_rows).unwrap();
    for (name, paths) in [
        ("file", "a.parquet\na.parquet"),
        ("folder", "data\ndata/a.parquet\ndata/b.parquet\ndata/sub/c.parquet"),
        ("integers", "\nyear=2024/month=01/a.parquet\nyear=2025/month=-2/b.parquet"),
        ("texts", "t\nt/k=v%20w/a.parquet\nt/k=__HIVE_DEFAULT_PARTITION__/a.parquet\nt/k=%C3%A9/a.parquet"),
        ("numbers", "\nk=00/a.parquet\nk=+1/b.parquet\nk=9223372036854775808/c.parquet"),
        ("refused", "\nk=1/k=2/a.parquet\nj=1/a.parquet\nk=%FF/a.parquet"),
        ("hidden", "\n_metadata\n.a.parquet\n_delta_log/0.json\na.parquet\na.PARQUET\nx.crc"),
        ("column", "\nx=1/a.parquet"),
        ("tables", "t\nt/metadata/v1.metadata.json\nt/a.parquet\n.hoodie/x"),
    ] {
        write("partition_paths", name, paths.as_bytes());
    }
}
