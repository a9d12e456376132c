use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, ListArray, StringArray, StringViewArray, types::Int64Type};
use arrow_schema::{Field, Schema};

use super::*;

#[test]
fn only_the_slice_counts_and_no_padding() {
    let numbers = Int64Array::from(vec![1, 2, 3]);
    assert_eq!(array_bytes(&numbers).expect("counted"), 24);
    assert_eq!(array_bytes(&numbers.slice(1, 1)).expect("counted"), 8);
    assert_eq!(
        array_bytes(&StringArray::from(vec!["ab", "", "cde"]).slice(1, 2)).expect("counted"),
        2 * 4 + 3
    );
}

#[test]
fn views_count_as_the_strings_that_are_delivered() {
    let words = ["a word of more than twelve bytes", "b"];
    let views = array_bytes(&StringViewArray::from_iter_values(words)).expect("counted");
    assert_eq!(views, array_bytes(&StringArray::from_iter_values(words)).expect("counted"));
}

#[test]
fn validity_counts_where_there_is_a_null() {
    assert_eq!(array_bytes(&Int64Array::from(vec![Some(1), None])).expect("counted"), 17);
}

#[test]
fn lists_count_their_items_and_offsets() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1)]),
        Some(vec![]),
        Some(vec![Some(2), Some(3)]),
    ]);
    assert_eq!(array_bytes(&lists).expect("counted"), 3 * 4 + 3 * 8);
    assert_eq!(array_bytes(&lists.slice(2, 1)).expect("counted"), 4 + 2 * 8);
}

#[test]
fn a_request_counts_what_it_names() {
    let column = || Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
    let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::Int64, true));
    let batch =
        RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), vec![column(), column(), column()])
            .expect("columns of one length");
    let mut sizes = Sizes { version: VERSION, rows: 0, columns: Vec::new() };
    sizes.add(&batch).expect("counted");
    let named = Request { columns: vec!["a".into(), "c".into()], ..Request::default() };
    assert_eq!(sizes.epoch_bytes(&named).expect("known columns"), 32);
    assert_eq!(sizes.epoch_bytes(&Request::default()).expect("all"), 48);
    let unknown = Request { columns: vec!["d".into()], ..Request::default() };
    sizes.epoch_bytes(&unknown).expect_err("an unknown column");
}
