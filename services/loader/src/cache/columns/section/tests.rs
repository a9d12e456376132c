use std::sync::Arc;

use arrow_array::{
    BooleanArray, Decimal128Array, Float32Array, Int64Array, ListArray, NullArray, StringArray, StructArray,
    types::Int32Type,
};
use arrow_schema::Field;

use super::*;

fn columns() -> Vec<ArrayRef> {
    let numbers = Int64Array::from(vec![Some(1), None, Some(3), Some(i64::MIN)]);
    let strings = StringArray::from(vec![Some("a"), Some(""), None, Some("määh")]);
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(4)]),
    ]);
    let parts = vec![
        (Arc::new(Field::new("n", DataType::Int64, true)), Arc::new(numbers.clone()) as ArrayRef),
        (Arc::new(Field::new("s", DataType::Utf8, true)), Arc::new(strings.clone()) as ArrayRef),
    ];
    vec![
        Arc::new(Float32Array::from(vec![1.0, f32::NAN, -0.0, 4.0])),
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)])),
        Arc::new(Decimal128Array::from(vec![1, 2, 3, -4])),
        Arc::new(NullArray::new(4)),
        Arc::new(StructArray::from(parts)),
        Arc::new(numbers),
        Arc::new(strings),
        Arc::new(lists),
    ]
}

fn bytes_of(parts: &[Bytes]) -> Buffer {
    let mut aligned = arrow_buffer::MutableBuffer::new(0);
    parts.iter().for_each(|part| aligned.extend_from_slice(part));
    aligned.into()
}

#[test]
fn a_whole_or_sliced_column_is_restored_from_its_section() {
    for column in columns() {
        let chunks = vec![column.clone(), column.slice(1, 3), column.slice(2, 1), column.slice(0, 0)];
        let section = bytes_of(&encode(&chunks));
        let found = decode(&section, column.data_type()).unwrap();
        assert_eq!(found, chunks, "{}", column.data_type());
    }
}

#[test]
fn damaged_bytes_and_other_types_are_rejected_without_a_panic() {
    for column in columns() {
        let section = bytes_of(&encode(std::slice::from_ref(&column)));
        for byte in 0..section.len().min(400) {
            let mut damaged = section.to_vec();
            for flip in [0x01, 0x80, 0xff] {
                damaged[byte] ^= flip;
                drop(decode(&bytes_of(&[damaged.clone().into()]), column.data_type()));
                damaged[byte] ^= flip;
            }
            drop(decode(&section.slice_with_length(0, byte), column.data_type()));
        }
    }
    let strings = bytes_of(&encode(&[Arc::new(StringArray::from(vec!["a"])) as ArrayRef]));
    assert!(decode(&strings, &DataType::Int64).is_none());
}
