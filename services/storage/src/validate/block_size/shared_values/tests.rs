use std::sync::Arc;

use arrow_array::{
    RecordBatch,
    builder::{ListBuilder, StringBuilder},
};
use bytes::Bytes;
use parquet::{
    arrow::ArrowWriter,
    file::{
        properties::{WriterProperties, WriterVersion},
        reader::{FileReader, SerializedFileReader},
    },
};
use proptest::prelude::*;

use super::*;

const NO_LIMIT: u64 = u64::MAX;

/// Lists of nullable strings.
type Lists = Vec<Option<Vec<Option<String>>>>;

fn file(lists: &Lists, properties: WriterProperties) -> Bytes {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for list in lists {
        match list {
            Some(list) => builder.append_value(list.iter().map(Option::as_ref)),
            None => builder.append_null(),
        }
    }
    let batch = RecordBatch::try_from_iter([("l", Arc::new(builder.finish()) as _)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

fn counted(file: Bytes, limit: u64) -> u64 {
    let reader = SerializedFileReader::new(file).unwrap();
    let pages = reader.get_row_group(0).unwrap().get_column_page_reader(0).unwrap();
    let column = reader.metadata().file_metadata().schema_descr().column(0);
    shared_bytes(pages, column.max_rep_level(), column.max_def_level(), limit).unwrap()
}

/// Properties with few values per page, either with a dictionary or with `DELTA_BYTE_ARRAY` pages.
fn properties(version: WriterVersion, has_dictionary: bool) -> WriterProperties {
    let properties =
        WriterProperties::builder().set_writer_version(version).set_data_page_row_count_limit(50);
    let properties = properties.set_write_batch_size(20).set_dictionary_enabled(has_dictionary);
    if has_dictionary {
        return properties.build();
    }
    properties.set_encoding(Encoding::DELTA_BYTE_ARRAY).build()
}

fn lists() -> impl Strategy<Value = Lists> {
    let string = prop_oneof!["[ab]{0,3}", "x{0,40}", "same", "same prefix [a-z]{0,9}"];
    let list = prop::collection::vec(prop::option::weighted(0.8, string), 0..6);
    prop::collection::vec(prop::option::weighted(0.9, list), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn values_are_counted_exactly(lists in lists(), has_dictionary: bool, is_second_version: bool) {
        let version =
            if is_second_version { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
        let expected: usize = lists.iter().flatten().flatten().flatten().map(String::len).sum();
        prop_assert_eq!(counted(file(&lists, properties(version, has_dictionary)), NO_LIMIT), expected as u64);
    }
}

#[test]
fn counting_ends_at_the_limit() {
    let lists = vec![Some(vec![Some("0123456789".to_owned())]); 1000];
    let file = file(&lists, properties(WriterVersion::PARQUET_1_0, true));
    let counted = counted(file, 50);
    assert!((51..2000).contains(&counted), "{counted}");
}

fn dictionary(lengths: &[u32]) -> Dictionary {
    let mut page = Vec::new();
    for length in lengths {
        page.extend(length.to_le_bytes());
        page.resize(page.len() + *length as usize, b'x');
    }
    Dictionary::new(&page)
}

#[test]
fn runs_and_groups_of_indices_are_counted_up_to_the_number_of_values() {
    let words = dictionary(&[1, 10, 100]);
    // Runs of 3 and 4 values, then a group of 8 indices: four of 0, 1, 2, 2 and 0.
    let indices = [2, 3 << 1, 2, 4 << 1, 1, 1 << 1 | 1, 0, 0b0010_1001];
    let groups = 4 + 10 + 100 + 100 + 1;
    assert_eq!(words.decoded_bytes(&indices, 15), 300 + 40 + groups);
    assert_eq!(words.decoded_bytes(&indices, 12), 300 + 40 + 4 + 10);
    assert_eq!(words.decoded_bytes(&indices, 2), 200);
    // Indices of 0 bits are all 0.
    assert_eq!(words.decoded_bytes(&[0, 5 << 1], 5), 5);
    assert_eq!(words.decoded_bytes(&[0, 2 << 1 | 1], 10), 10);
}

#[test]
fn only_levels_of_present_values_are_counted() {
    let levels = [3 << 1, 2, 1 << 1, 1, 4 << 1, 2];
    assert_eq!(present_values(&levels, 2, 8), 7);
    assert_eq!(present_values(&levels, 2, 5), 4);
    assert_eq!(present_values(&[], 0, 8), 8);
    // Malformed levels count as present values.
    assert_eq!(present_values(&[1 << 1, 1, 4 << 1], 2, 8), 7);
}

#[test]
fn the_unused_end_of_the_last_group_may_be_missing() {
    let words = dictionary(&[1, 10]);
    // Two groups of 8 indices of one bit, of which one is stored.
    let indices = [1, 2 << 1 | 1, 0b11];
    assert_eq!(words.decoded_bytes(&indices, 8), 2 * 10 + 6);
    assert_eq!(words.decoded_bytes(&indices, 9), 9 * 10);
}

#[test]
fn values_of_malformed_runs_count_as_the_longest() {
    let words = dictionary(&[1, 10, 100]);
    let too_long = [&[2, 1 << 1, 0][..], &[0xfe, 0xff, 0xff, 0xff, 0x7f]].concat();
    for malformed in [&[2, 1 << 1, 0, 5 << 1][..], &[2, 1 << 1, 0, 0x80], &too_long] {
        assert_eq!(words.decoded_bytes(malformed, 4), 1 + 3 * 100, "{malformed:?}");
    }
    assert_eq!(words.decoded_bytes(&[33, 5 << 1, 0, 0, 0, 0, 0], 4), 400);
    assert_eq!(words.decoded_bytes(&[8, 4 << 1, 77], 4), 400);
    // Too few runs, and padding.
    assert_eq!(words.decoded_bytes(&[2, 3 << 1, 0], 4), 3 + 100);
    assert_eq!(words.decoded_bytes(&[2, 3 << 1, 0, 0, 1 << 1, 0], 4), 3 + 100);
}

#[test]
fn a_value_that_exceeds_its_dictionary_is_not_counted() {
    let page = [&3_u32.to_le_bytes()[..], b"abc", &100_u32.to_le_bytes(), b"defg"].concat();
    assert_eq!(dictionary_lengths(&page).collect::<Vec<_>>(), [3]);
}
