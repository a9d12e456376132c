//! Damaged files of every codec, encoding and version, with dictionaries, page indexes, bloom filters and nesting.

use arrow_array::{
    FixedSizeBinaryArray, Float32Array, Float64Array, Int64Array, builder::FixedSizeBinaryBuilder,
};
use parquet::{
    basic::{BrotliLevel, GzipLevel},
    file::properties::EnabledStatistics,
};

use super::*;

/// Number of truncations and flipped bits of each file.
const CHANGES: usize = 10;
const VALUES: i32 = 40;

/// Values of each type, and the encodings that this type has. `RLE_DICTIONARY` stands for a dictionary.
fn values() -> Vec<(ArrayRef, Vec<Encoding>)> {
    let some = |value: i32| (value % 5 != 2).then_some(value % 11);
    let words: Vec<Option<String>> =
        (0..VALUES).map(|value| some(value).map(|word| format!("prefix {word}"))).collect();
    let fixed = || {
        let mut fixed = FixedSizeBinaryBuilder::new(5);
        for value in 0..VALUES {
            match some(value) {
                Some(value) => fixed.append_value([value as u8; 5]).unwrap(),
                None => fixed.append_null(),
            }
        }
        let fixed: FixedSizeBinaryArray = fixed.finish();
        fixed
    };
    let integers = [
        Encoding::PLAIN,
        Encoding::RLE_DICTIONARY,
        Encoding::DELTA_BINARY_PACKED,
        Encoding::BYTE_STREAM_SPLIT,
    ];
    let floats = [Encoding::PLAIN, Encoding::RLE_DICTIONARY, Encoding::BYTE_STREAM_SPLIT];
    let texts = [
        Encoding::PLAIN,
        Encoding::RLE_DICTIONARY,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ];
    let fixed_lengths =
        [Encoding::PLAIN, Encoding::RLE_DICTIONARY, Encoding::DELTA_BYTE_ARRAY, Encoding::BYTE_STREAM_SPLIT];
    let each = || (0..VALUES).map(some);
    let flags: BooleanArray = each().map(|value| value.map(|value| value % 3 == 0)).collect();
    let shorts: arrow_array::Int32Array = each().collect();
    let longs: Int64Array = each().map(|value| value.map(i64::from)).collect();
    let singles: Float32Array = each().map(|value| value.map(|value| value as f32)).collect();
    let doubles: Float64Array = each().map(|value| value.map(f64::from)).collect();
    vec![
        (Arc::new(flags), vec![Encoding::PLAIN, Encoding::RLE]),
        (Arc::new(shorts), integers.to_vec()),
        (Arc::new(longs), integers.to_vec()),
        (Arc::new(singles), floats.to_vec()),
        (Arc::new(doubles), floats.to_vec()),
        (Arc::new(words.into_iter().collect::<StringArray>()), texts.to_vec()),
        (Arc::new(fixed()), fixed_lengths.to_vec()),
    ]
}

/// The values as they are, in lists, and in lists of structs of lists.
fn shapes(values: ArrayRef) -> Vec<ArrayRef> {
    let list = |values: ArrayRef, lengths: &[usize]| -> ArrayRef {
        let lengths = lengths.iter().copied().cycle();
        let mut left = values.len();
        let lengths = lengths.map_while(|length| {
            let taken = length.min(left);
            let more = left > 0;
            left -= taken;
            more.then_some(taken)
        });
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None))
    };
    let lists = list(Arc::clone(&values), &[2, 0, 3, 1]);
    let field = Field::new("inner", lists.data_type().clone(), true);
    let structs: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![Arc::clone(&lists)], None));
    vec![values, lists, list(structs, &[1, 2, 0])]
}

fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ]
}

#[test]
fn damaged_files_of_every_codec_encoding_and_shape_are_rows_or_an_error() {
    for (values, encodings) in values() {
        for shape in shapes(values) {
            for encoding in &encodings {
                for (index, codec) in codecs().into_iter().enumerate() {
                    check(&shape, *encoding, codec, index % 2 == 0);
                }
            }
        }
    }
}

/// Writes the column to a file with several row groups and pages. Checks the file and damaged copies of it.
fn check(column: &ArrayRef, encoding: Encoding, codec: Compression, is_first_version: bool) {
    let version = if is_first_version { WriterVersion::PARQUET_1_0 } else { WriterVersion::PARQUET_2_0 };
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_bloom_filter_enabled(true)
        .set_bloom_filter_max_ndv(8)
        .set_max_row_group_row_count(Some(8))
        .set_data_page_row_count_limit(3)
        .set_write_batch_size(3);
    let properties = match encoding {
        Encoding::RLE_DICTIONARY => properties.set_dictionary_enabled(true),
        encoding => properties.set_dictionary_enabled(false).set_encoding(encoding),
    };
    let written = batch([("c", Arc::clone(column))]);
    let sound = parquet_bytes(&written, Some(properties.build()));
    let name = format!("{} in {encoding}, {codec}, {version:?}", column.data_type());
    assert_eq!(read(&sound).unwrap(), written, "{name}");
    fuzzed::replay::check_changes(&name, &sound, CHANGES, &fuzzed::check_within_bounds);
}
