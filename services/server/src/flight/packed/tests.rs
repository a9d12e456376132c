use std::sync::Arc;

use arrow_array::{
    BooleanArray, FixedSizeListArray, Float32Array, Int32Array, ListArray, NullArray, StringArray,
    types::{Float32Type, Int32Type},
};

use super::*;

fn packed_alone(column: impl Array + 'static) -> Result<PackedColumn, Error> {
    let column: ArrayRef = Arc::new(column);
    packed("x", &column, &Bytes::new())
}

#[test]
fn a_slice_of_the_body_is_shared_and_anything_else_is_copied() {
    let body = Bytes::from(vec![1, 2, 3, 4]);
    let inside = shared(&body, &body[1..3]);
    assert_eq!((inside.as_ref(), inside.as_ptr()), (&[2, 3][..], body[1..].as_ptr()));
    assert_eq!(shared(&body, &body[4..]).len(), 0);
    assert_eq!(shared(&body, &[9, 9, 9, 9, 9]).as_ref(), [9; 5]);
}

#[test]
fn nulls_are_zeros_or_empty_and_said_by_valid() {
    let bools = packed_alone(BooleanArray::from(vec![Some(true), None, Some(false)])).unwrap();
    assert_eq!(
        (bools.dtype.as_str(), bools.data.as_ref(), bools.valid.as_ref()),
        ("uint8", &[1, 0, 0][..], &[1, 0, 1][..])
    );
    let strings = packed_alone(StringArray::from(vec![Some("a"), None])).unwrap();
    assert_eq!((strings.values, strings.valid.as_ref()), (vec!["a".into(), Bytes::new()], &[1, 0][..]));
    let nulls = packed_alone(NullArray::new(2)).unwrap();
    assert_eq!((nulls.dtype.as_str(), nulls.shape, nulls.valid.as_ref()), ("null", vec![2], &[0, 0][..]));
    let numbers = packed_alone(Int32Array::from(vec![1, -1]).slice(1, 1)).unwrap();
    assert_eq!((numbers.data.as_ref(), numbers.valid.len()), (&[255; 4][..], 0));
}

#[test]
fn lists_of_one_length_are_a_matrix_unless_an_item_is_null() {
    let whole =
        FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.0), Some(2.0)]), None], 2);
    let column = packed_alone(whole).unwrap();
    assert_eq!((column.dtype.as_str(), column.shape), ("float32", vec![2, 2]));
    let expected: Vec<u8> = [1.0f32, 2.0, 0.0, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!((column.data.as_ref(), column.valid.as_ref()), (expected.as_slice(), &[1, 0][..]));
    let holed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.0), None])], 2);
    assert!(packed_alone(holed).unwrap_err().message().contains("'x' has a null inside of a list"));
}

#[test]
fn lists_of_any_length_are_refused_by_name() {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]);
    let rows = RecordBatch::try_from_iter([
        ("fine", Arc::new(Float32Array::from(vec![1.0])) as ArrayRef),
        ("lists", Arc::new(lists)),
    ]);
    let status = pack_columns(&rows.unwrap(), &Bytes::new()).unwrap_err();
    assert_eq!(status.grpc_code(), tonic::Code::InvalidArgument);
    for word in ["'lists'", "List", "DoGet", "DoExchange"] {
        assert!(status.message().contains(word), "{status}");
    }
}
