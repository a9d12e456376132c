use std::sync::Arc;

use arrow_array::{
    BooleanArray, Int32Array, ListArray, StringArray,
    types::{ArrowPrimitiveType, Int32Type},
};
use arrow_buffer::{NullBuffer, ScalarBuffer};

use super::*;

fn batch() -> RecordBatch {
    let lists = vec![Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(4)])];
    RecordBatch::try_from_iter([
        ("i", Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(-4)])) as ArrayRef),
        ("s", Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("xyz")]))),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
    ])
    .unwrap()
}

fn digest(batches: &[RecordBatch]) -> String {
    let mut digest = Digest::default();
    batches.iter().for_each(|batch| digest.update(batch));
    digest.finish()
}

#[test]
fn the_digest_does_not_depend_on_where_batches_are_cut() {
    let whole = digest(&[batch()]);
    for cut in 0..=4 {
        assert_eq!(digest(&[batch().slice(0, cut), batch().slice(cut, 4 - cut)]), whole, "{cut}");
    }
    assert_ne!(digest(&[batch().slice(0, 3)]), whole);
    assert_ne!(digest(&[batch(), batch()]), whole);
}

#[test]
fn what_lies_under_a_null_does_not_matter() {
    let nulls = NullBuffer::from(vec![true, false]);
    let array = |hidden: <Int32Type as ArrowPrimitiveType>::Native| {
        let values = ScalarBuffer::from(vec![1, hidden]);
        let array = Arc::new(Int32Array::new(values, Some(nulls.clone()))) as ArrayRef;
        digest(&[RecordBatch::try_from_iter([("i", array)]).unwrap()])
    };
    assert_eq!(array(0), array(7));
}

#[test]
fn the_documented_example_has_the_documented_digest() {
    assert_eq!(digest(&[batch()]), "db244c26f8e28430");
}
