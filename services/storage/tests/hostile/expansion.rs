//! Small files that would decode to large blocks.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int32Array, ListArray, RecordBatch, StringArray,
    StructArray, cast::AsArray, types::Float32Type,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use forebay_storage::Error;
use parquet::{
    basic::{Compression, Encoding},
    file::properties::{WriterProperties, WriterVersion},
};

use crate::{
    MIB,
    common::{batch, integers, parquet_bytes, strings},
    compressed,
    pages::{self, RawPage},
    read,
};

/// Asserts that a read failed at `max_block_bytes`, before the decoding of a column in row group 0.
#[track_caller]
fn assert_over_the_block_limit(outcome: Result<RecordBatch, Error>, column: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Limit { limit, .. } if limit == 16 * MIB as u64), "{error}");
    let place = format!("a.parquet (row group 0, column {column})");
    let message = error.to_string();
    assert!(message.contains(&place) && message.contains("max_block_bytes"), "{message}");
}

/// Schema of lists of strings.
fn lists(names: &[&str]) -> String {
    let list = |name: &&str| {
        format!("required group {name} (LIST) {{ repeated group list {{ required binary item (STRING); }} }}")
    };
    format!("message m {{ {} }}", names.iter().map(list).collect::<Vec<_>>().concat())
}

/// Pages of a column with one list, which refers `count` times to one string of 1 MiB.
fn repeated_string(count: u32) -> Vec<RawPage> {
    let word = pages::plain(&vec![b'x'; MIB]);
    let indices = [vec![1], pages::run(count, 0)].concat();
    vec![pages::dictionary(1, &word), pages::list(count, Encoding::RLE_DICTIONARY, &indices)]
}

/// Small files that would decode to about 100 MiB, or claim less than they decompress to, by name.
pub(crate) fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("repeated-value", repeated_value()),
        ("repeated-prefix", repeated_prefix()),
        ("plain-values", plain_values()),
        ("decimals", decimals()),
        ("dictionaries", integer_columns(30, three_mib_dictionary)),
        ("pages", integer_columns(30, three_mib_page)),
        ("gzip-bomb", gzip_bomb()),
    ]
}

fn repeated_value() -> Vec<u8> {
    pages::file(&lists(&["l"]), pages::gzipped(), vec![repeated_string(100)])
}

/// One string of 1 MiB, of which the other values are prefixes.
fn repeated_prefix() -> Vec<u8> {
    let long = "x".repeat(MIB);
    parquet_bytes(&batch([("l", list_of(&[long.as_str(); 100]))]), Some(prefixes()))
}

fn plain_values() -> Vec<u8> {
    let long = "x".repeat(MIB);
    let properties = compressed().into_builder().set_dictionary_enabled(false).build();
    parquet_bytes(&batch([("s", strings([long.as_str(); 100]))]), Some(properties))
}

#[test]
fn one_row_that_repeats_a_long_value_is_stopped_before_it_is_decoded() {
    let bytes = repeated_value();
    assert!(bytes.len() < 4 << 10);
    assert_over_the_block_limit(read(&bytes), "l.list.item");
    let bytes = pages::file(&lists(&["l"]), pages::gzipped(), vec![repeated_string(10)]);
    assert_eq!(read(&bytes).unwrap().column(0).as_list::<i32>().value_length(0), 10);
}

#[test]
fn long_values_of_all_columns_of_a_row_are_counted_together() {
    let columns = vec![repeated_string(10), repeated_string(10)];
    let bytes = pages::file(&lists(&["a", "b"]), pages::gzipped(), columns);
    assert_over_the_block_limit(read(&bytes), "b.list.item");
}

#[test]
fn one_row_that_repeats_a_long_prefix_is_stopped_before_it_is_decoded() {
    let bytes = repeated_prefix();
    assert!(bytes.len() < MIB / 10);
    assert_over_the_block_limit(read(&bytes), "l.list.item");
}

#[test]
fn lists_of_many_short_values_and_one_long_value_are_read() {
    let long = "x".repeat(100_000);
    let short: Vec<String> = (0..2000).map(|value| format!("{:05}", value % 300)).collect();
    let words: Vec<&str> = short.iter().map(String::as_str).chain([long.as_str()]).collect();
    let written = batch([("l", list_of(&words))]);
    for properties in [compressed(), prefixes()] {
        assert_eq!(read(&parquet_bytes(&written, Some(properties))).unwrap(), written);
    }
}

#[test]
fn long_plain_values_are_stopped_before_they_are_decoded() {
    assert_over_the_block_limit(read(&plain_values()), "s");
}

#[test]
fn an_uncompressed_dictionary_counts_whatever_its_header_claims() {
    let word = pages::plain(&vec![b'x'; MIB]);
    let indices = [vec![1], pages::run(100, 0)].concat();
    let columns = vec![pages::stored_dictionary(1, &word, 4), pages::stored_list(100, &indices)];
    let bytes = pages::file(&lists(&["l"]), Compression::UNCOMPRESSED, vec![columns]);
    assert_over_the_block_limit(read(&bytes), "l.list.item");
}

/// 1,000 null lists of 64 KiB.
fn null_lists() -> FixedSizeListArray {
    FixedSizeListArray::new_null(Arc::new(Field::new("item", DataType::Int8, true)), 64 << 10, 1000)
}

/// Embeddings of 4,096 numbers, of which one in ten is present.
fn embeddings(count: usize) -> FixedSizeListArray {
    let embedding = |row: usize| row.is_multiple_of(10).then(|| vec![Some(row as f32); 4096]);
    FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>((0..count).map(embedding), 4096)
}

/// Lists of the given lengths.
fn lists_of(lengths: &[usize], values: ArrayRef) -> ArrayRef {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths.iter().copied()), values, None))
}

#[test]
fn null_fixed_size_lists_count_with_all_their_items() {
    let bytes = parquet_bytes(&batch([("f", Arc::new(null_lists()) as ArrayRef)]), Some(compressed()));
    assert!(bytes.len() < 4 << 10);
    assert_over_the_block_limit(read(&bytes), "f.list.item");
}

#[test]
fn one_row_of_many_null_fixed_size_lists_is_stopped_before_it_is_decoded() {
    let lists = lists_of(&[1000], Arc::new(null_lists()));
    let bytes = parquet_bytes(&batch([("l", lists)]), Some(compressed()));
    assert!(bytes.len() < 4 << 10);
    assert_over_the_block_limit(read(&bytes), "l.list.item.list.item");
}

#[test]
fn a_fixed_size_list_longer_than_a_block_is_refused_at_any_depth() {
    let item = Arc::new(Field::new("item", DataType::Int8, true));
    let values = FixedSizeListArray::new_null(item, 17 * MIB as i32, 1);
    let bytes = parquet_bytes(&batch([("l", lists_of(&[1], Arc::new(values)))]), Some(compressed()));
    let message = read(&bytes).unwrap_err().to_string();
    assert!(message.contains("size of one value in bytes (max_block_bytes)"), "{message}");
}

#[test]
fn embeddings_that_are_mostly_null_are_read() {
    let flat = batch([("e", Arc::new(embeddings(500)) as ArrayRef)]);
    assert_eq!(read(&parquet_bytes(&flat, Some(compressed()))).unwrap(), flat);
    let lists = batch([("l", lists_of(&[100, 0, 50, 50], Arc::new(embeddings(200))))]);
    assert_eq!(read(&parquet_bytes(&lists, Some(compressed()))).unwrap(), lists);
}

#[test]
fn fixed_size_lists_that_contain_other_lists_are_read_within_the_block_limit() {
    // 100 rows of 4 structs, each with an embedding of 768 numbers (1.2 MB in all) and a list.
    let numbers = Arc::new(Float32Array::from_iter_values((0..100 * 4 * 768).map(|value| value as f32)));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let embeddings: ArrayRef = Arc::new(FixedSizeListArray::new(item, 768, numbers, None));
    let tags = lists_of(&[2; 400], Arc::new(Int32Array::from_iter_values(0..800)));
    let fields = [("embedding", &embeddings), ("tags", &tags)]
        .map(|(name, column)| Field::new(name, column.data_type().clone(), true));
    let structs: ArrayRef =
        Arc::new(StructArray::new(fields.into_iter().collect(), vec![Arc::clone(&embeddings), tags], None));
    let of_structs = |nulls: Option<NullBuffer>| -> ArrayRef {
        let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
        Arc::new(FixedSizeListArray::new(item, 4, Arc::clone(&structs), nulls))
    };
    // 100 rows of two lists of two embeddings.
    let item = Arc::new(Field::new("item", lists_of(&[0], embeddings.slice(0, 0)).data_type().clone(), true));
    let of_lists: ArrayRef =
        Arc::new(FixedSizeListArray::new(item, 2, lists_of(&[2; 200], embeddings), None));
    let every_second = NullBuffer::from_iter((0..100).map(|row| row % 2 == 0));
    for column in [of_structs(None), of_structs(Some(every_second)), of_lists] {
        let written = batch([("f", column)]);
        let read = read(&parquet_bytes(&written, Some(compressed()))).unwrap();
        assert_eq!(read.num_rows(), 100);
    }
}

fn decimals() -> Vec<u8> {
    let word = pages::plain(&vec![0; MIB]);
    let indices = [vec![1], pages::run(100, 0)].concat();
    let columns = vec![pages::dictionary(1, &word), pages::list(100, Encoding::RLE_DICTIONARY, &indices)];
    let schema = lists(&["l"]).replace("STRING", "DECIMAL(10, 2)");
    pages::file(&schema, pages::gzipped(), vec![columns])
}

#[test]
fn long_decimals_are_stopped_before_they_are_decoded() {
    assert_over_the_block_limit(read(&decimals()), "l.list.item");
}

/// File of one row with `count` columns of integers, which have the same pages.
fn integer_columns(count: usize, pages: impl Fn() -> Vec<RawPage>) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|column| format!("required int32 c{column};")).collect();
    let schema = format!("message m {{ {} }}", names.concat());
    pages::file(&schema, pages::gzipped(), (0..count).map(|_| pages()).collect())
}

/// Pages of a column with one value, whose dictionary has 3 MiB.
fn three_mib_dictionary() -> Vec<RawPage> {
    let zeros = vec![0; 3 * MIB];
    let values = u32::try_from(zeros.len() / 4).unwrap();
    let indices = [vec![1], pages::run(1, 0)].concat();
    vec![pages::dictionary(values, &zeros), pages::data(1, Encoding::RLE_DICTIONARY, &indices)]
}

#[test]
fn dictionaries_of_all_columns_are_within_the_limit_together() {
    let bytes = integer_columns(100, three_mib_dictionary);
    assert!(bytes.len() < MIB);
    assert_over_the_block_limit(read(&bytes), "c5");
    assert_eq!(read(&integer_columns(5, three_mib_dictionary)).unwrap().num_rows(), 1);
}

/// A page of 3 MiB with one value, and bytes without a meaning.
fn three_mib_page() -> Vec<RawPage> {
    vec![pages::data(1, Encoding::PLAIN, &vec![0; 3 * MIB])]
}

#[test]
fn largest_pages_of_all_columns_are_within_the_limit_together() {
    assert_over_the_block_limit(read(&integer_columns(100, three_mib_page)), "c5");
    assert_eq!(read(&integer_columns(5, three_mib_page)).unwrap().num_rows(), 1);
}

/// File of one page that claims to decompress to 1 MiB.
fn claims_one_mib(codec: Compression, page: Bytes) -> Vec<u8> {
    let page = pages::compressed_data(1, Encoding::PLAIN, page, MIB);
    pages::file("message m { required int32 x; }", codec, vec![vec![page]])
}

fn gzip_bomb() -> Vec<u8> {
    claims_one_mib(pages::gzipped(), pages::gzip(&vec![0; 12 * MIB]))
}

/// Asserts that a page which claims 1 MiB is rejected before it is decompressed.
#[track_caller]
fn assert_decompresses_to_more(bytes: &[u8]) {
    let message = read(bytes).unwrap_err().to_string();
    let expected = format!("decompresses to more than the {MIB} bytes");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn a_gzip_page_that_exceeds_its_claimed_size_is_rejected() {
    let bytes = gzip_bomb();
    assert!(bytes.len() < 16 << 10);
    assert_decompresses_to_more(&bytes);
}

#[test]
fn an_lz4_frame_that_exceeds_its_claimed_size_is_rejected() {
    assert_decompresses_to_more(&claims_one_mib(Compression::LZ4, pages::lz4_frame(25)));
    let sound = pages::compressed_data(1, Encoding::PLAIN, pages::lz4_frame(1), 4 * MIB);
    let bytes = pages::file("message m { required int32 x; }", Compression::LZ4, vec![vec![sound]]);
    assert_eq!(read(&bytes).unwrap(), batch_of_zero());
}

fn batch_of_zero() -> RecordBatch {
    let field = Field::new("x", DataType::Int32, false);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![integers([0])]).unwrap()
}

/// A column of one list.
fn list_of(values: &[&str]) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Utf8, true));
    let values = Arc::new(StringArray::from_iter_values(values));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([values.len()]), values, None))
}

/// Properties of pages with `DELTA_BYTE_ARRAY` encoding.
fn prefixes() -> WriterProperties {
    let properties = compressed().into_builder().set_writer_version(WriterVersion::PARQUET_2_0);
    properties.set_dictionary_enabled(false).set_encoding(Encoding::DELTA_BYTE_ARRAY).build()
}
