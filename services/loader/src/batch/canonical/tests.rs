use std::sync::Arc;

use arrow_array::{
    FixedSizeListArray, Int32Array, ListArray, NullArray, StringArray, StructArray, types::Int32Type,
};
use arrow_buffer::ScalarBuffer;
use arrow_schema::Field;

use super::*;

fn encode(array: impl Array + 'static) -> Encoded {
    Encoded::column(&(Arc::new(array) as ArrayRef)).unwrap()
}

fn int32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn without_a_null_there_is_no_validity_buffer() {
    let encoded = encode(Int32Array::from(vec![1, 2]));
    assert_eq!(encoded.nodes, [(2, 0)]);
    assert_eq!(encoded.buffers, [vec![], int32(&[1, 2])]);
}

#[test]
fn values_under_nulls_and_unused_bits_are_zero() {
    let nulls = NullBuffer::from(vec![true, false, true]);
    let encoded = encode(Int32Array::new(ScalarBuffer::from(vec![1, 99, 3]), Some(nulls.clone())));
    assert_eq!(encoded.buffers, [vec![0b101], int32(&[1, 0, 3])]);
    let encoded = encode(BooleanArray::new(BooleanBuffer::from(vec![true, true, true]), Some(nulls)));
    assert_eq!(encoded.buffers, [vec![0b101], vec![0b101]]);
}

#[test]
fn a_slice_is_encoded_like_a_separate_array() {
    let lists = vec![Some(vec![Some(1)]), Some(vec![Some(2), None]), None, Some(vec![Some(3)])];
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
    let (slice, alone) =
        (list.slice(1, 3), ListArray::from_iter_primitive::<Int32Type, _, _>(lists[1..].to_vec()));
    let (slice, alone) = (encode(slice), encode(alone));
    assert_eq!((&slice.nodes, &slice.buffers), (&alone.nodes, &alone.buffers));
    assert_eq!(slice.buffers[1], int32(&[0, 2, 2, 3]));
    let strings = StringArray::from(vec!["ab", "c", "def"]).slice(1, 2);
    assert_eq!(encode(strings).buffers, [vec![], int32(&[0, 1, 4]), b"cdef".to_vec()]);
}

#[test]
fn items_below_a_null_list_are_not_sent() {
    let offsets = OffsetBuffer::new(ScalarBuffer::from(vec![0, 2, 3]));
    let items: ArrayRef = Arc::new(Int32Array::from(vec![7, 8, 9]));
    let field = Arc::new(Field::new("item", DataType::Int32, true));
    let list = ListArray::new(field, offsets, items, Some(NullBuffer::from(vec![false, true])));
    let encoded = encode(list);
    assert_eq!(encoded.buffers, [vec![0b10], int32(&[0, 0, 1]), vec![], int32(&[9])]);
}

#[test]
fn nested_columns_are_laid_out_depth_first() {
    let field = Arc::new(Field::new("item", DataType::Int32, false));
    let pairs = FixedSizeListArray::new(field, 2, Arc::new(Int32Array::from(vec![1, 2, 3, 4])), None);
    let fields = vec![
        Arc::new(Field::new("n", DataType::Null, true)),
        Arc::new(Field::new("p", pairs.data_type().clone(), false)),
    ];
    let columns: Vec<ArrayRef> = vec![Arc::new(NullArray::new(2)), Arc::new(pairs)];
    let encoded = encode(StructArray::new(fields.into(), columns, None));
    assert_eq!(encoded.nodes, [(2, 0), (2, 2), (2, 0), (4, 0)]);
    assert_eq!(encoded.buffers, [vec![], vec![], vec![], int32(&[1, 2, 3, 4])]);
}
